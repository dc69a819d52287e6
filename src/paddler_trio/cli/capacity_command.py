"""``paddler-trio capacity``: would the fleet keep a time to the first token, and what would?"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.figures import NOTHING, duration, exact, rate, share
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.cli.terminal import (
    CANNOT_SAY,
    FAILED,
    one_line_errors,
    print_json,
    print_lines,
    printable,
    shown_width,
    stdout,
)
from paddler_trio.scheduler.capacity.capacity import Answer, Site

PATH: Final = "/api/v2/capacity"
ANSWER_S: Final = 50.0
"""A little more than the balancer computes at most."""
MIX_S: Final = 600.0
LEAST_OF_A_MIX, MOST_OF_A_MIX = 200, 2_000
_TIME: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m)")
_TIMES: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)x?")
_MORE: Final = re.compile(r"\+?(\d{1,9})")
MIX: Final = "A given mix instead of what came"


@attrs.frozen(kw_only=True)
class CapacityView(Answer):
    """The answer of the balancer.

    Args:
      span_s: from the first arrival to the last.
      measured_together: the most answers at a time that were measured.
    """

    span_s: float
    measured_together: float


@attrs.frozen(kw_only=True)
class Flags:
    """The question."""

    p95_ttft: Annotated[
        str | None,
        typer.Option(
            "--p95-ttft",
            metavar="TIME",
            help="The time in which 95 of 100 requests shall have their first token: 2s, 800ms.",
        ),
    ] = None
    at: Annotated[
        str, typer.Option("--at", metavar="TIMES", help="So many times the load: 1.5x.")
    ] = "1x"
    agents: Annotated[
        str, typer.Option("--agents", metavar="MORE", help="With so many more agents: +2.")
    ] = "+0"
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", min=1, max=256, help="Slots of each agent.", show_default="its own"
        ),
    ] = None
    deployment: Annotated[str, typer.Option("--deployment", help="Whose requests and agents.")] = (
        "default"
    )
    last: Annotated[
        str, typer.Option("--last", metavar="TIME", help="What came in the last 90s, 30m or 6h.")
    ] = "6h"
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write what came to this file, and end."),
    ] = None


@attrs.frozen(kw_only=True)
class MixFlags:
    """Arrivals that are given."""

    arrivals: Annotated[
        Path | None,
        typer.Option(
            "--arrivals",
            metavar="FILE",
            help="Arrivals that --export wrote; - for standard input.",
            rich_help_panel=MIX,
        ),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=0.001, max=1000.0, help="Requests a second.", rich_help_panel=MIX
        ),
    ] = None
    prompt_tokens: Annotated[
        int,
        typer.Option(
            "--prompt-tokens",
            min=1,
            max=500_000,
            help="Of a prompt, with --rate: from half to one and a half times as many.",
            rich_help_panel=MIX,
        ),
    ] = 500
    answer_tokens: Annotated[
        int,
        typer.Option(
            "--answer-tokens",
            min=1,
            max=500_000,
            help="Of an answer, with --rate: from half to one and a half times as many.",
            rich_help_panel=MIX,
        ),
    ] = 200

    def rows(self) -> list[Any] | None:
        """Return the arrivals; None if none are given."""
        if self.arrivals is None:
            return None if self.rate is None else list(_mix(self, self.rate))
        if self.rate is not None:
            raise typer.BadParameter("give one of them", param_hint="--arrivals / --rate")
        return _rows_in(self.arrivals)


@with_flags
def capacity(
    *,
    flags: Flags,
    mix: MixFlags,
    as_json: JsonOption = False,
    wide: WideOption = False,
    management: ManagementFlags,
) -> None:
    """Ask whether the fleet keeps a time to the first token: at more load, with other slots, with
    more agents.

    What came in the last hours, as times and lengths, is replayed in virtual time through what
    places requests and lets them wait, with the speeds that were measured of the agents. The exit
    code is 0 if the time is kept, 1 if it is not, and 2 if nothing can be said.
    """
    asked = None if flags.export is not None else _asked(flags, mix)
    with one_line_errors(CANNOT_SAY), ManagementClient.open(management) as client:
        if flags.export is not None:
            whose = {"deployment": flags.deployment, "last": flags.last}
            _write(flags.export, client.text(f"{PATH}/arrivals", whose))
        if asked is None:
            return
        raw = client.ask("POST", PATH, body=asked, answer_s=ANSWER_S)
        view = client.structured(raw, CapacityView)
        if as_json:
            print_json(raw)
        else:
            _show(view, asked, shown_width(wide=wide))
    raise typer.Exit(0 if view.replayed.holds else FAILED)


# ---------------------------------------------------------------------------------- what is asked


def _asked(flags: Flags, mix: MixFlags) -> dict[str, Any]:
    """Return the body of the question; typer.BadParameter."""
    if flags.p95_ttft is None:
        raise typer.BadParameter("give the time that shall be kept", param_hint="--p95-ttft")
    return {
        "p95_ttft_s": _seconds(flags.p95_ttft),
        "at": float(_match(_TIMES, flags.at, "--at", "such as 1.5x")[1]),
        "agents": int(_match(_MORE, flags.agents, "--agents", "such as +2")[1]),
        "slots": flags.slots,
        "deployment": flags.deployment,
        "last": flags.last,
        "arrivals": mix.rows(),
    }


def _match(pattern: re.Pattern[str], text: str, flag: str, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text[:40]!r}, must be a number {example}", param_hint=flag)
    return found


def _seconds(text: str) -> float:
    found = _match(_TIME, text, "--p95-ttft", "with its unit, such as 2s, 800ms or 1m")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[found[2]]


def _rows_in(file: Path) -> list[Any]:
    text = text_of_file(file, "--arrivals", may_be_stdin=True)
    try:
        found = json.loads(text)
        rows = found["rows"] if isinstance(found, dict) else found
    except (ValueError, KeyError, RecursionError) as error:
        raise typer.BadParameter(f"{file} has no rows: {error}", param_hint="--arrivals") from error
    if not isinstance(rows, list):
        raise typer.BadParameter(f"the rows of {file} are no list", param_hint="--arrivals")
    return rows


def _mix(mix: MixFlags, per_s: float) -> Iterator[list[float]]:
    """Yield requests at random times, the same for the same flags: ten minutes of them, but 200
    at least and 2,000 at most."""
    dice, at_s = random.Random(0), 0.0  # noqa: S311  # nothing is secret
    number = min(MOST_OF_A_MIX, max(LEAST_OF_A_MIX, round(per_s * MIX_S)))
    usual = mix.prompt_tokens, mix.answer_tokens
    for _ in range(number):
        at_s += dice.expovariate(per_s)
        lengths = (max(1, round(n * dice.uniform(0.5, 1.5))) for n in usual)
        yield [round(at_s, 4), *lengths]


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--export") from error


# ---------------------------------------------------------------------------------- what is shown


def _show(view: CapacityView, asked: dict[str, Any], width: int | None) -> None:
    print_lines(table(_columns(), view.sites, width))
    for line in _words(view, asked["p95_ttft_s"], asked["at"]):
        stdout().print(printable(line), markup=False, highlight=False)


def _columns() -> Sequence[Column[Site]]:
    def number(title: str, text: Callable[[Site], str], importance: int) -> Column[Site]:
        return Column(title, 0, text, importance=importance, is_right=True)

    return [
        Column("agent", 12, lambda site: site.name),
        number("slots", lambda site: str(site.slots), 0),
        number("prompt tok/s", lambda site: rate(site.speed.tokens_per_s), 1),
        number("tok/s of one", lambda site: rate(_tokens_per_s(site, 1)), 2),
        number("of each, all slots busy", lambda site: rate(_tokens_per_s(site, site.slots)), 2),
    ]


def _tokens_per_s(site: Site, together: int) -> float:
    """Return the tokens a second of one answer, of so many together."""
    return 1 / (site.speed.pass_s + together * site.speed.token_s)


def _words(view: CapacityView, target_s: float, at: float) -> Iterator[str]:
    found = view.replayed
    yield ""
    yield (
        f"{'holds' if found.holds else 'does not hold'}: TTFT p95 {_time(found.ttft_p95_s)} of "
        f"{_time(target_s)}, p50 {_time(found.ttft_p50_s)}, queue p95 {_time(found.queue_p95_s)}, "
        f"slots {share(found.busy)} busy"
    )
    yield (
        f"{found.requests} requests in {duration(1000 * view.span_s / at)} ({at:g}x), "
        f"{found.requests - found.answered} of them refused"
    )
    if found.breaks is not None:
        counts = ", ".join(f"{each} {number}" for each, number in found.breaks.counts.items())
        yield (
            f"breaks first: {found.breaks.kind}, after {duration(1000 * found.breaks.at_s)} "
            f"(late or refused: {counts})"
        )
    if found.holds:
        yield f"holds up to {view.at_that_holds or at:.3g}x"
    else:
        yield f"would hold: {_what_does(view)}"
    most = max(site.slots for site in view.sites)
    if max(most, view.slots_that_do or 0) > view.measured_together + 0.5:
        yield (
            f"measured with at most {view.measured_together:.1f} answers together; more are "
            "estimated"
        )
    if not view.is_whole:
        yield "not everything was tried: ask about a shorter time with --last"


def _what_does(view: CapacityView) -> str:
    ways = []
    if view.slots_that_do is not None:
        ways.append(f"{view.slots_that_do} slots of each agent")
    if view.agents_that_do is not None:
        ways.append(f"{view.agents_that_do} more agents")
    if view.at_that_holds is not None:
        ways.append(f"{view.at_that_holds:.3g}x of the load")
    return ", or ".join(ways) or "nothing that was tried"


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else exact(1000 * seconds)

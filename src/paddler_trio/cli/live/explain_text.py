"""A request's waterfall as text: each stage with its beginning, its length and a bar."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import attrs

from paddler_trio.cli.figures import count, exact, part_of, rate, sparkline
from paddler_trio.cli.live.request_views import (
    Clock,
    PlacementView,
    QueueStay,
    RequestDetail,
    RequestView,
)
from paddler_trio.cli.terminal import printable

POSITIONS_SHOWN: Final = 8


@attrs.frozen
class Stage:
    """``mark`` is what its bar is made of; ``depth`` 1 is a part of the stage before it.

    ``until_ms``: None for a moment instead of a time.
    """

    name: str
    since_ms: int
    until_ms: int | None
    note: str = ""
    mark: str = "█"
    depth: int = 0


def stages(request: RequestView, now_ms: int) -> list[Stage]:
    """Return the stages in the order in which they began; what still goes on ends ``now_ms``."""
    end_ms = now_ms if request.ended_ms is None else request.ended_ms
    found = [
        (stay.since_ms, 0, [_queue(stay, end_ms)])
        for stay in request.queue
        if stay.until_ms != stay.since_ms  # else a slot was free
    ]
    found += [
        (placement.at_ms, 1, [*_placement(request, placement, end_ms)])
        for placement in request.placements
    ]
    found.sort(key=lambda each: each[:2])
    return [stage for _, _, group in found for stage in group]


def _queue(stay: QueueStay, end_ms: int) -> Stage:
    positions = [str(pair[1]) for pair in stay.positions if len(pair) > 1]
    note = ""
    if len(positions) > POSITIONS_SHOWN:
        positions = [*positions[: POSITIONS_SHOWN - 2], "…", positions[-1]]
    if positions:
        note = f"{' → '.join(positions)} ahead of it"
    until_ms = end_ms if stay.until_ms is None else stay.until_ms
    return Stage("queue", stay.since_ms, until_ms, note, "░")


def _placement(request: RequestView, placement: PlacementView, end_ms: int) -> Iterator[Stage]:
    ended_ms = end_ms if placement.ended_ms is None else placement.ended_ms
    name = placement.agent
    if placement.lane is not None:
        name += f", slot {placement.lane}"
    yield Stage(name, placement.at_ms, ended_ms, placement.why, "─")
    prepared_ms = placement.prepared_ms
    if placement.template_ms is not None:
        template_end_ms = placement.at_ms + round(placement.template_ms)
        if prepared_ms is not None:
            template_end_ms = min(template_end_ms, prepared_ms)
        yield Stage("template", placement.at_ms, template_end_ms, "", "▒", 1)
    elif prepared_ms is not None:
        yield Stage("preparation", placement.at_ms, prepared_ms, "", "▒", 1)
    first_ms = placement.first_ms
    if first_ms is None:
        if prepared_ms is not None and placement.ended_ms is None:
            yield Stage("prefill", prepared_ms, ended_ms, "no result yet", "▓", 1)
        elif placement.ending is not None:
            yield Stage("ending", ended_ms, None, placement.ending, depth=1)
        return
    prefill_ms = None if placement.prefill_ms is None else round(placement.prefill_ms)
    if placement.wait_ms:
        wait_end_ms = first_ms - (prefill_ms or 0)
        wait_ms = round(placement.wait_ms)
        yield Stage("engine's queue", wait_end_ms - wait_ms, wait_end_ms, "", "░", 1)
    began_ms = prepared_ms if prefill_ms is None else first_ms - prefill_ms
    yield Stage(
        "prefill",
        placement.at_ms if began_ms is None else max(began_ms, placement.at_ms),
        first_ms,
        _prompt_words(placement),
        "▓",
        1,
    )
    yield Stage("first result", first_ms, None, depth=1)
    is_last = placement is request.placements[-1]
    yield Stage("decode", first_ms, ended_ms, _decode_words(request, first_ms, ended_ms), "█", 1)
    if placement.ending not in {None, "done"} or not is_last:
        yield Stage("ending", ended_ms, None, placement.ending or "", depth=1)


def _prompt_words(placement: PlacementView) -> str:
    if placement.prompt_tokens is None:
        return ""
    words = f"{count(placement.prompt_tokens)} prompt tokens"
    if placement.cached_tokens is not None:
        cached = f"{count(placement.cached_tokens)} of them cached"
        words += f", {cached} ({part_of(placement.cached_tokens, placement.prompt_tokens)})"
    return words


def _decode_words(request: RequestView, since_ms: int, until_ms: int) -> str:
    """Tokens, speed, and how the speed went."""
    inside = [pair for pair in request.progress if len(pair) > 1 and since_ms <= pair[0]]
    inside = [pair for pair in inside if pair[0] <= until_ms]
    if len(request.placements) == 1:
        tokens = request.tokens
    elif inside:
        before = [pair[1] for pair in request.progress if len(pair) > 1 and pair[0] < since_ms]
        tokens = inside[-1][1] - (before[-1] if before else 0)
    else:
        return ""
    words = f"{count(tokens)} tokens"
    if tokens > 1 and until_ms > since_ms:
        words += f", {rate((tokens - 1) * 1000 / (until_ms - since_ms))} a second"
    speeds = speeds_of(inside)
    return f"{words}  {sparkline(speeds)}" if len(speeds) > 1 else words


def speeds_of(progress: Sequence[Sequence[int]]) -> list[float]:
    """Tokens a second between each two points of ``progress``, pairs of a time and a count."""
    return [
        (after[1] - before[1]) * 1000 / (after[0] - before[0])
        for before, after in pairwise(progress)
        if after[0] > before[0]
    ]


NAME_WIDTH: Final = 20
BAR_WIDTHS: Final = (12, 48)
BESIDE_BAR: Final = 90
"""What the other columns and a note take."""
INDENT: Final = "  "


def waterfall(detail: RequestDetail, *, width: int = 120) -> list[str]:
    """The lines; as wide as ``width`` where that is possible."""
    request = detail.request
    clock = Clock.of(detail.now_ms, detail.time)
    lines = [*_head(request, clock), ""]
    shown = stages(request, detail.now_ms)
    end_ms = detail.now_ms if request.ended_ms is None else request.ended_ms
    bar = min(max(width - BESIDE_BAR, BAR_WIDTHS[0]), BAR_WIDTHS[1])
    lines.append(f"{'stage':<{NAME_WIDTH}}{'after':>10}{'took':>11}")
    lines += [_line(stage, request.arrived_ms, end_ms, bar) for stage in shown]
    if not shown:
        lines.append("nothing is known of its stages")
    if request.ending is not None:
        after = exact(end_ms - request.arrived_ms)
        lines.append(f"{'end':<{NAME_WIDTH}}{after:>10}{'':>11}  {printable(request.ending_words)}")
    lines += [""] if detail.explanation else []
    for sentence in detail.explanation:
        lines += textwrap.wrap(printable(sentence), max(40, width), subsequent_indent=INDENT)
    lines += _captured(request)
    return lines


def _head(request: RequestView, clock: Clock) -> Iterator[str]:
    yield f"request {request.key}  {printable(request.id)}".rstrip()
    client = printable(request.who) or "anonymous"
    model = f"deployment {printable(request.deployment)}"
    if request.preset:
        model += f", preset {printable(request.preset)}"
    yield f"client {client}, {model}, {printable(request.what)}"
    words = [f"arrived {clock.hours(request.arrived_ms)}"]
    state = request.state.word or request.phase
    words.append(f"{state} after {exact(request.age_ms(clock.now_ms))}")
    if request.first_after_ms is not None:
        words.append(f"first result after {exact(request.first_after_ms)}")
    if request.tokens:
        words.append(f"{count(request.tokens)} tokens")
    speed = request.tokens_per_s(clock.now_ms)
    if speed is not None:
        words.append(f"{rate(speed)} tokens/s")
    if request.continuations:
        times = "once" if request.continuations == 1 else f"{request.continuations} times"
        words.append(f"continued {times} on another agent")
    yield ", ".join(words)
    if request.trace is not None:
        yield f"trace {printable(request.trace)}"


def _line(stage: Stage, began_ms: int, end_ms: int, bar: int) -> str:
    name = printable(f"{INDENT * stage.depth}{stage.name}")
    if len(name) > NAME_WIDTH - 1:
        name = f"{name[: NAME_WIDTH - 2]}…"
    after = exact(stage.since_ms - began_ms)
    took = "" if stage.until_ms is None else exact(stage.until_ms - stage.since_ms)
    drawn = _bar(stage, began_ms, end_ms, bar)
    return f"{name:<{NAME_WIDTH}}{after:>10}{took:>11}  {drawn}  {printable(stage.note)}".rstrip()


def _bar(stage: Stage, began_ms: int, end_ms: int, width: int) -> str:
    """Draw where the stage lies between the beginning and the end; at least one mark."""
    whole_ms = max(1, end_ms - began_ms)
    until_ms = stage.since_ms if stage.until_ms is None else stage.until_ms
    first = min(width - 1, max(0, (stage.since_ms - began_ms) * width // whole_ms))
    last = min(width, max(first + 1, -(-(until_ms - began_ms) * width // whole_ms)))
    mark = "│" if stage.until_ms is None else stage.mark
    marks = 1 if stage.until_ms is None else last - first
    return f"{' ' * first}{mark * marks}".ljust(width)


def _captured(request: RequestView) -> Iterator[str]:
    if request.capture is None:
        return
    for name, text in (("request", request.capture.request), ("answer", request.capture.answer)):
        if text:
            yield ""
            yield f"the beginning of the {name}, as the balancer captured it:"
            yield from (INDENT + line for line in printable(text).splitlines())

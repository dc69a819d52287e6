"""The order that ``paddler-trio bench`` was given, checked."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import attrs

from paddler_trio.cli.bench.bench_figures import Figures
from paddler_trio.cli.bench.plan import BOUNDS, BenchPlan
from paddler_trio.cli.bench.report.report import Report
from paddler_trio.cli.bench.target_address import BaseUrl, parse_base_url
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.setting import Reading, Setting

TIMES: Final = ("ttft", "itl", "queue", "total")
RATES: Final = ("tokens_per_s", "prompt_tokens_per_s", "requests_per_s", "error_rate")
_TEXT: Final = re.compile(
    r"(?P<metric>[a-z_]+?)(?:_p(?P<percent>50|95|99))?(?:@(?P<level>[0-9]{1,4}))?\s*(?P<sign>[<>])\s*"
    r"(?P<value>[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?P<unit>ms|s|%)?"
)


@attrs.frozen(kw_only=True)
class Condition:
    """``limit`` is in seconds, tokens or requests a second, or 0..1; ``level`` None for all."""

    text: str
    metric: str
    percent: int | None
    level: int | None
    is_more: bool
    limit: float

    def value(self, figures: Figures) -> float | None:
        """None where nobody told any."""
        if self.percent is None:
            found = getattr(figures, self.metric)
            return None if found is None else float(found)
        values = getattr(figures, self.metric)
        return None if values is None else float(getattr(values, f"p{self.percent}"))

    def holds(self, figures: Figures) -> bool:
        value = self.value(figures)
        if value is None:
            return False
        return value > self.limit if self.is_more else value < self.limit


def parse_condition(text: str) -> Condition:
    """ConfigurationError if it is none."""
    match = _TEXT.fullmatch(text.strip()) if len(text) <= 100 else None
    metric = "" if match is None else match["metric"]
    is_time = metric in TIMES
    unit = None if match is None else match["unit"]
    fits = match is not None and (
        (is_time and match["percent"] is not None and unit in {"ms", "s"})
        or (metric in RATES and match["percent"] is None and unit in {None, "%"})
    )
    if match is None or not fits or (unit == "%" and metric != "error_rate"):
        raise ConfigurationError(
            f"--fail-if {text[:100]!r} is no condition: write METRIC>VALUE or METRIC<VALUE, with "
            f"{', '.join(TIMES)} and _p50, _p95 or _p99 and a time such as 500ms, or "
            f"{', '.join(RATES)} and a number; METRIC@8 is about concurrency 8 alone"
        )
    factor = {"ms": 1e-3, "s": 1.0, "%": 1e-2, None: 1.0}[unit]
    return Condition(
        text=text.strip(),
        metric=metric,
        percent=None if match["percent"] is None else int(match["percent"]),
        level=None if match["level"] is None else int(match["level"]),
        is_more=match["sign"] == ">",
        limit=float(match["value"]) * factor,
    )


def parse_conditions(texts: Iterable[str]) -> list[Condition]:
    """Read several; ConfigurationError names the first that is none."""
    return [parse_condition(text) for text in texts]


def check_level(condition: Condition, concurrencies: Container[int]) -> None:
    """ConfigurationError if it is about a concurrency that no run has: it could never hold."""
    if condition.level is not None and condition.level not in concurrencies:
        raise ConfigurationError(
            f"--fail-if {condition.text!r} is about {condition.level} clients, and no run has so "
            f"many: add {condition.level} to --concurrency"
        )


def unmet(conditions: list[Condition], report: Report) -> Iterator[str]:
    """A sentence for each point of the first target in which a condition holds, and for each
    condition of which nothing was measured: it is not known that it does not hold."""
    for condition in conditions:
        points = [
            point
            for point in report.points
            if point.target == 0 and condition.level in {None, point.concurrency}
        ]
        if all(condition.value(point.figures) is None for point in points):
            yield f"{condition.text}: nothing was measured that tells"
        for point in points:
            if condition.holds(point.figures):
                value = condition.value(point.figures)
                yield (
                    f"{condition.text}: {_shown(condition, value)} with {point.workload} at "
                    f"concurrency {point.concurrency}"
                )


def _shown(condition: Condition, value: float | None) -> str:
    assert value is not None
    if condition.percent is not None:
        return f"{value * 1000:.1f} ms"
    return f"{value:.1%}" if condition.metric == "error_rate" else f"{value:.1f}"


STANDARD_OUTPUT: Final = Path("-")
MAX_NAME_CHARS: Final = 40
OUTPUT: Final = "Output"


@attrs.frozen(kw_only=True)
class TargetOrder:
    """A server to test; ``model`` is empty for the first that it lists."""

    url: BaseUrl
    label: str
    model: str
    key_file: Path | None
    tls: ClientTls


@attrs.frozen(kw_only=True)
class BenchOrder:
    """See the module docstring."""

    plan: BenchPlan
    targets: tuple[TargetOrder, ...] = ()
    allow_public: Annotated[
        bool, Setting("The public address is yours to load, or its owner agrees.", panel=BOUNDS)
    ] = False
    max_error_rate: Annotated[
        float,
        Setting("Exit code 1 if a larger share of the requests fails.", panel=OUTPUT, min=0, max=1),
    ] = 0.01
    conditions: Annotated[
        list[Condition],
        Setting(
            "Exit code 1 if this is so of the first server, such as 'ttft_p95>500ms' or "
            "'tokens_per_s@8<100', or if nothing was measured that tells; may be repeated.",
            flag="--fail-if",
            panel=OUTPUT,
            metavar="CONDITION",
            reading=Reading(make=parse_conditions),
        ),
    ] = attrs.field(factory=list)
    html: Annotated[Path | None, Setting("Write a page with plots to this file.", panel=OUTPUT)] = (
        None
    )
    json: Annotated[
        Path | None,
        Setting(
            "Write all figures to this file as JSON; - is standard output, without the table.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None


def target_order(
    text: str, option: str, *, name: str, model: str, key_file: Path | None, tls: ClientTls
) -> TargetOrder:
    """ConfigurationError that names ``option`` if ``text`` is no base URL."""
    try:
        url = parse_base_url(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigurationError(
            f"{name[:MAX_NAME_CHARS]!r} is no name: at most {MAX_NAME_CHARS} printable characters"
        )
    if tls.is_given and not url.is_tls:
        raise ConfigurationError(
            f"{option} {text} has no TLS, and a flag --tls-* is given: write "
            f"https://{url.authority}, or leave that out"
        )
    return TargetOrder(
        url=url, label=name or url.authority + url.path, model=model, key_file=key_file, tls=tls
    )


def check_writable(path: Path | None) -> None:
    """Before a load test of minutes, not after it; ConfigurationError."""
    if path is None:
        return
    if path.name == STANDARD_OUTPUT.name or path.is_dir() or not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: it must be a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: {os.strerror(errno.EACCES)}")


def check_apart(html: Path | None, json: Path | None) -> None:
    """The second report would be written over the first; ConfigurationError."""
    if html is not None and json is not None and html.resolve() == json.resolve():
        raise ConfigurationError(f"--html and --json are both {html}: give each a file of its own")

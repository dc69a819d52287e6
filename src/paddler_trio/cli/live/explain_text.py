"""A request's waterfall as text: each stage with its beginning, its length and a bar."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from paddler_trio.cli.figures import count, exact, rate
from paddler_trio.cli.live.request_stages import Stage, stages
from paddler_trio.cli.live.request_views import Clock, RequestDetail, RequestView
from paddler_trio.cli.terminal import printable

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

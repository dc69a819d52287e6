"""Orders of operators to one agent of ours: its model, its engine and its logs.

The balancer sends an :class:`Operate` over the link of the instance that is meant, only to agents
that offer :data:`ORDERS`. It is answered by one ``Answer``. Paddler's ``StopRespondingTo`` with its
id, and the end of the link, end the wait for log lines; the others are carried out at once.

Lines of a log of an agent or of its engine, as they are answered to a ``ReadLog``.

They are a stranger's words: a balancer reads of them what makes sense, within bounds.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import attrs

from paddler_trio.wire.scalars import IntRange, Uint64
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.tags import external_tag, structs
from paddler_trio.wire.visible_text import visible

ORDERS: Final = b"orders"
"""The feature of an agent that reads an ``Operate``."""
LogSource: TypeAlias = Literal["agent", "engine"]
LOG_SOURCES: Final[tuple[str, ...]] = get_args(LogSource)
MAX_LOG_LINES: Final = 1000
MAX_LOG_BYTES: Final = 256 * 1024
MAX_LOG_WAIT_MS: Final = 20_000


@attrs.frozen(kw_only=True)
class Unload:
    """Free the memory of the model, and load none until a :class:`Load`, whatever is desired.
    Running answers end first, or at the drain deadline elsewhere."""


@attrs.frozen(kw_only=True)
class Load:
    """Load what is desired again."""


@attrs.frozen(kw_only=True)
class RestartEngine:
    """End the engine's process and start another one; what it computed is handed back."""


@attrs.frozen(kw_only=True)
class ReadLog:
    """Return lines of a log, the newest last.

    Answered by a :class:`LogPage`. ``after``: only those behind this line; None for the last ones,
    as also where ``life``, from a page before, is that of another run of the agent. With
    ``wait_ms`` the answer waits for a line if there is none yet.
    """

    source: str
    lines: Annotated[int, IntRange(1, MAX_LOG_LINES)] = 200
    after: Uint64 | None = None
    life: str = ""
    wait_ms: Annotated[int, IntRange(0, MAX_LOG_WAIT_MS)] = 0

    def __attrs_post_init__(self) -> None:
        if self.source not in LOG_SOURCES:
            raise ShapeError(
                f"{self.source[:80]!r} is no log: one of {', '.join(LOG_SOURCES)}", "source"
            )


Order: TypeAlias = Unload | Load | RestartEngine | ReadLog
external_tag(Order, *structs(Order))


@attrs.frozen
class Operate:
    """See the module docstring."""

    id: str
    order: Order


LEVELS: Final = ("debug", "info", "warning", "error")
MAX_LINE_CHARS: Final = 1000
MAX_NAME_CHARS: Final = 64
_MOST: Final = 2**53


@attrs.frozen(kw_only=True)
class LogLine:
    """One line; ``n``: its number, from 1. ``time``: RFC 3339, UTC."""

    n: Uint64
    time: str
    level: str
    text: str


@attrs.frozen(kw_only=True)
class LogPage:
    """Lines, the newest last.

    Args:
      last: the number of the last line that there was; what follows is behind it.
      missed: lines between ``after`` and these that were gone before they could be read.
      life: the run of the agent that numbers them; another one begins anew.
    """

    lines: tuple[LogLine, ...] = ()
    last: Uint64 = 0
    missed: Uint64 = 0
    life: str = ""


def read_page(raw: object) -> LogPage:
    """Return what of plain JSON makes sense as a page."""
    if not isinstance(raw, dict):
        return LogPage()
    given = raw.get("lines")
    lines = [_line(each) for each in (given if isinstance(given, list) else [])[:MAX_LOG_LINES]]
    size, kept = 0, []
    for line in reversed(lines):  # the newest are the ones that are wanted
        size += 0 if line is None else len(line.text)
        if line is not None and size <= MAX_LOG_BYTES:
            kept.append(line)
    return LogPage(
        lines=tuple(reversed(kept)),
        last=_number(raw.get("last")),
        missed=_number(raw.get("missed")),
        life=_text(raw.get("life"), MAX_NAME_CHARS),
    )


def _line(raw: object) -> LogLine | None:
    if not isinstance(raw, dict):
        return None
    level = raw.get("level")
    return LogLine(
        n=_number(raw.get("n")),
        time=_text(raw.get("time"), MAX_NAME_CHARS),
        level=level if isinstance(level, str) and level in LEVELS else "info",
        text=_text(raw.get("text"), MAX_LINE_CHARS),
    )


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0


def _text(value: object, limit: int) -> str:
    return visible(value[:limit]) if isinstance(value, str) else ""

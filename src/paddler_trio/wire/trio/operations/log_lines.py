"""Lines of a log of an agent or of its engine, as they are answered to a ``ReadLog``.

They are a stranger's words: a balancer reads of them what makes sense, within bounds.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.wire.scalars import Uint64
from paddler_trio.wire.trio.operations.operator_orders import MAX_LOG_BYTES, MAX_LOG_LINES
from paddler_trio.wire.visible_text import visible

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

"""The newest lines of a log, kept for operators who are not at the machine.

A line is rendered when it comes: one line, cut, and without what looks like a secret. The lines
that are kept are bounded by number and by size, whatever comes. They may come from any thread.
"""

from __future__ import annotations

import secrets
from collections import deque
from datetime import UTC, datetime
from threading import Lock
from typing import Final

import attrs
import structlog

from paddler_trio.system.logs.log_ring import fields_of, redacted
from paddler_trio.wire.trio.operations.log_lines import LEVELS, MAX_LINE_CHARS, LogLine, LogPage
from paddler_trio.wire.trio.operations.operator_orders import MAX_LOG_BYTES
from paddler_trio.wire.visible_text import visible

MAX_LINES: Final = 2000
MAX_BYTES: Final = 1024 * 1024


@attrs.define(eq=False, repr=False)
class LogTail:
    """See the module docstring."""

    life: str = attrs.field(default="", init=False)
    """The run of the agent that numbers the lines; records of the log are kept in one only."""
    last: int = attrs.field(default=0, init=False)
    """The number of the newest line."""
    _lines: deque[LogLine] = attrs.field(factory=deque, init=False)
    _size: int = attrs.field(default=0, init=False)
    _lock: Lock = attrs.field(factory=Lock, init=False)

    def __repr__(self) -> str:
        return f"<LogTail: {len(self._lines)} lines, the newest is {self.last}>"

    def __call__(
        self, _: object, __: str, record: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Keep a record of structlog; behind the processors that add level, logger and time."""
        if self.life:
            words = [str(record.get("event") or "")]
            words += [f"{name}={value}" for name, value in fields_of(record).items()]
            self.add(str(record.get("level")), " ".join(words))
        return record

    def add(self, level: str, text: str) -> None:
        """Add one line."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        shown = visible(redacted(text, MAX_LINE_CHARS))[:MAX_LINE_CHARS]
        level = level if level in LEVELS else "error"
        with self._lock:
            self.last += 1
            self._lines.append(LogLine(n=self.last, time=time, level=level, text=shown))
            self._size += len(shown)
            while len(self._lines) > MAX_LINES or self._size > MAX_BYTES:
                self._size -= len(self._lines.popleft().text)

    def page(self, *, after: int | None, lines: int) -> LogPage:
        """Return the last lines, or with ``after`` the first ones behind that number; no more than
        one answer may hold."""
        with self._lock:
            known, last = list(self._lines), self.last
        missed = 0
        if after is None:
            known = known[-lines:]
        else:
            first = known[0].n if known else last + 1
            missed = max(0, first - after - 1)
            known = [line for line in known if line.n > after][:lines]
        kept: list[LogLine] = []
        size = 0
        for line in known if after is not None else reversed(known):
            size += len(line.text)
            if size > MAX_LOG_BYTES:
                break
            kept.append(line)
        if after is None:
            kept.reverse()
        else:
            last = kept[-1].n if kept else last
        return LogPage(lines=tuple(kept), last=last, missed=missed, life=self.life)


AGENT_LINES: Final = LogTail()
"""The log of this process, where it is kept."""
ENGINE_LINES: Final = LogTail()
"""The lines that llama.cpp wrote in the engines of this process."""


def keep_lines() -> None:
    """Keep the lines of this process from now on, under numbers of their own."""
    AGENT_LINES.life = ENGINE_LINES.life = secrets.token_hex(8)

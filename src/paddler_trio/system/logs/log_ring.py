"""The newest warnings and errors of this process, kept for operators who have no log at hand.

A processor of structlog puts them here, for records of structlog and of the standard library alike.
Each is rendered at once, with bounds for every part, and what looks like a secret is left out:
the ring is shown to other people than the log is. Records that say the same, but for numbers, are
one with a count: an agent that is refused every second would fill the ring in minutes.

The newest lines of a log, kept for operators who are not at the machine.

A line is rendered when it comes: one line, cut, and without what looks like a secret. The lines
that are kept are bounded by number and by size, whatever comes. They may come from any thread.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Final

import attrs
import structlog

from paddler_trio.errors import one_line
from paddler_trio.wire.trio.operations.operator_orders import (
    LEVELS,
    MAX_LINE_CHARS,
    MAX_LOG_BYTES,
    LogLine,
    LogPage,
)
from paddler_trio.wire.visible_text import visible

MAX_RECORDS: Final = 500
MAX_EVENT_CHARS: Final = 500
MAX_FIELD_CHARS: Final = 300
MAX_FIELDS: Final = 12
MAX_NAME_CHARS: Final = 64
HIDDEN: Final = "(hidden)"

_LEVELS: Final = {"warning": "warning", "error": "error", "critical": "error"}
_OWN: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info"})
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_-])(?:authorization|cookie|passw(?:or)?d|secret|token|api[_-]?key)$", re.IGNORECASE
)
_SECRET_TEXT: Final = re.compile(
    r"""(?ix)
    \b(?: bearer | basic ) \s+ [^\s"',;]{8,}      # of an Authorization header
    | \b(?: pt- | sk- ) [\w-]{16,}                 # keys of ours, of OpenAI's kind
    | \b(?-i: hf_ [A-Za-z0-9]{30,} )              # of the hub, which have 34; ids are shorter
    | (?<= :// ) [^/\s@]+ (?= @ )                  # user and password of a URL
    | (?<= [?&] ) (?: [\w-]* (?: token | key | signature | credential | secret | password ) )
      = [^&\s"']+
    """
)


@attrs.define(eq=False)
class _Group:
    """Records that say the same.

    Args:
      id: the number of the first of them.
      seq: that of the newest.
      first: when the first came.
    """

    id: int
    seq: int
    first: object
    count: int = 0
    text: bytes = b""


@attrs.define(eq=False, repr=False)
class LogRing:
    """See the module docstring. Records may come from any thread."""

    seq: int = attrs.field(default=0, init=False)
    """The number of the newest record; 0 for none."""
    warnings: int = attrs.field(default=0, init=False)
    """All that there were, as ``errors``."""
    errors: int = attrs.field(default=0, init=False)
    _groups: OrderedDict[bytes, _Group] = attrs.field(factory=OrderedDict, init=False)
    """The ones that came last are at the end."""
    _lock: Lock = attrs.field(factory=Lock, init=False)

    def __repr__(self) -> str:
        return f"<LogRing of {len(self._groups)} groups, the newest record is {self.seq}>"

    def __call__(
        self, _: object, __: str, record: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Keep it if it is one; behind those processors that add level, logger and time."""
        level = _LEVELS.get(str(record.get("level")))
        if level is not None:
            self.add(level, record)
        return record

    def add(self, level: str, record: structlog.typing.EventDict) -> None:
        """Add one more record of this level."""
        fields = fields_of(record)
        shown = {
            "level": level,
            "logger": redacted(record.get("logger") or "", MAX_NAME_CHARS),
            "event": redacted(record.get("event") or "", MAX_EVENT_CHARS),
        }
        words = {name: each for name, each in fields.items() if type(each) not in (int, float)}
        key = _dumps([*shown.values(), words])
        time = record.get("timestamp")
        with self._lock:
            self.seq += 1
            if level == "error":
                self.errors += 1
            else:
                self.warnings += 1
            before = self._groups.pop(key, None)
            group = _Group(self.seq, self.seq, time) if before is None else before
            group.seq, group.count = self.seq, group.count + 1
            group.text = _dumps(
                {
                    "seq": self.seq,
                    "group": group.id,
                    "count": group.count,
                    "first": group.first,
                    "time": time,
                    **shown,
                    "fields": fields,
                }
            )
            self._groups[key] = group
            if len(self._groups) > MAX_RECORDS:
                self._groups.popitem(last=False)

    def after(self, seq: int) -> Sequence[bytes]:
        """Return the JSON of the groups with a record after this one, oldest first."""
        with self._lock:
            return [each.text for each in self._groups.values() if each.seq > seq]


RECENT: Final = LogRing()
"""The records of this process, as logging is."""


def fields_of(record: structlog.typing.EventDict) -> dict[str, object]:
    """Return what a record has beside its event, bounded and without secrets."""
    fields: dict[str, object] = {}
    for name, value in record.items():
        if name in _OWN or name.startswith("_"):
            continue
        if len(fields) == MAX_FIELDS:
            break
        is_secret = isinstance(value, str) and _SECRET_NAME.search(name) is not None
        fields[name[:MAX_NAME_CHARS]] = HIDDEN if is_secret else _value(value)
    exception = _exception(record.get("exc_info"))
    if exception is not None:
        fields["exception"] = redacted(one_line(exception), MAX_EVENT_CHARS)
    return fields


def _value(value: object) -> object:
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 2**53:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return redacted(
                ", ".join(redacted(each, MAX_FIELD_CHARS) for each in value[:MAX_FIELDS])
            )
        case _:
            return redacted(value)


def redacted(value: object, limit: int = MAX_FIELD_CHARS) -> str:
    text = value if isinstance(value, str) else str(value)
    text = _SECRET_TEXT.sub(HIDDEN, text[: 4 * limit])  # cut once more: nothing of a secret is left
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _exception(exc_info: object) -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case True:
            return sys.exc_info()[1]
    return None


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


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

"""Structured logs on standard error: JSON lines for machines, columns for people.

A line for systemd's journal begins with its priority (``<4>`` for a warning, sd-daemon(3)), so that
``journalctl --priority=warning`` finds it, and has no time of its own.

Names of requests and agents are bound to each record; prompts, answers and keys never are. What a
stranger can put into a record (names, reasons, whole frames in an error) is cut, and on a terminal
it cannot write lines or colours of its own: one processor sees to that for all fields. The newest
warnings and errors are kept beside (``log_ring.py``).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import partial
from typing import Final, Protocol

import attrs
import structlog

from paddler_trio.system.logs.log_ring import AGENT_LINES, RECENT
from paddler_trio.system.logs.log_stream import LogStream

LEVELS = ("debug", "info", "warning", "error")
MAX_FIELD_CHARS: Final = 4000
MAX_FIELD_ITEMS: Final = 32
MAX_FIRST_TIMES: Final = 32
_PRIORITIES: Final = {
    "debug": "<7>",
    "info": "<6>",
    "warning": "<4>",
    "error": "<3>",
    "critical": "<2>",
}
"""Those of syslog(3), as systemd reads them at the beginning of a line."""


def configure_logs(*, level: str, as_json: bool | None = None) -> None:
    """Send structlog's and the standard library's records to standard error in one shape.

    Args:
      level: one of :data:`LEVELS`.
      as_json: None chooses JSON unless standard error is a terminal or systemd's journal.
    """
    is_terminal, is_journal = sys.stderr.isatty(), _is_journal()
    if as_json is None:
        as_json = not is_terminal and not is_journal
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        partial(_bounded, escapes=not as_json),  # JSON escapes by itself
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        RECENT,
        AGENT_LINES,
        structlog.processors.StackInfoRenderer(),
    ]
    if is_journal and not as_json:
        shared.append(_without_time)
    if as_json:
        shared.append(structlog.processors.format_exc_info)
    # its usual tracebacks show local variables: requests, with their prompts and keys
    columns = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        pad_event_to=30 if is_terminal else 0,
        pad_level=is_terminal,
        exception_formatter=structlog.dev.plain_traceback,
    )
    renderer: structlog.types.Processor = _as_json if as_json else columns
    if is_journal:
        renderer = partial(_prioritized, renderer)
    handler = _Handler(_standard_error())
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[remove_meta, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=partial(_Lines, handler.stream),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def _is_journal() -> bool:
    """Return whether standard error is systemd's journal (``JOURNAL_STREAM``, systemd.exec(5))."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _without_time(
    _: object, __: str, record: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    del record["timestamp"]
    return record


def _prioritized(
    render: structlog.types.Processor, logger: object, name: str, record: structlog.typing.EventDict
) -> str:
    """Render a record with its priority before each line."""
    priority = _PRIORITIES.get(str(record.get("level")), _PRIORITIES["info"])
    return "\n".join(f"{priority}{line}" for line in str(render(logger, name, record)).split("\n"))


class _Writable(Protocol):
    def write(self, text: str, /) -> object: ...


def _standard_error() -> _Writable:
    """Return standard error, or what a program put in its place."""
    try:
        return LogStream(sys.stderr.fileno())
    except (OSError, ValueError):
        return sys.stderr


class _Handler(logging.Handler):
    """The standard library's records."""

    def __init__(self, stream: _Writable) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  # as the standard library does it
            self.handleError(record)


@attrs.frozen(eq=False)
class _Lines:
    """The end of structlog's lines, which are whole: records of the standard library, made of them,
    would be half of what a line costs, and there is one with each request."""

    stream: _Writable
    name: str

    def msg(self, line: str) -> None:
        self.stream.write(f"{line}\n")

    debug = info = warning = error = critical = exception = msg


_JSON: Final = json.JSONEncoder(default=repr)


def _as_json(_: object, __: str, record: structlog.typing.EventDict) -> str:
    return _JSON.encode(record)


@attrs.define(eq=False)
class FirstTimes:
    """Says of each name once that it is new, and of names beyond a number never: for logs."""

    _seen: set[str] = attrs.field(factory=set, init=False)

    def is_first(self, name: str) -> bool:
        if name in self._seen or len(self._seen) >= MAX_FIRST_TIMES:
            return False
        self._seen.add(name)
        return True


def _bounded(
    _: object, __: str, record: structlog.typing.EventDict, *, escapes: bool
) -> structlog.typing.EventDict:
    for name, value in record.items():
        record[name] = _bounded_value(value, escapes=escapes)
    return record


def _bounded_value(value: object, *, escapes: bool) -> object:
    match value:
        case str():
            text = value if len(value) <= MAX_FIELD_CHARS else _cut(value)
            return text if not escapes or text.isprintable() else _escaped(text)
        case list() | tuple():
            return [_bounded_value(item, escapes=escapes) for item in value[:MAX_FIELD_ITEMS]]
        case _:
            return value


def _cut(text: str) -> str:
    return f"{text[:MAX_FIELD_CHARS]}… ({len(text)} characters)"


def _escaped(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )

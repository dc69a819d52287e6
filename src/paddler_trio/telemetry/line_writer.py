"""Lines to a file or to standard output, written by a thread: a slow disk holds up no request.

The queue is bounded; a line that does not fit is dropped and counted, and the log has the count.
Lines are whole: those of one write are appended together, and never behind half of one, which a
full disk or a crash left.

One line of the access log: what became of one request of a client, as JSON or as logfmt.

It never has a text of a request or an answer, no key, and no query. What a stranger chooses (a
path, an id, a client's name) is cut, and control characters in it are escaped, so that it can
neither write a line of its own nor colour a terminal.
"""

from __future__ import annotations

import json
import os
import select
import stat
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("access_log")

MAX_WAITING: Final = 8192
"""Lines, most of them 300 to 600 bytes long."""
LINGER_S: Final = 0.05
"""The time that the first line waits for others."""
FLUSH_S: Final = 1.5
"""The time for what waits when the daemon ends."""
REOPEN_S: Final = 5.0
REPORT_S: Final = 60.0
"""Losses are logged at most so often."""
STANDARD_OUTPUT: Final = 1


@attrs.define(eq=False, repr=False)
class LineWriter:
    """See the module docstring.

    Args:
      path: None for standard output.
    """

    path: Path | None
    num_written: int = attrs.field(default=0, init=False)
    num_dropped: int = attrs.field(default=0, init=False)
    _descriptor: int = attrs.field(init=False)
    _is_mid_line: bool = attrs.field(default=False, init=False)
    """The file ends in half of a line."""
    _waiting: deque[bytes] = attrs.field(factory=deque, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """The turn of all users of the descriptor."""
    _thread: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _problem: str = attrs.field(default="", init=False)
    _num_reported: int = attrs.field(default=0, init=False)
    _report_after_s: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        """Raise ConfigurationError if the file cannot be opened."""
        try:
            if self.path is None:
                self._descriptor = STANDARD_OUTPUT
            else:
                self._descriptor, self._is_mid_line = _opened(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"--access-log-file {self.path} cannot be written: {error.strerror}"
            ) from error

    def __repr__(self) -> str:
        return (
            f"<LineWriter to {self.path or 'standard output'}: {len(self._waiting)} of "
            f"{MAX_WAITING} lines wait, {self.num_written} written, {self.num_dropped} dropped>"
        )

    def put(self, line: bytes) -> None:
        """Take one line with its line feed; never blocks."""
        if len(self._waiting) >= MAX_WAITING:
            self.num_dropped += 1
            self._problem = self._problem or f"{MAX_WAITING} lines wait to be written"
            self._report()  # the write that they wait for may never return
            return
        self._waiting.append(line)
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled, and then for ``FLUSH_S`` what still waits."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await self._news.wait()
                await trio.sleep(LINGER_S)
                self._news = trio.Event()
                await self._write_all()
        finally:
            with trio.move_on_after(FLUSH_S, shield=True) as flush:
                await self._write_all()
            if flush.cancelled_caught:
                self._problem = f"not written within {FLUSH_S:g} s at the end"
            self.num_dropped += len(self._waiting)
            self._waiting.clear()
            self._report(at_once=True)
            if self.path is not None and not self._thread.borrowed_tokens:
                os.close(self._descriptor)  # else the write that hangs still has it

    async def reopen(self) -> None:
        """Go on in a new file of the same name, after the old one was renamed; where that cannot be
        opened, in the old one."""
        if self.path is None:
            return
        with trio.move_on_after(REOPEN_S) as scope:
            async with self._turn:
                try:
                    opened, is_mid_line = await trio.to_thread.run_sync(_opened, self.path)
                except OSError as error:
                    log.error("not reopened", path=str(self.path), reason=error.strerror)
                    return
                old, self._descriptor = self._descriptor, opened
                self._is_mid_line = is_mid_line
                with trio.CancelScope(shield=True):  # or nobody would close it
                    await trio.to_thread.run_sync(os.close, old)
        if scope.cancelled_caught:
            log.error("not reopened", path=str(self.path), reason="a write to it hangs")

    async def _write_all(self) -> None:
        while self._waiting:
            async with self._turn:
                lines, self._waiting = self._waiting, deque()
                data = b"\n" * self._is_mid_line + b"".join(lines)
                written, problem = b"", "given up at the end"
                try:
                    written, problem = await trio.to_thread.run_sync(
                        _write, self._descriptor, data, limiter=self._thread, abandon_on_cancel=True
                    )
                finally:
                    num_whole = written.count(b"\n") - (self._is_mid_line and bool(written))
                    self.num_written += num_whole
                    if problem:
                        self.num_dropped += len(lines) - num_whole
                        self._problem = problem
                    if written:
                        self._is_mid_line = not written.endswith(b"\n")
            self._report()

    def _report(self, *, at_once: bool = False) -> None:
        lost, now_s = self.num_dropped - self._num_reported, trio.current_time()
        if not lost or not (at_once or now_s >= self._report_after_s):
            return
        log.warning("access log lines dropped", lines=lost, reason=self._problem)
        self._num_reported, self._report_after_s = self.num_dropped, now_s + REPORT_S
        self._problem = ""


def _opened(path: Path) -> tuple[int, bool]:
    """Return the descriptor, and whether the file ends in half of a line.

    Non-blocking only to open it: a pipe that has no reader is an error, not a wait.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o640)
    os.set_blocking(descriptor, True)
    status = os.fstat(descriptor)
    return descriptor, stat.S_ISREG(status.st_mode) and _ends_in_half_a_line(path, status.st_size)


def _ends_in_half_a_line(path: Path, size_bytes: int) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, size_bytes - 1))
            return file.read(1) not in (b"", b"\n")
    except OSError as error:  # a file that may be written and not be read
        log.debug("the access log is not read", path=str(path), reason=error.strerror)
        return False


def _write(descriptor: int, data: bytes) -> tuple[bytes, str]:
    """Write in a thread; return how much was written, and why not all; the reason is empty if it
    was."""
    left = memoryview(data)
    problem = ""
    try:
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:  # a process that shares standard output made it so
                writable = select.poll()
                writable.register(descriptor, select.POLLOUT)
                writable.poll()
    except OSError as error:
        problem = error.strerror or str(error)
    return data[: len(data) - len(left)], problem


Form: TypeAlias = Literal["text", "json"]
MAX_FIELD_CHARS: Final = 200
MAX_AGENTS: Final = 16


@attrs.frozen(kw_only=True)
class AccessEntry:
    """One line of the access log, its fields in their order; None where there is nothing to show.
    Times are seconds.

    Attributes:
      time: when it ended, Unix time.
      address: of the client's connection.
      client: the name of its key, else what it calls itself.
      method: None for a request on a WebSocket.
      route: the template that its path matched; ``path`` is there only if none did.
      status: of HTTP; None if the client left before one was sent.
      outcome: one of ``REQUEST_OUTCOMES``, as in the metrics; of several requests the worst.
      queue_s: its longest wait for a slot.
      ttft_s: from its arrival to the first token.
      prompt_tokens, cached_tokens, generated_tokens: of all requests to agents that it became.
      agents: that worked on it, in order.
      continuations: how often it went on elsewhere after a loss.
    """

    time: float
    address: str
    client: str | None
    method: str | None
    route: str | None
    path: str | None = None
    status: int | None
    outcome: str
    queue_s: float | None = None
    ttft_s: float | None = None
    duration_s: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    deployment: str | None = None
    agents: tuple[str, ...] = ()
    continuations: int = 0
    request: str
    trace: str

    def line(self, form: Form) -> bytes:
        """Return the line with its line feed."""
        fields = self._fields()
        if form == "json":
            return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        shown = " ".join([f"{name}={_shown(value)}" for name, value in fields.items()])
        return shown.encode("ascii") + b"\n"

    def _fields(self) -> dict[str, object]:
        moment = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {"time": moment.replace("+00:00", "Z")}
        for name in _NAMES:
            value = getattr(self, name)
            if isinstance(value, str):
                value = value[:MAX_FIELD_CHARS]
            elif isinstance(value, float):
                value = round(value, 4)
            elif isinstance(value, tuple):
                value = [each[:MAX_FIELD_CHARS] for each in value[:MAX_AGENTS]]
            fields[name] = value
        if self.path is None:
            del fields["path"]
        return fields


_NAMES: Final = tuple(field.name for field in attrs.fields(AccessEntry) if field.name != "time")
_PLAIN: Final = frozenset("!#$%&'()*+-./:;<>?@[]^_`{|}~,") | frozenset(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)


def _shown(value: object) -> str:
    """Return a value as logfmt has it: ``-`` for nothing, quotes where it would not be one word."""
    match value:
        case None | "" | []:
            return "-"
        case float():
            return f"{value:.4f}"
        case list():
            value = ",".join(value)
    text = str(value)
    return text if text != "-" and _PLAIN.issuperset(text) else json.dumps(text)

"""Standard error as the place of log lines, which nothing waits for.

A pipe that nobody reads, a terminal that is held, a journal that hangs: each takes some 64 KiB, and
then a write does not return, and with it the event loop. So a line is written at once only if that
cannot wait; into a terminal never, which says that it can be written also where it takes no whole
line. Otherwise it waits for a thread, and so do those that come after it. Their number is bounded:
lines beyond are dropped and counted. So are lines that a full disk refuses. Once lines are written
again the log has the count, and none begins behind half of another.
"""

from __future__ import annotations

import atexit
import os
import select
import stat
import threading
from collections import deque
from typing import Final

import attrs
import structlog

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""The bytes of lines, most of them 200 to 400 bytes long; as many are being written meanwhile."""
FLUSH_S: Final = 1.0
"""The time for what waits when the process ends."""

_LINE_FEED: Final = ord("\n")

log = structlog.get_logger("logs")


@attrs.define(eq=False, repr=False)
class LogStream:
    """See the module docstring. ``write`` may be called by any thread.

    Args:
      descriptor: open for writing, blocking or not; it is not closed.
    """

    descriptor: int
    num_dropped: int = attrs.field(default=0, init=False)
    _num_reported: int = attrs.field(default=0, init=False)
    _reason: str = attrs.field(default="", init=False)
    """Why lines were lost."""
    _is_refused: bool = attrs.field(default=False, init=False)
    """The last write failed."""
    _is_mid_line: bool = attrs.field(default=False, init=False)
    """What was written last was no whole line."""
    _is_file: bool = attrs.field(init=False)
    _is_terminal: bool = attrs.field(init=False)
    _writable: select.poll = attrs.field(factory=select.poll, init=False)
    _waiting: deque[bytes] = attrs.field(factory=deque, init=False)
    _waiting_bytes: int = attrs.field(default=0, init=False)
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    """It writes what waits, and ends."""

    def __attrs_post_init__(self) -> None:
        self._is_file = stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        self._is_terminal = os.isatty(self.descriptor)
        self._writable.register(self.descriptor, select.POLLOUT)
        atexit.register(self.drain)

    def __repr__(self) -> str:
        return f"<LogStream: {self._waiting_bytes} bytes wait, {self.num_dropped} lines dropped>"

    def write(self, text: str) -> None:
        """Write one whole line, or several. No error is raised: there is nowhere else to say so."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            is_written = self._thread is not None and self._thread.is_alive()  # not once forked
            if not is_written and not self._waiting:
                data = self._written_now(data)
            if self._waiting and self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._lose(data, "standard error was not read")
            elif data:
                self._add(data)
            if self._waiting and not is_written:
                self._start()
        if self.num_dropped != self._num_reported:
            self._report()

    def drain(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until everything is written, but not for longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _start(self) -> None:
        thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
        try:
            thread.start()  # it waits for the lock that is held here
        except RuntimeError:  # this process may have no more threads: the next line tries again
            return
        self._thread = thread

    def _lose(self, data: bytes, reason: str) -> None:
        self.num_dropped += data.count(b"\n")
        self._reason = reason

    def _report(self) -> None:
        """Report lost lines, unless some are lost still; whoever writes holds no lock of ours."""
        with self._changed:
            num_lost = self.num_dropped - self._num_reported
            if not num_lost or self._is_refused or self._thread is not None:
                return
            self._num_reported, reason = self.num_dropped, self._reason
        log.warning("log lines were lost", lines=num_lost, reason=reason)

    def _written_now(self, data: bytes) -> bytes:
        """Return what is left of ``data`` when as much was written as can be without waiting."""
        if self._is_terminal:
            return data
        if not self._is_file:
            # where there is room, there is room for so much: see pipe(7); sockets have more
            is_certain = len(data) <= select.PIPE_BUF
            if not is_certain or not self._writable.poll(0):
                return data
        try:
            return data[self._write_some(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            self._lose(data, error.strerror or str(error))
            return b""

    def _write_some(self, data: bytes | memoryview) -> int:
        """Return how many bytes of ``data`` were written, as :func:`os.write` does."""
        try:
            if self._is_refused and self._is_mid_line:
                os.write(self.descriptor, b"\n")  # behind what was written of a line that is lost
                self._is_mid_line = False
            written = os.write(self.descriptor, data)
        except BlockingIOError:
            raise
        except OSError:
            self._is_refused = True
            raise
        self._is_refused = False
        self._is_mid_line = data[written - 1] != _LINE_FEED
        return written

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    break
                data = b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            self._write_all(data)
        self._report()

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._write_some(left) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [])
            except OSError as error:
                with self._changed:
                    self._lose(bytes(left), error.strerror or str(error))
                return

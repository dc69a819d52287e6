"""Standard error as the place of log lines, which nothing waits for.

A pipe that nobody reads, a terminal that is held, a journal that hangs: each takes some 64 KiB, and
then a write does not return, and with it the event loop. So a line is written at once only if that
cannot wait. Otherwise it waits for a thread, and so do those that come after it. Their number is
bounded: lines beyond are dropped and counted, and the log has the count.
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
"""Of lines, most of them 200 to 400 bytes long; as many are being written meanwhile."""
FLUSH_S: Final = 1.0
"""For what waits when the process ends."""

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
    _is_file: bool = attrs.field(init=False)
    _writable: select.poll = attrs.field(factory=select.poll, init=False)
    _waiting: deque[bytes] = attrs.field(factory=deque, init=False)
    _waiting_bytes: int = attrs.field(default=0, init=False)
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    """It writes what waits, and ends."""

    def __attrs_post_init__(self) -> None:
        self._is_file = stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        self._writable.register(self.descriptor, select.POLLOUT)
        atexit.register(self.drain)

    def __repr__(self) -> str:
        return f"<LogStream: {self._waiting_bytes} bytes wait, {self.num_dropped} lines dropped>"

    def write(self, text: str) -> None:
        """One whole line, or several. No error is raised: there is nowhere else to say so."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._thread is None or not self._thread.is_alive():  # one that forked has none
                data = self._written_now(data)
                if not data:
                    return
                self._add(data)
                self._thread = threading.Thread(target=self._write_waiting, name="log", daemon=True)
                self._thread.start()
            elif self._waiting_bytes + len(data) <= MAX_WAITING_BYTES:
                self._add(data)
            else:
                self.num_dropped += 1

    def drain(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until everything is written, but not for longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _written_now(self, data: bytes) -> bytes:
        """What is left of ``data`` when as much was written as can be without waiting."""
        if not self._is_file:
            # where there is room, there is room for so much: see pipe(7); sockets have more
            is_certain = len(data) <= select.PIPE_BUF
            if not is_certain or not self._writable.poll(0):
                return data
        try:
            return data[os.write(self.descriptor, data) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""  # standard error is gone

    def _write_waiting(self) -> None:
        num_lost = 0
        while True:
            with self._changed:
                if not self._waiting:
                    num_lost = self.num_dropped - self._num_reported
                    self._num_reported = self.num_dropped
                    self._thread = None
                    self._changed.notify_all()
                    break
                data = b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            self._write_all(data)
        if num_lost:
            log.warning("log lines were lost: standard error was not read", lines=num_lost)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.descriptor, left) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [])
            except OSError:
                return

"""The file of ``--audit-log``: lines of JSON, on the disk before they are forgotten.

A thread appends and syncs; the event loop only puts lines into a bounded list. While the disk is
full or slow they wait there, the newest are dropped when there are too many, and a line says how
many. The file is opened for each batch, so it may be moved away. At ``MAX_FILE_BYTES`` it becomes
``FILE.1`` and older ones move up; ``FILE.4`` is the oldest that is kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("audit")

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
KEPT_FILES: Final = 4
"""Beside the one that grows."""
MAX_PENDING: Final = 10_000
"""Lines, of some 300 bytes."""
RETRY_S: Final = 5.0
FINAL_S: Final = 2.0
"""How long the end of the balancer waits for the last lines."""


@attrs.define(eq=False, repr=False)
class AuditFile:
    """See the module docstring.

    Args:
      path: where the lines go.
      dropped_line: the line that says how many were dropped.
    """

    path: Path
    dropped_line: Callable[[int], bytes]
    dropped: int = attrs.field(default=0, init=False)
    """Lines since the start that never reached the file."""
    problem: str | None = attrs.field(default=None, init=False)
    """Why the last write failed; None if it did not."""
    _pending: list[bytes] = attrs.field(factory=list, init=False)
    """Not on the disk yet."""
    _unsaid: int = attrs.field(default=0, init=False)
    """Dropped lines that no line mentions yet."""
    _has_lines: trio.Event = attrs.field(factory=trio.Event, init=False)
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def __repr__(self) -> str:
        state = f"{len(self._pending)} lines to write, {self.dropped} dropped"
        return f"<AuditFile {self.path}: {state}>"

    def check(self) -> None:
        """Raise ConfigurationError if nothing can be written there. It blocks."""
        try:
            os.close(_opened(self.path))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"cannot write the audit log {self.path}: {reason}; give --audit-log a file in a "
                "folder that this user may write to"
            ) from error

    def add(self, line: bytes) -> None:
        """Add one more line, without its end; it waits for nothing."""
        if len(self._pending) >= MAX_PENDING:
            self.dropped += 1
            self._unsaid += 1
            return
        if self._unsaid:
            self._say_what_was_dropped()
        self._pending.append(line)
        self._has_lines.set()

    async def run(self) -> None:
        """Write until cancelled, and what is left then."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await self._has_lines.wait()
                await self.write_pending()
                if self.problem is not None:
                    await trio.sleep(RETRY_S)
        finally:
            with trio.move_on_after(FINAL_S, shield=True):
                await self.write_pending()
            if self._pending:
                log.error("audit records are lost", records=len(self._pending), path=self.path.name)

    async def write_pending(self) -> None:
        """Write what waits, now.

        Cancellation: a write in progress goes on in its thread; the next one waits for it.
        """
        if not self._pending:
            return
        self._has_lines = trio.Event()
        problem = await trio.to_thread.run_sync(
            self._append_pending, abandon_on_cancel=True, limiter=self._one
        )
        if problem is not None:
            self._has_lines.set()
            if self.problem is None:
                log.error("the audit log cannot be written", path=str(self.path), reason=problem)
        elif self.problem is not None:
            if self._unsaid:
                self._say_what_was_dropped()
            log.info("the audit log is written again", path=str(self.path), dropped=self.dropped)
        self.problem = problem

    def _say_what_was_dropped(self) -> None:
        self._pending.append(self.dropped_line(self._unsaid))
        self._unsaid = 0
        self._has_lines.set()

    def _append_pending(self) -> str | None:
        """Append in a thread: what it has written is taken off the front of the list, in one
        step."""
        lines = self._pending[:]
        try:
            append_lines(self.path, lines)
        except OSError as error:
            return error.strerror or str(error)
        del self._pending[: len(lines)]
        return None


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append and sync; OSError, and the file as it was."""
    data = b"".join(line + b"\n" for line in lines)
    if _is_too_long_with(path, len(data)):
        _move_up(path)
    descriptor = _opened(path)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            data = b"\n" + data  # behind half of a line, which a crash left
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size_bytes)  # no half of a line
            raise
    finally:
        os.close(descriptor)


def _is_too_long_with(path: Path, more_bytes: int) -> bool:
    try:
        size_bytes = path.lstat().st_size
    except FileNotFoundError:
        return False
    return size_bytes > 0 and size_bytes + more_bytes > MAX_FILE_BYTES


def _move_up(path: Path) -> None:
    for number in range(KEPT_FILES, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no regular file")
    return descriptor

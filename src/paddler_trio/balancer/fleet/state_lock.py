"""One balancer at a time for one state file.

Two would each publish what it read and overwrite what the other stored. The lock is the system's
(``flock``) on a file beside the state, ``PATH.lock``: it ends with the process, however that ends,
and the file may stay. It holds the number of the process that locked it last, for people.

The lock belongs to the open file, not to the process: one that takes over gets the descriptor, and
at no moment it is free.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import structlog

from paddler_trio.errors import StateDatabaseError
from paddler_trio.system.lock_holder import holder_of, note_holder

log = structlog.get_logger("state")

_CANNOT_BE_LOCKED: Final = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOLCK, errno.EOPNOTSUPP),
}
"""A folder that is only read, a full disk, or a file system without locks: no reason not to
serve."""


@attrs.define(eq=False)
class StateLock:
    """Held as long as a process has the descriptor; None where there is no lock."""

    descriptor: int | None = None

    def give_up(self) -> None:
        """Close it here; another process may have it still. Safe to repeat."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def locked(
    state: Path | None, *, flag: str = "--state-database", inherited: int | None = None
) -> Iterator[StateLock]:
    """Hold the lock of this state file; None is no file. Blocks for as long as a file is opened.

    Args:
      flag: which option names the file.
      inherited: the descriptor that another process held the lock with; this function's to close.

    Raises:
      StateDatabaseError: another process holds it, or what is inherited is another file's.
    """
    lock = StateLock(inherited)
    try:
        if state is not None:
            path = state.with_name(f"{state.name}.lock")
            if inherited is None:
                lock.descriptor = _opened(path)
            if lock.descriptor is not None:
                _lock(lock.descriptor, path, state, flag)
        yield lock
    finally:
        lock.give_up()


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno not in _CANNOT_BE_LOCKED:
            raise StateDatabaseError(f"cannot open {path}: {error.strerror}") from error
        log.warning("the state file is not locked", path=str(path), reason=error.strerror)
        return None


def _lock(descriptor: int, path: Path, state: Path, flag: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise StateDatabaseError(f"{path} is no regular file: remove it")
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.lstat()):
        raise StateDatabaseError(
            f"the balancer that runs has another state than {state}: give {flag} as it was given"
        )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateDatabaseError(
            f"another balancer (process {holder_of(descriptor)}) uses {state} and holds the lock "
            f"on {path}: stop it, or give this one a {flag} of its own"
        ) from error
    except OSError as error:
        if error.errno not in _CANNOT_BE_LOCKED:
            raise StateDatabaseError(f"cannot lock {path}: {error.strerror}") from error
        log.warning("the state file is not locked", path=str(path), reason=error.strerror)
    else:
        note_holder(descriptor, path)

"""Write into a locked file which process holds the lock: for people, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MAX_PID_CHARS: Final = 20


def note_holder(descriptor: int, path: Path) -> None:
    """Write the number of this process into a file that it has locked. A full disk is no reason not
    to serve."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        import structlog  # commands that write no log, such as --help, import this module too

        log = structlog.get_logger("locks")
        log.warning("the lock does not name its holder", path=str(path), reason=error.strerror)


def holder_of(descriptor: int) -> str:
    """Return the number of the process that locked the file last, or ``unknown``."""
    return os.pread(descriptor, _MAX_PID_CHARS, 0).decode(errors="replace").strip() or "unknown"

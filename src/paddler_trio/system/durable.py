"""Files that are whole or not there at all, whatever happens to the machine. All of it blocks.

A key in a file of its own: how clients and agents get theirs.

Never as an argument, which every user of a machine can read in its list of processes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from paddler_trio.errors import ConfigurationError

_SYNC_FILE_RANGE_WRITE: Final = 2
_FRESH: Final = ".fresh"
_LEFT_S: Final = 3600.0
"""No file that is still to be renamed is so old."""
_MOMENT_S: Final = 1.0
"""No small file that is still to be renamed is so old."""
_BEGAN_S: Final = time.time()


def durably_replace(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target`` once its bytes are on the disk, and the name too."""
    sync(source)
    source.replace(target)
    sync(target.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file, or replace it, as a whole; of several at once the last one counts. What
    writers of it left that were killed is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = _fresh(path, f"{os.getpid()}.{threading.get_native_id()}")
    try:
        fresh.write_bytes(data)
        durably_replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    sweep(path, age_s=_LEFT_S)


def replace_whole(path: Path, data: bytes) -> None:
    """Put a small file that only its owner may read in the place of ``path``, whole or not at all;
    OSError. If root writes it, it belongs to the owner of its folder: the daemon that reads it need
    not be root.
    """
    fresh = _fresh(path, f"{os.getpid()}.{threading.get_native_id()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        durably_replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    sweep(path)


def sweep(path: Path, *, age_s: float = _MOMENT_S) -> None:
    """Remove what writers of ``path`` left that were killed, if it is as old. Whoever reads a small
    file at a start does this; what cannot be removed stays."""
    with suppress(OSError):
        _remove_leftovers(path, age_s)


def _fresh(path: Path, writer: str) -> Path:
    return path.with_name(f".{path.name[:200]}.{writer}{_FRESH}")


def _remove_leftovers(path: Path, least_age_s: float) -> None:
    """Remove files of processes that are no more: the number of one in another container says
    nothing here, but it has renamed its file before it is so old."""
    start = _fresh(path, "").name.removesuffix(_FRESH)
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(start) or not entry.name.endswith(_FRESH):
                continue
            pid, _, thread = entry.name[len(start) :].removesuffix(_FRESH).partition(".")
            if not pid.isdecimal() or (thread and not thread.isdecimal()):
                continue
            since_s = entry.stat(follow_symlinks=False).st_mtime
            if not _is_writer(int(pid), since_s) and time.time() - since_s > least_age_s:
                Path(entry.path).unlink(missing_ok=True)


def _is_writer(pid: int, since_s: float) -> bool:
    """Return whether the process may still write a file that is there since then. One in a
    container has the number of the one before."""
    return _is_alive(pid) and (pid != os.getpid() or since_s >= _BEGAN_S)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Write a file's or folder's content to the disk. or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def begin_write_back(descriptor: int, start: int, count: int) -> None:
    """Have the kernel write bytes of a file that are in its cache to the disk, and do not wait for
    them. A hint: whether they get there, :func:`sync` finds out.

    It waits where the disk's queue is full: who writes faster than the disk is slowed down here,
    not by everybody's ``fsync``.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, start, count, _SYNC_FILE_RANGE_WRITE)


def leave_page_cache(descriptor: int, start: int, count: int) -> None:
    """Let pages of a file leave the cache that no process has mapped. A hint, and only Linux takes
    it: elsewhere they leave when others need the room."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, start, count, os.POSIX_FADV_DONTNEED)


def _found_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the function of the C library, for which Python has no name; None where there is
    none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function


_sync_file_range = _found_sync_file_range()


MAX_SECRET_CHARS = 512


def read_secret(path: Path) -> str:
    """Return the key in a client's or agent's own file; ConfigurationError if it holds none.

    The error never contains any of the file.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_CHARS + 3).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the key in {path}: {error.strerror}") from error
    if not raw or len(raw) > MAX_SECRET_CHARS or any(not 0x21 <= byte <= 0x7E for byte in raw):
        raise ConfigurationError(
            f"{path} must hold one key and nothing else: 1 to {MAX_SECRET_CHARS} printable "
            "characters without spaces"
        )
    return raw.decode("ascii")

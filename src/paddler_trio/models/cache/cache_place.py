"""Keep what is known about one file of a cache beside its bytes: when it was used, when it was
hashed.

    .paddler-trio/KEY.use        empty; its time is the last use; locked as long as a process needs
                                 the model, so that nobody removes it: of several parts, the first
    .paddler-trio/KEY.verified   JSON: the file's size and time when its content was compared

Both are hints: a cache that cannot be written to works without them. Everything blocks.

The lock of one file of a cache: the same ``flock`` that ``huggingface_hub`` takes.

It ends with its process, so a holder that is killed leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.hub.hub_cache import RepositoryCache
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.pushed.pushed_model import PushedFolder
from paddler_trio.net.client.download_errors import LockHeldError, Subject
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.system.durable import write_durably

log = structlog.get_logger("cache")

HOLD_TRIES: Final = 100
HOLD_PAUSE_S: Final = 0.02
LOOKS: Final = 4
LOOK_PAUSE_S: Final = 0.002


@attrs.frozen
class CachePlace:
    """One file of a cache.

    Args:
      path: what is loaded; a link to the blob in the Hugging Face cache.
      ours: the folder of what we keep beside it.
      key: the name of what is kept; two links to one blob have the same.
      lock: held by the process that fetches the file.
    """

    path: Path
    ours: Path
    key: str
    lock: Path

    @property
    def use_path(self) -> Path:
        return self.ours / f"{self.key}.use"

    @property
    def verified_path(self) -> Path:
        return self.ours / f"{self.key}.verified"

    def used_s(self) -> float | None:
        """Return when it was used last, in Unix time; None if no agent ever used it."""
        try:
            return self.use_path.stat().st_mtime
        except OSError:
            return None

    def is_in_use(self) -> bool:
        """Return whether any process on this machine needs it."""
        return is_locked(self.use_path)

    def note_use(self) -> None:
        """Note that the file is used now, and need not stay."""
        try:
            self.ours.mkdir(parents=True, exist_ok=True)
            self.use_path.touch()
        except OSError as error:
            log.debug("the use of a file is not noted", reason=error.strerror)

    def note_verified(self) -> None:
        """Note that its content was compared now and is right."""
        try:
            status = self.path.stat()
            fields = {
                "size_bytes": status.st_size,
                "modified_ns": status.st_mtime_ns,
                "verified_s": int(time.time()),
            }
            write_durably(self.verified_path, json.dumps(fields).encode())
        except OSError as error:  # a read-only cache: it is right all the same
            log.debug("the verification is not noted", reason=error.strerror)

    def verified_s(self) -> float | None:
        """Return when its content was compared, in Unix time; None if it changed since, or never
        was."""
        try:
            fields = json.loads(self.verified_path.read_bytes())
            status = self.path.stat()
            is_same = (fields["size_bytes"], fields["modified_ns"]) == (
                status.st_size,
                status.st_mtime_ns,
            )
            return float(fields["verified_s"]) if is_same else None
        except (OSError, ValueError, TypeError, KeyError):
            return None


@attrs.define(eq=False)
class UseMark:
    """A file of a cache that this process needs; close it when it does no more."""

    place: CachePlace
    _descriptor: int

    @classmethod
    def hold(cls, place: CachePlace) -> UseMark | None:
        """Mark it as used now, until closed; None where no mark can be made."""
        for _ in range(HOLD_TRIES):
            try:
                descriptor = _open_mark(place.use_path)
            except OSError as error:
                log.debug("the use of a file is not noted", reason=error.strerror)
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_current = os.path.samestat(os.fstat(descriptor), place.use_path.stat())
            except (BlockingIOError, FileNotFoundError):
                is_current = False  # it is being removed, or looked at: try again
            except OSError as error:
                os.close(descriptor)
                log.debug("the use of a file cannot be locked", reason=error.strerror)
                return None
            if is_current:
                mark = cls(place, descriptor)
                mark.touch()
                return mark
            os.close(descriptor)
            time.sleep(HOLD_PAUSE_S)  # in a thread; at most two seconds in all
        log.warning("the use of a file cannot be noted", path=str(place.use_path))
        return None

    def touch(self) -> None:
        """Note that the file is in use still."""
        try:
            os.utime(self._descriptor)
        except OSError as error:
            log.debug("the use of a file is not noted", reason=error.strerror)

    def close(self) -> None:
        if self._descriptor >= 0:
            self.touch()
            os.close(self._descriptor)
            self._descriptor = -1


def place_of(path: Path, settings: HubSettings) -> CachePlace | None:
    """Return the place of a cached file; None if ``path`` is in no cache of ours."""
    if "\0" in str(path):
        return None
    if path.is_relative_to(settings.cache):
        inside = path.relative_to(settings.cache).parts
        names = inside[0].split("--")
        is_pointer = len(inside) > 3 and inside[1] == "snapshots"
        if not is_pointer or names[0] != "models" or len(names) not in {2, 3}:
            return None
        repository = RepositoryCache(settings.cache, "/".join(names[1:]))
        try:
            key = path.readlink().name
        except OSError:  # a file system without links
            key = hashlib.sha256("/".join(inside[2:]).encode()).hexdigest()[:40]
        return CachePlace(path, repository.ours, key, repository.lock(key))
    if path.is_relative_to(settings.url_cache):
        file = UrlFile(path.parent, path.name)
        return CachePlace(path, file.ours, file.name, file.lock)
    if path.is_relative_to(settings.pushed_cache):
        folder = PushedFolder(settings.pushed_cache, path.parent.name)
        return CachePlace(path, folder.ours, path.name, folder.lock(path.name))
    return None


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock on ``path``, shared or not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not is_lockable(descriptor)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


def is_lockable(descriptor: int) -> bool:
    """Lock an open file for this process alone; False if another one has it. OSError."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOOK_PAUSE_S)  # in a thread; another process may only be looking, too
    return False


def _open_mark(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


@asynccontextmanager
async def held_lock(
    path: Path,
    subject: Subject,
    timeouts: Timeouts,
    while_waiting: Callable[[], Awaitable[object]],
) -> AsyncIterator[None]:
    """Hold the lock at ``path``; wait for it as long as its holder makes progress.

    Args:
      while_waiting: called at each look; what it returns changes while the holder works.

    Errors:
      LockHeldError: nothing changed for ``timeouts.lock_s``.
      OSError: there can be no such file.
    """
    descriptor = await trio.to_thread.run_sync(_try_lock, path)
    seen: object = None
    changed_s = trio.current_time()
    while descriptor is None:
        now = await while_waiting()
        if now != seen:
            seen, changed_s = now, trio.current_time()
        elif trio.current_time() - changed_s > timeouts.lock_s:
            raise LockHeldError(
                subject,
                f"another process holds {path} and has made no progress for {timeouts.lock_s:g} s",
                str(path),
            )
        await trio.sleep(timeouts.lock_poll_s)
        descriptor = await trio.to_thread.run_sync(_try_lock, path)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock; None if another process does."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_current = _is_same(descriptor, path)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        if is_current:
            return descriptor
        os.close(descriptor)  # its last holder removed it: others would lock another file


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

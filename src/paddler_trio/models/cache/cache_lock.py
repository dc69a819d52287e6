"""The lock of one file of a cache: the same ``flock`` that ``huggingface_hub`` takes.

It ends with its process, so a holder that is killed leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from paddler_trio.net.client.download_errors import LockHeldError, Subject
from paddler_trio.net.client.http_client import Timeouts


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

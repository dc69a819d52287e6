"""Errors of several tasks, and of the file system, as the one DownloadError they come to."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

from paddler_trio.errors import leaves
from paddler_trio.net.client.download_errors import (
    CacheBrokenError,
    CacheFullError,
    CacheNotWritableError,
    DownloadError,
    RemoteFileChangedError,
    Subject,
)

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@asynccontextmanager
async def one_error() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks fail together: the DownloadError or OSError that matters most is
    raised alone. Anything else in the group, a bug say, lets the group through."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        errors = [leaf for leaf in leaves(group) if not isinstance(leaf, trio.Cancelled)]
        if not errors or not all(isinstance(leaf, DownloadError | OSError) for leaf in errors):
            raise
        raise min(errors, key=_rank) from None


@contextmanager
def disk_errors(subject: Subject) -> Iterator[None]:
    """Turn OSErrors inside into errors of the cache."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in FULL_ERRNOS:
            raise CacheFullError(subject, f"the cache's disk is full: {reason}{where}") from error
        if error.errno in _DENIED:
            raise CacheNotWritableError(
                subject, f"the cache cannot be written to: {reason}{where}"
            ) from error
        raise CacheBrokenError(subject, f"the cache failed: {reason}{where}") from error


def _rank(error: BaseException) -> int:
    """Return the rank of an error: a changed file decides first, then what is permanent, then the
    disk."""
    if isinstance(error, RemoteFileChangedError):
        return 0
    if isinstance(error, DownloadError):
        return 1 if error.is_permanent else 3
    return 2

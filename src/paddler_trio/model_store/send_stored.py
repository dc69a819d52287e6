"""Answering GET and HEAD with a file that lies in the store, whole or by range."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import trio

from paddler_trio.http.asgi import HttpProblem
from paddler_trio.model_store.byte_ranges import Unsatisfiable, wanted_range
from paddler_trio.model_store.store_connection import StoreConnection, StoreHeader


async def send_stored(
    connection: StoreConnection, path: Path, *, etag: str, headers: Iterable[StoreHeader] = ()
) -> None:
    """Answer with the file at ``path``.

    Args:
      etag: with its quotes.
      headers: beside those that describe the body.

    Errors:
      HttpProblem: 404, there is no file.
      ReaderGoneError, FileCutError: the answer is not whole.
    """
    descriptor = await trio.to_thread.run_sync(_open, path)
    if descriptor is None:
        raise HttpProblem(404, "the store has no such file")
    try:
        size_bytes = os.fstat(descriptor).st_size
        window = await begin_file(connection, size_bytes, etag=etag, headers=headers)
        if window is not None:
            await connection.send_file(descriptor, *window)
    finally:
        os.close(descriptor)


async def begin_file(
    connection: StoreConnection,
    size_bytes: int,
    *,
    etag: str,
    headers: Iterable[StoreHeader] = (),
) -> tuple[int, int] | None:
    """Send the head for a file of ``size_bytes``: 200, 206 or 416.

    Returns:
      The first byte to send and the one behind the last; None if no body follows.
    """
    asked = connection.headers
    wanted = wanted_range(
        asked.get("range"), size_bytes=size_bytes, if_range=asked.get("if-range"), etag=etag
    )
    common = [("Accept-Ranges", "bytes"), *([("ETag", etag)] if etag else []), *headers]
    if isinstance(wanted, Unsatisfiable):
        whole = ("Content-Range", f"bytes */{size_bytes}")
        await connection.send_head(416, [("Content-Length", "0"), whole, *common])
        return None
    status, start, stop = 200, 0, size_bytes
    if wanted is not None:
        status, start, stop = 206, wanted.start, wanted.stop
        common.append(("Content-Range", f"bytes {start}-{stop - 1}/{size_bytes}"))
    await connection.send_head(status, [("Content-Length", str(stop - start)), *common])
    return None if connection.request.method == "HEAD" or start == stop else (start, stop)


def _open(path: Path) -> int | None:
    """A descriptor of the regular file; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor

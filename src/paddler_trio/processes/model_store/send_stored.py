"""Answering GET and HEAD with a file that lies in the store, whole or by range."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import trio

from paddler_trio.models.download.block_plan import ByteRange
from paddler_trio.processes.model_store.byte_ranges import Unsatisfiable, wanted_range
from paddler_trio.processes.model_store.store_connection import StoreConnection, StoreHeader


async def send_stored(
    connection: StoreConnection, path: Path, *, validator: str, headers: Iterable[StoreHeader] = ()
) -> bool:
    """Answer with the file at ``path``; False if there is none, and then nothing was sent.

    Args:
      validator: an ETag with its quotes, a date of the last modification, or empty.
      headers: beside those that describe the body.

    Errors:
      ReaderGoneError, FileCutError: the answer is not whole.
    """
    descriptor = await trio.to_thread.run_sync(open_regular, path)
    if descriptor is None:
        return False
    try:
        size_bytes = os.fstat(descriptor).st_size
        window = await begin_file(connection, size_bytes, validator=validator, headers=headers)
        if window is not None:
            await connection.send_file(descriptor, window.start, window.stop)
    finally:
        os.close(descriptor)
    return True


async def begin_file(
    connection: StoreConnection,
    size_bytes: int,
    *,
    validator: str,
    headers: Iterable[StoreHeader] = (),
) -> ByteRange | None:
    """Send the head for a file of ``size_bytes``: 200, 206 or 416.

    Returns:
      The bytes to send; None if no body follows.
    """
    wanted = asked_range(connection, size_bytes, validator)
    common = [("Accept-Ranges", "bytes"), *validator_header(validator), *headers]
    if isinstance(wanted, Unsatisfiable):
        whole = ("Content-Range", f"bytes */{size_bytes}")
        await connection.send_head(416, [("Content-Length", "0"), whole, *common])
        return None
    status, start, stop = 200, 0, size_bytes
    if wanted is not None:
        status, start, stop = 206, wanted.start, wanted.stop
        common.append(("Content-Range", f"bytes {start}-{stop - 1}/{size_bytes}"))
    await connection.send_head(status, [("Content-Length", str(stop - start)), *common])
    has_no_body = connection.request.method == "HEAD" or start == stop
    return None if has_no_body else ByteRange(start, stop)


def asked_range(
    connection: StoreConnection, size_bytes: int, validator: str
) -> ByteRange | Unsatisfiable | None:
    """Return what the request asks for of a file that has this validator now."""
    asked = connection.headers
    return wanted_range(
        asked.get("range"), size_bytes=size_bytes, if_range=asked.get("if-range"), etag=validator
    )


def validator_header(validator: str) -> list[StoreHeader]:
    """Return the header that lets a client notice that the file is another one; none without
    one."""
    if not validator:
        return []
    is_etag = validator.startswith(('"', "W/"))
    return [("ETag" if is_etag else "Last-Modified", validator)]


def open_regular(path: Path) -> int | None:
    """Return a descriptor of the regular file; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor

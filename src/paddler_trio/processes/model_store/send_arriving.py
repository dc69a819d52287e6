"""Answering with a file while it arrives: a request for a range waits for the blocks of its own.

The head is sent when the first byte is here, so that what the source refuses is an error with its
cause; after ``HEAD_S`` it is sent anyway. If the file begins anew meanwhile, the answer is cut: its
client asks again and gets bytes of one version.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from paddler_trio.models.download.block_plan import BlockPlan, ByteRange
from paddler_trio.net.client.download_errors import DownloadError
from paddler_trio.processes.model_store.arrival import Arrival
from paddler_trio.processes.model_store.store_connection import (
    FileCutError,
    StoreConnection,
    StoreHeader,
)

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


@attrs.frozen
class Unsatisfiable:
    """An answer of 416: nothing of the file is in the range that was asked for."""


WHOLE: Final = None


def wanted_range(
    text: str | None, *, size_bytes: int, if_range: str | None = None, etag: str = ""
) -> ByteRange | Unsatisfiable | None:
    """Return what to send of a file; :data:`WHOLE` if it is all of it, as for a header that is
    none.

    Args:
      text: of the Range header.
      if_range, etag: of the request, and of the file as it is now; the range counts only if they
        are equal.
    """
    match = None if text is None else _RANGE.fullmatch(text.strip())
    if match is None or (if_range is not None and if_range != etag):
        return WHOLE
    first, last = match.groups()
    if not first and not last:
        return WHOLE
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), size_bytes if not last else min(int(last) + 1, size_bytes)
        if last and int(last) < start:
            return WHOLE
    return ByteRange(start, stop) if start < stop else Unsatisfiable()


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


HEAD_S: Final = 5.0


async def send_arriving(
    connection: StoreConnection,
    arrival: Arrival,
    *,
    validator: str | None,
    headers: Iterable[StoreHeader] = (),
) -> bool:
    """Answer with the file; False if it is whole by now, and then nothing was sent.

    Args:
      validator: see :func:`send_stored`; None for what the source sends.

    Errors:
      DownloadError: it does not come.
      ReaderGoneError, FileCutError: the answer is not whole.
    """
    while True:
        opened = await _opened(arrival)
        if opened is None:
            return False
        try:
            await _send(connection, opened, validator, headers)
        except FileCutError:
            if connection.has_begun:
                raise
        else:
            return True
        finally:
            os.close(opened.descriptor)


@attrs.frozen(eq=False)
class OpenedArrival:
    """One version of a file that arrives, for one reader: the plan and the descriptor belong
    together."""

    arrival: Arrival
    plan: BlockPlan
    generation: int
    descriptor: int

    async def until_here(self, position: int) -> int:
        """Return how many bytes are here from ``position`` on, once there are any; DownloadError,
        and FileCutError if another version arrives before."""
        if position >= self.plan.size_bytes:
            return 0
        while (here := self.plan.here_from(position)) == 0:
            _raise_failure(self.arrival)
            if self.arrival.generation != self.generation:
                raise FileCutError("the file begins anew")
            self.plan.prefer(position)
            await self.arrival.changes.wait_beyond(self.arrival.changes.ordinal)
        return here


async def _opened(arrival: Arrival) -> OpenedArrival | None:
    """Return the version that arrives now; None if the file is whole before. DownloadError."""
    while True:
        await _until(arrival, lambda: arrival.plan is not None or arrival.outcome is not None)
        _raise_failure(arrival)
        plan, generation = arrival.plan, arrival.generation
        if arrival.outcome is not None or plan is None:
            return None
        descriptor = await trio.to_thread.run_sync(open_regular, arrival.path)
        if arrival.generation == generation and descriptor is not None:
            return OpenedArrival(arrival, plan, generation, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        elif arrival.generation == generation:  # it was renamed: it is whole in a moment
            await _until(arrival, partial(_is_over, arrival, generation))


def _is_over(arrival: Arrival, generation: int) -> bool:
    return arrival.outcome is not None or arrival.generation != generation


async def _send(
    connection: StoreConnection,
    opened: OpenedArrival,
    validator: str | None,
    headers: Iterable[StoreHeader],
) -> None:
    arrival, size_bytes = opened.arrival, opened.plan.size_bytes
    if validator is None:
        validator = arrival.validator
    elif opened.generation:  # what came before was wrong: it must not be continued with this
        validator = f'{validator[:-1]}.{opened.generation}"'
    asked = asked_range(connection, size_bytes, validator)
    if not isinstance(asked, Unsatisfiable):
        start = 0 if asked is None else asked.start
        with trio.move_on_after(HEAD_S):
            await opened.until_here(start)
    window = await begin_file(connection, size_bytes, validator=validator, headers=headers)
    position = 0 if window is None else window.start
    while window is not None and position < window.stop:
        stop = min(position + await opened.until_here(position), window.stop)
        await connection.send_file(opened.descriptor, position, stop)
        position = stop


async def _until(arrival: Arrival, is_so: Callable[[], bool]) -> None:
    while not is_so():
        await arrival.changes.wait_beyond(arrival.changes.ordinal)


def _raise_failure(arrival: Arrival) -> None:
    if isinstance(arrival.outcome, DownloadError):
        raise arrival.outcome.with_traceback(None)  # several tasks raise the same one

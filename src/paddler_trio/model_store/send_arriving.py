"""Answering with a file while it arrives: a request for a range waits for the blocks of its own.

The head is sent when the first byte is here, so that what the source refuses is an error with its
cause; after ``HEAD_S`` it is sent anyway. If the file begins anew meanwhile, the answer is cut: its
client asks again and gets bytes of one version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final

import trio

from paddler_trio.model_store.arrival import GGUF_MAGIC, Arrival
from paddler_trio.model_store.byte_ranges import Unsatisfiable
from paddler_trio.model_store.send_stored import asked_range, begin_file, open_regular
from paddler_trio.model_store.store_connection import (
    FileCutError,
    StoreConnection,
    StoreHeader,
)
from paddler_trio.models.block_plan import BlockPlan
from paddler_trio.models.download_errors import DownloadError

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
    plan = await _plan_of(arrival)
    if plan is None:
        return False
    generation = arrival.generation
    if validator is None:
        validator = arrival.validator
    descriptor = await trio.to_thread.run_sync(open_regular, arrival.path)
    if descriptor is None:  # it was renamed: it is whole in a moment
        await _until(arrival, lambda: arrival.outcome is not None)
        return False
    try:
        if arrival.must_be_checked:
            await _until_here(arrival, plan, generation, 0)
            arrival.check(os.pread(descriptor, len(GGUF_MAGIC), 0))
        asked = asked_range(connection, plan.size_bytes, validator)
        if not isinstance(asked, Unsatisfiable):
            start = 0 if asked is None else asked.start
            with trio.move_on_after(HEAD_S):
                await _until_here(arrival, plan, generation, start)
        window = await begin_file(connection, plan.size_bytes, validator=validator, headers=headers)
        position = 0 if window is None else window.start
        while window is not None and position < window.stop:
            here = await _until_here(arrival, plan, generation, position)
            stop = min(position + here, window.stop)
            await connection.send_file(descriptor, position, stop)
            position = stop
    finally:
        os.close(descriptor)
    return True


async def _plan_of(arrival: Arrival) -> BlockPlan | None:
    """The plan, once there is one; None if the file is whole before. DownloadError."""
    await _until(arrival, lambda: arrival.plan is not None or arrival.outcome is not None)
    _raise_failure(arrival)
    return None if arrival.outcome is not None else arrival.plan


async def _until_here(arrival: Arrival, plan: BlockPlan, generation: int, position: int) -> int:
    """How many bytes are here from ``position`` on, once there are any; DownloadError,
    FileCutError."""
    if position >= plan.size_bytes:
        return 0
    while (here := plan.here_from(position)) == 0:
        _raise_failure(arrival)
        if arrival.generation != generation:
            raise FileCutError("the source has another version now")
        plan.prefer(position)
        await arrival.changes.wait_beyond(arrival.changes.ordinal)
    return here


async def _until(arrival: Arrival, is_so: Callable[[], bool]) -> None:
    while not is_so():
        await arrival.changes.wait_beyond(arrival.changes.ordinal)


def _raise_failure(arrival: Arrival) -> None:
    if isinstance(arrival.outcome, DownloadError):
        raise arrival.outcome.with_traceback(None)  # several tasks raise the same one

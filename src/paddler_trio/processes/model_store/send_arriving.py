"""Answering with a file while it arrives: a request for a range waits for the blocks of its own.

The head is sent when the first byte is here, so that what the source refuses is an error with its
cause; after ``HEAD_S`` it is sent anyway. If the file begins anew meanwhile, the answer is cut: its
client asks again and gets bytes of one version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import attrs
import trio

from paddler_trio.models.download.block_plan import BlockPlan
from paddler_trio.net.client.download_errors import DownloadError
from paddler_trio.processes.model_store.arrival import Arrival
from paddler_trio.processes.model_store.byte_ranges import Unsatisfiable
from paddler_trio.processes.model_store.send_stored import asked_range, begin_file, open_regular
from paddler_trio.processes.model_store.store_connection import (
    FileCutError,
    StoreConnection,
    StoreHeader,
)

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

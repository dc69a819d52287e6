"""A task that is handed over to another nursery: who hears of its end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from paddler_trio.errors import WireError
from paddler_trio.system.synchronization import run_in


async def fails_while_a_write_goes_on() -> None:
    """As the link of an agent that sends garbage and does not read."""

    async def write() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(0.1)
        raise WireError("garbage")


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_error_is_raised_where_it_is_waited_for_and_not_in_the_nursery(
    is_cancelled: bool, autojump_clock: MockClock
) -> None:
    """Also if the nursery is cancelled while what failed has not quite ended."""
    heard = trio.Event()

    async def wait() -> None:
        with pytest.RaisesGroup(WireError):
            await run_in(nursery, fails_while_a_write_goes_on, name="agent")
        heard.set()

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as nursery:
            connections.start_soon(wait)
            await trio.sleep(0.5)
            if is_cancelled:
                nursery.cancel_scope.cancel()
            await trio.sleep(1)
        await heard.wait()
        assert nursery.cancel_scope.cancelled_caught == is_cancelled

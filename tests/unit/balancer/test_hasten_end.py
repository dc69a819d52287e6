"""How long a balancer that was taken over from takes to finish, once it is told to stop."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from paddler_trio.balancer.hot_restart.restartable import hasten_end


async def ended_after_s(*, handover_s: float, stop_after_s: float, drain_timeout_s: float) -> float:
    """When requests that would go on for ever ended."""
    stop = trio.Event()
    begin_s = trio.current_time()
    async with trio.open_nursery() as services:
        async with trio.open_nursery() as requests:
            requests.cancel_scope.deadline = begin_s + handover_s
            requests.start_soon(trio.sleep_forever)
            services.start_soon(hasten_end, stop, requests, drain_timeout_s)
            with trio.move_on_after(stop_after_s):
                await trio.sleep_forever()
            stop.set()
        ended_s = trio.current_time() - begin_s
        services.cancel_scope.cancel()
    return ended_s


async def test_a_stop_leaves_the_time_that_every_balancer_has(autojump_clock: MockClock) -> None:
    assert await ended_after_s(handover_s=3600, stop_after_s=10, drain_timeout_s=30) == 40


async def test_a_stop_gives_no_more_time_than_there_was(autojump_clock: MockClock) -> None:
    assert await ended_after_s(handover_s=20, stop_after_s=10, drain_timeout_s=30) == 20


async def test_without_a_stop_the_time_of_a_handover_is_all_theirs(
    autojump_clock: MockClock,
) -> None:
    never_s = 1e6
    assert await ended_after_s(handover_s=3600, stop_after_s=never_s, drain_timeout_s=30) == 3600

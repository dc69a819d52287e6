"""How late the event loop is: what is measured, remembered and told."""

from __future__ import annotations

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.system.loop_lag import (
    INTERVAL_S,
    LOG_EVERY_S,
    STALL_S,
    WINDOW_S,
    LoopLag,
)


async def test_the_loop_is_as_late_as_it_woke_us(mock_clock: MockClock) -> None:
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        await wait_all_tasks_blocked()
        mock_clock.jump(INTERVAL_S)
        await wait_all_tasks_blocked()
        assert (lag.worst_s, lag.stalls) == (0, 0)
        mock_clock.jump(INTERVAL_S + 1.5)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert lag.worst_s == pytest.approx(1.5)
    assert lag.stalls == 1
    assert lag.stalled_s == pytest.approx(1.5)


async def test_the_worst_is_forgotten_after_two_windows(mock_clock: MockClock) -> None:
    lag = LoopLag()
    lag.note(3.0, 1.0)
    lag.note(0.0, WINDOW_S + 2)
    assert lag.worst_s == 3
    lag.note(0.0, 2 * WINDOW_S + 4)
    assert lag.worst_s == 0


async def test_a_storm_of_stalls_is_told_in_few_lines(mock_clock: MockClock) -> None:
    lag = LoopLag()
    with structlog.testing.capture_logs() as told:
        for number in range(100):
            lag.note(STALL_S * 2, number * LOG_EVERY_S / 50)
        lag.note(0.0, 3 * LOG_EVERY_S)  # what was not told yet
    assert [line["stalls"] for line in told] == [1, 50, 49]

"""A daemon's heap is trimmed for as long as the daemon runs."""

import trio
from trio.testing import MockClock

from paddler_trio.system.heap_trim import TRIM_EVERY_S, run_heap_trim


async def test_it_is_trimmed_at_intervals_and_never_twice_at_once(mock_clock: MockClock) -> None:
    started, sent = trio.open_memory_channel[None](10)
    running = 0

    def trim() -> None:
        nonlocal running
        running += 1
        assert running == 1
        trio.from_thread.run_sync(started.send_nowait, None)
        running -= 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_heap_trim, trim)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            mock_clock.jump(TRIM_EVERY_S)
            await sent.receive()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert sent.statistics().current_buffer_used == 0
        nursery.cancel_scope.cancel()

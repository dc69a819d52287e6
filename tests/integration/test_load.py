"""Many clients at once: everyone is served, in order, and the counts are right meanwhile."""

from __future__ import annotations

import re

import httpx
import trio
from fleet import Fleet
from streams import CONVERSATION, Heard, listen, story

STREAMS = 64
SLOTS = 8


def test_64_streams_over_8_slots_all_complete_in_the_order_they_came() -> None:
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=100000")
    with Fleet.start(agents=1, slots=SLOTS, balancer_options=options) as fleet:
        all_heard = [Heard() for _ in range(STREAMS)]
        seen: list[tuple[int, int]] = []

        async def watch() -> None:
            """Counts at many moments; each is one consistent snapshot."""
            while True:
                seen.append(await trio.to_thread.run_sync(_counts, fleet))

        async def run() -> None:
            async with trio.open_nursery() as watching:
                watching.start_soon(watch)
                async with trio.open_nursery() as nursery:
                    for number, heard in enumerate(all_heard):
                        body = story(number, max_tokens=60)
                        await nursery.start(listen, fleet.inference, CONVERSATION, body, heard)
                watching.cancel_scope.cancel()

        trio.run(run)
        assert all(heard.endings == ["Done"] for heard in all_heard)
        assert all(heard.lines_after_ending == 0 for heard in all_heard)
        starts = [heard.first_token_s for heard in all_heard]
        assert all(start is not None for start in starts)
        # The order is the ledger's, which unit tests hold to the letter. Here clients tell the time
        # themselves and may look up one batch late.
        order = sorted(range(STREAMS), key=lambda number: starts[number] or 0.0)
        for place, number in enumerate(order):
            assert number - place < 2 * SLOTS, f"request {number} started as number {place}"
        assert max(busy for busy, _ in seen) == SLOTS
        assert max(buffered for _, buffered in seen) >= STREAMS // 2
        for busy, buffered in seen:
            assert busy <= SLOTS
            assert buffered == 0 or busy == SLOTS, "somebody waited while a slot was free"
        assert _counts(fleet) == (0, 0)


def _counts(fleet: Fleet) -> tuple[int, int]:
    """Slots taken and requests waiting, from one snapshot of the metrics."""
    text = httpx.get(f"{fleet.management_url}/metrics", trust_env=False).text
    return _gauge(text, "slots_processing"), _gauge(text, "requests_buffered")


def _gauge(text: str, name: str) -> int:
    found = re.search(rf"^paddler_{name} (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found.group(1))


def test_a_client_with_one_request_is_not_behind_anothers_backlog() -> None:
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=100000")
    with Fleet.start(agents=1, slots=1, balancer_options=options) as fleet:
        greedy = [Heard() for _ in range(12)]
        modest = Heard()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for number, heard in enumerate(greedy):
                    await nursery.start(_ask_as, "greedy", fleet, number, heard)
                await nursery.start(_ask_as, "modest", fleet, 99, modest)

        trio.run(run)
        assert all(heard.endings == ["Done"] for heard in (*greedy, modest))
        before = sum((h.first_token_s or 0) < (modest.first_token_s or 0) for h in greedy)
        assert before <= 4, f"{before} of the other client's 12 requests went first"


async def _ask_as(
    name: str, fleet: Fleet, number: int, heard: Heard, *, task_status: trio.TaskStatus[None]
) -> None:
    await listen(
        fleet.inference,
        CONVERSATION,
        story(number, max_tokens=60),
        heard,
        headers=[("X-Paddler-Client", name)],
        task_status=task_status,
    )

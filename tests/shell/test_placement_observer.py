"""The dispatcher places by prediction, says why, and lets nobody wait beyond a moment for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from dispatch_world import LIMITS, Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.nursery_tree.request import Buffered, Request
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import encode_work

STORY, TALE = "Once upon a time. " * 500, "There was a king. " * 500
TOKENS = len(STORY) // 4


class Warm:
    """A world that places by prediction."""

    def __init__(self, here: World, seen: PlacementObserver, activity: RequestActivity) -> None:
        self.here, self.seen, self.activity = here, seen, activity

    def ask(self, text: str) -> Request:
        work = encode_work(ContinueFromRawPromptParams(text, 5))
        return self.here.dispatcher.submit("r", work)

    def served(self, text: str, peer: Peer) -> None:
        """Have it answered by this agent, which computes 1,000 tokens a second."""
        request = self.ask(text)
        assert request.lease is not None
        assert request.lease.agent is peer.connection
        self.compute(request, cached=0)
        peer.says(request.lease.wire_id, "x", done=True)

    def compute(self, request: Request, *, cached: int) -> None:
        assert request.lease is not None
        request.lease.report_prompt(
            PromptStages(
                tokens=TOKENS, cached=cached, template_ms=1, wait_ms=0, prefill_ms=TOKENS - cached
            )
        )

    def metrics(self) -> Iterator[tuple[str, float]]:
        for family in self.seen.families():
            for sample in family.samples:
                yield f"{family.definition.name}{sample.suffix}{dict(sample.labels)}", sample.value


@asynccontextmanager
async def warm() -> AsyncIterator[Warm]:
    placement = WarmPlacement(trio.current_time)
    seen, activity = PlacementObserver(placement), RequestActivity()
    async with world(LIMITS, (seen, activity), placement) as here:
        yield Warm(here, seen, activity)
    assert not placement._asked


async def test_a_next_turn_goes_home_and_its_record_says_why(autojump_clock: MockClock) -> None:
    async with warm() as fleet:
        first, second = fleet.here.agent(), fleet.here.agent()
        fleet.served(STORY, first)
        fleet.served(TALE, second)
        request = fleet.ask(STORY + "Then")
        assert request.lease is not None
        assert request.lease.agent is first.connection
        why = fleet.activity.in_flight[request.key].placements[0].why
        assert why.startswith("a1: 2,")
        assert "tokens are there, predicted 0.0" in why
        assert "; a2: 2." in why
        fleet.compute(request, cached=TOKENS - 9)
        first.says(request.lease.wire_id, "x", done=True)
        shown = dict(fleet.metrics())
        assert shown["reusable_prompt_tokens_total{}"] > 2000
        assert shown["missed_prompt_tokens_total{'reason': 'busy'}"] == 0
        assert shown["placement_first_token_seconds_count{'kind': 'predicted'}"] == 3
        assert shown["placement_first_token_seconds_count{'kind': 'measured'}"] == 3


async def waiting(fleet: Warm) -> tuple[Peer, Peer, Request, Request]:
    """Both agents; one that keeps the first busy, and one that waits for it."""
    first, second = fleet.here.agent(), fleet.here.agent()
    fleet.served(STORY, first)
    fleet.served(TALE, second)
    busy = fleet.ask(STORY)
    fleet.compute(busy, cached=TOKENS - 1)
    waits = fleet.ask(STORY + "Then")
    assert isinstance(waits.phase, Buffered)
    await wait_all_tasks_blocked()
    return first, second, busy, waits


def finish(peer: Peer, request: Request) -> None:
    assert request.lease is not None
    peer.says(request.lease.wire_id, "x", done=True)


async def test_a_request_waits_for_the_slot_of_the_agent_that_has_its_prompt(
    autojump_clock: MockClock,
) -> None:
    async with warm() as fleet:
        first, _, busy, waits = await waiting(fleet)
        finish(first, busy)
        assert waits.agents == ["a1"]
        assert (
            fleet.activity.in_flight[waits.key].placements[0].why.endswith("it waited for the slot")
        )
        finish(first, waits)


async def test_its_moment_ends_long_before_its_patience(autojump_clock: MockClock) -> None:
    async with warm() as fleet:
        first, second, busy, waits = await waiting(fleet)
        began_s = trio.current_time()
        await waits.left_queue.wait()
        assert waits.agents == ["a2"]
        assert 0 < trio.current_time() - began_s <= LIMITS.buffered_timeout_s / 2
        finish(second, waits)
        finish(first, busy)


@pytest.mark.parametrize("how", ["it leaves", "it is drained"])
async def test_it_waits_for_no_agent_that_takes_nothing_any_more(
    how: str, autojump_clock: MockClock
) -> None:
    async with warm() as fleet:
        first, second, busy, waits = await waiting(fleet)
        if how == "it leaves":
            busy.stop()
            first.connection.said_goodbye = True
            fleet.here.dispatcher.leave(first.connection)
        else:
            fleet.here.dispatcher.drain_agent(first.connection, drained=True)
            finish(first, busy)
        assert waits.agents == ["a2"]
        await trio.sleep(LIMITS.buffered_timeout_s + 1)
        assert not waits.is_over, "its patience in the queue counts no more"
        finish(second, waits)


async def test_an_engine_that_starts_anew_has_nothing(autojump_clock: MockClock) -> None:
    async with warm() as fleet:
        first = fleet.here.agent()
        fleet.served(STORY, first)
        assert fleet.seen.placement.index.num_blocks
        first.connection.engine_restarts += 1
        fleet.here.dispatcher.update(first.connection)
        assert not fleet.seen.placement.index.num_blocks

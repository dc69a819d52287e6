"""What is recorded of requests and measured of agents; the time is virtual."""

from __future__ import annotations

import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock

from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.capacity import arrival_log
from paddler_trio.balancer.capacity.arrival_log import ArrivalLog
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.capacity.replayed_arrivals import Arrival
from paddler_trio.scheduler.capacity.speeds import speed_of
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import encode_work

LIMITS = DispatchLimits(max_buffered=5, buffered_timeout_s=1000, item_timeout_s=1000)
PROMPT_S, TOKEN_S, EACH_S = 0.002, 0.05, 0.01
"""Of a prompt token; of a pass; and of each token in it."""


@pytest.fixture(autouse=True)
def clock(mock_clock: MockClock) -> MockClock:
    """What the dispatcher does is synchronous: time goes on without a turn of its tasks."""
    return mock_clock


def logged(here: World) -> ArrivalLog:
    activity = RequestActivity()
    log = ArrivalLog(activity)
    here.dispatcher.observers = Observers((activity, log))
    return log


def submit(here: World, prompt: str = "Once", client: str = "") -> Request:
    work = encode_work(ContinueFromRawPromptParams(prompt, 50))
    return here.dispatcher.submit("r", work, client=client)


def computed(peer: Peer, wire_id: str, tokens: int, cached: int = 0, *, wait_ms: int = 0) -> None:
    took_ms = round(1000 * (tokens - cached) * PROMPT_S)
    stages = PromptStages(
        tokens=tokens, cached=cached, template_ms=0, wait_ms=wait_ms, prefill_ms=took_ms
    )
    peer.lease(wire_id).report_prompt(stages)
    peer.says(wire_id, "a")


def known(log: ArrivalLog, since_s: float = 0.0) -> list[Arrival]:
    return log.reader("default", since_s)()


def answer(
    clock: MockClock, peer: Peer, wire_id: str, passes: int, together: int, *, done: bool
) -> None:
    for _ in range(passes):
        clock.jump(TOKEN_S + together * EACH_S)
        peer.says(wire_id, "b")
    if done:
        peer.says(wire_id, done=True)


async def test_speeds_follow_from_answers_alone_and_together(clock: MockClock) -> None:
    async with world(LIMITS) as here:
        log = logged(here)
        peer = here.agent(slots=2)
        for together in (1, 2) * 10:
            for _ in range(together):
                submit(here)
            wires = [lease.wire_id for lease in peer.connection.leases()]
            for place, wire in enumerate(wires):  # one prompt after the other
                clock.jump(400 * PROMPT_S)
                computed(peer, wire, 400, wait_ms=place * round(400_000 * PROMPT_S))
            for _ in range(30):
                clock.jump(TOKEN_S + together * EACH_S)
                for wire in wires:
                    peer.says(wire, "b")
            for wire in wires:
                peer.says(wire, done=True)
        samples = log.samples(peer.connection.key).all()
        speed = speed_of(samples, 1)
        assert speed is not None
        assert max(each.together for each in samples) == pytest.approx(2.0, rel=0.01)
        for number in (1, 2):
            pass_s = speed.pass_s + number * speed.token_s
            assert pass_s == pytest.approx(TOKEN_S + number * EACH_S, rel=0.1)
        assert speed.tokens_per_s == pytest.approx(1 / PROMPT_S, rel=0.15)


async def test_an_arrival_is_times_and_lengths_and_what_it_begins_like(clock: MockClock) -> None:
    text = "The sea was calm and the wind came from the south. " * 40
    async with world(LIMITS) as here:
        log = logged(here)
        peer = here.agent(slots=2)
        for number, (prompt, cached) in enumerate(
            ((text + "1", 0), (text + "2", 480), ("Other. " * 200, 0))
        ):
            clock.jump(5)
            submit(here, prompt, client=f"c{number % 2}")
            (lease,) = peer.connection.leases()
            clock.jump(1)
            computed(peer, lease.wire_id, 500, cached)
            answer(clock, peer, lease.wire_id, number, 1, done=True)
        first, second, third = known(log)
        assert [each.at_s - first.at_s for each in (second, third)] == pytest.approx(
            [6.0, 12.06], abs=0.1
        )
        assert [each.answer_tokens for each in (first, second, third)] == [1, 2, 3]
        assert [each.client for each in (first, second, third)] == [0, 1, 0]
        assert (first.shares_with, second.shares_with, third.shares_with) == (-1, 0, -1)
        assert 480 <= second.shared_tokens < 500
        assert known(log, third.at_s) == [third]
        assert log.reader("unknown", 0.0)() == []


async def test_one_that_was_refused_or_lost_its_agent_came_as_well(clock: MockClock) -> None:
    async with world(LIMITS) as here:
        log = logged(here)
        peer = here.agent(slots=1)
        submit(here)
        (lease,) = peer.connection.leases()
        computed(peer, lease.wire_id, 100)
        here.dispatcher.leave(peer.connection)
        again = here.agent(slots=1)
        await trio.lowlevel.checkpoint()
        (lease,) = again.connection.leases()
        computed(again, lease.wire_id, 100)
        more = [submit(here) for _ in range(LIMITS.max_buffered + 1)]
        assert more[-1].is_over
        for _ in more:
            (lease,) = again.connection.leases()
            answer(clock, again, lease.wire_id, 9, 1, done=True)
        arrivals = known(log)
        assert len(arrivals) == LIMITS.max_buffered + 2
        assert min(each.answer_tokens for each in arrivals) >= 9
        assert log.samples(peer.connection.key).all() == []
        again_answers = [each for each in log.samples(again.connection.key).all() if each.is_answer]
        assert again_answers == []  # none was answered whole by it with a prompt that is known


async def test_the_oldest_go_when_there_are_too_many(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival_log, "MAX_BYTES", 16 * 42)
    monkeypatch.setattr(arrival_log, "MAX_BLOCKS", 4)
    async with world(LIMITS) as here:
        log = logged(here)
        peer = here.agent(slots=1)
        for number in range(60):
            clock.jump(1)
            submit(here, f"{number} " * 300, client=f"c{number}")
            (lease,) = peer.connection.leases()
            computed(peer, lease.wire_id, 100 + number)
            answer(clock, peer, lease.wire_id, 1, 1, done=True)
        found = [each.prompt_tokens for each in known(log)]
        assert len(found) <= 16
        assert found == list(range(160 - len(found), 160))
        assert len(log._blocks) == 4

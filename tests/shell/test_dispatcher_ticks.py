"""Two things in one tick: whatever happens between a decision and the task that obeys it."""

from __future__ import annotations

import pytest
import trio
from dispatch_world import DONE, LIMITS, Peer, World, heard, status_of, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree.agent_kinds import PADDLER
from paddler_trio.nursery_tree.dispatcher import REST_S
from paddler_trio.nursery_tree.request import Buffered
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.wire.trio.trio_link import Start

CUT_OFF = Failure(502, "Response channel closed before terminator")


def closes(here: World, agent: Peer) -> None:
    """The engine died, and the agent offers nothing until it is back."""
    agent.connection.status = status_of(0)
    agent.connection.refresh_readiness()
    here.dispatcher.update(agent.connection)


async def test_an_agent_lost_in_the_tick_of_the_grant_costs_the_client_nothing(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        lost = here.agent()
        request = here.submit()
        here.dispatcher.leave(lost.connection)  # the request's task has not run yet
        agent = here.agent()
        await wait_all_tasks_blocked()
        assert lost.sent() == ["start 1.1"]
        agent.says("1.2", "a", done=True)
        assert await heard(request) == ("a", None)


async def test_what_is_given_up_before_its_task_ran_says_why(autojump_clock: MockClock) -> None:
    async with world() as here:
        request = here.submit()
        for _ in range(3):
            here.dispatcher.leave(here.agent().connection)
        _, failure = await heard(request)
        assert failure is not None
        assert "after 2 continuations" in failure.description


async def test_a_broken_frame_that_closes_the_link_fails_its_request_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.lease("1.1").broken_frame("no result")
        here.dispatcher.leave(agent.connection)
        _, failure = await heard(request)
        assert failure == Failure(502, "The agent sent a malformed frame: no result")
        await wait_all_tasks_blocked()
        assert other.sent() == []


async def test_an_ending_counts_even_if_the_agent_is_gone_in_the_same_tick(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a", done=True)
        here.dispatcher.leave(agent.connection)
        assert await heard(request) == ("a", None)


async def test_a_request_handed_back_twice_is_placed_once(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        lease = agent.lease("1.1")
        closes(here, agent)
        for _ in range(3):
            here.dispatcher.hand_back(lease, "crash", suspects=1)
        await wait_all_tasks_blocked()
        here.dispatcher.hand_back(lease, "crash", suspects=1)
        assert other.sent() == ["start 1.2"]
        other.says("1.2", "a", done=True)
        assert await heard(request) == ("a", None)


async def test_an_agent_that_hands_back_twice_in_a_row_leaves_the_request_to_another(
    autojump_clock: MockClock,
) -> None:
    """It has free slots because it cannot use them, and would get each request again at once."""
    async with world() as here:
        busy = here.agent()
        first = here.submit()
        await wait_all_tasks_blocked()
        broken = here.agent(slots=4)
        request = here.submit()
        await wait_all_tasks_blocked()
        for _ in range(2):
            (lease,) = broken.connection.leases()
            here.dispatcher.hand_back(lease, "no descriptors", suspects=0)
            await wait_all_tasks_blocked()
        assert not broken.connection.is_accepting
        assert isinstance(request.phase, Buffered)
        busy.says("1.1", "a", done=True)
        assert await heard(first) == ("a", None)
        (lease,) = busy.connection.leases()
        assert lease.request is request
        busy.says(lease.wire_id, "b", done=True)
        assert await heard(request) == ("b", None)
        await trio.sleep(REST_S)
        assert broken.connection.refresh_readiness(), "asked at every status"
        assert broken.connection.is_accepting


async def test_an_agent_that_goes_on_after_handing_back_is_not_heard(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        lease = agent.lease("1.1")
        here.dispatcher.hand_back(lease, "crash", suspects=1)
        assert agent.connection.lease("1.1") is None
        lease.deliver("GeneratedToken", [{"ContentToken": "late"}, DONE], ends=True, tokens=[1])
        await wait_all_tasks_blocked()
        here.dispatcher.leave(agent.connection)
        (placed,) = [peer for peer in (agent, other) if "start 1.2" in peer.sent()]
        assert placed is other
        other.says("1.2", "a", done=True)
        assert await heard(request) == ("a", None)


async def test_a_client_that_stopped_hears_nothing_of_what_was_on_its_way(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        request.stop()
        agent.says("1.1", "late")
        agent.says("1.1", "later", done=True)
        text, _ = await heard(request)
        assert text == "a"


async def test_a_stopped_request_that_is_handed_back_is_not_placed_again(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        request.stop()
        await wait_all_tasks_blocked()
        here.dispatcher.hand_back(agent.lease("1.1"), "crash", suspects=1)
        await wait_all_tasks_blocked()
        assert here.nothing_is_left()
        assert other.sent() == []


async def test_a_client_that_leaves_while_its_request_is_placed_again_ends_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        here.dispatcher.leave(agent.connection)
        request.stop()
        await wait_all_tasks_blocked()
        assert other.sent() == ["start 1.2", "stop 1.2"]
        other.says("1.2", done=True)


async def test_the_earlier_request_is_placed_again_first_whoever_was_granted_first(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        first = here.agent()
        early = here.submit("early")
        second = here.agent()
        late = here.submit("late")
        second.connection.status = status_of(2)
        second.connection.refresh_readiness()
        here.dispatcher.update(second.connection)
        await wait_all_tasks_blocked()
        here.dispatcher.leave(first.connection)
        await wait_all_tasks_blocked()
        assert second.sent() == ["start 2.1", "start 1.2"]
        third = here.agent()
        here.dispatcher.leave(second.connection)
        await wait_all_tasks_blocked()
        assert third.sent() == ["start 1.3"]
        third.says("1.3", "a", done=True)
        await wait_all_tasks_blocked()
        third.says("2.2", "b", done=True)
        assert await heard(early) == ("a", None)
        assert await heard(late) == ("b", None)


async def test_tokens_of_a_model_nobody_named_are_not_continued(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent = here.agent()
        agent.connection.report = None
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        here.agent(kind=PADDLER)
        here.dispatcher.leave(agent.connection)
        assert await heard(request) == ("a", Failure(502, "Agent controller connection closed"))


async def test_who_runs_when_draining_begins_may_still_go_on_elsewhere(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent, other = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        here.dispatcher.drain()
        here.dispatcher.leave(agent.connection)
        await wait_all_tasks_blocked()
        (start,) = other.received()
        assert isinstance(start, Start)
        other.says("1.2", "b", done=True)
        assert await heard(request) == ("ab", None)


async def test_who_loses_its_agent_while_draining_with_no_other_is_told_so(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        here.dispatcher.drain()
        here.dispatcher.leave(agent.connection)
        assert await heard(request) == ("a", Failure(503, "balancer is shutting down"))


async def test_a_token_in_the_tick_of_the_item_timeout_ends_the_request_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        await trio.sleep(LIMITS.item_timeout_s)
        if agent.connection.lease("1.1") is not None:
            agent.says("1.1", "a", done=True)
        text, failure = await heard(request)
        assert (text, failure) == ("a", None) or (failure is not None and failure.code == 504)


@pytest.mark.parametrize("event", ["submit", "grant", "stop", "leave", "finish", "hand back"])
@pytest.mark.parametrize("ticks", [0, 1])
async def test_cancelling_everything_right_after_anything_leaks_nothing(
    event: str, ticks: int, autojump_clock: MockClock
) -> None:
    async with world() as here:
        agent = here.agent()
        running, waiting = here.submit("1"), here.submit("2")
        if event != "submit":
            await wait_all_tasks_blocked()
            agent.says("1.1", "a")
        match event:
            case "grant":
                agent.says("1.1", done=True)
            case "stop":
                running.stop()
                waiting.stop()
            case "leave":
                here.agent()
                here.dispatcher.leave(agent.connection)
            case "finish":
                agent.says("1.1", "b", done=True)
            case "hand back":
                here.dispatcher.hand_back(agent.lease("1.1"), "crash", suspects=1)
        with trio.CancelScope(shield=True):
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            here.nursery.cancel_scope.cancel()
            _, failure = await heard(running)
            if event in ("grant", "finish", "stop"):
                assert failure is None
            else:
                assert failure == CUT_OFF
            assert await heard(waiting) == ("", None if event == "stop" else CUT_OFF)
            assert running.is_stopped == waiting.is_stopped == (event == "stop")


async def test_two_agents_that_hand_back_in_one_tick_forget_the_request(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agents = [here.agent(), here.agent()]
        request = here.submit()
        for number, agent in enumerate(agents, 1):
            closes(here, agent)
            here.dispatcher.hand_back(agent.lease(f"1.{number}"), "crash", suspects=0)
        for agent in agents:
            assert agent.connection.slots_processing == 0
        request.stop()

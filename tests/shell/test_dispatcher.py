"""The loss table of ``docs/closing.md``, cell by cell, in virtual time.

The dispatcher, the leases and the agents' records are the real ones; only the socket is missing:
a test reads the frames that would go out on it, and delivers what would have come in.
"""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest
import trio
from dispatch_world import LIMITS, World, heard, status_of, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree.agent_kinds import PADDLER, TRIO
from paddler_trio.nursery_tree.request import OUTBOX_STEPS, Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.wire.trio.trio_link import Report, Start

# ------------------------------------------------------------------------ the plain way


async def test_a_request_is_sent_and_its_results_pass_to_its_client(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        assert agent.sent() == ["start 1.1"]
        agent.says("1.1", "a", "b")
        agent.says("1.1", "c", done=True)
        assert await heard(request) == ("abc", None)


async def test_a_request_that_has_ended_is_kept_nowhere(autojump_clock: MockClock) -> None:
    """Nor is its body, which may have megabytes."""
    async with world() as here:
        agent = here.agent()
        ended = []
        for number in range(20):
            request = here.submit()
            await wait_all_tasks_blocked()
            agent.says(f"{number + 1}.1", done=True)
            assert await heard(request) == ("", None)
            ended.append(weakref.ref(request))
        del request
        await wait_all_tasks_blocked()
        gc.collect()
        assert [each() for each in ended if each() is not None] == []


async def test_who_waits_gets_the_slot_when_it_is_free_and_not_before(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        first, second = here.submit("1"), here.submit("2")
        await wait_all_tasks_blocked()
        assert agent.sent() == ["start 1.1"]
        assert here.dispatcher.statistics().requests_buffered == 1
        agent.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert agent.sent() == ["start 2.1"]
        agent.says("2.1", "x", done=True)
        assert await heard(first) == ("", None)
        assert await heard(second) == ("x", None)


# ------------------------------------------------------------------------------ waiting


async def test_waiting_too_long_is_504(autojump_clock: MockClock) -> None:
    async with world() as here:
        began_s = trio.current_time()
        _, failure = await heard(here.submit())
        assert failure == Failure(504, "Waiting for available slot timed out")
        assert trio.current_time() - began_s == pytest.approx(10)


async def test_a_full_buffer_is_503_at_once(autojump_clock: MockClock) -> None:
    async with world() as here:
        waiting = [here.submit(), here.submit()]
        _, failure = await heard(here.submit())
        assert failure == Failure(503, "Buffered requests overflow")
        assert trio.current_time() == 0
        for request in waiting:
            request.stop()


async def test_who_is_refused_after_a_quiet_time_is_advised_by_the_queue_and_not_by_the_quiet(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        for number in (1, 3):
            answered = [here.submit(), here.submit()]
            for each in (number, number + 1):
                await wait_all_tasks_blocked()
                await trio.sleep(0.1)
                agent.says(f"{each}.1", done=True)
            assert [await heard(each) for each in answered] == [("", None)] * 2
            await trio.sleep(600)
        works, *waiting = [here.submit() for _ in range(3)]
        assert (await heard(here.submit()))[1] == Failure(503, "Buffered requests overflow")
        assert here.dispatcher.pools.retry_after_s() == 1
        for request in waiting:
            request.stop()
        await wait_all_tasks_blocked()
        agent.says("5.1", done=True)
        assert await heard(works) == ("", None)


async def test_a_client_that_leaves_while_waiting_leaves_the_queue(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        request = here.submit()
        request.stop()
        await wait_all_tasks_blocked()
        assert here.nothing_is_left()


# ----------------------------------------------------------------------- a lost agent


async def test_an_agent_lost_before_any_token_costs_nothing_but_time(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        lost = here.agent()
        request = here.submit("first")
        later = here.submit("later")
        await wait_all_tasks_blocked()
        here.dispatcher.leave(lost.connection)
        agent = here.agent()
        await wait_all_tasks_blocked()
        assert agent.sent() == ["start 1.2"], "the earlier request has its place again"
        agent.says("1.2", "ok", done=True)
        await wait_all_tasks_blocked()
        agent.says("2.1", done=True)
        assert await heard(request) == ("ok", None)
        assert await heard(later) == ("", None)


async def test_an_agent_lost_while_streaming_is_continued_after_its_tokens(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        lost, agent = here.agent(), here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        lost.says("1.1", "a", "b")
        here.dispatcher.leave(lost.connection)
        await wait_all_tasks_blocked()
        (start,) = agent.received()
        assert isinstance(start, Start)
        assert start.tokens == (ord("a"), ord("b"))
        assert start.seed == request.seed
        agent.says("1.2", "c", done=True)
        assert await heard(request) == ("abc", None)


async def test_what_a_paddler_agent_began_nobody_can_continue(autojump_clock: MockClock) -> None:
    async with world() as here:
        lost = here.agent(kind=PADDLER)
        request = here.submit()
        await wait_all_tasks_blocked()
        lost.says("1.1", "a")
        here.agent()
        here.dispatcher.leave(lost.connection)
        assert await heard(request) == ("a", Failure(502, "Agent controller connection closed"))


async def lost_after_a_token(here: World, model: str = "m") -> Request:
    """An agent that streamed one token is gone; what else is connected the caller decides."""
    lost = here.agent(model=model)
    request = here.submit()
    await wait_all_tasks_blocked()
    lost.says("1.1", "a")
    here.dispatcher.leave(lost.connection)
    return request


@pytest.mark.parametrize(
    ("ours", "words"), [(True, "the others serve a different model"), (False, "Paddler 4.1")]
)
async def test_what_nobody_here_can_continue_waits_shortly_and_is_told_why(
    ours: bool, words: str, autojump_clock: MockClock
) -> None:
    async with world() as here:
        request = await lost_after_a_token(here, "old")
        other = here.agent(kind=TRIO if ours else PADDLER, model="new")
        text, failure = await heard(request)
        assert text == "a"
        assert trio.current_time() == pytest.approx(LIMITS.continuation_wait_s)
        assert failure is not None
        assert failure.code == 502
        assert failure.description.startswith("The agent was lost after 1 tokens, and no agent ")
        assert "within 3000ms" in failure.description
        assert words in failure.description
        assert other.sent() == []


async def test_the_only_agent_dies_and_its_answer_fails_shortly_after(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        text, failure = await heard(await lost_after_a_token(here))
        assert text == "a"
        assert trio.current_time() == pytest.approx(LIMITS.continuation_wait_s)
        assert failure == Failure(
            502,
            "The agent was lost after 1 tokens, and no agent that can continue the answer "
            "connected within 3000ms",
        )


async def test_the_only_agent_is_back_in_time_and_goes_on(autojump_clock: MockClock) -> None:
    async with world() as here:
        request = await lost_after_a_token(here)
        await trio.sleep(2.9)
        back = here.agent()
        await wait_all_tasks_blocked()
        assert back.sent() == ["start 1.2"]
        back.says("1.2", "b", done=True)
        assert await heard(request) == ("ab", None)


async def test_an_agent_that_still_loads_is_waited_for_as_long_as_for_a_slot(
    autojump_clock: MockClock,
) -> None:
    """An engine crash: the agent is connected, and its engine is not back yet."""
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        agent.connection.status = status_of(0)
        agent.connection.refresh_readiness()
        here.dispatcher.update(agent.connection)
        here.dispatcher.hand_back(agent.lease("1.1"), "crash", suspects=0)
        await trio.sleep(9)
        agent.connection.status = status_of(1)
        agent.connection.refresh_readiness()
        here.dispatcher.update(agent.connection)
        await wait_all_tasks_blocked()
        assert agent.sent() == ["start 1.1", "start 1.2"]
        agent.says("1.2", "b", done=True)
        assert await heard(request) == ("ab", None)


async def test_an_agent_that_loads_what_nobody_knows_yet_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        request = await lost_after_a_token(here)
        await trio.sleep(2)
        again = here.agent(slots=0, model=None)
        await trio.sleep(5)
        again.connection.report = Report("serving", None, None, "m", None, None)
        again.connection.status = status_of(1)
        again.connection.refresh_readiness()
        here.dispatcher.update(again.connection)
        await wait_all_tasks_blocked()
        again.says("1.2", "b", done=True)
        assert await heard(request) == ("ab", None)


async def test_hope_that_comes_and_goes_is_counted_from_its_end(autojump_clock: MockClock) -> None:
    async with world() as here:
        request = await lost_after_a_token(here)
        await trio.sleep(2)
        again = here.agent(slots=0)
        await trio.sleep(2)
        here.dispatcher.leave(again.connection)
        _, failure = await heard(request)
        assert trio.current_time() == pytest.approx(7)
        assert failure is not None
        assert failure.code == 502


async def test_placements_are_bounded(autojump_clock: MockClock) -> None:
    async with world() as here:
        request = here.submit()
        for placement in (1, 2, 3):
            agent = here.agent()
            await wait_all_tasks_blocked()
            assert agent.sent() == [f"start 1.{placement}"]
            here.dispatcher.leave(agent.connection)
        _, failure = await heard(request)
        assert failure is not None
        assert failure.code == 502
        assert "after 2 continuations" in failure.description


async def test_a_request_under_which_two_engines_died_is_given_up(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        first, second = here.agent(), here.agent()
        request = here.submit()
        for number, agent in enumerate((first, second), 1):
            await wait_all_tasks_blocked()
            agent.connection.status = status_of(0)
            agent.connection.refresh_readiness()
            here.dispatcher.update(agent.connection)
            here.dispatcher.hand_back(agent.lease(f"1.{number}"), "crash", suspects=1)
        _, failure = await heard(request)
        assert failure is not None
        assert failure.code == 502
        assert "2 engines, agents or servers died" in failure.description


# ------------------------------------------------------------------------------- stops


async def test_a_stopped_request_holds_its_slot_until_the_agent_confirms(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        request.stop()
        await trio.sleep(2)
        assert agent.sent() == ["start 1.1", "stop 1.1"]
        assert here.dispatcher.statistics().slots_processing == 1
        agent.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert here.dispatcher.statistics().slots_processing == 0


async def test_an_agent_that_never_confirms_keeps_the_slot_for_five_seconds(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        request.stop()
        await trio.sleep(4.9)
        assert here.dispatcher.statistics().slots_processing == 1
        await trio.sleep(0.2)
        assert here.dispatcher.statistics().slots_processing == 0
        assert agent.connection.lease("1.1") is None, "late results must find nobody"


async def test_no_token_within_the_item_timeout_is_504_and_every_token_moves_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        for _ in range(3):
            await trio.sleep(29)
            agent.says("1.1", "a")
        text, failure = await heard(request)
        assert text == "aaa"
        assert failure is not None
        assert failure.code == 504
        assert failure.description.startswith("Inference timed out after 30000ms")
        assert trio.current_time() == pytest.approx(117)
        assert agent.sent() == ["start 1.1", "stop 1.1"]
        agent.says("1.1", done=True)


async def test_a_token_moves_no_timer(autojump_clock: MockClock) -> None:
    """With thousands of streams, a timer that is moved for each token costs more than the rest."""
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        deadline_s = request.timer.deadline
        await trio.sleep(LIMITS.item_timeout_s - 1)
        agent.says("1.1", "a")
        assert request.timer.deadline == deadline_s
        await trio.sleep(2)
        assert request.timer.deadline == deadline_s + LIMITS.item_timeout_s - 1
        agent.says("1.1", done=True)
        assert await heard(request) == ("aa", None)


async def test_an_item_timeout_of_zero_ends_everything_with_504(autojump_clock: MockClock) -> None:
    async with world(attrs.evolve(LIMITS, item_timeout_s=0)) as here:
        agent = here.agent()
        _, failure = await heard(here.submit())
        assert failure is not None
        assert failure.code == 504
        agent.says("1.1", done=True)


async def test_a_slow_reader_is_stopped_alone(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent = here.agent(slots=2)
        slow, quick = here.submit("slow"), here.submit("quick")
        await wait_all_tasks_blocked()
        for _ in range(OUTBOX_STEPS + 1):
            agent.says("1.1", "s")
        agent.says("2.1", "q", done=True)
        assert await heard(quick) == ("q", None)
        agent.says("1.1", done=True)
        text, failure = await heard(slow)
        assert len(text) == OUTBOX_STEPS
        assert failure is not None
        assert failure.code == 503
        assert "reads too slowly" in failure.description


# ---------------------------------------------------------------------------- the end


async def test_draining_refuses_who_waits_and_lets_who_runs_finish(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        running, waiting = here.submit("1"), here.submit("2")
        await wait_all_tasks_blocked()
        here.dispatcher.drain()
        assert await heard(waiting) == ("", Failure(503, "balancer is shutting down"))
        assert await heard(here.submit("3")) == ("", Failure(503, "balancer is shutting down"))
        agent.says("1.1", "a", done=True)
        assert await heard(running) == ("a", None)


async def test_cancelling_the_requests_tells_every_client_and_every_agent(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        running, waiting = here.submit("1"), here.submit("2")
        await wait_all_tasks_blocked()
        agent.says("1.1", "a")
        here.dispatcher.drain()
        here.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await heard(running) == ("a", Failure(503, "balancer is shutting down"))
            assert await heard(waiting) == ("", Failure(503, "balancer is shutting down"))
        assert agent.sent() == ["start 1.1", "stop 1.1"]


@pytest.mark.parametrize("stop_first", [True, False])
async def test_a_slot_granted_in_the_tick_of_a_stop_is_not_lost(
    stop_first: bool, autojump_clock: MockClock
) -> None:
    async with world() as here:
        agent = here.agent()
        holder, waiting = here.submit("1"), here.submit("2")
        await wait_all_tasks_blocked()
        if stop_first:
            waiting.stop()
        agent.says("1.1", done=True)
        if not stop_first:
            waiting.stop()
        await heard(holder)
        if stop_first:
            assert agent.sent() == ["start 1.1"], "nothing is started for a client that left"
        else:
            assert agent.sent() == ["start 1.1", "start 2.1", "stop 2.1"]
            agent.says("2.1", done=True)
        await wait_all_tasks_blocked()
        assert here.nothing_is_left()


async def test_a_slot_granted_in_the_tick_of_the_deadline_is_used_or_returned(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        request = here.submit()
        await trio.sleep(10)
        agent = here.agent()
        await wait_all_tasks_blocked()
        if agent.sent() == ["start 1.1"]:
            agent.says("1.1", "a", done=True)
            assert await heard(request) == ("a", None)
        else:
            assert await heard(request) == (
                "",
                Failure(504, "Waiting for available slot timed out"),
            )


async def test_an_agent_that_says_it_still_works_is_waited_for(autojump_clock: MockClock) -> None:
    """A long prompt may take longer than the item timeout; nothing of it is told to a client."""
    async with world() as here:
        agent = here.agent()
        request = here.submit()
        await wait_all_tasks_blocked()
        for _ in range(3):
            await trio.sleep(LIMITS.item_timeout_s * 0.9)
            agent.lease("1.1").deliver("GeneratedToken", [], ends=False, tokens=[])
        assert request.outbox.statistics().current_buffer_used == 0
        agent.says("1.1", "a", done=True)
        assert await heard(request) == ("a", None)

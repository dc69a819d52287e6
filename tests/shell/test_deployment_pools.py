"""Deployments in the dispatcher: own agents and queues, holds, demand, calls on one revision."""

from __future__ import annotations

import sys

import attrs
import pytest
import trio
from dispatch_world import LIMITS, WORK, Peer, World, heard, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree.pool import Demand, Hold, PoolSettings
from paddler_trio.nursery_tree.request import Buffered, Request, RevisionPin
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.wire.trio.trio_link import Report

DEFAULT = PoolSettings(name="default", admissible=frozenset({"d1"}))
CODER = PoolSettings(name="coder", aliases=("qwen",), admissible=frozenset({"c1"}))


def report(here: World, peer: Peer, serves: str | None, phase: str = "serving") -> None:
    """The agent serves this digest now, with weights of the same name."""
    connection = peer.connection
    connection.report = Report(phase, connection.sent_revision, serves, serves, None, None)
    connection.refresh_readiness()
    here.dispatcher.update(connection)


async def end(peer: Peer, *requests: Request) -> None:
    """Let the agent answer whatever it is given, until these have ended."""
    while not all(request.is_over for request in requests):
        await wait_all_tasks_blocked()
        for words in peer.sent():
            wire_id = words.removeprefix("start ")
            if words.startswith("start ") and peer.connection.lease(wire_id) is not None:
                peer.says(wire_id, done=True)
        await trio.sleep(0.1)


async def test_a_request_gets_a_slot_of_its_deployment_and_waits_for_no_other(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        general = here.agent(serves="d1")
        coder = here.agent(serves="c1", deployment="coder")
        first = here.submit("1")
        second = here.submit("2")
        third = here.submit("3", deployment="coder")
        await wait_all_tasks_blocked()
        assert general.sent() == ["start 1.1"]
        assert coder.sent() == ["start 3.1"]
        assert here.dispatcher.pools.position(second) == 0
        statistics = here.dispatcher.statistics()
        assert (statistics.slots_processing, statistics.requests_buffered) == (2, 1)
        assert statistics.slots_total == 2
        coder.says("3.1", "x", done=True)
        await wait_all_tasks_blocked()
        assert coder.sent() == [], "a free slot of another deployment is none"
        general.says("1.1", done=True)
        await end(general, first, second)
        assert await heard(third) == ("x", None)


async def test_a_full_queue_of_one_deployment_turns_no_one_away_from_another(
    autojump_clock: MockClock,
) -> None:
    async with world(attrs.evolve(LIMITS, max_buffered=1)) as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        waiting = here.submit("1", deployment="coder")
        refused = here.submit("2", deployment="coder")
        other = here.submit("3")
        assert refused.failure is not None
        assert refused.failure.code == 503
        assert not waiting.is_over
        assert not other.is_over
        waiting.stop()
        other.stop()


async def test_there_is_no_work_for_a_name_that_is_no_deployment(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        lost = here.agent(serves="x1", deployment="gone")
        assert here.submit("1", deployment="gone").failure == Failure(
            404, "There is no deployment 'gone'"
        )
        assert [pool.name for pool in here.dispatcher.pools.known()] == ["default"]
        here.dispatcher.set_deployments(
            [DEFAULT, PoolSettings(name="gone", admissible=frozenset({"x1"}))]
        )
        request = here.submit("2", deployment="gone")
        await wait_all_tasks_blocked()
        assert lost.sent() == ["start 2.1"], "it was connected before its deployment was known"
        lost.says("2.1", done=True)
        assert await heard(request) == ("", None)


async def test_a_deployment_that_is_removed_serves_its_queue_until_its_last_agent_has_left(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        coder = here.agent(serves="c1", deployment="coder")
        running, waiting = (here.submit(name, deployment="coder") for name in "12")
        third = here.submit("3", deployment="coder")
        await wait_all_tasks_blocked()
        here.dispatcher.set_deployments([DEFAULT])
        assert here.submit("4", deployment="coder").failure is not None
        coder.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert not waiting.is_over, "the agent is still there"
        coder.connection.said_goodbye = True
        here.dispatcher.leave(coder.connection)
        await wait_all_tasks_blocked()
        assert running.failure is None
        assert waiting.failure == third.failure == Failure(404, "There is no deployment 'coder'")
        assert here.dispatcher.pools.known()[0].name == "default"
        assert "coder" not in repr(here.dispatcher.pools)


@pytest.mark.parametrize("has_agent", [False, True])
async def test_the_longest_queue_ends_with_its_deployment(
    autojump_clock: MockClock, has_agent: bool
) -> None:
    """However many wait: the end of one is no step of the end of another."""
    waiting = sys.getrecursionlimit()
    async with world(attrs.evolve(LIMITS, max_buffered=waiting)) as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        agent = here.agent(slots=0, deployment="coder") if has_agent else None
        requests = [here.submit(str(number), deployment="coder") for number in range(waiting)]
        await wait_all_tasks_blocked()
        here.dispatcher.set_deployments([DEFAULT])
        if agent is not None:
            assert not any(request.is_over for request in requests)
            here.dispatcher.leave(agent.connection)
        gone = Failure(404, "There is no deployment 'coder'")
        assert [request.failure for request in requests] == [gone] * waiting
        assert here.dispatcher.statistics().requests_buffered == 0
        assert not here.dispatcher.requests
        assert "coder" not in repr(here.dispatcher.pools)


async def test_only_what_is_admissible_gets_work_and_stand_ins_only_while_nothing_is(
    autojump_clock: MockClock,
) -> None:
    both = attrs.evolve(CODER, admissible=frozenset({"c1", "c2"}))
    new = attrs.evolve(CODER, admissible=frozenset({"c2"}))
    async with world() as here:
        here.dispatcher.set_deployments([CODER])
        old = here.agent(serves="c1", deployment="coder")
        other = here.agent(serves="c2", deployment="coder")
        assert (old.connection.is_accepting, other.connection.is_accepting) == (True, False)
        here.dispatcher.set_deployments([both])
        assert old.connection.is_accepting
        assert other.connection.is_accepting
        here.dispatcher.set_deployments([new])
        assert (old.connection.is_accepting, other.connection.is_accepting) == (False, True)
        for phase in ("downloading", "loading", "probing", "failed"):
            report(here, old, "c1", phase)
            assert not old.connection.is_accepting, f"an agent serves c2: {phase}"
        here.dispatcher.leave(other.connection)
        for phase, stands_in in [("resolving", False), ("draining", False)] + [
            (phase, True) for phase in ("downloading", "loading", "probing", "failed")
        ]:
            report(here, old, "c1", phase)
            assert old.connection.is_accepting == stands_in, phase


async def test_an_agent_whose_ejection_is_over_ends_the_time_of_stand_ins(
    autojump_clock: MockClock,
) -> None:
    """It is looked at because the last of the others has left."""
    both = attrs.evolve(CODER, admissible=frozenset({"c1", "c2"}))
    async with world() as here:
        here.dispatcher.set_deployments([both])
        ejected = here.agent(serves="c2", deployment="coder")
        other = here.agent(serves="c2", deployment="coder")
        old = here.agent(serves="c1", deployment="coder")
        here.dispatcher.set_deployments([attrs.evolve(both, admissible=frozenset({"c2"}))])
        report(here, old, "c1", "loading")
        for _ in range(3):
            here.dispatcher._count_failure(ejected.connection)
        await trio.sleep(2.1)
        assert not ejected.connection.is_accepting, "nobody has looked again"
        here.dispatcher.leave(other.connection)
        assert ejected.connection.gets_work_by_right
        assert not old.connection.is_accepting
        here.dispatcher.leave(ejected.connection)
        assert old.connection.is_accepting


async def test_a_change_of_what_is_admissible_grants_nothing_to_what_is_not(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([CODER])
        old = here.agent(serves="c1", deployment="coder", slots=1)
        new = here.agent(serves="c2", deployment="coder", slots=1)
        first = here.submit("1", deployment="coder")
        second = here.submit("2", deployment="coder")
        await wait_all_tasks_blocked()
        here.dispatcher.set_deployments([attrs.evolve(CODER, admissible=frozenset({"c2"}))])
        await wait_all_tasks_blocked()
        assert (old.sent(), new.sent()) == (["start 1.1"], ["start 2.1"])
        old.says("1.1", done=True)
        new.says("2.1", done=True)
        for request in (first, second):
            assert await heard(request) == ("", None)


# ------------------------------------------------------------------------------------ holds


async def test_nobody_times_out_in_a_held_queue_before_the_hold_and_its_own_patience_are_over(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        before = here.submit("1")
        await trio.sleep(5)
        here.dispatcher.hold("default", Hold("loading m", trio.current_time() + 60))
        during = here.submit("2")
        assert here.dispatcher.pools.retry_after_s() == 60
        await trio.sleep(69.9)
        assert not before.is_over
        assert not during.is_over
        await trio.sleep(0.2)
        assert before.failure is not None
        assert before.failure.code == 504
        assert during.failure == before.failure


async def test_a_hold_that_ends_early_leaves_each_its_own_patience(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.hold("default", Hold("loading m", trio.current_time() + 600))
        request = here.submit("1")
        await trio.sleep(20)
        here.dispatcher.hold("default", Hold("loading m", trio.current_time() + 5))
        await trio.sleep(1)
        here.dispatcher.hold("default", None)
        await trio.sleep(9.9)
        assert not request.is_over
        await trio.sleep(0.2)
        assert request.failure is not None


async def test_without_a_hold_nothing_waits_longer(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        here.dispatcher.hold("coder", Hold("loading c", trio.current_time() + 60))
        request = here.submit("1")
        here.dispatcher.hold("default", None)
        await trio.sleep(10.1)
        assert request.failure is not None
        assert here.dispatcher.pools.retry_after_s() == 10
        assert here.dispatcher.pools.retry_after_s("coder") == 50


async def test_what_loses_its_slot_during_a_hold_waits_as_long_as_others(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        request = here.submit("1")
        here.dispatcher.hold("default", Hold("loading m", trio.current_time() + 60))
        here.dispatcher.leave(agent.connection)
        await trio.sleep(69.9)
        assert isinstance(request.phase, Buffered)
        await trio.sleep(0.2)
        assert request.failure is not None


# ----------------------------------------------------------------------------------- demand


async def test_the_demand_counts_what_waits_and_what_runs_and_its_changes_are_announced(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        changes = here.dispatcher.pools_changed
        ordinal = changes.ordinal
        here.agent(serves="d1")
        running = here.submit("1")
        assert changes.ordinal == ordinal, "it never waited"
        waiting = here.submit("2", deployment="coder")
        assert changes.ordinal == ordinal + 1
        await trio.sleep(3)
        also = here.submit("3", deployment="coder")
        assert changes.ordinal == ordinal + 1, "it was not empty"
        assert here.dispatcher.pools.demand() == {
            "default": Demand(0, 0.0, 1),
            "coder": Demand(2, 3.0, 0),
        }
        waiting.stop()
        also.stop()
        assert changes.ordinal == ordinal + 2
        running.stop()
        await trio.sleep(6)


async def test_the_demand_knows_how_long_a_request_waits_whatever_came_and_went_before(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        for others in range(70):
            for number in range(others):
                here.submit(str(number)).stop()
            waits = here.submit("waits")
            await trio.sleep(0.5)
            assert here.dispatcher.pools.demand()["default"].oldest_wait_s == 0.5, others
            waits.stop()


# ------------------------------------------------------------------- calls of several requests


def submit_part(here: World, pin: RevisionPin) -> Request:
    return here.dispatcher.submit("part", WORK, deployment="coder", pin=pin)


@pytest.fixture
def both() -> PoolSettings:
    return attrs.evolve(CODER, admissible=frozenset({"c1", "c2"}))


async def test_the_parts_of_a_call_go_to_the_revision_of_the_first_and_others_pass_them(
    both: PoolSettings, autojump_clock: MockClock
) -> None:
    async with world(attrs.evolve(LIMITS, max_buffered=9)) as here:
        here.dispatcher.set_deployments([both])
        old = here.agent(serves="c1", deployment="coder")
        pin = RevisionPin()
        first, second = submit_part(here, pin), submit_part(here, pin)
        new = here.agent(serves="c2", deployment="coder")
        alone = here.submit("alone", deployment="coder")
        await wait_all_tasks_blocked()
        assert pin.revision == "c1"
        assert old.sent() == ["start 1.1"]
        assert new.sent() == ["start 3.1"], "what may go anywhere does not wait for what may not"
        old.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert old.sent() == ["start 2.1"]
        old.says("2.1", done=True)
        new.says("3.1", done=True)
        for request in (first, second, alone):
            assert await heard(request) == ("", None)


async def test_a_part_that_lost_its_agent_waits_for_its_revision_and_then_fails_by_its_name(
    both: PoolSettings, autojump_clock: MockClock
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([both])
        old = here.agent(serves="c1", deployment="coder")
        new = here.agent(serves="c2", deployment="coder")
        pin = RevisionPin()
        part = submit_part(here, pin)
        await wait_all_tasks_blocked()
        here.dispatcher.leave(old.connection)
        await trio.sleep(2.9)
        assert not part.is_over
        assert new.sent() == []
        await trio.sleep(0.2)
        assert part.failure is not None
        assert part.failure.code == 502
        assert "revision c1" in part.failure.description
        assert pin.is_lost


async def test_a_part_is_not_moved_to_another_revision_of_the_same_model(
    both: PoolSettings, autojump_clock: MockClock
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([both])
        old = here.agent(serves="c1", deployment="coder", slots=2)
        here.agent(serves="c2", deployment="coder", slots=2)
        part = submit_part(here, RevisionPin())
        await wait_all_tasks_blocked()
        assert here.dispatcher.move_requests(old.connection, "the drain deadline has passed") == 0
        old.says("1.1", done=True)
        assert await heard(part) == ("", None)


@pytest.mark.parametrize("why", ["inadmissible", "drained"])
async def test_a_revision_that_gets_no_work_any_more_is_waited_for_as_one_that_is_gone(
    why: str, both: PoolSettings, autojump_clock: MockClock
) -> None:
    async with world(attrs.evolve(LIMITS, continuation_wait_s=2)) as here:
        here.dispatcher.set_deployments([both])
        old = here.agent(serves="c1", deployment="coder")
        here.agent(serves="c2", deployment="coder")
        pin = RevisionPin()
        first, second = submit_part(here, pin), submit_part(here, pin)
        await wait_all_tasks_blocked()
        if why == "drained":
            here.dispatcher.drain_agent(old.connection, drained=True)
        else:
            new = attrs.evolve(both, admissible=frozenset({"c2"}))
            here.dispatcher.set_deployments([new])
        old.says("1.1", done=True)
        assert await heard(first) == ("", None)
        await trio.sleep(2.1)
        assert pin.is_lost
        assert second.failure is not None


async def test_settings_that_are_the_same_change_nothing(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        here.agent(serves="c1", deployment="coder")
        before = here.dispatcher.agents_changed.ordinal
        here.dispatcher.set_deployments([DEFAULT, CODER])
        assert here.dispatcher.agents_changed.ordinal == before
        here.dispatcher.set_deployments([DEFAULT])
        here.dispatcher.set_deployments([DEFAULT, CODER])
        request = here.submit("1", deployment="coder")
        assert request.lease is not None, "it came back before its agent left"
        request.lease.deliver("GeneratedToken", [], ends=True)
        await heard(request)


async def test_a_part_goes_on_where_its_revision_returns_in_time(
    both: PoolSettings, autojump_clock: MockClock
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([both])
        old = here.agent(serves="c1", deployment="coder")
        pin = RevisionPin()
        part = submit_part(here, pin)
        await wait_all_tasks_blocked()
        here.dispatcher.leave(old.connection)
        await trio.sleep(2)
        back = here.agent(serves="c1", deployment="coder")
        await wait_all_tasks_blocked()
        assert back.sent() == ["start 1.2"]
        back.says("1.2", done=True)
        assert await heard(part) == ("", None)
        assert not pin.is_lost


# ----------------------------------------------------------------------------------- drains


async def test_the_first_link_of_a_host_is_drained_with_all_instances_on_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        here.dispatcher.set_deployments([DEFAULT, CODER])
        first = here.agent(serves="d1")
        instance = here.agent(serves="c1", deployment="coder", host="id1")
        other = here.agent(serves="c1", deployment="coder")
        here.dispatcher.drain_agent(first.connection, drained=True)
        late = here.agent(serves="c1", deployment="coder", host="id1")
        drained = [each.connection.is_drained for each in (first, instance, other, late)]
        assert drained == [True, True, False, True]
        here.dispatcher.drain_agent(instance.connection, drained=True)
        here.dispatcher.drain_agent(first.connection, drained=False)
        drained = [each.connection.is_drained for each in (first, instance, other, late)]
        assert drained == [False, True, False, False], "it was drained by itself, too"
        here.dispatcher.drain_agent(instance.connection, drained=False)
        assert instance.connection.is_accepting

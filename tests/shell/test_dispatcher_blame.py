"""Who pays when engines and agents die: the request that kills them, and nobody beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from dispatch_world import Peer, World, heard, status_of, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree.agent_kinds import PADDLER
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.wire.trio.trio_link import Start

KILLED = "engines, agents or servers died while they worked on this request"


def starts(agent: Peer) -> dict[str, Start]:
    return {frame.id: frame for frame in agent.received() if isinstance(frame, Start)}


async def engine_dies(here: World, agent: Peer, suspects: dict[str, int]) -> None:
    """It hands back everything it has, and has no slots until its engine is back."""
    agent.connection.status = status_of(0)
    agent.connection.refresh_readiness()
    here.dispatcher.update(agent.connection)
    for wire_id in list(agent.connection._leases):
        here.dispatcher.hand_back(agent.lease(wire_id), "crash", suspects=suspects.get(wire_id, 0))
    await wait_all_tasks_blocked()


async def finish(here: World, requests: Sequence[Request]) -> None:
    """Whatever agent has them now ends them."""
    for agent in here.dispatcher.agents.values():
        for lease in list(agent._leases.values()):
            if lease.request in requests:
                lease.deliver("GeneratedToken", [{"Done": {"usage": {}}}], ends=True, tokens=[])
    await wait_all_tasks_blocked()


async def test_a_poison_request_ends_after_two_engines_and_nobody_beside_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agents = [here.agent(slots=6) for _ in range(3)]
        poison, *bystanders = [here.submit(f"r{n}") for n in range(6)]
        await wait_all_tasks_blocked()
        agents[0].connection.is_drained = True  # all of them on the second
        first = agents[0]
        for other in agents[1:]:
            assert len(starts(other)) == 2
        assert len(starts(first)) == 2
        (with_poison,) = [
            wire_id
            for wire_id, lease in first.connection._leases.items()
            if lease.request is poison
        ]
        batch = list(first.connection._leases)
        for agent in agents:
            for wire_id in list(agent.connection._leases):
                agent.says(wire_id, "a")
        await engine_dies(here, first, dict.fromkeys(batch, len(batch)))
        assert not poison.is_over
        assert poison.lease is not None
        second = poison.lease.agent
        peer = next(agent for agent in agents if agent.connection is second)
        again = f"{with_poison.partition('.')[0]}.2"
        isolated = {
            wire_id for wire_id, frame in starts(peer).items() if frame.isolated == "engine"
        }
        assert again in isolated
        await engine_dies(here, peer, {again: 1})
        _, failure = await heard(poison)
        assert failure is not None
        assert (failure.code, KILLED in failure.description) == (502, True)
        assert not any(other.is_over for other in bystanders)
        await finish(here, bystanders)
        for other in bystanders:
            assert (await heard(other))[1] is None


async def test_bystanders_go_on_without_a_mark(autojump_clock: MockClock) -> None:
    async with world() as here:
        first, second = here.agent(slots=2), here.agent(slots=0)
        poison, bystander = here.submit("poison"), here.submit("bystander")
        await wait_all_tasks_blocked()
        first.says("2.1", "a")
        second.connection.status = status_of(2)
        second.connection.refresh_readiness()
        here.dispatcher.update(second.connection)
        await engine_dies(here, first, {"1.1": 1})
        told = starts(second)
        assert told["1.2"].isolated == "engine"
        assert not told["2.2"].isolated
        assert bystander.suspicions == 0
        await engine_dies(here, second, {"1.2": 1})
        _, failure = await heard(poison)
        assert failure is not None
        assert KILLED in failure.description
        here.agent(slots=2)
        await finish(here, [bystander])
        assert await heard(bystander) == ("a", None)


async def test_suspects_of_a_batch_that_turn_out_innocent_are_not_ended(
    autojump_clock: MockClock,
) -> None:
    """Twice in a batch that killed its engine, and never alone."""
    async with world() as here:
        agents = [here.agent(slots=2) for _ in range(3)]
        requests = [here.submit("a"), here.submit("b")]
        await wait_all_tasks_blocked()
        for _ in range(2):
            for request in requests:
                lease = request.lease
                assert lease is not None
                here.dispatcher.hand_back(lease, "crash", suspects=2)
            await wait_all_tasks_blocked()
        assert [request.suspicions for request in requests] == [2, 2]
        assert len(agents) == 3
        await finish(here, requests)
        for request in requests:
            assert (await heard(request))[1] is None


# --------------------------------------------------------------------------- lost agents


async def test_what_two_agents_prepared_when_they_vanished_is_not_tried_on_a_third(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        first, second, third = (here.agent() for _ in range(3))
        request = here.submit()
        await wait_all_tasks_blocked()
        here.dispatcher.leave(first.connection)
        await wait_all_tasks_blocked()
        assert starts(second)["1.2"].isolated == "agent"
        second.lease("1.2").deliver("GeneratedToken", [], ends=False, tokens=[])  # it begins
        here.dispatcher.leave(second.connection)
        _, failure = await heard(request)
        assert failure is not None
        assert (failure.code, KILLED in failure.description) == (502, True)
        assert starts(third) == {}


async def test_what_streams_loses_two_agents_and_goes_on(autojump_clock: MockClock) -> None:
    async with world() as here:
        agents = [here.agent() for _ in range(3)]
        request = here.submit()
        for number, agent in enumerate(agents[:2], 1):
            await wait_all_tasks_blocked()
            agent.says(f"1.{number}", "a")
            here.dispatcher.leave(agent.connection)
        await wait_all_tasks_blocked()
        assert request.suspicions == 0
        agents[2].says("1.3", "b", done=True)
        assert await heard(request) == ("aab", None)


async def test_what_waits_for_its_engine_was_prepared(autojump_clock: MockClock) -> None:
    async with world() as here:
        agents = [here.agent() for _ in range(3)]
        request = here.submit()
        for number, agent in enumerate(agents[:2], 1):
            await wait_all_tasks_blocked()
            agent.lease(f"1.{number}").deliver("GeneratedToken", [], ends=False, tokens=[])
            here.dispatcher.leave(agent.connection)
        await wait_all_tasks_blocked()
        assert request.suspicions == 0
        agents[2].says("1.3", "b", done=True)
        assert await heard(request) == ("b", None)


async def test_of_those_that_were_prepared_together_the_next_death_names_one(
    autojump_clock: MockClock,
) -> None:
    """Three are prepared when the agent dies; the next one prepares them one at a time."""
    async with world() as here:
        first, second = here.agent(slots=3), here.agent(slots=0)
        poison, *innocent = [here.submit(name) for name in ("poison", "b", "c")]
        await wait_all_tasks_blocked()
        second.connection.status = status_of(3)
        second.connection.refresh_readiness()
        here.dispatcher.update(second.connection)
        here.dispatcher.leave(first.connection)
        await wait_all_tasks_blocked()
        assert all(frame.isolated == "agent" for frame in starts(second).values())
        second.lease("1.2").deliver("GeneratedToken", [], ends=False, tokens=[])  # it begins
        here.dispatcher.leave(second.connection)
        third = here.agent(slots=3)
        await wait_all_tasks_blocked()
        _, failure = await heard(poison)
        assert failure is not None
        assert KILLED in failure.description
        assert set(starts(third)) == {"2.3", "3.3"}
        await finish(here, innocent)
        for request in innocent:
            assert await heard(request) == ("", None)


async def test_an_agent_that_said_goodbye_was_killed_by_nobody(autojump_clock: MockClock) -> None:
    async with world() as here:
        agents = [here.agent() for _ in range(3)]
        request = here.submit()
        for agent in agents[:2]:
            await wait_all_tasks_blocked()
            agent.connection.said_goodbye = True
            here.dispatcher.leave(agent.connection)
        await wait_all_tasks_blocked()
        assert request.suspicions == 0
        agents[2].says("1.3", done=True)
        assert await heard(request) == ("", None)


@pytest.mark.parametrize("num_lost", [1, 2])
async def test_an_agent_of_paddlers_says_nothing_before_its_first_token(
    num_lost: int, autojump_clock: MockClock
) -> None:
    """So whatever has none is suspected, and two losses are enough."""
    async with world() as here:
        agents = [here.agent(kind=PADDLER) for _ in range(3)]
        request = here.submit()
        for agent in agents[:num_lost]:
            await wait_all_tasks_blocked()
            here.dispatcher.leave(agent.connection)
        await wait_all_tasks_blocked()
        if num_lost == 1:
            agents[1].says("1.2", "x", done=True)
            assert await heard(request) == ("x", None)
        else:
            _, failure = await heard(request)
            assert isinstance(failure, Failure)
            assert KILLED in failure.description

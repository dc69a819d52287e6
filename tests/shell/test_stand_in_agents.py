"""Agents that keep the model before the desired one get work as long as nobody serves that one."""

from __future__ import annotations

import pytest
import trio
from dispatch_world import Peer, World, heard, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.wire.paddler.desired_state import AgentDesiredState, InferenceParameters, NoModel
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, extended_digest
from paddler_trio.wire.trio.trio_link import Report

OLD, NEW = (
    AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(top_k=number),
        model=NoModel(),
        multimodal_projection=NoModel(),
    )
    for number in (1, 2)
)


def digest(state: AgentDesiredState | None) -> str | None:
    return None if state is None else extended_digest(state, NO_EXTRAS)


def report(
    here: World,
    agent: Peer,
    phase: str,
    *,
    wants: AgentDesiredState | None,
    serves: AgentDesiredState | None,
) -> None:
    connection = agent.connection
    connection.report = Report(phase, digest(wants), digest(serves), "m", None, None)
    connection.refresh_readiness()
    here.dispatcher.update(connection)


def desire(here: World, state: AgentDesiredState, *agents: Peer) -> None:
    for agent in agents:
        agent.connection.send_state(state)
        here.dispatcher.update(agent.connection)
        agent.sent()


@pytest.mark.parametrize("phase", ["downloading", "failed"])
async def test_the_old_model_gets_work_until_an_agent_serves_the_new_one(
    phase: str, autojump_clock: MockClock
) -> None:
    async with world() as here:
        slow, quick = here.agent(), here.agent()
        desire(here, OLD, slow, quick)
        for agent in (slow, quick):
            report(here, agent, "serving", wants=OLD, serves=OLD)
        desire(here, NEW, slow, quick)
        first = here.submit("1")
        await wait_all_tasks_blocked()
        assert slow.sent() + quick.sent() == [], "nobody knows of the new state yet"
        report(here, quick, "resolving", wants=NEW, serves=OLD)
        report(here, slow, phase, wants=OLD, serves=OLD)
        await wait_all_tasks_blocked()
        assert slow.sent() + quick.sent() == [], "nobody said that it keeps the old model"
        report(here, slow, phase, wants=NEW, serves=OLD)
        await wait_all_tasks_blocked()
        assert slow.sent() == ["start 1.1"]
        report(here, quick, "draining", wants=NEW, serves=None)
        slow.says("1.1", done=True)
        report(here, quick, "serving", wants=NEW, serves=NEW)
        assert not slow.connection.is_accepting
        second, third = here.submit("2"), here.submit("3")
        await wait_all_tasks_blocked()
        assert (slow.sent(), quick.sent()) == ([], ["start 2.1"]), "never a choice of two models"
        quick.says("2.1", done=True)
        await wait_all_tasks_blocked()
        assert (slow.sent(), quick.sent()) == ([], ["start 3.1"])
        quick.says("3.1", done=True)
        for request in (first, second, third):
            assert (await heard(request))[1] is None


async def test_the_last_agent_with_the_new_model_leaves_and_the_old_one_takes_its_work(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        slow, quick = here.agent(), here.agent()
        desire(here, OLD, slow)
        report(here, slow, "serving", wants=OLD, serves=OLD)
        desire(here, NEW, slow, quick)
        report(here, quick, "serving", wants=NEW, serves=NEW)
        report(here, slow, "failed", wants=NEW, serves=OLD)
        request = here.submit("1")
        await wait_all_tasks_blocked()
        assert (slow.sent(), quick.sent()) == ([], ["start 1.1"])
        here.dispatcher.leave(quick.connection)
        await wait_all_tasks_blocked()
        assert slow.connection.is_accepting
        (started,) = slow.sent()
        slow.says(started.removeprefix("start "), "x", done=True)
        assert await heard(request) == ("x", None)
        late = here.agent()
        desire(here, NEW, late)
        report(here, late, "serving", wants=NEW, serves=NEW)
        here.dispatcher.drain_agent(late.connection, drained=True)
        assert slow.connection.is_accepting, "a drained agent is no reason to keep others idle"
        here.dispatcher.drain_agent(late.connection, drained=False)
        assert not slow.connection.is_accepting


async def test_who_keeps_no_model_or_is_too_old_to_say_so_gets_nothing(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent()
        desire(here, OLD, agent)
        report(here, agent, "serving", wants=OLD, serves=OLD)
        desire(here, NEW, agent)
        for phase in ("failed", "downloading", "loading"):
            report(here, agent, phase, wants=NEW, serves=None)
            assert not agent.connection.is_accepting
        request = here.submit()
        with trio.move_on_after(11):
            await heard(request)
        assert request.failure is not None

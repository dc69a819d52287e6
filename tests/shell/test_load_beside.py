"""A new model beside the old one: who answers at each moment, and what if it goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from fit_world import Agent, Languages, LivingEngines, state

from dry_run_double import MIB, DryRunDouble
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.model import model_server
from paddler_trio.agent.model.memory_promises import MemoryPromises
from paddler_trio.agent.model.model_fit import Held
from paddler_trio.agent.model.serving import Serving
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, NoModel
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import EngineOverrides, Extras, extended_digest

NEEDED = 138 * MIB
"""What the double takes with the usual context."""


@attrs.define(eq=False)
class World:
    agent: Agent
    engines: LivingEngines
    languages: Languages
    slots: list[int] = attrs.field(factory=list)
    """At each change of the status, from when the first model served."""

    async def serves(self, name: str, *, phase: str = "serving") -> Serving:
        """Return when requests go to this model and the phase is this one."""

        def is_there(_: object) -> bool:
            serving = self.agent.server.serving
            at = None if serving is None else Path(serving.engine.load.model_path).name
            return at == name and self.agent.status.phase == phase

        await self.agent.reach(is_there)
        serving = self.agent.server.serving
        assert serving is not None
        return serving

    async def one_engine_is_left(self) -> None:
        with trio.fail_after(50):
            while len(self.engines.alive) != 1:
                await self.engines.ends.wait_beyond(self.engines.ends.ordinal)

    async def watch_slots(self) -> None:
        status, ordinal = self.agent.status, 0
        while True:
            self.slots.append(status.slots_total)
            ordinal = await status.changes.wait_beyond(ordinal)


@asynccontextmanager
async def serving_old(root: Path, **options: object) -> AsyncIterator[World]:
    """An agent that serves old.gguf; the next engine comes up when it may."""
    engines, languages = LivingEngines(), Languages()
    agent = Agent(root, engines=engines, languages=languages, **options)  # type: ignore[arg-type]
    world = World(agent, engines, languages)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.server.run)
        engines.may_come_up.set()
        agent.server.set_desired(state(agent.file("old.gguf")))
        await world.serves("old.gguf")
        engines.may_come_up = trio.Event()
        nursery.start_soon(world.watch_slots)
        yield world
        nursery.cancel_scope.cancel()


def digest(desired: AgentDesiredState) -> str:
    return extended_digest(desired, Extras())


async def says(agent: Agent, desired: AgentDesiredState, extras: Extras) -> bool | None:
    """Would it load this beside what it serves, as it answers when it is asked?"""
    assert agent.server.gate is not None
    judged = await agent.server.gate.judge(desired, extras)
    return await agent.server.would_load_beside(judged, desired, extras)


async def test_the_old_model_answers_until_the_new_one_does_and_ends_with_its_last_request(
    tmp_path: Path,
) -> None:
    async with serving_old(tmp_path, drain_s=60) as world:
        agent, engines = world.agent, world.engines
        old_state, new_state = state(agent.file("old.gguf")), state(agent.file("new.gguf"))
        old = await world.serves("old.gguf")
        assert agent.status.report().load_s == 0.5
        assert await says(agent, new_state, Extras()) is True
        with old.uses.one():
            agent.server.set_desired(new_state)
            await world.serves("old.gguf", phase="loading")
            assert agent.status.served_state == digest(old_state)
            assert agent.status.wanted_state == digest(new_state)
            engines.may_come_up.set()
            await world.serves("new.gguf")
            assert agent.status.served_state == digest(new_state)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(engines.alive) == 2, "a request still runs on the old one"
            assert agent.lost == []
        await world.one_engine_is_left()
        assert agent.lost == [old.engine]
        assert set(world.slots) == {2}, "there is no moment without slots, and none with more"


async def test_the_first_decode_is_a_phase_of_its_own(tmp_path: Path) -> None:
    phases = []
    async with serving_old(tmp_path) as world:
        agent = world.agent

        async def watch() -> None:
            ordinal = 0
            while True:
                phases.append(agent.status.phase)
                ordinal = await agent.status.changes.wait_beyond(ordinal)

        loaded = world.engines.may_come_up
        agent.server.set_desired(state(agent.file("new.gguf")))
        await world.serves("old.gguf", phase="loading")
        shown = agent.server._places.newest
        assert shown is not None
        agent.server.model_progressed(shown, 0.5)
        assert agent.status.progress == 0.5
        agent.server.model_progressed(shown, None)
        assert (agent.status.phase, agent.status.progress) == ("probing", None)
        assert agent.status.report().phase == "probing"
        loaded.set()
        await world.serves("new.gguf")


@pytest.mark.parametrize("why", ["no room", "unknown", "off", "rpc", "another kind"])
async def test_otherwise_the_old_model_ends_first(why: str, tmp_path: Path) -> None:
    machine = DryRunDouble(free=1000 * MIB)
    async with serving_old(tmp_path, dry_runs=machine, loads_beside=why != "off") as world:
        agent, engines = world.agent, world.engines
        assert agent.server.gate is not None

        async def held(path: str, *, keeps_own: bool = False) -> Held:
            return Held() if keeps_own else Held({"host": 100 * MIB})

        agent.server.gate.held = held
        machine.free = {"no room": NEEDED - 50 * MIB, "unknown": 0}.get(why, 1000 * MIB)
        extras = Extras(engine=EngineOverrides(rpc=("host:1",))) if why == "rpc" else Extras()
        desired = state(agent.file("new.gguf"), enable_embeddings=why == "another kind")
        assert await says(agent, desired, extras) is False
        agent.server.set_desired(desired, extras)
        await agent.loaded(2)
        assert len(engines.alive) == 1
        assert agent.server.serving is None
        assert (agent.status.phase, agent.status.served_state) == ("loading", None)
        engines.may_come_up.set()
        await world.serves("new.gguf")
    assert engines.most_alive == 1


@pytest.mark.parametrize("stage", ["model", "probe", "crash"])
async def test_a_load_that_fails_beside_it_leaves_the_old_model_in_force(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_server, "FIRST_RETRY_S", 0.001)
    async with serving_old(tmp_path) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        engines.failures["new.gguf"] = LoadFailedError(stage, "it does not compute")
        engines.may_come_up.set()
        agent.server.set_desired(state(agent.file("new.gguf")))
        await world.serves("old.gguf", phase="failed")
        assert agent.status.detail == "it does not compute"
        assert agent.status.issues
        assert agent.status.served_state == digest(state(agent.file("old.gguf")))
        assert engines.alive == [old.engine]
        del engines.failures["new.gguf"]
        await world.serves("new.gguf")
        assert agent.status.issues == frozenset()
        assert set(world.slots) == {2}


@pytest.mark.parametrize("other", ["old.gguf", "new.gguf"])
async def test_a_template_that_cannot_be_read_leaves_the_one_before_in_force(
    other: str, tmp_path: Path
) -> None:
    """With the same weights, in place; and with others."""
    async with serving_old(tmp_path) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        world.languages.refused = {"{% broken"}
        engines.may_come_up.set()
        agent.server.set_desired(
            attrs.evolve(state(agent.file(other)), chat_template_override=ChatTemplate("{% broken"))
        )
        await world.serves("old.gguf", phase="failed")
        assert agent.status.detail == "a syntax error"
        await world.one_engine_is_left()
        assert engines.alive == [old.engine]
        agent.server.set_desired(state(agent.file("old.gguf"), top_k=3))
        await world.serves("old.gguf")
        assert engines.alive == [old.engine]
        assert set(world.slots) == {2}


async def test_the_state_before_is_back_at_once_while_another_one_loads(tmp_path: Path) -> None:
    async with serving_old(tmp_path) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        agent.server.set_desired(state(agent.file("new.gguf")))
        await world.serves("old.gguf", phase="loading")
        agent.server.set_desired(state(agent.file("old.gguf")))
        await world.serves("old.gguf")
        await world.one_engine_is_left()
        assert engines.alive == [old.engine]
        assert set(world.slots) == {2}


async def test_the_state_before_is_back_at_once_while_its_last_requests_run(
    tmp_path: Path,
) -> None:
    async with serving_old(tmp_path, drain_s=60) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        engines.may_come_up.set()
        with old.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            new = await world.serves("new.gguf")
            agent.server.set_desired(state(agent.file("old.gguf")))
            back = await world.serves("old.gguf")
            assert back.engine is old.engine
            await world.one_engine_is_left()
            assert agent.lost == [new.engine]
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert engines.alive == [old.engine], "it does not leave any more"
        assert len(engines.loads) == 2
        with back.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            await world.serves("new.gguf")
        await world.one_engine_is_left()
        assert old.engine not in engines.alive
        assert set(world.slots) == {2}


async def test_a_third_model_waits_until_the_first_one_has_left(tmp_path: Path) -> None:
    async with serving_old(tmp_path, drain_s=60) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        engines.may_come_up.set()
        with old.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            await world.serves("new.gguf")
            agent.server.set_desired(state(agent.file("third.gguf")))
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(engines.loads) == 2
            assert agent.server.serving is not None
        await world.serves("third.gguf")
        assert engines.most_alive == 2
        assert set(world.slots) == {2}


async def test_an_old_model_whose_requests_do_not_end_ends_at_the_deadline(tmp_path: Path) -> None:
    async with serving_old(tmp_path, drain_s=0.05) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        engines.may_come_up.set()
        with old.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            new = await world.serves("new.gguf")
            await world.one_engine_is_left()
            assert engines.alive == [new.engine]
            assert agent.lost == [old.engine]


async def test_no_model_is_wanted_while_one_loads_beside_another(tmp_path: Path) -> None:
    async with serving_old(tmp_path) as world:
        agent, engines = world.agent, world.engines
        agent.server.set_desired(state(agent.file("new.gguf")))
        await world.serves("old.gguf", phase="loading")
        agent.server.set_desired(state(NoModel()))
        await agent.reach(lambda status: status.phase == "waiting")
        assert engines.alive == []
        assert agent.status.slots_total == 0


async def test_caches_are_cut_to_what_both_models_leave(tmp_path: Path) -> None:
    settings = EngineSettings(prefix_store_bytes=10_000 * MIB)
    async with serving_old(tmp_path, settings=settings) as world:
        agent = world.agent
        assert agent.server.gate is not None

        async def held(path: str, *, keeps_own: bool = False) -> Held:
            return Held({"host": 0 if keeps_own else 300 * MIB})

        agent.server.gate.held = held
        agent.dry_runs.free = 500 * MIB
        agent.server.set_desired(state(agent.file("new.gguf")))
        assert (await agent.loaded(2)).settings.prefix_store_bytes == 500 * MIB - NEEDED


async def test_a_model_that_came_back_and_leaves_again_has_a_whole_deadline(
    tmp_path: Path,
) -> None:
    async with serving_old(tmp_path, drain_s=1.5) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        engines.may_come_up.set()
        with old.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            await world.serves("new.gguf")
            await trio.sleep(0.8)
            agent.server.set_desired(state(agent.file("old.gguf")))
            await world.serves("old.gguf")
            await world.one_engine_is_left()
            left_s = trio.current_time()  # at the earliest
            agent.server.set_desired(state(agent.file("new.gguf")))
            new = await world.serves("new.gguf")
            await world.one_engine_is_left()
            assert trio.current_time() - left_s > 1.4
            assert engines.alive == [new.engine]


@pytest.mark.parametrize("why", ["its template is refused", "a third one is wanted", "none is"])
async def test_a_model_that_is_called_back_in_vain_goes_on_leaving(
    why: str, tmp_path: Path
) -> None:
    async with serving_old(tmp_path, drain_s=60) as world:
        agent, engines = world.agent, world.engines
        old = await world.serves("old.gguf")
        world.languages.refused = {"{% broken"}
        engines.may_come_up.set()
        with old.uses.one():
            agent.server.set_desired(state(agent.file("new.gguf")))
            await world.serves("new.gguf")
            called_back = attrs.evolve(
                state(agent.file("old.gguf")), chat_template_override=ChatTemplate("{% broken")
            )
            agent.server.set_desired(called_back)
            await world.serves("new.gguf", phase="failed")
            if why == "a third one is wanted":
                agent.server.set_desired(state(agent.file("third.gguf")))
            elif why == "none is":
                agent.server.set_desired(state(NoModel()))
                await agent.reach(lambda status: status.phase == "waiting")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert old.engine in engines.alive, "a request still runs on it"
            assert old.engine not in agent.lost
        with trio.fail_after(50):
            while old.engine in engines.alive:
                await engines.ends.wait_beyond(engines.ends.ordinal)
        if why == "a third one is wanted":
            await world.serves("third.gguf")
        assert engines.most_alive == 2


async def test_memory_stays_promised_to_an_engine_that_loads_whatever_else_is_wanted(
    tmp_path: Path,
) -> None:
    """Another agent of this machine would take what this engine has not touched yet."""
    engines = LivingEngines()
    agent = Agent(tmp_path, engines=engines, languages=Languages())
    assert agent.server.gate is not None
    other = MemoryPromises(agent.server.gate.promises.folder)
    model = agent.file("m.gguf")
    async with agent.running():
        agent.server.set_desired(state(model))
        await agent.loaded(1)
        assert other.of_others() == {"host": NEEDED}
        agent.server.set_desired(state(model, temperature=0.1))  # the same weights and context
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(engines.loads) == 1, "the same engine goes on"
        assert other.of_others() == {"host": NEEDED}
        engines.may_come_up.set()
        await agent.reach(lambda status: status.phase == "serving")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert other.of_others() == {}, "it has been taken"

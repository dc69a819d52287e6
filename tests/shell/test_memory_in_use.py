"""What several models of one agent hold together is budgeted together; dry runs are doubled."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from fit_world import Agent, LivingEngines, state

from dry_run_double import MIB, DryRunDouble
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model import fit_gate, memory_in_use
from paddler_trio.agent.model.memory_in_use import MemoryInUse
from paddler_trio.agent.model.model_fit import Held
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import MemoryUse


def engine(path: str, *, mapped: int = 0, locks: bool = False) -> EngineProcess:
    load = LoadModel(
        model_path=path,
        slots=1,
        context_size=256,
        n_batch=8,
        n_gpu_layers=0,
        k_cache_dtype="F16",
        v_cache_dtype="F16",
        threads=1,
        package_version="",
        settings=EngineSettings(use_mlock=locks),
    )
    made = EngineProcess(load, lambda _: None, lambda _: None, lambda _: None, lambda _: None)
    made.ready = Ready(
        cells=256,
        n_batch=8,
        n_ctx_train=256,
        n_vocab=9,
        memory=MemoryUse(devices=(), taken={}, resident=0, mapped=mapped),
    )
    return made


@pytest.fixture(autouse=True)
def each_holds_ten_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(engine: EngineProcess | None) -> Held:
        return Held({"host": 10 * MIB})

    monkeypatch.setattr(memory_in_use, "held_memory", held)
    monkeypatch.setattr(fit_gate, "FIRST_LOOK_S", 0.001)


async def test_own_engines_are_given_back_and_those_of_other_instances_stay() -> None:
    memory, mine, other = MemoryInUse(), object(), object()
    memory.begins(engine("/mine", mapped=100 * MIB), mine)
    memory.begins(engine("/other", mapped=40 * MIB), other)
    held = await memory.held(mine, "/new")
    assert held.on("host") == 10 * MIB
    assert held.in_use == {"host": 40 * MIB}, "page cache that an engine computes with"
    assert held.beside == {"host": 50 * MIB}
    held = await memory.held(mine, "/new", keeps_own=True)
    assert held.on("host") == 0
    assert held.in_use == {"host": 140 * MIB}
    assert held.beside == {"host": 160 * MIB}


async def test_weights_of_one_file_are_there_once() -> None:
    memory, mine = MemoryInUse(), object()
    memory.begins(engine("/m", mapped=100 * MIB), mine)
    memory.begins(engine("/m", mapped=100 * MIB), object())
    held = await memory.held(mine, "/m", keeps_own=True)
    assert held.in_use == {"host": 0}, "the new engine maps the same pages"
    assert held.beside == {"host": 120 * MIB}


async def test_locked_weights_do_not_count_as_free_and_engines_that_ended_hold_nothing() -> None:
    memory, mine = MemoryInUse(), object()
    locked = engine("/m", mapped=100 * MIB, locks=True)
    memory.begins(locked, mine)
    assert (await memory.held(mine, "/x", keeps_own=True)).in_use == {"host": 0}
    memory.ends(locked)
    assert await memory.held(mine, "/x") == Held({}, beside={"host": 0}, in_use={"host": 0})


async def test_every_instance_reports_the_room_for_all_models_together() -> None:
    machine = DryRunDouble(free=500 * MIB)
    memory, first = MemoryInUse(), AgentStatus(2)
    memory.show_room_in(first)
    assert first.report().room == ()
    memory.begins(engine("/a"), object())
    memory.begins(engine("/b"), object())

    class Judged:
        need = machine.need(engine("/x").load)

    limits = MemoryLimits(host_reserve_bytes=100 * MIB)
    await memory.note_room(limits, Judged)  # type: ignore[arg-type]
    later = AgentStatus(1)
    memory.show_room_in(later)
    for status in (first, later):
        assert [(room.device, room.most) for room in status.report().room] == [("host", 420 * MIB)]
    limits = attrs.evolve(limits, host_limit_bytes=300 * MIB)
    await memory.note_room(limits, Judged)  # type: ignore[arg-type]
    assert first.room[0].most == later.room[0].most == 300 * MIB


async def test_one_instance_is_refused_what_another_one_computes_with(tmp_path: Path) -> None:
    """The system calls the pages of its weights free."""
    machine = DryRunDouble(free=200 * MIB)
    memory = MemoryInUse()
    memory.begins(engine("/other", mapped=100 * MIB), object())
    agent = Agent(tmp_path, machine, engines=LivingEngines(), memory=memory)
    async with agent.running():
        agent.server.set_desired(state(agent.file("m.gguf")))
        assert "needs 138 MiB on host, 100 MiB are available" in await agent.refused()
        machine.free = 300 * MIB
        await agent.loaded(1)


async def test_the_limit_is_for_all_models_together(tmp_path: Path) -> None:
    limits = MemoryLimits(host_reserve_bytes=0, host_limit_bytes=200 * MIB)
    memory = MemoryInUse()
    memory.begins(engine("/other", mapped=60 * MIB), object())
    agent = Agent(tmp_path, engines=LivingEngines(), memory=memory, limits=limits)
    async with agent.running():
        agent.server.set_desired(state(agent.file("m.gguf")))
        assert "needs 138 MiB on host, 130 MiB are available" in await agent.refused()

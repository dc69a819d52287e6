"""An agent looks whether a model fits before it lets the one in force go; dry runs are doubled."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from fit_world import Agent, state

from dry_run_double import MIB, DryRunDouble
from hub_server import HubServer, Repository, hub_server
from paddler_trio.agent.model import fit_gate
from paddler_trio.agent.model.model_errors import ModelNotServableError
from paddler_trio.agent.model.model_fit import Held
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.agent_issue import ModelCannotBeLoaded, SlotCannotStart
from paddler_trio.wire.paddler.desired_state import (
    HuggingFaceModel,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Automatic, Extras

DATA = random.Random(5).randbytes(MIB + 5)
AUTO = Extras(auto=Automatic(context_size=True, n_gpu_layers=True))


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[Agent]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.server.run)
        yield agent
        nursery.cancel_scope.cancel()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_gate, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(fit_gate, "LONGEST_LOOK_S", 0.01)
    monkeypatch.setattr(fit_gate, "GPU_LOOK_S", 0.01)


async def test_the_old_model_stays_until_memory_is_free_for_the_new_one(agent: Agent) -> None:
    async with running(agent):
        agent.server.set_desired(state(agent.file("old.gguf")))
        await agent.loaded(1)
        old = agent.server._places.current
        agent.server.set_desired(state(agent.file("new.gguf"), 2**20))
        detail = await agent.refused()
        assert detail == (
            "the model does not fit: needs 1.13 GiB on host, 0.98 GiB are available; context-size "
            "851968 fits, or q8_0 KV"
        )
        words = detail.removeprefix("the model does not fit: ")
        assert agent.status.issues == {SlotCannotStart(words, slot) for slot in (0, 1)}
        assert agent.status.application is AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING
        assert agent.server._places.current is old
        assert [load.model_path for load in agent.engines.loads] == [str(agent.root / "old.gguf")]
        dry_runs = len(agent.dry_runs.asked)
        phases: set[str] = set()
        for _ in range(3):  # it looks at the memory only, and nothing about its status changes
            with trio.move_on_after(0.02):
                await agent.status.changes.wait_beyond(agent.status.changes.ordinal)
            phases.add(agent.status.phase)
        assert phases == {"failed"}
        assert len(agent.dry_runs.asked) == dry_runs
        agent.dry_runs.free = 2000 * MIB
        load = await agent.loaded(2)
        assert (load.model_path, load.context_size) == (str(agent.root / "new.gguf"), 2**20)


async def test_what_the_old_model_holds_counts_as_free(agent: Agent) -> None:
    async def held(path: str, *, keeps_own: bool = False) -> Held:
        return Held({"host": 500 * MIB})

    assert agent.server.gate is not None
    agent.server.gate.held = held
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20))
        await agent.loaded(1)


@pytest.mark.parametrize("kind", ["unsupported", "crashed", "too_slow", "header_too_large"])
async def test_where_it_cannot_be_known_the_model_is_loaded_anyway(kind: str, agent: Agent) -> None:
    agent.dry_runs.fails = lambda *_: MemoryUnknownError(kind, "not here")
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20))
        await agent.loaded(1)


async def test_unknown_free_memory_refuses_nothing_and_leaves_the_number_of_the_state(
    agent: Agent,
) -> None:
    agent.dry_runs.free = 0
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20), AUTO)
        assert (await agent.loaded(1)).context_size == 2**20


async def test_a_newer_state_is_heard_while_one_is_refused(agent: Agent) -> None:
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20))
        await agent.refused()
        agent.server.set_desired(state(agent.file("m.gguf")))
        await agent.loaded(1)
        await agent.reach(lambda status: not status.issues)


async def test_an_agent_chooses_once_and_loads_nothing_anew_for_what_is_no_change(
    agent: Agent,
) -> None:
    model = agent.file("m.gguf")
    agent.dry_runs.free = 133 * MIB + MIB // 2
    async with running(agent):
        agent.server.set_desired(state(model), AUTO)
        assert (await agent.loaded(1)).context_size == 2 * 1792
        judged = agent.dry_runs.num_opened
        agent.dry_runs.free = 1000 * MIB
        agent.server.set_desired(state(model, top_k=3), AUTO)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(agent.engines.loads) == 1
        assert agent.dry_runs.num_opened == judged
        agent.server.set_desired(state(model, top_k=3), NO_EXTRAS)
        assert (await agent.loaded(2)).context_size == 8192


async def test_layers_are_chosen_for_a_gpu_and_refused_where_it_is_full(agent: Agent) -> None:
    agent.dry_runs.gpu_free = 60 * MIB
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), n_gpu_layers=-1))
        assert "needs 108 MiB on GPU0, 0 B are available" in await agent.refused()
        assert agent.status.issues
        agent.dry_runs.gpu_free = 270 * MIB  # of which a twentieth of the whole is the reserve
        agent.server.set_desired(
            state(agent.file("m.gguf"), n_gpu_layers=0), Extras(auto=Automatic(n_gpu_layers=True))
        )
        assert (await agent.loaded(1)).n_gpu_layers == 5
        agent.server.set_desired(state(agent.file("m.gguf"), n_gpu_layers=-1))
        assert "; 5 of 9 layers on the GPU fit" in await agent.refused()
        agent.dry_runs.gpu_free = 400 * MIB
        assert (await agent.loaded(2)).n_gpu_layers == -1


async def test_a_broken_projection_is_no_reason_to_refuse_the_model(agent: Agent) -> None:
    agent.dry_runs.fails = lambda model, projection: (
        None
        if isinstance(projection, NoModel)
        else MemoryUnknownError("not_gguf", "the projection is none")
    )
    async with running(agent):
        projection = agent.file("projection.gguf")
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20, projection=projection))
        assert "needs 1.13 GiB on host" in await agent.refused(), "the model alone is judged"
        agent.server.set_desired(state(agent.file("m.gguf"), projection=projection))
        await agent.loaded(1)


async def test_caches_take_what_is_left_and_are_no_reason_to_refuse(tmp_path: Path) -> None:
    settings = EngineSettings(prefix_store_bytes=10_000 * MIB, image_cache_bytes=256 * MIB)
    agent = Agent(tmp_path, settings=settings)
    taken = 100 + 8 + 10 + 20
    async with running(agent):
        model = agent.file("m.gguf")
        agent.server.set_desired(state(model))
        blind = (await agent.loaded(1)).settings
        assert blind.image_cache_bytes == 256 * MIB, "it takes nothing without a projection"
        assert blind.prefix_store_bytes == (1000 - taken) * MIB
        agent.server.set_desired(state(model, projection=agent.file("projection.gguf")))
        seeing = (await agent.loaded(2)).settings
        assert seeing.image_cache_bytes == 256 * MIB
        assert seeing.prefix_store_bytes == (1000 - taken - 5 - 256) * MIB


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"m.gguf": DATA})}) as hub:
        yield hub


async def test_nothing_is_downloaded_that_cannot_fit(hub: HubServer, tmp_path: Path) -> None:
    agent = Agent(tmp_path, hub=hub)
    model = HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main")
    async with running(agent):
        agent.server.set_desired(state(model, 2**20))
        await agent.refused()
        assert hub.served_bytes == 0
        assert not (tmp_path / "hub").exists()
        agent.server.set_desired(state(model))
        await agent.loaded(1)
        assert hub.served_bytes == len(DATA)


async def test_a_model_that_no_context_makes_small_enough_cannot_be_loaded(agent: Agent) -> None:
    agent.dry_runs.free = 100 * MIB
    async with running(agent):
        model = agent.file("m.gguf")
        agent.server.set_desired(state(model))
        assert "; no smaller context" in await agent.refused()
        assert agent.status.issues == {ModelCannotBeLoaded(model.path)}


async def test_an_agent_waits_for_the_memory_that_another_one_is_loading_into(
    tmp_path: Path,
) -> None:
    """Both have the same cache folder, as agents of one machine do."""
    machine = DryRunDouble(free=200 * MIB)
    first, second = Agent(tmp_path, machine), Agent(tmp_path, machine)
    async with running(first), running(second):
        first.server.set_desired(state(first.file("m.gguf")))
        await first.loaded(1)
        second.server.set_desired(state(second.file("m.gguf")))
        detail = await second.refused()
        assert detail.startswith("the model does not fit now: needs 138 MiB on host, 62.0 MiB are")
        assert "another agent of this machine is loading a model" in detail
        first.server.set_desired(state(NoModel()))
        await second.loaded(1)


async def test_an_agent_that_does_not_check_loads_anything_and_still_chooses(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path, DryRunDouble(free=100 * MIB), checks_fit=False)
    async with running(agent):
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20))
        assert (await agent.loaded(1)).context_size == 2**20
        assert agent.dry_runs.num_opened == 0
        agent.server.set_desired(state(agent.file("m.gguf"), 2**20), AUTO)
        assert (await agent.loaded(2)).context_size == 2 * 1024, "the least that is chosen"


async def test_headers_come_from_the_store_and_from_the_source_if_it_has_none(
    agent: Agent,
) -> None:
    assert agent.server.fit is not None
    agent.server.set_store(StoreAddress("http://balancer/api/v2/store", None))
    at_store, at_source = "http://balancer/api/v2/store/hf", "http://127.0.0.1:9"
    model = HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main")
    async with running(agent):
        agent.server.set_desired(state(model, 2**20))
        await agent.refused()
        assert agent.dry_runs.endpoints == [at_store]
        agent.dry_runs.unreachable = {at_store}
        agent.server.set_desired(state(model, 2**21))
        await agent.refused()
        assert agent.dry_runs.endpoints[1:] == [at_store, at_source]


@pytest.mark.parametrize(("kind", "is_permanent"), [("not_gguf", False), ("model_refused", True)])
async def test_an_address_that_leads_to_a_page_is_asked_again_soon(
    agent: Agent, kind: str, is_permanent: bool
) -> None:
    """While another model is served, the headers of the next one are looked at first."""
    url = UrlModel("http://127.0.0.1:9/m.gguf")
    agent.dry_runs.fails = lambda *_: MemoryUnknownError(kind, f"{url.url} is no GGUF file")
    assert agent.server.gate is not None
    with pytest.raises(ModelNotServableError, match="is no GGUF file") as caught:
        await agent.server.gate.check_source(state(url), NO_EXTRAS, serves=True)
    assert caught.value.is_permanent is is_permanent

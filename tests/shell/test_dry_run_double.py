"""What tests of agents rely on is true of the double of dry runs and of the real ones alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest

from dry_run_double import DryRunDouble
from paddler_trio.agent.model.model_fit import Questions, required
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.memory.memory_prediction import open_memory_questions
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import LocalToAgent, NoModel

LOAD = LoadModel(
    model_path="not read",
    slots=2,
    context_size=8192,
    n_batch=512,
    n_gpu_layers=0,
    k_cache_dtype="F16",
    v_cache_dtype="F16",
    threads=1,
    package_version="",
    settings=EngineSettings(prefix_store_bytes=12345),
)
HUB = HubSettings(cache=Path("/nowhere"), url_cache=Path("/nowhere"), offline=True)
MODEL = LocalToAgent(str(BUNDLED_MODEL))


@pytest.fixture(params=["double", "real"])
def opened(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Questions]]:
    @asynccontextmanager
    async def real() -> AsyncIterator[Questions]:
        async with open_memory_questions(MODEL, NoModel(), HUB) as questions:
            yield questions

    return real if request.param == "real" else partial(DryRunDouble().open, MODEL, NoModel(), HUB)


async def test_needs_grow_with_the_context_and_shrink_with_the_cache(
    opened: Callable[[], AbstractAsyncContextManager[Questions]],
) -> None:
    async with opened() as questions:
        whole = await questions.need(LOAD)
        assert (whole.n_ctx, whole.n_ctx_slot, whole.n_ctx_train) == (8192, 4096, 2048)
        assert whole.devices[0].kind == "cpu"
        assert 0 < whole.devices[0].free <= whole.devices[0].total
        assert whole.host.prefixes == 12345
        assert required(whole).bytes_by_device["host"] < whole.host_needed
        assert required(whole).n_layers == whole.n_layers + 1
        least = -1
        for context_size in (512, 1024, 4096, 8192, 16384, 131_072):
            need = await questions.need(attrs.evolve(LOAD, context_size=context_size))
            assert required(need).bytes_by_device["host"] > least
            least = required(need).bytes_by_device["host"]
        small = await questions.need(attrs.evolve(LOAD, k_cache_dtype="Q8_0", v_cache_dtype="Q8_0"))
        assert small.devices[0].kv < whole.devices[0].kv
        trained = await questions.need(attrs.evolve(LOAD, context_size=0))
        assert trained.n_ctx == 2 * trained.n_ctx_train
        refused = None
        try:
            await questions.need(attrs.evolve(LOAD, context_size=2**31 - 1))
        except MemoryUnknownError as error:
            refused = error
        assert refused is not None
        assert refused.kind == "context_refused"
        assert await questions.need(LOAD), "a refusal ends nothing"

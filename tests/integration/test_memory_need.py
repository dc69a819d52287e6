"""What a dry run predicts is what the engine then allocates; hostile headers hurt nobody."""

from __future__ import annotations

import attrs
import pytest
from engine_client import LOAD, running

from paddler_trio.engine.proof import BUNDLED_MODEL
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.models.memory_prediction import memory_need
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import MemoryUse

LOADS = {
    "plain": LOAD,
    "quantised cache": attrs.evolve(LOAD, context_size=8192, k_cache_dtype="Q8_0"),
    "unified": attrs.evolve(LOAD, settings=EngineSettings(unified=True, flash_attention="off")),
    "embeds": attrs.evolve(LOAD, embeddings=True, n_batch=2048),
    "drafts": attrs.evolve(
        LOAD, settings=EngineSettings(max_drafts=4, draft_model=str(BUNDLED_MODEL))
    ),
}


def used(load: LoadModel, vocabulary: Vocabulary) -> MemoryUse:
    with running(vocabulary) as engine:
        ready = engine.load(load)
    assert isinstance(ready, Ready)
    assert ready.memory is not None
    return ready.memory


@pytest.mark.parametrize("case", LOADS)
async def test_prediction_is_what_the_engine_allocates(case: str, vocabulary: Vocabulary) -> None:
    need = await memory_need(LOADS[case])
    use = used(LOADS[case], vocabulary)
    for predicted, actual in zip(need.devices, use.devices, strict=True):
        assert predicted.name == actual.name
        for field in ("kv", "compute", "embedding", "draft"):
            assert getattr(predicted, field) == pytest.approx(getattr(actual, field), rel=0.02), (
                field
            )
    assert abs(need.host_needed - use.resident - use.mapped) < 50 << 20

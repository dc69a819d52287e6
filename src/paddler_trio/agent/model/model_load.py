"""Make the load of an engine from the desired state and this agent's own settings."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from paddler_trio import __version__
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.trio.desired_state_extras import Extras


@attrs.frozen(kw_only=True)
class LoadRules:
    """The settings of one agent: its slots, its engine's threads and options; extras win over
    these."""

    slots: int
    threads: int
    settings: EngineSettings

    def load(
        self,
        desired: AgentDesiredState,
        extras: Extras,
        *,
        model_path: str,
        projection_path: str | None,
        adapters: Sequence[str] = (),
    ) -> LoadModel:
        """Return the load that serves ``desired``; its numbers, also where agents are to choose."""
        parameters = desired.inference_parameters
        return LoadModel(
            model_path=model_path,
            slots=self.slots,
            context_size=parameters.context_size,
            n_batch=parameters.n_batch,
            n_gpu_layers=parameters.n_gpu_layers,
            k_cache_dtype=parameters.k_cache_dtype.value,
            v_cache_dtype=parameters.v_cache_dtype.value,
            threads=self.threads,
            package_version=__version__,
            embeddings=parameters.enable_embeddings,
            pooling_type=parameters.pooling_type.value
            if parameters.enable_embeddings
            else PoolingType.UNSPECIFIED.value,  # a change of it is no reason to load again
            settings=extras.engine.over(self.settings),
            projection_path=projection_path,
            adapters=list(adapters),
        )

"""A double of dry runs: arithmetic in the place of llama.cpp.

`tests/shell/test_dry_run_double.py` holds it to what the real one does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs

from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import DeviceNeed, HostNeed, MemoryNeed
from paddler_trio.wire.paddler.desired_state import DesiredModel, NoModel

MIB = 1 << 20
BYTES_OF_32 = {"F16": 64, "Q8_0": 34}


@attrs.define(eq=False)
class DryRunDouble:
    """Of a model of 100 MiB, 8 layers and a KiB of F16 cache a token, on the CPU or a GPU.

    Args:
      free: of the host, in bytes; 0 where it is not reported.
      gpu_free: of the one GPU; None for no GPU.
      fails: for a model and a projection, why nothing can be said.
    """

    free: int = 1000 * MIB
    gpu_free: int | None = None
    fails: Callable[[DesiredModel, DesiredModel], MemoryUnknownError | None] = attrs.field(
        default=lambda model, projection: None
    )
    asked: list[LoadModel] = attrs.field(factory=list)
    num_opened: int = 0
    endpoints: list[str] = attrs.field(factory=list)
    unreachable: set[str] = attrs.field(factory=set)

    @asynccontextmanager
    async def open(
        self,
        model: DesiredModel,
        projection: DesiredModel,
        hub: HubSettings,
        adapters: Sequence[DesiredModel] = (),
    ) -> AsyncIterator[DryRunDouble._Questions]:
        """As ``open_memory_questions``."""
        self.num_opened += 1
        self.endpoints.append(hub.endpoint)
        if hub.endpoint in self.unreachable:
            raise MemoryUnknownError("unreachable", "no answer")
        yield DryRunDouble._Questions(self, model, projection)

    @attrs.frozen
    class _Questions:
        double: DryRunDouble
        model: DesiredModel
        projection: DesiredModel

        async def need(self, load: LoadModel) -> MemoryNeed:
            error = self.double.fails(self.model, self.projection)
            if error is not None:
                raise error
            return self.double.need(load, sees=not isinstance(self.projection, NoModel))

    def need(self, load: LoadModel, *, sees: bool = False) -> MemoryNeed:
        """What ``load`` takes."""
        self.asked.append(load)
        n_ctx_train = 2048
        tokens = load.context_size or n_ctx_train * load.slots
        if tokens > 2**31 - 256 or tokens < load.slots:
            raise MemoryUnknownError("context_refused", f"context_size is {tokens} tokens: no")
        cells = 256 * -(-tokens // (256 * load.slots))
        kv = (
            cells
            * load.slots
            * (BYTES_OF_32[load.k_cache_dtype] + BYTES_OF_32[load.v_cache_dtype])
            * 16
            // 2
        )
        layers = 9 if load.n_gpu_layers < 0 else min(9, load.n_gpu_layers)
        share = 0.0 if self.gpu_free is None else layers / 9
        cpu = DeviceNeed(
            name="CPU",
            free=self.free,
            total=self.free and 4000 * MIB,
            weights=100 * MIB - int(share * 100 * MIB),
            kv=kv - int(share * kv),
            compute=10 * MIB,
            projection=5 * MIB if sees else 0,
        )
        gpus = ()
        if self.gpu_free is not None:
            gpu = DeviceNeed(
                name="GPU0",
                kind="gpu",
                free=self.gpu_free,
                total=4000 * MIB,
                weights=int(share * 100 * MIB),
                kv=int(share * kv),
            )
            gpus = (gpu,)
        return MemoryNeed(
            devices=(cpu, *gpus),
            host=HostNeed(
                process=20 * MIB,
                prefixes=load.settings.prefix_store_bytes,
                images=load.settings.image_cache_bytes if sees else 0,
            ),
            architecture="llama",
            n_layers=8,
            n_ctx_train=n_ctx_train,
            n_ctx=cells * load.slots,
            n_ctx_slot=cells,
            n_vocab=100,
            file_bytes=100 * MIB,
        )

"""One model after the other, loaded without weights as the engine would load them, and measured.

What is asked next is mostly the same model with another context, another cache or another number
of layers on the GPU: the model that was loaded last stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd

from paddler_trio.engine.draft_model import DraftModel
from paddler_trio.engine.embedding_context import EmbeddingContext
from paddler_trio.engine.gguf_header import GgufHeader
from paddler_trio.engine.llama import CELL_BYTES, ENCODER_ONLY, ContextShape, Llama
from paddler_trio.engine.memory_breakdown import (
    DeviceTable,
    buffers_of,
    check_against_log,
    devices,
    projection_usage,
)
from paddler_trio.engine.memory_use import own_memory
from paddler_trio.engine.rpc_devices import first_gpu_is_lent
from paddler_trio.errors import EngineError, MemoryUnknownError
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import HostNeed, MemoryNeed

LOOKS_AHEAD: Final = frozenset({"gemma3", "gemma4uv", "deepseek4v"})
"""Projections whose images attend to all of themselves (``mtmd_decode_use_non_causal``)."""
LOOKS_AHEAD_UNLESS: Final = {"gemma4v": (1536, 2560)}
"""The same, unless the model has one of these widths."""
CANDIDATE_BYTES: Final = 16
"""Of a token in the list that a sampler sorts; each slot has one."""
FLOAT_BYTES: Final = 4


@attrs.frozen
class _Key:
    """What a loaded model depends on."""

    path: str
    size_bytes: int
    modified_ns: int
    n_gpu_layers: int
    settings: str


@attrs.define(eq=False)
class Trial:
    """Args: lines: llama.cpp's log, newest last; emptied before each question."""

    lines: Sequence[str]
    _key: _Key | None = attrs.field(default=None, init=False)
    _llama: Llama | None = attrs.field(default=None, init=False)
    _process_bytes: int = attrs.field(default=0, init=False)

    def need(
        self, load: LoadModel, parts: Sequence[str], headers: Mapping[str, GgufHeader]
    ) -> MemoryNeed:
        """What ``load`` takes; EngineError, MemoryUnknownError.

        Args:
          parts: of the model, if it has several.
          headers: of the model, its projection and its draft model, by path.
        """
        load = attrs.evolve(load, settings=attrs.evolve(load.settings, lora=[]))
        llama = self._loaded(load)
        table = DeviceTable(devices())
        host = {"process": self._process_bytes}
        embedding_problem = ""
        embeds_only = False
        if load.embeddings:
            embedding_problem, embeds_only = self._embed(llama, load, table, host)
        if embedding_problem and not llama.can_generate:
            raise EngineError(embedding_problem, permanent=True)
        shape: ContextShape | None = None
        if not embeds_only:
            shape = self._generate(llama, load, headers, table, host)
        header = headers[load.model_path]
        n_layers: int = lib.llama_model_n_layer(llama.model)
        return MemoryNeed(
            devices=table.rows(),
            host=HostNeed(**host),
            architecture=header.architecture,
            n_layers=n_layers,
            n_ctx_train=llama.n_ctx_train,
            n_ctx=0 if shape is None else _n_ctx(shape),
            n_ctx_slot=0 if shape is None else shape.cells,
            n_vocab=llama.n_vocab,
            file_bytes=sum(Path(path).stat().st_size for path in parts or [load.model_path]),
            embedding_problem=embedding_problem,
        )

    def _loaded(self, load: LoadModel) -> Llama:
        status = Path(load.model_path).stat()
        key = _Key(
            load.model_path,
            status.st_size,
            status.st_mtime_ns,
            load.n_gpu_layers,
            repr(load.settings),
        )
        if self._llama is not None and self._key == key:
            return self._llama
        if self._llama is not None:
            self._llama.close()
            self._llama = self._key = None
        llama = Llama.load(
            load.model_path,
            n_gpu_layers=load.n_gpu_layers,
            progress=lambda _: None,
            settings=load.settings,
            no_alloc=True,
        )
        self._llama, self._key = llama, key
        self._process_bytes = own_memory().resident
        return llama

    def _generate(
        self,
        llama: Llama,
        load: LoadModel,
        headers: Mapping[str, GgufHeader],
        table: DeviceTable,
        host: dict[str, int],
    ) -> ContextShape:
        settings = load.settings
        if not llama.can_generate:
            raise EngineError(ENCODER_ONLY, permanent=True)
        attends_ahead = False
        if load.projection_path is not None:
            attends_ahead = _attends_ahead(headers[load.projection_path], llama)
            self._project(load, table)
            host["images"] = settings.image_cache_bytes
        shape = llama.open_context(
            slots=load.slots,
            context_size=load.context_size,
            n_batch=load.n_batch,
            k_cache_dtype=load.k_cache_dtype,
            v_cache_dtype=load.v_cache_dtype,
            threads=load.threads,
            settings=settings,
            attends_ahead=attends_ahead,
        )
        try:
            buffers = buffers_of(llama.context)
            check_against_log(buffers, self.lines)
            for buffer in buffers:
                table.add(buffer.device, weights=buffer.weights)
                table.add(buffer.device, kv=buffer.kv, compute=buffer.compute)
            if settings.draft_model is not None:
                self._draft(settings.draft_model, load, shape, table, host)
        finally:
            llama.close_context()
        outputs = max(shape.num_streams, min(shape.n_batch, load.slots * (1 + settings.max_drafts)))
        host["cells"] = host.get("cells", 0) + _n_ctx(shape) * CELL_BYTES
        host["outputs"] = host.get("outputs", 0) + outputs * llama.n_vocab * FLOAT_BYTES
        host["outputs"] += load.slots * llama.n_vocab * CANDIDATE_BYTES
        host["prefixes"] = settings.prefix_store_bytes
        return shape

    def _embed(
        self, llama: Llama, load: LoadModel, table: DeviceTable, host: dict[str, int]
    ) -> tuple[str, bool]:
        """Why it cannot embed, empty if it can; and whether that is all it can."""
        try:
            context = EmbeddingContext.open(
                llama,
                pooling_type=load.pooling_type,
                n_batch=load.n_batch,
                threads=load.threads,
                settings=load.settings,
            )
        except EngineError as error:
            return str(error), False
        try:
            buffers = buffers_of(context.context)
            check_against_log(buffers, self.lines)
        finally:
            lib.llama_free(context.context)
        only = not (llama.can_generate and context.remembers)
        for buffer in buffers:
            if only:
                table.add(buffer.device, weights=buffer.weights)
            table.add(buffer.device, embedding=buffer.kv + buffer.compute)
        tokens = context.shape.max_tokens
        # llama.cpp keeps logits of all tokens here too, though nobody reads them
        width = llama.n_vocab + int(lib.llama_model_n_embd_out(llama.model))
        host["outputs"] = tokens * width * FLOAT_BYTES
        host["cells"] = tokens * CELL_BYTES
        return "", only

    def _draft(
        self,
        path: str,
        load: LoadModel,
        shape: ContextShape,
        table: DeviceTable,
        host: dict[str, int],
    ) -> None:
        before = own_memory().resident
        draft = DraftModel.open(path, load, shape, no_alloc=True)
        try:
            host["process"] += max(0, own_memory().resident - before)
            for buffer in buffers_of(draft.llama.context):
                table.add(buffer.device, draft=buffer.weights + buffer.kv + buffer.compute)
            cells = draft.shape.cells * draft.shape.num_streams
            host["cells"] = cells * CELL_BYTES
            host["outputs"] = draft.shape.num_streams * draft.llama.n_vocab * FLOAT_BYTES
        finally:
            draft.llama.close()

    def _project(self, load: LoadModel, table: DeviceTable) -> None:
        """Counted on the CPU, whatever device it will be on: where it counts llama.cpp reserves,
        and a GPU may be full of a model that serves."""
        assert load.projection_path is not None
        params = mtmd.mtmd_context_params_default()
        params.print_timings = False
        params.use_gpu = False
        params.n_threads = 1
        usage = projection_usage(load.projection_path, params)
        if not usage:
            raise MemoryUnknownError(
                "model_refused",
                f"llama.cpp cannot read the projection {load.projection_path}",
            )
        on_gpu = load.n_gpu_layers != 0 and not first_gpu_is_lent()
        table.add(table.first_gpu if on_gpu else table.cpu, projection=sum(usage.values()))


def _n_ctx(shape: ContextShape) -> int:
    return shape.cells if shape.is_unified else shape.cells * shape.num_streams


def _attends_ahead(header: GgufHeader, llama: Llama) -> bool:
    kind = str(
        header.values.get("clip.vision.projector_type")
        or header.values.get("clip.projector_type")
        or ""
    )
    if kind in LOOKS_AHEAD_UNLESS:
        return llama.n_embd_inp not in LOOKS_AHEAD_UNLESS[kind]
    return kind in LOOKS_AHEAD

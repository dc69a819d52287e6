"""One model after the other, loaded without weights as the engine would load them, and measured.

What is asked next is mostly the same model with another context, another cache or another number
of layers on the GPU: the model that was loaded last stays.

llama.cpp counts everything but the states of recurrent layers, which it really allocates. So those
of few slots are tried, and of more slots the figures go on in a straight line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import EngineError, MemoryUnknownError
from paddler_trio.processes.engine.llama.applied_adapters import read_loras
from paddler_trio.processes.engine.llama.context_shape import (
    CELL_BYTES,
    ENCODER_ONLY,
    ContextShape,
    count_streams,
)
from paddler_trio.processes.engine.llama.draft_model import DraftModel
from paddler_trio.processes.engine.llama.embedding_context import EmbeddingContext
from paddler_trio.processes.engine.llama.gguf_header import GgufHeader
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.memory.memory_breakdown import (
    BufferSizes,
    DeviceTable,
    buffers_of,
    check_against_log,
    devices,
    projection_usage,
    runtime_bytes,
)
from paddler_trio.processes.engine.rpc.rpc_devices import first_gpu_is_lent
from paddler_trio.system.llama_library import lib, mtmd
from paddler_trio.system.machine import process_memory
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import HostNeed, MemoryNeed

LOOKS_AHEAD: Final = frozenset({"gemma3", "gemma4uv", "deepseek4v"})
"""Projections whose images attend to all of themselves (``mtmd_decode_use_non_causal``)."""
LOOKS_AHEAD_UNLESS: Final = {"gemma4v": (1536, 2560)}
"""The projections whose images attend to all of themselves, unless the model has one of these
widths."""
MAX_STATE_BYTES: Final = 2 << 30
"""The bytes of recurrent states that are allocated for a moment, to be measured; it is no more than
a part of what is free:"""
STATE_SHARE: Final = 0.25
CANDIDATE_BYTES: Final = 16
"""The bytes of a token in the list that a sampler sorts; each slot has one."""
FLOAT_BYTES: Final = 4
_STATE_LINE = re.compile(r"RS buffer size = +([0-9.]+) MiB")


@attrs.frozen
class _Key:
    """The values that a loaded model depends on."""

    path: str
    size_bytes: int
    modified_ns: int
    n_gpu_layers: int
    settings: str

    @property
    def file(self) -> tuple[str, int, int]:
        """The values that the process's own memory depends on: the vocabulary."""
        return self.path, self.size_bytes, self.modified_ns


@attrs.frozen
class _Measured:
    """A context that generates."""

    shape: ContextShape
    buffers: list[BufferSizes]


@attrs.define(eq=False)
class Trial:
    """A trial of loads; what it tries takes memory for a moment.

    Args:
      lines: gets llama.cpp's log; emptied before each context.
      max_state_bytes: see :data:`MAX_STATE_BYTES`.
    """

    lines: deque[str]
    max_state_bytes: int = MAX_STATE_BYTES
    _key: _Key | None = attrs.field(default=None, init=False)
    _llama: Llama | None = attrs.field(default=None, init=False)
    _process_bytes: int = attrs.field(default=0, init=False)

    def need(
        self, load: LoadModel, parts: Sequence[str], headers: Mapping[str, GgufHeader]
    ) -> MemoryNeed:
        """Return what ``load`` takes; EngineError, MemoryUnknownError.

        Args:
          parts: of the model, if it has several.
          headers: of the model, its projection and its draft model, by path; without that of a
            projection that is none.
        """
        if load.settings.rpc and load.n_gpu_layers != 0:
            raise MemoryUnknownError(
                "unsupported",
                "rpc: what a model takes on devices of other machines is not counted: their "
                "servers talk to one engine at a time",
            )
        adapters = [*(path for path, _ in read_loras(load.settings)), *load.adapters]
        load = attrs.evolve(load, settings=attrs.evolve(load.settings, lora=[], rpc=[]))
        llama = self._loaded(load)
        table, host = DeviceTable(devices()), HostNeed(process=self._process_bytes)
        problem, blind, measured, is_extrapolated = "", "", None, False
        generates = llama.can_generate
        if load.embeddings:
            problem, remembers, host = self._embed(llama, load, table, host)
            generates = generates and (bool(problem) or remembers)
        if not llama.can_generate and (problem or not load.embeddings):
            raise EngineError(problem or ENCODER_ONLY, permanent=True)
        if generates:
            attends_ahead = False
            if load.projection_path is not None:
                projection = headers.get(load.projection_path)
                blind = self._project(projection, load, table)
                if projection is not None and not blind:
                    attends_ahead = _attends_ahead(projection, llama)
                    host = attrs.evolve(host, images=load.settings.image_cache_bytes)
            measured, is_extrapolated = self._generate(
                llama, load, table.smallest_free(load.n_gpu_layers), attends_ahead=attends_ahead
            )
            for buffer in measured.buffers:
                table.add(buffer.device, weights=buffer.weights)
                table.add(buffer.device, kv=buffer.kv, compute=buffer.compute)
            host = _with_generation(host, load, measured.shape, llama.n_vocab)
            if load.settings.draft_model is not None:
                host = self._draft(load.settings.draft_model, load, measured.shape, table, host)
        table.share_out(lora=sum(Path(path).stat().st_size for path in adapters))
        return MemoryNeed(
            devices=table.rows(),
            host=host,
            architecture=headers[load.model_path].architecture,
            n_layers=lib.llama_model_n_layer(llama.model),
            n_ctx_train=llama.n_ctx_train,
            n_ctx=0 if measured is None else _n_ctx(measured.shape),
            n_ctx_slot=0 if measured is None else measured.shape.cells,
            n_vocab=llama.n_vocab,
            file_bytes=sum(Path(path).stat().st_size for path in parts or [load.model_path]),
            is_extrapolated=is_extrapolated,
            embedding_problem=problem,
            projection_problem=blind,
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
        before = self._key
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
        if before is None or before.file != key.file:
            if llama.can_generate:
                _ = llama.grammar_tokenizer  # the engine has one, and it may be large
            self._process_bytes = process_memory()[0] + runtime_bytes(devices())
        return llama

    # ------------------------------------------------------------------- what generates

    def _generate(
        self, llama: Llama, load: LoadModel, free: int, *, attends_ahead: bool
    ) -> tuple[_Measured, bool]:
        """Measure the context that generates, and whether it is extrapolated; ``free`` are
        bytes."""
        if not _has_states(llama):
            return self._measure(llama, load, load.slots, attends_ahead=attends_ahead), False
        unified = load.settings.unified
        one = self._measure(llama, load, 1, attends_ahead=attends_ahead)
        state_bytes = self._state_bytes() // one.shape.num_streams
        limit = min(self.max_state_bytes, int(free * STATE_SHARE))

        def is_affordable(slots: int) -> bool:
            return count_streams(slots, unified=unified) * state_bytes <= limit

        most = max(filter(is_affordable, range(2, load.slots + 1)), default=min(2, load.slots))
        many = self._measure(llama, load, most, attends_ahead=attends_ahead)
        if most == load.slots:
            return many, False
        half = most // 2
        few = self._measure(llama, load, half, attends_ahead=attends_ahead)
        return _continued(few, many, half, most, load.slots), True

    def _measure(
        self, llama: Llama, load: LoadModel, slots: int, *, attends_ahead: bool
    ) -> _Measured:
        """Measure the context of so many of the slots, each with as many tokens as it would
        have."""
        self.lines.clear()
        shape = llama.open_context(
            slots=slots,
            context_size=-(-load.context_size * slots // load.slots),
            n_batch=load.n_batch,
            k_cache_dtype=load.k_cache_dtype,
            v_cache_dtype=load.v_cache_dtype,
            threads=load.threads,
            settings=load.settings,
            attends_ahead=attends_ahead,
        )
        try:
            buffers = buffers_of(llama.context)
            check_against_log(buffers, self.lines)
            return _Measured(shape, buffers)
        finally:
            llama.close_context()

    def _state_bytes(self) -> int:
        """Return the bytes of all recurrent states of the context that was made last, as llama.cpp
        logged them."""
        made = 0.0
        for line in reversed(self.lines):
            match = _STATE_LINE.search(line)
            if match is not None:
                made += float(match[1])
            elif made:
                break  # one line for each device, one after the other
        return int(made * 2**20)

    # ----------------------------------------------------------------- what comes beside

    def _embed(
        self, llama: Llama, load: LoadModel, table: DeviceTable, host: HostNeed
    ) -> tuple[str, bool, HostNeed]:
        """Return why it cannot embed, empty if it can; whether it remembers tokens, as what
        generates does; and the host's memory with it."""
        self.lines.clear()
        try:
            context = EmbeddingContext.open(
                llama,
                pooling_type=load.pooling_type,
                n_batch=load.n_batch,
                threads=load.threads,
                settings=load.settings,
            )
        except EngineError as error:
            return str(error), False, host
        try:
            buffers = buffers_of(context.context)
            check_against_log(buffers, self.lines)
        finally:
            lib.llama_free(context.context)
        for buffer in buffers:
            if not (llama.can_generate and context.remembers):
                table.add(buffer.device, weights=buffer.weights)
            table.add(buffer.device, embedding=buffer.kv + buffer.compute)
        tokens = context.shape.max_tokens
        # llama.cpp keeps logits of all tokens here too, though nobody reads them
        width = llama.n_vocab + int(lib.llama_model_n_embd_out(llama.model))
        return (
            "",
            context.remembers,
            attrs.evolve(host, outputs=tokens * width * FLOAT_BYTES, cells=tokens * CELL_BYTES),
        )

    def _draft(
        self,
        path: str,
        load: LoadModel,
        target: ContextShape,
        table: DeviceTable,
        host: HostNeed,
    ) -> HostNeed:
        before, _ = process_memory()
        draft = DraftModel.open(path, load, target, no_alloc=True)
        try:
            for buffer in buffers_of(draft.llama.context):
                table.add(buffer.device, draft=buffer.weights + buffer.kv + buffer.compute)
            outputs = draft.shape.num_streams * draft.llama.n_vocab * FLOAT_BYTES
            return attrs.evolve(
                host,
                process=host.process + max(0, process_memory()[0] - before - outputs),
                cells=host.cells + _n_ctx(draft.shape) * CELL_BYTES,
                outputs=host.outputs + outputs,
            )
        finally:
            draft.llama.close()

    def _project(self, header: GgufHeader | None, load: LoadModel, table: DeviceTable) -> str:
        """Return why there is no projection, empty if there is one.

        Counted on the CPU, whatever device it will be on: where it counts llama.cpp reserves, and a
        GPU may be full of a model that serves.
        """
        path = load.projection_path
        if header is None or path is None:
            return f"{path} is no projection"
        params = mtmd.mtmd_context_params_default()
        params.print_timings = False
        params.use_gpu = False
        params.n_threads = 1
        usage = projection_usage(path, params)
        if not usage:
            return f"llama.cpp cannot read {path} as a projection"
        on_gpu = load.n_gpu_layers != 0 and not first_gpu_is_lent()
        table.add(table.first_gpu if on_gpu else table.cpu, projection=sum(usage.values()))
        return ""


def _with_generation(
    host: HostNeed, load: LoadModel, shape: ContextShape, n_vocab: int
) -> HostNeed:
    """Return what the context that generates takes of the host beside its buffers."""
    drafts = load.settings.max_drafts
    rows = max(shape.num_streams, min(shape.n_batch, load.slots * (1 + drafts)))
    outputs = rows * n_vocab * FLOAT_BYTES + load.slots * n_vocab * CANDIDATE_BYTES
    return attrs.evolve(
        host,
        cells=host.cells + _n_ctx(shape) * CELL_BYTES,
        outputs=host.outputs + outputs,
        prefixes=load.settings.prefix_store_bytes,
    )


def _continued(few: _Measured, many: _Measured, a: int, b: int, slots: int) -> _Measured:
    """Continue in a straight line from ``a`` and ``b`` slots to as many as there are."""

    def at(low: int, high: int) -> int:
        return high + max(0, high - low) * (slots - b) // (b - a)

    before = {(buffer.device, buffer.buffer): buffer for buffer in few.buffers}
    buffers = []
    for buffer in many.buffers:
        low = before[buffer.device, buffer.buffer]
        buffers.append(
            attrs.evolve(buffer, kv=at(low.kv, buffer.kv), compute=at(low.compute, buffer.compute))
        )
    streams = at(few.shape.num_streams, many.shape.num_streams)
    return _Measured(attrs.evolve(many.shape, num_streams=streams), buffers)


def _has_states(llama: Llama) -> bool:
    return bool(lib.llama_model_is_recurrent(llama.model) or lib.llama_model_is_hybrid(llama.model))


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

"""Measure what this engine process really holds: llama.cpp's buffers, and the system's account of
it."""

from __future__ import annotations

import attrs

from paddler_trio.processes.engine.llama.draft_model import DraftModel
from paddler_trio.processes.engine.llama.embedding_context import EmbeddingContext
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.memory.memory_breakdown import DeviceTable, buffers_of, devices
from paddler_trio.system.machine import process_memory
from paddler_trio.wire.engine.memory_need import MemoryUse


@attrs.frozen
class MemoryBefore:
    """The bytes that were free and held before the model was loaded.

    Args:
      free: of every device but the CPU that reports it.
      mapped: pages of files, which are libraries.
    """

    free: dict[str, int]
    mapped: int


def memory_before(*, n_gpu_layers: int) -> MemoryBefore:
    """Take it before a model is loaded. Without layers to offload no GPU is asked: asking one
    already takes memory on it."""
    rows = devices() if n_gpu_layers != 0 else []
    free = {row.name: row.free for row in rows if row.kind != "cpu" and row.total}
    return MemoryBefore(free, process_memory()[1])


def memory_use(
    llama: Llama,
    embedding: EmbeddingContext | None,
    draft: DraftModel | None,
    before: MemoryBefore,
    *,
    generates: bool,
) -> MemoryUse:
    """Ask once everything is loaded and a pass was computed; EngineError (permanent) if this build
    of llama.cpp does not count.

    Args:
      before: taken before the model was loaded.
      generates: there is a context that generates, beside one that embeds.
    """
    table = DeviceTable(devices())
    if generates:
        for buffer in buffers_of(llama.context):
            table.add(buffer.device, weights=buffer.weights, kv=buffer.kv, compute=buffer.compute)
    if embedding is not None:
        for buffer in buffers_of(embedding.context):
            weights = 0 if generates else buffer.weights
            table.add(buffer.device, weights=weights, embedding=buffer.kv + buffer.compute)
    if draft is not None:
        for buffer in buffers_of(draft.llama.context):
            table.add(buffer.device, draft=buffer.weights + buffer.kv + buffer.compute)
    rows = table.rows()
    resident, mapped = process_memory()
    return MemoryUse(
        devices=rows,
        taken={
            row.name: before.free[row.name] - row.free for row in rows if row.name in before.free
        },
        resident=resident,
        mapped=max(0, mapped - before.mapped),
    )

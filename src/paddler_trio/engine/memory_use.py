"""What this engine process really holds: llama.cpp's buffers, and the system's account of it."""

from __future__ import annotations

from pathlib import Path

import attrs

from paddler_trio.engine.draft_model import DraftModel
from paddler_trio.engine.embedding_context import EmbeddingContext
from paddler_trio.engine.llama import Llama
from paddler_trio.engine.memory_breakdown import DeviceTable, buffers_of, devices
from paddler_trio.wire.engine.memory_need import MemoryUse

_PROC = Path("/proc")


@attrs.frozen
class OwnMemory:
    """Of this process, in bytes: pages of its own, and pages of mapped files."""

    resident: int
    mapped: int


def own_memory(proc: Path = _PROC) -> OwnMemory:
    """Both 0 where there is no ``/proc`` (macOS)."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except OSError:
        return OwnMemory(0, 0)
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    return OwnMemory(int(sizes.get("RssAnon", 0)) * 1024, int(sizes.get("RssFile", 0)) * 1024)


def free_of_gpus() -> dict[str, int]:
    """Bytes that are free, of every device but the CPU that reports it."""
    return {row.name: row.free for row in devices() if row.kind != "cpu" and row.total}


def memory_use(
    llama: Llama,
    embedding: EmbeddingContext | None,
    draft: DraftModel | None,
    free_before: dict[str, int],
    *,
    generates: bool,
) -> MemoryUse:
    """Ask once everything is loaded and a pass was computed; EngineError (permanent) if this build
    of llama.cpp does not count.

    Args:
      free_before: :func:`free_of_gpus` before the model was loaded; empty if no GPU is used.
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
    own = own_memory()
    return MemoryUse(
        devices=rows,
        taken={
            row.name: free_before[row.name] - row.free for row in rows if row.name in free_before
        },
        resident=own.resident,
        mapped=own.mapped,
    )

"""What the model in force holds, and gives back when its engine ends."""

from __future__ import annotations

import trio

from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.model.model_fit import OF_HOST, Held
from paddler_trio.scheduler.fit.fit_values import HOST
from paddler_trio.system.machine import held_memory_bytes

MOST_OF_DRIVER_BYTES = 1 << 30


async def held_memory(engine: EngineProcess | None) -> Held:
    """By device; nothing is held without an engine.

    Of the host it is the process's own memory as the system counts it now, caches that filled
    since included. Weights that are mapped from their file count as free already. Of a GPU it is
    what llama.cpp allocated, or what was taken while it did, which has the driver's part in it, but
    may have another process's too.
    """
    if engine is None or engine.pid is None:
        return Held()
    host = await trio.to_thread.run_sync(held_memory_bytes, engine.pid)
    held: dict[str, int | None] = {HOST: host}
    memory = None if engine.ready is None else engine.ready.memory
    if memory is None:
        return Held(held, others=0 if engine.load.n_gpu_layers == 0 else None)
    for device in memory.devices:
        if device.kind not in OF_HOST:
            taken = memory.taken.get(device.name, 0)
            most = device.needed + MOST_OF_DRIVER_BYTES if device.needed else 0
            held[device.name] = max(device.needed, min(taken, most))
    return Held(held)

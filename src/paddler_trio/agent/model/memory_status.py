"""Report the memory of the model in force: predicted, and as it was allocated."""

from __future__ import annotations

from paddler_trio.agent.model.model_fit import OF_HOST, Judged, required
from paddler_trio.scheduler.fit.fit_values import HOST, slot_context
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import MemoryUse
from paddler_trio.wire.trio.fit_messages import DeviceMemory, MemoryInForce


def memory_in_force(
    load: LoadModel, judged: Judged | None, use: MemoryUse | None
) -> MemoryInForce | None:
    """Return the memory of an engine that is up; None if nothing is known and nothing was chosen.

    Actual memory of the host is what the process has, mapped pages of files included; of another
    device it is what llama.cpp allocated there. Buffers of devices that are the host's memory, an
    integrated GPU say, are the host's.
    """
    if judged is None and use is None:
        return None
    predicted = {} if judged is None else dict(required(judged.need).bytes_by_device)
    actual: dict[str, int] = {}
    if use is not None:
        actual = {
            device.name: device.needed for device in use.devices if device.kind not in OF_HOST
        }
        if use.resident:
            actual[HOST] = use.resident + use.mapped
    return MemoryInForce(
        context_size=load.context_size,
        n_gpu_layers=load.n_gpu_layers,
        slot_context=slot_context(
            load.context_size, slots=load.slots, is_unified=load.settings.unified
        ),
        chosen=() if judged is None else judged.chosen,
        devices=tuple(
            DeviceMemory(
                device=name,
                predicted=predicted.get(name),
                actual=actual.get(name),
                **({} if use is None else _buffers(name, use)),
            )
            for name in dict.fromkeys([*predicted, *actual])
        ),
    )


def _buffers(name: str, use: MemoryUse) -> dict[str, int]:
    """Return what the buffers of a device hold, and what it has left if it reports that."""
    devices = [
        device
        for device in use.devices
        if (HOST if device.kind in OF_HOST else device.name) == name
    ]
    if not devices:
        return {}
    found = {
        "weights": sum(device.weights for device in devices),
        "kv": sum(device.kv for device in devices),
        "compute": sum(device.compute for device in devices),
    }
    free = max(device.free for device in devices)
    return {**found, "free": free} if free > 0 else found

"""What an agent reports about the memory of its model."""

from __future__ import annotations

from paddler_trio.agent.model.memory_status import memory_in_force
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import DeviceNeed, MemoryUse

LOAD = LoadModel("/m.gguf", 4, 8192, 512, 99, "F16", "F16", 4, "1")
USE = MemoryUse(
    devices=(
        DeviceNeed(name="CPU", weights=40, compute=3, free=700),
        DeviceNeed(name="BLAS", kind="accel", compute=2),
        DeviceNeed(name="CUDA0", kind="gpu", weights=4000, kv=1000, compute=50, free=900),
        DeviceNeed(name="CUDA1", kind="gpu", weights=30),
    ),
    taken={},
    resident=150,
    mapped=390,
)


def test_buffers_stand_with_their_device_and_those_of_the_host_together() -> None:
    memory = memory_in_force(LOAD, None, USE)
    assert memory is not None
    assert unstructure(memory.devices) == [
        {
            "device": "CUDA0",
            "predicted": None,
            "actual": 5050,
            "weights": 4000,
            "kv": 1000,
            "compute": 50,
            "free": 900,
        },
        {
            "device": "CUDA1",
            "predicted": None,
            "actual": 30,
            "weights": 30,
            "kv": 0,
            "compute": 0,
        },
        {
            "device": "host",
            "predicted": None,
            "actual": 540,
            "weights": 40,
            "kv": 0,
            "compute": 5,
            "free": 700,
        },
    ]


def test_without_measurements_there_is_nothing_to_report() -> None:
    assert memory_in_force(LOAD, None, None) is None

"""llama.cpp's account of its buffers, read out of a C++ map: what is there, or an error."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.memory.memory_breakdown import (
    CUDA_RUNTIME_BYTES,
    BufferSizes,
    DeviceTable,
    _entries,
    _Map,
    _Node,
    check_against_log,
    logged_compute,
    runtime_bytes,
)
from paddler_trio.wire.engine.memory_need import DeviceNeed

LINES = [
    "sched_reserve:        CPU compute buffer size =     6.51 MiB",
    "sched_reserve:  CUDA_Host compute buffer size =    10.00 MiB",
    "sched_reserve: reserve took 4.94 ms, sched copies = 1",
]


class Tree:
    """Nodes as libstdc++ has them; kept alive by this."""

    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self._kept: list[ctypes.Array[ctypes.c_size_t]] = []
        root = self._node(rows)
        self.map = _Map(0, 0, root, root, root, len(rows))

    def _node(self, rows: list[tuple[int, ...]]) -> int:
        if not rows:
            return 0
        middle = len(rows) // 2
        left, right = self._node(rows[:middle]), self._node(rows[middle + 1 :])
        words = (1, 0, left, right, *rows[middle])
        node = (ctypes.c_size_t * len(words))(*words)
        self._kept.append(node)
        return ctypes.addressof(node)


@given(st.lists(st.tuples(*[st.integers(1, 2**63)] * 4), max_size=40, unique_by=lambda row: row[0]))
def test_every_entry_is_found_once(rows: list[tuple[int, ...]]) -> None:
    tree = Tree(rows)
    found = [(key, *values) for key, values in _entries(tree.map, values=3)]
    assert sorted(found) == sorted(rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", 3),
        ("count", 1),
        ("count", 2**40),
        ("colour", 1),
        ("root", 2),  # libc++ has the number of entries there
        ("root", 0),
    ],
)
def test_another_layout_is_an_error_and_no_number(field: str, value: int) -> None:
    tree = Tree([(1, 10), (2, 20)])
    setattr(tree.map, field, value)
    with pytest.raises(EngineError, match="differently"):
        list(_entries(tree.map, values=1))


def test_a_node_has_the_size_of_its_pointers() -> None:
    assert ctypes.sizeof(_Node) == 32
    assert ctypes.sizeof(_Map) == 48


def test_what_is_read_must_be_what_is_logged() -> None:
    assert logged_compute(LINES) == {"CPU": 6.51, "CUDA_Host": 10.0}
    buffers = [
        BufferSizes("CPU", "CPU", 1, 2, int(6.513 * 2**20)),
        BufferSizes("CPU", "CUDA_Host", 0, 0, 10 << 20),
        BufferSizes("CPU", "CPU_REPACK", 5, 0, 0),
    ]
    check_against_log(buffers, LINES)
    for wrong in (buffers[:1], [*buffers, BufferSizes("x", "x", 0, 0, 9999)]):
        with pytest.raises(EngineError, match="differently"):
            check_against_log(wrong, LINES)
    with pytest.raises(EngineError, match="differently"):
        check_against_log([*buffers[1:], BufferSizes("CPU", "CPU", 1, 2, 7 << 20)], LINES)


def test_sizes_add_up_by_device() -> None:
    table = DeviceTable(
        [
            DeviceNeed(name="CPU", free=100, total=200),
            DeviceNeed(name="CUDA0", kind="gpu", free=10, total=20),
        ]
    )
    table.add("CUDA0", weights=300, kv=5)
    table.add("CPU", weights=100)
    table.add("CPU", weights=1)
    table.share_out(lora=1000)
    cpu, gpu = table.rows()
    assert (cpu.weights, cpu.lora, gpu.weights, gpu.kv, gpu.lora) == (101, 251, 300, 5, 748)
    assert (table.cpu, table.first_gpu) == ("CPU", "CUDA0")
    assert (table.smallest_free(0), table.smallest_free(99)) == (100, 10)
    with pytest.raises(EngineError, match="CUDA7"):
        table.add("CUDA7", weights=1)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["CPU"], 0),
        (["CPU", "Vulkan0"], 0),
        (["CPU", "CUDA0", "CUDA1"], CUDA_RUNTIME_BYTES),
        (["CPU", "RPC0[host:50052]"], 0),
    ],
)
def test_cudas_libraries_take_memory_of_the_host_once(names: list[str], expected: int) -> None:
    assert runtime_bytes([DeviceNeed(name=name) for name in names]) == expected

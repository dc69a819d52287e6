"""What an engine writes of its work is what its agent reads after its death."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.engine.crash_record import (
    MAX_KEYS,
    MAX_SAMPLING_THREADS,
    RECORD_BYTES,
    Activity,
    CrashRecord,
    Working,
    read_record,
)

DUMP = b"""Fatal Python error: Aborted

Thread 0x00007f0000000002 (most recent call first):
  File "a.py", line 1 in f

Current thread 0x00007f0000000001 (most recent call first):
  File "b.py", line 2 in g
"""


def record() -> tuple[bytearray, CrashRecord]:
    memory = bytearray(RECORD_BYTES)
    return memory, CrashRecord(memoryview(memory))


keys = st.lists(st.integers(0, 2**62), min_size=1, max_size=MAX_KEYS + 10)


@given(
    st.dictionaries(
        st.integers(0, Activity.SAMPLING + MAX_SAMPLING_THREADS - 1),
        st.tuples(st.integers(1, 2**47), keys, st.booleans()),
    )
)
def test_what_was_begun_and_not_ended_is_read(
    activities: dict[int, tuple[int, list[int], bool]],
) -> None:
    memory, written = record()
    for number, (thread, begun, has_ended) in activities.items():
        cells = written.cells(number, thread)
        cells.begin(5)
        cells.begin_all(begun)
        if has_ended:
            cells.end()
    read = read_record(bytes(memory))
    assert list(read.working) == [
        Working(Activity(min(number, Activity.SAMPLING)), thread, tuple(begun[:MAX_KEYS]))
        for number, (thread, begun, has_ended) in sorted(activities.items())
        if not has_ended
    ]
    assert (read.thread, read.has_dump) == (None, False)


def test_the_thread_of_a_fatal_signal_is_in_the_dump() -> None:
    memory, _ = record()
    read = read_record(bytes(memory) + DUMP)
    assert (read.thread, read.has_dump) == (0x7F0000000001, True)
    foreign = DUMP.replace(b"Current thread", b"Thread")
    read = read_record(bytes(memory) + foreign)
    assert (read.thread, read.has_dump) == (None, True)


def test_the_first_exception_counts() -> None:
    memory, written = record()
    written.failed(11)
    written.failed(12)
    assert read_record(bytes(memory)).thread == 11


@given(st.binary(max_size=RECORD_BYTES + 100))
def test_damaged_cells_are_read_or_refused(content: bytes) -> None:
    if len(content) < RECORD_BYTES:
        with pytest.raises(WireError):
            read_record(content)
    else:
        read_record(content)


@given(st.binary(min_size=64, max_size=64))
def test_damage_within_a_record_is_survived(damage: bytes) -> None:
    memory = bytearray(RECORD_BYTES)
    memory[: len(damage)] = damage
    for working in read_record(bytes(memory)).working:
        assert 0 < len(working.keys) <= MAX_KEYS


def test_what_the_loop_samples_is_known_apart_from_what_it_computes() -> None:
    memory, written = record()
    written.cells(Activity.SAMPLING, 11).begin(7)
    written.cells(Activity.SAMPLING + 1, 12).begin(8)
    working = read_record(bytes(memory)).working
    assert [(w.activity, w.thread, w.keys) for w in working] == [
        (Activity.SAMPLING, 11, (7,)),
        (Activity.SAMPLING, 12, (8,)),
    ]

"""Sampling that has taken too long; the threads and their processor time are given."""

from __future__ import annotations

from paddler_trio.engine.slow_sampling import MAX_SAMPLE_CPU_S, SlowSampling
from paddler_trio.wire.engine.crash_record import RECORD_BYTES, Activity, CrashRecord, read_record

LOOP, OTHER = 11, 12
TOO_LONG_S = MAX_SAMPLE_CPU_S + 1


def test_sampling_is_stuck_when_its_own_thread_has_computed_too_long() -> None:
    record = CrashRecord.unread()
    record.cells(Activity.DECODING, LOOP).begin(1)  # a pass may take any time
    loop, other = record.cells(Activity.SAMPLING, LOOP), record.cells(Activity.SAMPLING + 1, OTHER)
    slow, cpu_s = SlowSampling(record), {LOOP: 100.0, OTHER: 200.0}
    assert slow.stuck(cpu_s.__getitem__) is None
    loop.begin(1)
    other.begin(2)
    assert slow.stuck(cpu_s.__getitem__) is None
    cpu_s[LOOP] += TOO_LONG_S
    loop.begin(1)  # another token of the same sequence
    assert slow.stuck(cpu_s.__getitem__) is None
    cpu_s[LOOP] += TOO_LONG_S
    loop.end()
    assert slow.stuck(cpu_s.__getitem__) is None, "the other thread waited for the processor"
    cpu_s[OTHER] += TOO_LONG_S
    assert slow.stuck(cpu_s.__getitem__) is other


def test_what_the_loop_samples_is_known_apart_from_what_it_computes() -> None:
    memory = bytearray(RECORD_BYTES)
    record = CrashRecord(memoryview(memory))
    record.cells(Activity.SAMPLING, LOOP).begin(7)
    record.cells(Activity.SAMPLING + 1, OTHER).begin(8)
    working = read_record(bytes(memory)).working
    assert [(w.activity, w.thread, w.keys) for w in working] == [
        (Activity.SAMPLING, LOOP, (7,)),
        (Activity.SAMPLING, OTHER, (8,)),
    ]

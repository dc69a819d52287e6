"""Note what an engine works on at this moment, in memory that outlives it.

The agent opens a file without a name and hands it to the engine. Each thread of the engine that can
die over a request writes there, before it begins a piece of work, for which requests that is, and
removes them at its end. So whatever kills the process, the agent reads afterwards which requests
were being worked on. Both cost less than a microsecond: no system call, no lock, every thread has
cells of its own.

Layout, in 64-bit integers of the machine: the thread that failed with an exception (0 for none),
then for each of ``NUM_ACTIVITIES`` activities its thread, how many keys follow, and ``MAX_KEYS``
keys. After these bytes stands what Python's ``faulthandler`` wrote when a fatal signal came.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from enum import IntEnum

import attrs

from paddler_trio.errors import WireError

MAX_KEYS = 256
"""llama.cpp has no more sequences than this."""
MAX_SAMPLING_THREADS = 8


class Activity(IntEnum):
    """The activities of a thread; the value says where an activity's cells are. ``SAMPLING`` are
    those of the thread that decodes, while it samples; those of other sampling threads follow one
    by one."""

    DECODING = 0
    ADMITTING = 1
    SEEING = 2
    EMBEDDING = 3
    SAMPLING = 4


NUM_ACTIVITIES = Activity.SAMPLING + 1 + MAX_SAMPLING_THREADS
_WIDTH = 2 + MAX_KEYS
RECORD_BYTES = 8 * (1 + NUM_ACTIVITIES * _WIDTH)

_DUMPED = re.compile(rb"(?:Thread|Current thread) 0x[0-9a-f]+")
_CURRENT = re.compile(rb"Current thread 0x([0-9a-f]+)")


@attrs.define(eq=False)
class ActivityCells:
    """The cells of one thread, which alone writes them."""

    _cells: memoryview
    _start: int

    def begin(self, key: int) -> None:
        """Note that from now on this thread works for this request alone."""
        self._cells[self._start + 2] = key
        self._cells[self._start + 1] = 1

    def begin_all(self, keys: Sequence[int]) -> None:
        """Note that from now on this thread works for all of these together."""
        if len(keys) == 1:
            self.begin(keys[0])
            return
        known = array("q", keys[:MAX_KEYS])
        first = self._start + 2
        self._cells[self._start + 1] = 0
        self._cells[first : first + len(known)] = memoryview(known)
        self._cells[self._start + 1] = len(known)

    def end(self) -> None:
        """Note that this thread works for no request now."""
        self._cells[self._start + 1] = 0


class CrashRecord:
    """The writing end.

    Args:
      memory: ``RECORD_BYTES`` bytes, writable, zeros.
    """

    def __init__(self, memory: memoryview) -> None:
        self._cells = memory[:RECORD_BYTES].cast("q")

    @classmethod
    def unread(cls) -> CrashRecord:
        """Return the record of an engine whose crash record is never read."""
        return cls(memoryview(bytearray(RECORD_BYTES)))

    def cells(self, activity: int, thread: int) -> ActivityCells:
        """Return the cells of an activity; ``thread`` is the identifier of the thread that does
        it."""
        start = 1 + activity * _WIDTH
        self._cells[start] = thread
        return ActivityCells(self._cells, start)

    def failed(self, thread: int) -> None:
        """Note that an exception in this thread ends the process; the first one counts."""
        if self._cells[0] == 0:
            self._cells[0] = thread


@attrs.frozen
class Working:
    """A thread and the keys it was working on when the engine died, at least one."""

    activity: Activity
    thread: int
    keys: tuple[int, ...]


@attrs.frozen
class ReadRecord:
    """``thread`` is the one that failed; None if that is not known. ``has_dump``: a fatal signal
    was seen; without a thread it came from one that is not Python's."""

    working: tuple[Working, ...]
    thread: int | None
    has_dump: bool


def read_record(content: bytes) -> ReadRecord:
    """Return the content of a whole file.

    Errors:
      WireError: it is shorter than a record.
    """
    if len(content) < RECORD_BYTES:
        raise WireError(f"a crash record of {len(content)} bytes, must have {RECORD_BYTES}")
    cells = memoryview(content)[:RECORD_BYTES].cast("q")
    dump = content[RECORD_BYTES:]
    working = []
    for number in range(NUM_ACTIVITIES):
        start = 1 + number * _WIDTH
        thread, count = cells[start], min(max(0, cells[start + 1]), MAX_KEYS)
        if count:
            keys = tuple(cells[start + 2 : start + 2 + count])
            working.append(Working(Activity(min(number, Activity.SAMPLING)), thread, keys))
    current = _CURRENT.search(dump)
    failed = cells[0] or None
    return ReadRecord(
        tuple(working),
        failed if current is None else int(current[1], 16),
        _DUMPED.search(dump) is not None,
    )

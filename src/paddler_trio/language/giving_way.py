"""Prompts and documents are prepared beside answers, not before them.

Rendering and tokenising a long conversation keeps a core busy for tens of milliseconds. Where all
others compute, that is long enough for a token of somebody else to be late. So while others are
being answered, all preparing threads together take half a core: each works for a moment, then
rests. Nobody who waits for the start of an answer notices: reading such a prompt takes the model
far longer than rendering it.

``give_way`` is called between portions of work that hold no lock; where nothing was agreed, as on
the command line, it does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import attrs

CORES = 0.5
"""What all threads that prepare may use together while others are answered."""
WORK_S = 0.002
"""Processor time after which a thread rests; most prompts never take as much."""
LONGEST_REST_S = 0.05

T = TypeVar("T")


@attrs.define(eq=False)
class GivingWay:
    """The threads of one agent that prepare something for its engine.

    ``to_others`` says whether answers are being given; it is asked in those threads.
    """

    to_others: Callable[[], bool]
    _threads: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` as one of the threads, in this one."""
        with self._lock:
            self._threads += 1
        token = _CURRENT.set(_Turn(self))
        try:
            return work()
        finally:
            _CURRENT.reset(token)
            with self._lock:
                self._threads -= 1

    def rest_s(self, worked_s: float) -> float:
        """How long one of the threads rests that took so much processor time."""
        if not self.to_others():
            return 0.0
        return min(worked_s * (self._threads / CORES - 1), LONGEST_REST_S)


@attrs.define
class _Turn:
    """How far one thread is: its processor time when it last rested."""

    group: GivingWay
    rested_at_s: float = attrs.field(factory=time.thread_time)


_CURRENT: ContextVar[_Turn | None] = ContextVar("preparing", default=None)


def give_way() -> None:
    """Rest if this thread prepares something, has worked for a moment, and others are answered."""
    turn = _CURRENT.get()
    if turn is None:
        return
    worked_s = time.thread_time() - turn.rested_at_s
    if worked_s >= WORK_S:
        time.sleep(turn.group.rest_s(worked_s))
        turn.rested_at_s = time.thread_time()

"""Limit what one job may cost: memory, and processor time in proportion to its size.

Reading a model's language has a limit of memory, too: its template is a program out of a file.

A worker that exceeds its time gets an exception where Python runs, and is ended by the kernel
where native code runs. Memory is the address space that the worker may add to what it has; a
native allocation that fails may end the process, which costs this job and no other.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paddler_trio.errors import PaddlerError
from paddler_trio.system.heap import limit_myself
from paddler_trio.system.machine import mapped_bytes

BASE_CPU_S = 1.0
CPU_S_PER_MB = 50.0
"""A hundred times what an ordinary conversation of that size takes to render and tokenise."""
MAX_CPU_S = 20.0
KILL_AFTER_S = 0.2
"""Processor time beyond the limit after which the kernel ends the worker."""
MEMORY_BYTES = 768 * 1024 * 1024
LOADING_BYTES = 2 * 1024 * 1024 * 1024
"""The bytes for a vocabulary, which takes some 100 MiB with 262,144 tokens, and for all that the
template makes while its form is looked for."""
RETIRED_ABOVE_BYTES = 96 * 1024 * 1024
"""A worker that holds so much more than at its start ends after its job."""


class TooExpensiveError(PaddlerError):
    """A job took more processor time than its size allows."""


def cpu_limit_s(size_bytes: int) -> float:
    """Return processor seconds for a job of ``size_bytes``."""
    return min(MAX_CPU_S, BASE_CPU_S + CPU_S_PER_MB * size_bytes / 1e6)


@contextmanager
def cpu_limited(size_bytes: int) -> Iterator[None]:
    """Run a block within its processor time; TooExpensiveError where Python notices first.

    Main thread only: it owns ``SIGPROF``, ``SIGVTALRM`` and ``RLIMIT_CPU`` meanwhile.
    """
    limit_s = cpu_limit_s(size_bytes)

    def expired(_signal: int, _frame: FrameType | None) -> None:
        raise TooExpensiveError(
            f"preparing this request of {size_bytes} bytes took more than {limit_s:.3g} s of "
            "processor time, the limit for its size; send a smaller or simpler one"
        )

    used_s = resource.getrusage(resource.RUSAGE_SELF)
    hard_s = int(used_s.ru_utime + used_s.ru_stime + limit_s + KILL_AFTER_S) + 2
    limit_myself(resource.RLIMIT_CPU, hard_s)
    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s + KILL_AFTER_S)  # its signal ends the process
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(more_bytes: int = MEMORY_BYTES) -> None:
    """Let this process map that much more than it has from now on, and no more; for good.
    Nothing is limited where the system does not say what is mapped (macOS)."""
    mapped = mapped_bytes()
    if mapped is not None:
        limit_myself(resource.RLIMIT_AS, mapped + more_bytes, mapped + more_bytes)


@contextmanager
def memory_limited(more_bytes: int = LOADING_BYTES) -> Iterator[None]:
    """Run a block in which this process may map that much more than it has, where
    the system says what that is."""
    mapped = mapped_bytes()
    if mapped is None:
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = [mapped + more_bytes, before, hard]
    limit_bytes = min(limit for limit in wanted if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))

"""Decide which requests may be the cause of an engine's death.

What counts is the thread that died. One that prepared or sampled for a single request names it;
one that computed a batch names all that were in it. No other request had a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import attrs

K = TypeVar("K")


@attrs.frozen
class Work(Generic[K]):
    """The work of a thread, for at least one of ``keys``.

    Args:
      thread: its identifier.
      computes: it calls llama.cpp's kernels, which run in threads of their own as well.
      takes_memory: of as much as the request wants: others only use what was there at the start.
    """

    thread: int
    keys: tuple[K, ...]
    computes: bool
    takes_memory: bool


@attrs.frozen
class Death:
    """The way a process ended.

    Args:
      thread: the one that failed, None if that is not known.
      was_seen: a fatal signal was seen by its handler; without a thread it came from one that is
        not Python's.
      is_from_outside: by a signal that a process does not send itself, SIGKILL or SIGTERM: from a
        person, or because the machine has no memory left.
    """

    thread: int | None
    was_seen: bool
    is_from_outside: bool


def suspects(works: Iterable[Work[K]], death: Death) -> frozenset[K]:
    """Return the requests that may be the cause; the fewer, the surer."""
    works = list(works)
    if death.thread is not None:
        found = [work for work in works if work.thread == death.thread]
    elif death.was_seen:
        found = [work for work in works if work.computes]
    else:  # killed; or a stack overflowed, where no handler runs
        found = [work for work in works if work.takes_memory]
        if not found and not death.is_from_outside:
            found = [work for work in works if work.computes]
    return frozenset(key for work in found for key in work.keys)

"""The running tree as JSON, made in pieces, so that a large one does not hold up the event loop.

It is no picture of one moment, but of some milliseconds. What holds: each task is shown below its
parent and at most once, as it was when it was reached. One that ends before it is reached is left
out with what was below it, and one that begins in a nursery that was looked at before is not shown.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterator
from itertools import chain

import trio

from paddler_trio.system.printed_tree import ROOT, Histories, alone, main_task, natural

PIECE_S = 0.001
"""Other tasks have their turn after so long."""
RUN_TASKS = 256
"""Sorted at once."""

Task = trio.lowlevel.Task


async def running_tree_json(now: Callable[[], float] = time.perf_counter) -> bytes:
    """Return the tree from this daemon's main task down: the shape of ``TreeNode``.

    Args:
      now: a clock in seconds, of the time that passes while nothing is awaited.
    """
    daemon, histories = main_task()
    pause = _Pause(now)
    parts = [_beginning(daemon, histories, ROOT)]
    open_lists: list[Iterator[Task]] = [await _children(daemon, pause)]
    while open_lists:
        task = next(open_lists[-1], None)
        if task is None:
            open_lists.pop()
            parts.append("]}")
        elif not _has_ended(task):
            # between siblings: the part before ends the list of a sibling, or begins the parent's
            parts.append("," if parts[-1] == "]}" else "")
            parts.append(_beginning(task, histories))
            open_lists.append(await _children(task, pause))
        await pause.if_due()
    return "".join(parts).encode()


class _Pause:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until_s = now() + PIECE_S

    async def if_due(self) -> None:
        if self._now() >= self._until_s:
            await trio.lowlevel.checkpoint()
            self._until_s = self._now() + PIECE_S


async def _children(task: Task, pause: _Pause) -> Iterator[Task]:
    """Yield the tasks of all its nurseries, outermost first, each sorted by name: runs now, merged
    when read."""
    merged: list[Iterator[tuple[str, int, Task]]] = []
    for nursery in task.child_nurseries:
        runs: list[list[tuple[str, int, Task]]] = [[]]
        for place, child in enumerate(nursery.child_tasks):
            if len(runs[-1]) == RUN_TASKS:
                runs[-1].sort()
                runs.append([])
            runs[-1].append((natural(child.name), place, child))
            await pause.if_due()
        runs[-1].sort()
        merged.append(heapq.merge(*runs))
    return (child for _, _, child in chain.from_iterable(merged))


def _beginning(task: Task, histories: Histories, name: str | None = None) -> str:
    node = alone(task, histories)
    own = {
        "name": name or node.name,
        "waits_for": node.waits_for,
        "restarts": node.restarts,
        "last_crash": node.last_crash,
    }
    return json.dumps(own, ensure_ascii=False)[:-1] + ', "children": ['


def _has_ended(task: Task) -> bool:
    """Return whether the coroutine of a task holds no frame any more."""
    return getattr(task.coro, "cr_frame", task) is None

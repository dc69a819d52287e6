"""The running tree of a daemon, as it is at this moment: every task and what it waits for.

Trio keeps the tree itself; this only walks it. Supervisors add what Trio cannot know: how often
a child was restarted and what its last crash was.

The running tree as JSON, made in pieces, so that a large one does not hold up the event loop.

It is no picture of one moment, but of some milliseconds. What holds: each task is shown below its
parent and at most once, as it was when it was reached. One that ends before it is reached is left
out with what was below it, and one that begins in a nursery that was looked at before is not shown.
"""

from __future__ import annotations

import heapq
import json
import re
import time
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import attrs
import trio


@attrs.define
class ChildHistory:
    """The history of one child, as its supervisor remembers it."""

    restarts: int = 0
    last_crash: str | None = None


ROOT = "main"
"""The name of the root: the task that ``trio.run`` started."""
_TRIO = Path(trio.__file__).parent
_PRIMITIVES = "synchronization.py"
"""All tasks wait in there; the frame that called it shows what for."""

_histories: trio.lowlevel.RunVar[dict[trio.lowlevel.Task, ChildHistory]] = trio.lowlevel.RunVar(
    "supervised_children"
)


def history_of_this_task() -> ChildHistory:
    """Return the record of the supervisor running in the current task; gone with the trio run."""
    try:
        histories = _histories.get()
    except LookupError:
        _histories.set(histories := {})
    return histories.setdefault(trio.lowlevel.current_task(), ChildHistory())


def forget_this_task() -> None:
    """Forget the record of a supervisor that ends."""
    _histories.get().pop(trio.lowlevel.current_task(), None)


_reasons: weakref.WeakKeyDictionary[trio.lowlevel.Task, Callable[[], str]] = (
    weakref.WeakKeyDictionary()
)
"""The reasons by task, hence by run: a task that is gone takes its entry with it."""


def explain_this_task(reason: Callable[[], str]) -> None:
    """Show ``reason()`` in the tree from now on for the current task, instead of a line of code."""
    _reasons[trio.lowlevel.current_task()] = reason


@attrs.frozen
class TreeNode:
    """One task. ``children`` are the tasks of the nurseries it holds, outermost first."""

    name: str
    waits_for: str
    restarts: int
    last_crash: str | None
    children: list[TreeNode]


def running_tree() -> TreeNode:
    """Return the tree from this daemon's main task down; call it inside the trio run."""
    daemon, histories = main_task()
    return attrs.evolve(_node(daemon, histories), name=ROOT)


Histories: TypeAlias = dict[trio.lowlevel.Task, ChildHistory]


def main_task() -> tuple[trio.lowlevel.Task, Histories]:
    """Return the task that ``trio.run`` started, and what supervisors remember."""
    root = trio.lowlevel.current_root_task()
    assert root is not None, "no trio run here"
    main = [task for nursery in root.child_nurseries for task in nursery.child_tasks]
    try:
        histories = _histories.get()
    except LookupError:
        histories = {}
    # the root's first nursery holds main and trio's own system tasks; main was started first
    return next((t for t in main if not t.name.startswith("<")), main[0]), histories


def alone(task: trio.lowlevel.Task, histories: Histories) -> TreeNode:
    """Return one task without its children."""
    history = histories.get(task, ChildHistory())
    return TreeNode(_plain(task.name), _waits_for(task), history.restarts, history.last_crash, [])


def _node(task: trio.lowlevel.Task, histories: Histories) -> TreeNode:
    children = [
        _node(child, histories)
        for nursery in task.child_nurseries
        for child in sorted(nursery.child_tasks, key=lambda child: natural(child.name))
    ]
    return attrs.evolve(alone(task, histories), children=children)


def _plain(name: str) -> str:
    """Return a given name as it is; of a function's own dotted one the last two parts suffice."""
    if re.fullmatch(r"[\w.<>]+", name) is None:
        return name
    return ".".join(name.replace(".<locals>", "").split(".")[-2:])


def natural(name: str) -> str:
    """Return a key that sorts ``connection 9`` before ``connection 10``."""
    return re.sub(r"[0-9]+", lambda digits: digits[0].zfill(20), name)


def _waits_for(task: trio.lowlevel.Task) -> str:
    """Return where the task stands, e.g. ``serve (dispatcher.py:91)``.

    That is the innermost frame of ours; without one, of the library whose task it is.
    """
    if task is trio.lowlevel.current_task():
        return "running now"
    if (reason := _reasons.get(task)) is not None:
        return reason()
    ours, theirs = "", ""
    for frame, line in task.iter_await_frames():
        file, is_ours, is_trios = _source(frame.f_code.co_filename)
        if is_ours:
            ours = f"{frame.f_code.co_name} ({file}:{line})"
        elif not is_trios:
            theirs = f"{frame.f_code.co_name} ({file}:{line})"
    return ours or theirs or "about to start"


@lru_cache(maxsize=1024)
def _source(filename: str) -> tuple[str, bool, bool]:
    """Return the name of a file, and whether its frames are ours, and Trio's. Remembered: there are
    few files, and thousands of tasks stand in them."""
    file = Path(filename)
    is_ours = "paddler_trio" in file.parts and file.name != _PRIMITIVES
    return file.name, is_ours, file.is_relative_to(_TRIO)


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

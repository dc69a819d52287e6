"""Threads that give way to others of the machine.

Linux has a priority for each thread; elsewhere a process has one, and all threads stay equal. A
thread that has given way cannot come back: that takes a privilege that our processes do not have.
So what is urgent later runs in another thread, and so do the threads that libraries start for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final, TypeVar

T = TypeVar("T")

GIVE_WAY: Final = "--give-way"
"""The argument of a process that others of its agent answer beside, until it is ready."""
LOADING: Final = 10
"""Niceness of what is loaded beside a model that answers. A thread that wakes up is not kept
waiting by it. Where all processors are busy it gets a tenth of one, so it ends all the same."""
LOWEST: Final = 19


def give_way(niceness: int) -> None:
    """Lower the priority of the calling thread, for good."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def run_loading(work: Callable[[], T], *, gives_way: bool) -> T:
    """Return the result of ``work``, or what it raised; if it gives way, from a thread of its
    own."""
    if not gives_way:
        return work()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        give_way(LOADING)
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # it is raised in the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="loading")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def imported(name: str, *, gives_way: bool) -> ModuleType:
    """Return a module. What processes import takes them up to half a second of a processor."""
    return run_loading(partial(importlib.import_module, name), gives_way=gives_way)

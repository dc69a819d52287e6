"""What gives way runs at a low priority; the thread that waits for it does not."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from paddler_trio.system.thread_priority import LOADING, LOWEST, give_way, imported, run_loading

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all threads are equal")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_that_gives_way_runs_below_the_thread_that_waits_for_it() -> None:
    before = niceness()
    assert run_loading(niceness, gives_way=True) == max(before, LOADING)
    assert run_loading(niceness, gives_way=False) == before
    assert niceness() == before


def test_threads_that_are_started_afterwards_are_as_urgent_as_before() -> None:
    before, seen = niceness(), []
    run_loading(lambda: None, gives_way=True)
    thread = threading.Thread(target=lambda: seen.append(niceness()))
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("gives_way", [True, False])
def test_what_it_raises_comes_out(gives_way: bool) -> None:
    def fail() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        run_loading(fail, gives_way=gives_way)


def test_a_thread_gives_way_for_good() -> None:
    def lower() -> int:
        give_way(LOWEST)
        give_way(LOWEST)
        return niceness()

    assert run_loading(lower, gives_way=True) == LOWEST


def test_a_module_is_imported_once() -> None:
    assert (
        imported("paddler_trio.system.thread_priority", gives_way=True)
        is sys.modules["paddler_trio.system.thread_priority"]
    )

"""A pass that takes longer than its limit is aborted, once; others are left alone."""

from __future__ import annotations

import math
import threading

import pytest

from paddler_trio.processes.engine import pass_watchdog
from paddler_trio.processes.engine.pass_watchdog import PassWatchdog

LONG_S = 60.0
"""For what comes at once."""


class Passes:
    """Counts aborts; a pass lasts until it is aborted."""

    def __init__(self) -> None:
        self.num_aborted = 0
        self._aborted = threading.Event()
        self.watchdog = PassWatchdog(self._abort)

    def _abort(self) -> None:
        self.num_aborted += 1
        self._aborted.set()

    def compute(self, limit_s: float) -> bool:
        """A pass that would take for ever; whether it was broken off."""
        self._aborted.clear()
        self.watchdog.begins(limit_s)
        assert self._aborted.wait(LONG_S)
        return self.watchdog.ended()


def test_a_pass_over_its_limit_is_broken_off_and_the_next_one_is_another() -> None:
    passes = Passes()
    for number in range(1, 4):
        assert passes.compute(0.001)
        assert passes.num_aborted == number
        passes.watchdog.begins(LONG_S)
        assert not passes.watchdog.ended()
        assert not passes.watchdog.ended(), "none is under way"


def test_a_pass_without_a_limit_costs_no_thread() -> None:
    before = threading.active_count()
    watchdog = PassWatchdog(lambda: None)
    watchdog.begins(math.inf)
    assert threading.active_count() == before
    assert not watchdog.ended()


def test_after_a_quiet_time_it_watches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_watchdog, "LOOK_S", 0.0)
    monkeypatch.setattr(pass_watchdog, "_QUIET_LOOKS", 0)
    passes = Passes()
    for _ in range(200):
        assert passes.compute(0.0)
    while passes.watchdog._has_passes.is_set():
        pass  # it looks once more
    assert passes.compute(0.0)

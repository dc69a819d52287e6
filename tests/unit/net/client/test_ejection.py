"""When a server that fails is left alone, and when it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.agent.servers.upstream_monitor import FAILURES_TO_EJECT, LONGEST_PROBE_S, Ejection


def test_failures_in_a_row_eject_and_one_good_probe_readmits() -> None:
    ejection = Ejection()
    for number in range(FAILURES_TO_EJECT):
        assert not ejection.is_ejected
        ejection.probe_failed(f"failure {number}", 10.0, 0.0, is_final=False)
    assert ejection.reason == "failure 2"
    assert ejection.next_probe_s == 10.5
    ejection.request_succeeded()
    assert ejection.is_ejected
    ejection.probe_succeeded()
    assert not ejection.is_ejected
    assert ejection.next_probe_s is None


def test_a_request_that_succeeds_ends_a_row() -> None:
    ejection = Ejection()
    for _ in range(3 * FAILURES_TO_EJECT):
        ejection.probe_failed("x", 0.0, 0.0, is_final=False)
        ejection.request_succeeded()
    assert not ejection.is_ejected


def test_requests_that_fail_together_count_once_and_beside_bad_probes() -> None:
    ejection = Ejection()
    for _ in range(9):
        for _ in range(9):
            ejection.request_failed("closed", 0.0, 0.0)
        assert not ejection.is_ejected
        ejection.probe_succeeded()
    ejection.request_failed("closed", 0.0, 0.0)
    ejection.probe_failed("no answer", 0.0, 0.0, is_final=False)
    assert not ejection.is_ejected
    ejection.request_failed("closed again", 0.0, 0.0)
    assert ejection.reason == "closed again"


def test_nobody_there_is_certain_at_once() -> None:
    ejection = Ejection()
    ejection.probe_failed("refused", 0.0, 0.0, is_final=True)
    assert ejection.is_ejected


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=40))
def test_probes_back_off_to_half_a_minute_and_never_come_closer(chances: list[float]) -> None:
    ejection = Ejection()
    now_s, pauses = 0.0, []
    for chance in chances:
        ejection.probe_failed("x", now_s, chance, is_final=True)
        assert ejection.next_probe_s is not None
        pauses.append(ejection.next_probe_s - now_s)
        now_s = ejection.next_probe_s
    for number, pause in enumerate(pauses):
        longest = min(2.0**number, LONGEST_PROBE_S)
        assert longest / 2 - 1e-6 <= pause <= longest + 1e-6


def test_requests_that_fail_later_do_not_postpone_the_probe() -> None:
    ejection = Ejection()
    ejection.probe_failed("x", 0.0, 0.0, is_final=True)
    before = ejection.next_probe_s
    ejection.request_failed("y", 0.4, 0.0)
    assert ejection.next_probe_s == before
    assert ejection.next_probe_s == pytest.approx(0.5)

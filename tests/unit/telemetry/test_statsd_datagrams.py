"""What goes to a StatsD server, byte by byte as Paddler sends it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import ConfigurationError
from paddler_trio.scheduler.dispatch.slot_ledger import LedgerStatistics
from paddler_trio.telemetry.statsd import (
    check_statsd,
    current_gauges,
    datagrams,
    gauges_of_paddler_1,
)

STATISTICS = LedgerStatistics(slots_processing=3, slots_total=8, requests_buffered=12)

GAUGE = re.compile(rb"[^:|@#\s]+:\d+\|g")
"""One gauge of the StatsD protocol, set to an absolute value: no rate, no tags, no newline."""


@pytest.mark.parametrize(
    ("prefix", "stem"),
    [
        ("paddler_", "paddler_."),
        ("paddler", "paddler."),
        ("fleet.east", "fleet.east."),
        ("dots...", "dots."),
        ("", ""),
        ("...", ""),
    ],
)
def test_paddlers_lines_byte_by_byte(prefix: str, stem: str) -> None:
    assert datagrams(prefix, current_gauges(STATISTICS)) == [
        f"{stem}slots_processing:3|g".encode(),
        f"{stem}slots_total:8|g".encode(),
        f"{stem}requests_buffered:12|g".encode(),
    ]


def test_the_names_of_paddler_1() -> None:
    assert datagrams("paddler", gauges_of_paddler_1(STATISTICS)) == [
        b"paddler.slots_idle:5|g",
        b"paddler.slots_processing:3|g",
        b"paddler.requests_buffered:12|g",
    ]


@pytest.mark.parametrize("name", ["slots_processing", "slots_total", "requests_buffered"])
def test_a_negative_value_is_no_report_at_all(name: str) -> None:
    assert datagrams("paddler_", {**current_gauges(STATISTICS), name: -1}) == []


@given(st.text(max_size=20), st.integers(0, 10**9))
def test_what_is_let_through_is_a_gauge_to_any_strict_parser(prefix: str, value: int) -> None:
    try:
        check_statsd("127.0.0.1:8125", prefix)
    except ConfigurationError:
        return
    gauges = dict.fromkeys(current_gauges(STATISTICS), value)
    assert all(GAUGE.fullmatch(each) for each in datagrams(prefix, gauges))


@pytest.mark.parametrize(
    ("address", "prefix", "words"),
    [
        ("localhost", "p", "'localhost' is not an address"),
        ("localhost:0", "p", "port 0; StatsD servers use 8125"),
        ("localhost:8125", "a:b", "--statsd-prefix has ':'"),
        ("localhost:8125", "a b", "--statsd-prefix has ' '"),
        ("localhost:8125", "x" * 201, "201 characters, the limit is 200"),
    ],
)
def test_what_cannot_be_meant_is_refused(address: str, prefix: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        check_statsd(address, prefix)


def test_no_slot_is_idle_while_more_are_busy_than_are_offered() -> None:
    """As when the only server says that it is broken while it works on two requests."""
    leaving = LedgerStatistics(slots_processing=2, slots_total=0, requests_buffered=0)
    assert datagrams("paddler", gauges_of_paddler_1(leaving)) == [
        b"paddler.slots_idle:0|g",
        b"paddler.slots_processing:2|g",
        b"paddler.requests_buffered:0|g",
    ]

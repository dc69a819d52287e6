"""Durations, speeds and counts fit in few characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.figures import count, duration, exact, part_of, rate, share, sparkline


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (-5, "0 ms"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (59_960, "1 min 0 s"),
        (185_000, "3 min 5 s"),
        (3_599_600, "1 h 0 min"),
        (86_400_000 + 3 * 3_600_000, "1 d 3 h"),
    ],
)
def test_a_duration_has_the_two_units_that_matter(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_a_duration_is_exact_where_seconds_are_few() -> None:
    assert [exact(ms) for ms in (999, 1040, 9990, 10_000)] == [
        "999 ms",
        "1.04 s",
        "9.99 s",
        "10.0 s",
    ]


def test_counts_speeds_and_shares() -> None:
    assert [count(n) for n in (None, 0, 9999, 12_345, 4_500_000, 7_000_000_000)] == [
        "-", "0", "9999", "12.3k", "4.5M", "7.0G",
    ]  # fmt: skip
    assert [rate(n) for n in (None, 0, 0.04, 3.44, 9.96, 12_300)] == [
        "-", "0", "0.0", "3.4", "10", "12.3k",
    ]  # fmt: skip
    assert (share(0.434), part_of(1, 3), part_of(None, 3), part_of(0, 0)) == (
        "43%",
        "33%",
        "-",
        "-",
    )


@given(st.integers(min_value=0, max_value=10**12))
def test_a_count_has_at_most_six_characters(number: int) -> None:
    assert len(count(number)) <= 6


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=40))
def test_a_sparkline_has_a_block_for_each_value(values: list[float]) -> None:
    drawn = sparkline(values)
    assert len(drawn) == len(values)
    assert not any(values) or "█" in drawn

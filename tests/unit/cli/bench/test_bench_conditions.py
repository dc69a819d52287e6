"""``--fail-if``: what is read, what is refused, and what holds."""

from __future__ import annotations

import attrs
import pytest

from bench_reports import report
from paddler_trio.cli.bench.bench_order import check_level, parse_condition, unmet
from paddler_trio.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "limit", "level"),
    [
        ("ttft_p95>500ms", 0.5, None),
        ("itl_p99 > 0.25s", 0.25, None),
        ("queue_p50@8>1s", 1.0, 8),
        ("tokens_per_s@16<100", 100.0, 16),
        ("error_rate>2%", 0.02, None),
        ("error_rate>0.02", 0.02, None),
        (" requests_per_s<1.5 ", 1.5, None),
    ],
)
def test_a_condition_has_a_figure_a_sign_and_a_limit(
    text: str, limit: float, level: int | None
) -> None:
    condition = parse_condition(text)
    assert condition.limit == pytest.approx(limit)
    assert condition.level == level


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft>500ms",
        "ttft_p95>500",
        "ttft_p95>=500ms",
        "ttft_p90>500ms",
        "tokens_per_s>5ms",
        "tokens_per_s_p95>5",
        "tokens_per_s>5%",
        "wall_s>5",
        "requests>5",
        "__class__>1",
        "ttft_p95>-1ms",
    ],
)
def test_what_is_no_condition_is_refused_with_what_may_stand_there(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no condition: write METRIC>VALUE"):
        parse_condition(text)


def test_what_holds_is_told_of_the_first_server_with_its_value() -> None:
    conditions = [
        parse_condition(text)
        for text in ("ttft_p50>150ms", "ttft_p50@1>150ms", "queue_p50>1ms", "tokens_per_s<1000")
    ]
    assert list(unmet(conditions, report())) == [
        "ttft_p50>150ms: 200.0 ms with plain at concurrency 2",
        "queue_p50>1ms: nothing was measured that tells",
        "tokens_per_s<1000: 60.0 with plain at concurrency 1",
        "tokens_per_s<1000: 80.0 with plain at concurrency 2",
    ]


def test_a_condition_of_which_nothing_was_measured_is_told_too() -> None:
    silent = [
        attrs.evolve(point, figures=attrs.evolve(point.figures, queue=None))
        for point in report().points
    ]
    conditions = [parse_condition(text) for text in ("queue_p50>1s", "ttft_p50@8>1s")]
    assert list(unmet(conditions, attrs.evolve(report(), points=tuple(silent)))) == [
        "queue_p50>1s: nothing was measured that tells",
        "ttft_p50@8>1s: nothing was measured that tells",
    ]


def test_a_condition_is_about_a_concurrency_that_a_run_has() -> None:
    check_level(parse_condition("ttft_p50>1s"), (1, 2))
    check_level(parse_condition("ttft_p50@2>1s"), (1, 2))
    with pytest.raises(ConfigurationError, match="no run has so many: add 8 to --concurrency"):
        check_level(parse_condition("ttft_p50@8>1s"), (1, 2))

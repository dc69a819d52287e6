"""What a report has of the runs, and the JSON document of it."""

from __future__ import annotations

import json

import attrs
import pytest

from bench_reports import PLAN, TARGETS, report, results, sample
from paddler_trio.cli.bench.bench_figures import RunResult
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.report.report import ratio, report_of
from paddler_trio.cli.bench.report.report_json import SCHEMA, report_json
from paddler_trio.cli.bench.workloads import Workload


def test_there_is_a_point_for_each_concurrency_and_target_in_order() -> None:
    points = report().points
    assert [(point.concurrency, point.target) for point in points] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    assert [len(point.rounds_tokens_per_s) for point in points] == [2, 2, 2, 2]
    assert points[0].ttfts_s == pytest.approx((0.1, 0.11))
    assert points[2].figures.requests == 6
    assert points[2].figures.cached_share == pytest.approx(0.2)


def test_what_was_not_run_has_no_point() -> None:
    some = report_of(PLAN, TARGETS, results()[:2], started="", version="", stopped="interrupted")
    assert {point.concurrency for point in some.points} == {2}
    assert report_of(PLAN, TARGETS, [], started="", version="").points == ()
    assert report_of(PLAN, TARGETS, [], started="", version="").error_rates == [0.0, 0.0]


def test_errors_are_told_once_each_with_the_first_words() -> None:
    found = report().errors
    assert [(each.target, each.label, each.count, each.text) for each in found] == [
        (0, "status 503", 2, "no <slot>"),
        (1, "status 503", 2, "no <slot>"),
    ]
    assert report().error_rates == pytest.approx([0.25, 0.25])


def test_sorts_of_prompts_are_told_apart_where_there_are_several() -> None:
    plan = BenchPlan(
        workloads=(Workload.mixed,), concurrencies=(1,), rounds=1, requests=2, num_targets=1
    )
    result = RunResult(
        run=plan.runs[0],
        ended_s=1,
        num_sent=2,
        samples=[sample(0.1, kind="short"), sample(0.9, kind="long")],
    )
    (point,) = report_of(plan, TARGETS[:1], [result], started="", version="").points
    assert {kind: each.p50 for kind, each in point.ttft_by_kind.items()} == {
        "short": pytest.approx(0.1),
        "long": pytest.approx(0.9),
    }
    assert report().points[0].ttft_by_kind == {}


def test_a_ratio_of_what_nobody_told_is_none() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(0, 2) == 0
    assert (ratio(None, 2), ratio(1, None), ratio(1, 0)) == (None, None, None)


def test_the_json_document_has_every_point_in_milliseconds_and_a_schema() -> None:
    value = json.loads(json.dumps(report_json(report(stopped="interrupted"))))
    assert (value["schema"], value["stopped"]) == (SCHEMA, "interrupted")
    assert value["targets"][1] == {
        "label": "<b>other</b>",
        "url": "http://127.0.0.1:8080",
        "model": "m & n",
    }
    point = value["points"][3]
    assert (point["workload"], point["concurrency"], point["target"]) == ("plain", 2, 1)
    assert point["ttft_ms"] == {"p50": 400.0, "p95": 410.0, "p99": 410.0, "count": 4}
    assert point["itl_ms"]["p50"] == 40.0
    assert point["queue_ms"]["p50"] == 380.0
    assert point["errors"] == {"status 503": 2}
    assert point["tokens_per_s"] == 80.0
    assert value["points"][0]["queue_ms"] is None
    assert value["plan"]["seed"] == 7


def test_points_with_a_busy_client_are_named() -> None:
    found = results()
    for result in found:
        is_busy = (result.run.concurrency, result.run.target) == (2, 1)
        result.client_cpu_s = 0.9 if is_busy else 0.1
    busy = report_of(PLAN, TARGETS, found, started="", version="").busy_points
    assert [(point.concurrency, point.target) for point in busy] == [(2, 1)]
    assert attrs.evolve(report(), points=()).busy_points == []

"""What a report has of the turns, and the JSON document of it."""

from __future__ import annotations

import json

import attrs
import pytest

from bench_reports import PLAN, TARGETS, report, results, sample
from paddler_trio.bench.figures import TurnResult
from paddler_trio.bench.plan import BenchPlan
from paddler_trio.bench.report import ratio, report_of
from paddler_trio.bench.report_json import SCHEMA, report_json
from paddler_trio.bench.workloads import Workload


def test_there_is_a_cell_for_each_concurrency_and_target_in_order() -> None:
    cells = report().cells
    assert [(cell.concurrency, cell.target) for cell in cells] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [len(cell.rounds_tokens_per_s) for cell in cells] == [2, 2, 2, 2]
    assert cells[0].ttfts_s == pytest.approx((0.1, 0.11))
    assert cells[2].figures.requests == 6
    assert cells[2].figures.cached_share == pytest.approx(0.2)


def test_turns_that_were_not_taken_have_no_cell() -> None:
    some = report_of(PLAN, TARGETS, results()[:2], started="", version="", stopped="interrupted")
    assert {cell.concurrency for cell in some.cells} == {2}
    assert report_of(PLAN, TARGETS, [], started="", version="").cells == ()
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
    result = TurnResult(
        turn=plan.turns[0],
        ended_s=1,
        num_sent=2,
        samples=[sample(0.1, kind="short"), sample(0.9, kind="long")],
    )
    (cell,) = report_of(plan, TARGETS[:1], [result], started="", version="").cells
    assert {kind: each.p50 for kind, each in cell.ttft_by_kind.items()} == {
        "short": pytest.approx(0.1),
        "long": pytest.approx(0.9),
    }
    assert report().cells[0].ttft_by_kind == {}


def test_a_ratio_of_what_nobody_told_is_none() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(0, 2) == 0
    assert (ratio(None, 2), ratio(1, None), ratio(1, 0)) == (None, None, None)


def test_the_json_document_has_every_cell_in_milliseconds_and_a_schema() -> None:
    value = json.loads(json.dumps(report_json(report(stopped="interrupted"))))
    assert (value["schema"], value["stopped"]) == (SCHEMA, "interrupted")
    assert value["targets"][1] == {
        "label": "<b>other</b>",
        "url": "http://127.0.0.1:8080",
        "model": "m & n",
    }
    cell = value["cells"][3]
    assert (cell["workload"], cell["concurrency"], cell["target"]) == ("plain", 2, 1)
    assert cell["ttft_ms"] == {"p50": 400.0, "p95": 410.0, "p99": 410.0, "count": 4}
    assert cell["itl_ms"]["p50"] == 40.0
    assert cell["queue_ms"]["p50"] == 380.0
    assert cell["errors"] == {"status 503": 2}
    assert cell["tokens_per_s"] == 80.0
    assert value["cells"][0]["queue_ms"] is None
    assert value["plan"]["seed"] == 7


def test_cells_with_a_busy_client_are_named() -> None:
    found = results()
    for result in found:
        is_busy = (result.turn.concurrency, result.turn.target) == (2, 1)
        result.client_cpu_s = 0.9 if is_busy else 0.1
    busy = report_of(PLAN, TARGETS, found, started="", version="").busy_cells
    assert [(cell.concurrency, cell.target) for cell in busy] == [(2, 1)]
    assert attrs.evolve(report(), cells=()).busy_cells == []

"""The registry keeps its own conventions, and the page of the documents is made from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from monitoring_files import AGENT_METRICS, BALANCER_METRICS
from paddler_trio.telemetry.metric_kind import MetricDefinition
from paddler_trio.telemetry.shared_metrics import PADDLERS

ROOT = Path(__file__).parents[3]
UNITS = {"seconds", "bytes", "tokens", "ratio", ""}
ALL = [*BALANCER_METRICS, *AGENT_METRICS]


@pytest.mark.parametrize("metrics", [BALANCER_METRICS, AGENT_METRICS])
def test_names_are_unique_and_paddlers_come_first(metrics: list[MetricDefinition]) -> None:
    names = [each.name for each in metrics]
    assert len(names) == len(set(names))
    assert tuple(metrics[:3]) == PADDLERS
    assert [each.name for each in PADDLERS] == [
        "slots_processing",
        "slots_total",
        "requests_buffered",
    ]


@pytest.mark.parametrize("metric", ALL, ids=lambda each: each.name)
def test_a_metric_keeps_the_conventions(metric: MetricDefinition) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total") or metric in PADDLERS
    assert (metric.kind == "info") == metric.name.endswith("_info")
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.unit in UNITS
    assert metric.help
    assert metric.help[0].isalnum()
    assert not metric.help.endswith(".")
    assert "\n" not in metric.help
    assert len(set(metric.labels)) == len(metric.labels)
    assert "le" not in metric.labels
    if metric.kind == "histogram":
        assert metric.name.endswith(f"_{metric.unit}")
        assert len(metric.labels) <= 1


def test_metrics_of_one_name_are_of_one_kind() -> None:
    agents = {each.name: each for each in AGENT_METRICS}
    for each in BALANCER_METRICS:
        twin = agents.get(each.name, each)
        assert (twin.kind, twin.help, twin.unit) == (each.kind, each.help, each.unit)


def test_the_page_is_what_the_registry_has_today() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "document_metrics.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}: run tools/document_metrics.py"


def test_queries_in_the_documents_name_metrics_that_there_are() -> None:
    names = {each.name for each in ALL}
    names |= {
        f"{each.name}{suffix}"
        for each in ALL
        if each.kind == "histogram"
        for suffix in ("_bucket", "_sum", "_count")
    }
    for page in ("metrics.md", "backpressure.md", "tree.md"):
        text = (ROOT / "docs" / page).read_text()
        for name in re.findall(r"\bpaddler_(\w+[a-z])\b", text):
            assert name in names or name == "trio", f"{page} has paddler_{name}"

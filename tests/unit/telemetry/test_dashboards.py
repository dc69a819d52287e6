"""The dashboard and the alerts ask for metrics that there are, by labels that these have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from monitoring_files import AGENT_METRICS, ALERTS, BALANCER_METRICS, DASHBOARD, QUERIES
from paddler_trio.telemetry.metric_kind import MetricDefinition

ROOT = Path(__file__).parents[3]
PREFIX = "paddler_"
"""The default of ``--statsd-prefix``, which the files are for."""
WIDTH = 24
"""Columns of Grafana's grid."""
OF_EVERY_SERIES = {"instance", "job", "le"}
EXPRESSIONS = [
    *((query["expr"], query["legendFormat"]) for query in QUERIES),
    *((alert["expr"], " ".join(alert["annotations"].values())) for alert in ALERTS),
]


def registered() -> Mapping[str, list[MetricDefinition]]:
    """Definitions by the names that Prometheus stores."""
    found: dict[str, list[MetricDefinition]] = {}
    for metric in (*BALANCER_METRICS, *AGENT_METRICS):
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for suffix in suffixes:
            found.setdefault(f"{PREFIX}{metric.name}{suffix}", []).append(metric)
    return found


@pytest.mark.parametrize(("expression", "words"), EXPRESSIONS)
def test_every_name_and_label_is_in_the_registry(expression: str, words: str) -> None:
    known = registered()
    names = re.findall(rf"\b{PREFIX}\w+", expression)
    assert names
    labels = set(OF_EVERY_SERIES)
    for name in names:
        assert name in known, f"{name} is no metric of ours"
        labels.update(*(metric.labels for metric in known[name]))
    asked = {
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    asked |= set(re.findall(r"[{,](\w+)(?:=~|!=|=)", expression))
    asked |= set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", words))
    assert asked <= labels, f"{asked - labels} are no labels of {names}"


def test_the_page_lists_every_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for alert in ALERTS:
        severity, lasts = alert["labels"]["severity"], alert.get("for", "at once")
        assert f"| `{alert['alert']}` | {severity} | {lasts} |" in page


def test_the_panels_lie_side_by_side_in_the_grid() -> None:
    panels = DASHBOARD["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another"
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_alerts_have_names_of_their_own_and_say_what_to_do() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    for alert in ALERTS:
        assert re.fullmatch(r"Paddler[A-Z]\w+", alert["alert"])
        assert len(alert["annotations"]["description"]) > 60, alert["alert"]

"""The dashboard and the alerts ask for metrics that there are, by labels that these have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from paddler_trio.telemetry.alerts import PREFIX, alerts
from paddler_trio.telemetry.dashboard import dashboard, queries
from paddler_trio.telemetry.grafana_panels import WIDTH
from paddler_trio.telemetry.metric_definitions import (
    AGENT_METRICS,
    BALANCER_METRICS,
    MetricDefinition,
)

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "generate_dashboards.py"
OF_EVERY_SERIES = {"instance", "job", "le"}
EXPRESSIONS = [
    *((query.expression, query.legend) for query in queries()),
    *((alert.expression, f"{alert.summary} {alert.description}") for alert in alerts()),
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


def test_the_files_are_those_that_the_registry_gives() -> None:
    checked = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_the_page_lists_every_alert() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for alert in alerts():
        lasts = "at once" if alert.lasts == "0s" else alert.lasts
        assert f"| `{alert.name}` | {alert.severity} | {lasts} |" in page


def test_the_panels_lie_side_by_side_in_the_grid() -> None:
    panels = json.loads(json.dumps(dashboard()))["panels"]
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
    names = [alert.name for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert re.fullmatch(r"Paddler[A-Z]\w+", alert.name)
        assert len(alert.description) > 60, alert.name

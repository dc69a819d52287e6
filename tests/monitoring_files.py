"""The dashboard and the rules of Prometheus in ``docs/``, and the metrics that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from paddler_trio.telemetry import agent_metrics, balancer_metrics
from paddler_trio.telemetry.shared_metrics import metrics_of

DOCS = Path(__file__).parents[1] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "paddler-trio.json").read_text())
ALERTS_FILE = DOCS / "alerts" / "paddler-trio.yaml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(ALERTS_FILE.read_text())["groups"][0]["rules"]
QUERIES: list[dict[str, str]] = [
    target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]
"""Those of all panels: ``expr`` is PromQL, ``legendFormat`` the legend of its series."""

BALANCER_METRICS = metrics_of("balancer", balancer_metrics)
AGENT_METRICS = metrics_of("agent", agent_metrics)

"""Write the tables of ``docs/metrics.md`` from the definitions of metrics: they cannot differ.

What stands above the marker in that page is written by hand.

.venv/bin/python tools/document_metrics.py          # writes docs/metrics.md
.venv/bin/python tools/document_metrics.py --check  # exit code 1 if it would change
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paddler_trio.telemetry import agent_metrics, balancer_metrics, label_values
from paddler_trio.telemetry.metric_kind import MetricDefinition
from paddler_trio.telemetry.shared_metrics import metrics_of

BALANCER_METRICS = metrics_of("balancer", balancer_metrics)
AGENT_METRICS = metrics_of("agent", agent_metrics)

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
MARKER = "<!-- From here on this page is written by tools/document_metrics.py. -->\n"
PREFIX = "paddler_"
VALUES: Mapping[tuple[str, str], Sequence[str]] = {
    ("requests_total", "outcome"): label_values.REQUEST_OUTCOMES,
    ("queue_duration_seconds", "outcome"): label_values.QUEUE_OUTCOMES,
    ("retries_total", "reason"): label_values.RETRY_REASONS,
    ("generation_tokens_total", "class"): label_values.TOKEN_CLASSES,
    ("agent_slots", "state"): label_values.SLOT_STATES,
    ("deployment_agents", "state"): label_values.AGENT_STATES,
    ("agent_phase", "phase"): label_values.AGENT_PHASES,
    ("rollout_phase", "phase"): label_values.ROLLOUT_PHASES,
    ("kv_bytes", "kind"): label_values.KV_KINDS,
    ("kv_cells", "state"): label_values.KV_CELL_STATES,
    ("engine_restarts_total", "reason"): label_values.RESTART_REASONS,
    ("model_store_requests_total", "found"): label_values.STORE_FOUND,
    ("model_store_downloads_total", "outcome"): label_values.DOWNLOAD_OUTCOMES,
}


def page(current: str) -> str:
    """The whole of ``docs/metrics.md``; ``current`` is what it is now."""
    introduction, marker, _ = current.partition(MARKER)
    assert marker, f"{PAGE} has lost its marker: {MARKER}"
    parts = [
        "\n## Metrics of a balancer\n",
        _table(BALANCER_METRICS),
        "\n## Metrics of an agent\n",
        _table(AGENT_METRICS),
        "\n## Buckets\n",
        _buckets([*BALANCER_METRICS, *AGENT_METRICS]),
        "\n## Words in labels\n",
        _words(),
    ]
    return introduction + MARKER + "\n".join(parts)


def _table(metrics: Iterable[MetricDefinition]) -> str:
    lines = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{PREFIX}{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join([*lines, ""])


def _buckets(metrics: Iterable[MetricDefinition]) -> str:
    lines = ["| histogram | upper bounds, in seconds |", "|---|---|"]
    bounds = {each.name: each.buckets for each in metrics if each.kind == "histogram"}
    for name, values in bounds.items():
        lines.append(f"| `{name}` | {' '.join(f'{value:g}' for value in values)} |")
    return "\n".join([*lines, ""])


def _words() -> str:
    lines = ["| metric | label | values |", "|---|---|---|"]
    for (name, label), values in VALUES.items():
        words = ", ".join(f"`{value}`" for value in values)
        lines.append(f"| `{name}` | `{label}` | {words} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    current = PAGE.read_text()
    written = page(current)
    if arguments == ["--check"]:
        is_current = current == written
        print("docs/metrics.md is up to date" if is_current else "docs/metrics.md is out of date")
        return 0 if is_current else 1
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

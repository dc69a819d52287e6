"""Write the Grafana dashboard and the alerts from the registry of metrics: they cannot differ.

.venv/bin/python tools/generate_dashboards.py          # writes docs/grafana/ and docs/alerts/
.venv/bin/python tools/generate_dashboards.py --check  # exit code 1 if anything would change
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paddler_trio.telemetry.alerts import Alert, alerts
from paddler_trio.telemetry.dashboard import dashboard

DOCS = Path(__file__).parents[1] / "docs"
GROUP = "paddler-trio"


def files() -> dict[Path, str]:
    """What is written, by its place."""
    return {
        DOCS / "grafana" / "paddler-trio.json": json.dumps(dashboard(), indent=2) + "\n",
        DOCS / "alerts" / "paddler-trio.yaml": rules(),
    }


def rules() -> str:
    """A rule file of Prometheus; its texts are JSON's, which is YAML's as well."""
    head = (
        "# Written by tools/generate_dashboards.py from the registry of metrics.\n"
        f"groups:\n  - name: {GROUP}\n    rules:\n"
    )
    return head + "".join(map(_rule, alerts()))


def _rule(alert: Alert) -> str:
    lasts = "" if alert.lasts == "0s" else f"        for: {alert.lasts}\n"
    return (
        f"      - alert: {alert.name}\n"
        f"        expr: {json.dumps(alert.expression)}\n"
        f"{lasts}"
        f"        labels:\n          severity: {alert.severity}\n"
        f"        annotations:\n"
        f"          summary: {json.dumps(alert.summary)}\n"
        f"          description: {json.dumps(alert.description)}\n"
    )


def main() -> None:
    stale = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is stale: run tools/generate_dashboards.py")
        raise SystemExit(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files()[path], encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

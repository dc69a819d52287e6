"""Every alert, judged by promtool: it fires for what it is about, and not before."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pytest

from monitoring_files import ALERTS, ALERTS_FILE

HERE = 'instance="b"'


@attrs.frozen
class Case:
    """Series as promtool writes them, with an interval of one minute; the alert is quiet at
    ``before`` and fires ``at``, both in minutes."""

    series: Mapping[str, str]
    at: int
    labels: Mapping[str, str]
    before: int | None = None


def _histogram(name: str, labels: str, low: str, high: str) -> dict[str, str]:
    """Counts up to a low bound, and of all."""
    return {
        f'{name}_bucket{{{HERE},{labels}le="0.01"}}': low,
        f'{name}_bucket{{{HERE},{labels}le="20.0"}}': high,
        f'{name}_bucket{{{HERE},{labels}le="+Inf"}}': high,
    }


CASES = {
    "PaddlerModelStoreDown": Case({f"paddler_model_store_up{{{HERE}}}": "1 1 0x20"}, 9, {}, 4),
    "PaddlerModelStoreDownloadsFail": Case(
        {f'paddler_model_store_downloads_total{{{HERE},outcome="failed"}}': "0 0 1+1x30"},
        10,
        {"outcome": "failed"},
        2,
    ),
    "PaddlerNoUsableSlot": Case({f"paddler_slots_usable{{{HERE}}}": "4 0x20"}, 3, {}, 1),
    "PaddlerQueueWithFreeSlots": Case(
        {
            f"paddler_requests_buffered{{{HERE}}}": "0 3x30",
            f"paddler_slots_usable{{{HERE}}}": "4x30",
            f"paddler_slots_processing{{{HERE}}}": "2x30",
        },
        10,
        {},
        3,
    ),
    "PaddlerQueueNearlyFull": Case(
        {
            f'paddler_deployment_requests_buffered{{{HERE},deployment="a"}}': "1 1 29x20",
            f'paddler_deployment_requests_buffered{{{HERE},deployment="b"}}': "0x20",
            f"paddler_requests_buffered_limit{{{HERE}}}": "30x20",
        },
        6,
        {},
        3,
    ),
    "PaddlerSlowFirstToken": Case(
        _histogram("paddler_time_to_first_token_seconds", 'deployment="a",', "0x60", "0+9x60"),
        30,
        {"deployment": "a"},
        8,
    ),
    "PaddlerSlowTokens": Case(
        _histogram(
            "paddler_inter_token_latency_seconds",
            'deployment="a",',
            "0+100x1440 144000x100",
            "0+100x1540",
        ),
        1500,
        {"deployment": "a"},
        1439,
    ),
    "PaddlerAgentGone": Case(
        {f'paddler_agent_up{{{HERE},agent="a1"}}': "1 1 0x20"}, 6, {"agent": "a1"}, 3
    ),
    "PaddlerAgentFlapping": Case(
        {f'paddler_agent_connections_total{{{HERE},agent="a1"}}': "1x10 2 3 4x10"},
        14,
        {"agent": "a1"},
        10,
    ),
    "PaddlerAgentIssue": Case(
        {f'paddler_agent_issues{{{HERE},agent="a1"}}': "0 1x20"}, 8, {"agent": "a1"}, 5
    ),
    "PaddlerEngineRestarts": Case(
        {f'paddler_engine_restarts_total{{{HERE},agent="a1",reason="crash"}}': "0x10 1 2 3 4x60"},
        20,
        {"agent": "a1"},
        11,
    ),
    "PaddlerRolloutStalled": Case(
        {f'paddler_rollout_stalled_seconds{{{HERE},deployment="a"}}': "0+60x30"},
        20,
        {"deployment": "a"},
        14,
    ),
    "PaddlerEventLoopLag": Case(
        _histogram("paddler_loop_lag_seconds", "", "0+50x30", "0+100x30"), 12, {}, 4
    ),
    "PaddlerCertificateExpires": Case(
        {f"paddler_tls_certificate_expiry_seconds{{{HERE}}}": "700000x5 600000x100"}, 80, {}, 30
    ),
    "PaddlerScaleUp": Case(
        {
            f"paddler_slots_processing{{{HERE}}}": "0 8x30",
            f"paddler_requests_buffered{{{HERE}}}": "0x30",
            f"paddler_slots_total{{{HERE}}}": "10x30",
        },
        15,
        {},
        9,
    ),
    "PaddlerCacheDiskFull": Case(
        {f"paddler_model_cache_free_bytes{{{HERE}}}": "9e9 1e9x20"}, 8, {}, 4
    ),
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("CI"), "CI installs Debian's prometheus, which has promtool"
        pytest.skip("promtool is not here: Debian's package prometheus has it")
    return found


def test_promtool_finds_the_rules_right(promtool: str) -> None:
    _judge([promtool, "check", "rules", str(ALERTS_FILE)])


def test_every_alert_fires_for_what_it_is_about_and_not_before(
    promtool: str, tmp_path: Path
) -> None:
    assert CASES.keys() == {alert["alert"] for alert in ALERTS}
    groups = [_group(name, case) for name, case in CASES.items()]
    cases = tmp_path / "cases.yaml"
    cases.write_text(json.dumps({"rule_files": [str(ALERTS_FILE)], "tests": groups}))
    _judge([promtool, "test", "rules", str(cases)])


def _group(name: str, case: Case) -> dict[str, object]:
    (alert,) = (each for each in ALERTS if each["alert"] == name)
    labels = {"instance": "b", **case.labels}
    fires = {
        "exp_labels": {**alert["labels"], **labels},
        "exp_annotations": {
            name: _filled(text, labels) for name, text in alert["annotations"].items()
        },
    }
    tests: list[dict[str, object]] = [
        {"eval_time": f"{case.at}m", "alertname": name, "exp_alerts": [fires]}
    ]
    if case.before is not None:
        tests.insert(0, {"eval_time": f"{case.before}m", "alertname": name, "exp_alerts": []})
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": each} for key, each in case.series.items()],
        "alert_rule_test": tests,
    }


def _filled(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)


def _judge(command: Sequence[str]) -> None:
    judged = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr

"""A real Prometheus scrapes a real fleet: the queries of dashboard and alerts have answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from fleet import END_S, Fleet

from monitoring_files import ALERTS, ALERTS_FILE, QUERIES
from no_tls import NO_TLS

RATE = "$__rate_interval"
ONLY_SOMETIMES = {
    "rollout_stalled_seconds": "a rollout under way",
    "rollout_state": "a rollout that went through an agent",
    "retries_total": "a lost slot",
    "engine_restarts_total": "a dead engine",
    "download_bytes_total": "a download",
    "api_key_requests_total": "keys",
    "queue_oldest_seconds": "a request that waits",
}
"""Metrics without series in a fleet in which nothing goes wrong, and what makes one."""


@attrs.frozen
class Prometheus:
    """A running one, on loopback."""

    url: str

    def ask(self, expression: str) -> list[Any]:
        """The newest values; AssertionError with Prometheus's words if it refuses."""
        answer = httpx.get(
            f"{self.url}/api/v1/query",
            params={"query": expression},
            trust_env=False,
            verify=NO_TLS,
            timeout=END_S,
        )
        body = answer.json()
        assert body["status"] == "success", f"{expression}: {body}"
        found = body["data"]["result"]
        assert isinstance(found, list)
        return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    binary = shutil.which("prometheus")
    if binary is None:
        assert not os.environ.get("CI"), "CI installs Debian's prometheus"
        pytest.skip("prometheus is not here: Debian has a package of this name")
    options = ["--metrics-addr=127.0.0.1:0"]
    store = [f"--model-store={tmp_path_factory.mktemp('store')}", "--model-store-size=1GB"]
    with Fleet.start(agents=1, slots=2, agent_options=options, balancer_options=store) as fleet:
        shown = fleet.agents["a1"].wait_for_log("metrics")["addresses"]
        assert isinstance(shown, list)
        folder = tmp_path_factory.mktemp("prometheus")
        with _running(binary, folder, [fleet.management, str(shown[0])]) as running:
            _wait(lambda: len(running.ask("up == 1")) == 2, "both targets are up")
            _use(fleet)
            done = "sum(paddler_generation_tokens_total) > 0"
            _wait(lambda: bool(running.ask(done)), "what was generated is scraped")
            several = "count_over_time(paddler_requests_total[1m]) > 3"
            _wait(lambda: bool(running.ask(several)), "several scrapes after it")
            yield running


@contextmanager
def _running(binary: str, folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS_FILE)],
        "scrape_configs": [
            {"job_name": "paddler-trio", "static_configs": [{"targets": targets}]},
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        running = Prometheus(f"http://{address}")
        _wait(lambda: _is_ready(running), "Prometheus is ready")
        yield running
    except BaseException as error:
        log.seek(0)
        error.add_note(f"--- log of Prometheus\n{log.read()[-3000:]}")
        raise
    finally:
        process.kill()
        process.wait()
        log.close()


def _is_ready(running: Prometheus) -> bool:
    try:
        answer = httpx.get(f"{running.url}/-/ready", trust_env=False, verify=NO_TLS, timeout=5)
    except httpx.HTTPError:
        return False
    return answer.is_success


def _wait(is_so: Any, what: str) -> None:
    give_up_s = time.monotonic() + END_S
    while not is_so():
        assert time.monotonic() < give_up_s, f"not in time: {what}"
        time.sleep(0.1)  # Prometheus has nothing to wait for


def _use(fleet: Fleet) -> None:
    chat = {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 12}
    url = f"{fleet.inference_url}/v1/chat/completions"
    for _ in range(3):
        answer = httpx.post(url, json=chat, trust_env=False, verify=NO_TLS, timeout=END_S)
        answer.raise_for_status()


@pytest.mark.parametrize("expression", sorted({query["expr"] for query in QUERIES}))
def test_a_query_of_the_dashboard_has_an_answer(prometheus: Prometheus, expression: str) -> None:
    filled = expression.replace(RATE, "30s").replace("$instance", ".*").replace("$deployment", ".*")
    found = prometheus.ask(filled)
    if not any(name in expression for name in ONLY_SOMETIMES):
        assert found, f"nothing for {filled}"


def test_every_alert_is_evaluated_and_none_fires_for_a_fleet_that_is_well(
    prometheus: Prometheus,
) -> None:
    def rules() -> list[Any]:
        answer = httpx.get(
            f"{prometheus.url}/api/v1/rules", trust_env=False, verify=NO_TLS, timeout=END_S
        )
        (group,) = answer.json()["data"]["groups"]
        assert isinstance(group["rules"], list)
        return group["rules"]

    _wait(lambda: all(rule["health"] != "unknown" for rule in rules()), "all were evaluated")
    judged = {rule["name"]: rule for rule in rules()}
    assert judged.keys() == {alert["alert"] for alert in ALERTS}
    assert {
        name: rule.get("lastError") for name, rule in judged.items() if rule["health"] != "ok"
    } == {}
    firing = {name for name, rule in judged.items() if rule["state"] == "firing"}
    assert firing <= {"PaddlerCacheDiskFull"}, "which is about this machine's disk"

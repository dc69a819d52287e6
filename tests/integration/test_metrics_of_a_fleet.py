"""The metrics of real daemons: every name of the registry seen in a scrape, the text judged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import forked_processes
import httpx
import pytest
from fleet import BUNDLED_MODEL, END_S, Fleet, FleetView
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rollouts import follow

from monitoring_files import AGENT_METRICS, BALANCER_METRICS
from no_tls import NO_TLS
from paddler_trio.telemetry.balancer_metrics import (
    ROLLOUT_PHASE,
    ROLLOUT_STALLED_SECONDS,
    TLS_CERTIFICATE_EXPIRY_SECONDS,
)
from paddler_trio.telemetry.metric_kind import MetricDefinition

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
OLDER_THAN_THE_CONVENTIONS = {
    'paddler_slots_total non-counter metrics should not have "_total" suffix',
    'paddler_event_loop_lag_milliseconds use base unit "seconds" instead of "milliseconds"',
}
"""What promtool objects to, and keeps its name."""
ONLY_IN_ROLLOUTS = {ROLLOUT_PHASE, ROLLOUT_STALLED_SECONDS}
ONLY_WITH_TLS = {TLS_CERTIFICATE_EXPIRY_SECONDS}
"""Seen in a scrape of a balancer with TLS, in ``test_tls_ports.py``."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@attrs.frozen
class Scraped:
    """A fleet in use, and what its daemons showed before, within and after its work."""

    fleet: Fleet
    texts: list[str]
    agents_url: str
    rolling: str
    """Of the balancer within a rollout, as OpenMetrics."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    made = forked_processes.run("key", "new", "app", "--scope", "inference", "--file", str(keys))
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    limit = ("--requests-per-minute", "1")
    made = forked_processes.run("key", "new", "limited", *limit, "--file", str(keys))
    assert made.returncode == 0, made.stderr
    limited = made.stdout.strip()
    options = [f"--api-key-file={keys}", "--model-store-size=1GB"]
    options.append(f"--model-store={tmp_path_factory.mktemp('store')}")
    metrics = ["--metrics-addr=127.0.0.1:0"]
    with Fleet.start(
        agents=1, slots=2, model=None, balancer_options=options, agent_options=metrics
    ) as fleet:
        shown = fleet.agents["a1"].wait_for_log("metrics")["addresses"]
        assert isinstance(shown, list)
        agents_url = f"http://{shown[0]}"
        fleet.desire(BUNDLED_MODEL, context_size=2048, enable_embeddings=True)
        fleet.wait_serving()
        _use(fleet, key, limited)
        fleet.wait_until(_has_counted, what="the engine's counts are reported")
        texts = [scrape(fleet.management_url).text, scrape(agents_url).text]
        fleet.agents["a1"].signal(signal.SIGSTOP)  # so that the rollout cannot be over
        try:
            fleet.desire(BUNDLED_MODEL, context_size=1024)
            follow(fleet, lambda rollout: rollout["phase"] != "complete")
            rolling = scrape(fleet.management_url, OPENMETRICS).text
        finally:
            fleet.agents["a1"].signal(signal.SIGCONT)
        yield Scraped(fleet, texts, agents_url, rolling)


def _use(fleet: Fleet, key: str, limited: str) -> None:
    """A chat, an embedding, a request without a key, and one of a key at its limit."""
    headers = {"Authorization": f"Bearer {key}", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    with httpx.Client(
        base_url=fleet.inference_url, headers=headers, trust_env=False, verify=NO_TLS, timeout=END_S
    ) as client:
        chat = {
            "model": "default",
            "messages": [{"role": "user", "content": "Count to ten."}],
            "max_tokens": 12,
        }
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
        embed = {"model": "default", "input": ["one", "two"]}
        assert client.post("/v1/embeddings", json=embed).status_code == 200
        refused = client.post("/v1/chat/completions", json=chat, headers={"Authorization": "no"})
        assert refused.status_code == 401
        its = {"Authorization": f"Bearer {limited}"}
        statuses = [client.post("/v1/embeddings", json={}, headers=its).status_code for _ in "ab"]
        assert statuses == [400, 429]


def _has_counted(view: FleetView) -> bool:
    """The engine has reported, after its last answer, that nothing runs."""
    engine = _engine(view)
    return engine.get("embedding_documents", 0) >= 2 and engine["running"] == 0


def _engine(view: FleetView) -> dict[str, Any]:
    (agent,) = cast("list[dict[str, Any]]", view["agents"])
    return agent["engine"] or {}


def scrape(url: str, accept: str | None = None) -> httpx.Response:
    headers = {} if accept is None else {"Accept": accept}
    answer = httpx.get(
        f"{url}/metrics", headers=headers, trust_env=False, verify=NO_TLS, timeout=END_S
    )
    answer.raise_for_status()
    return answer


def _name(metric: Metric) -> str:
    """As the registry has it: parsers take the suffix from counters."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def samples(text: str) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], Sample]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each
        for metric in text_string_to_metric_families(text)
        for each in metric.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[f"paddler_{name}", tuple(sorted(labels.items()))].value


def _openmetrics(url: str, name: str, labels: Mapping[str, str]) -> float:
    """As it is when the text that is kept is not shown any more."""
    give_up_s = time.monotonic() + END_S
    while True:
        answer = scrape(url, OPENMETRICS)
        found = (
            each.value
            for family in openmetrics_families(answer.text)
            for each in family.samples
            if each.name == f"paddler_{name}" and each.labels == labels
        )
        value = next(found, 0.0)
        if value or time.monotonic() > give_up_s:
            return value


@pytest.mark.parametrize(
    "definition",
    [each for each in BALANCER_METRICS if each not in ONLY_WITH_TLS],
    ids=lambda each: each.name,
)
def test_every_metric_of_a_balancer_is_in_its_scrape(
    definition: MetricDefinition, scraped: Scraped
) -> None:
    _check(definition, *_parsed(definition, scraped))


@pytest.mark.parametrize("definition", AGENT_METRICS, ids=lambda each: each.name)
def test_every_metric_of_an_agent_is_in_its_scrape(
    definition: MetricDefinition, scraped: Scraped
) -> None:
    _check(definition, *text_string_to_metric_families(scraped.texts[1]))


def _parsed(definition: MetricDefinition, scraped: Scraped) -> Iterable[Metric]:
    if definition in ONLY_IN_ROLLOUTS:
        return openmetrics_families(scraped.rolling)
    return text_string_to_metric_families(scraped.texts[0])


def _check(definition: MetricDefinition, *families: Metric) -> None:
    found = {_name(each): each for each in families}
    metric = found[f"paddler_{definition.name}"]
    kind = "gauge" if definition.kind == "info" else definition.kind
    assert (metric.type, metric.documentation) == (kind, definition.help)
    assert metric.samples
    for sample in metric.samples:
        labels = set(sample.labels) - {"le"}
        assert labels == set(definition.labels), sample
    if definition.kind == "histogram":
        bounds = {each.labels["le"] for each in metric.samples if each.name.endswith("_bucket")}
        assert bounds == {repr(float(bound)) for bound in definition.buckets} | {"+Inf"}


def test_nothing_is_shown_that_is_not_in_the_registry(scraped: Scraped) -> None:
    for text, registry in zip(scraped.texts, (BALANCER_METRICS, AGENT_METRICS), strict=True):
        shown = [_name(each) for each in text_string_to_metric_families(text)]
        expected = [each for each in registry if each not in ONLY_IN_ROLLOUTS | ONLY_WITH_TLS]
        assert sorted(shown) == sorted(f"paddler_{each.name}" for each in expected)


def test_a_balancer_counts_what_was_done(scraped: Scraped) -> None:
    text = scraped.texts[0]
    chat, embeddings = "/v1/chat/completions", "/v1/embeddings"
    assert value(text, "requests_total", route=chat, outcome="completed") == 1
    assert value(text, "requests_total", route=embeddings, outcome="completed") >= 1
    tokens = value(text, "generation_tokens_total", deployment="default", **{"class": "content"})
    reasoning = value(
        text, "generation_tokens_total", deployment="default", **{"class": "reasoning"}
    )
    assert tokens + reasoning == 12
    assert value(text, "embeddings_total", deployment="default") == 2
    assert value(text, "time_to_first_token_seconds_count", deployment="default") == 1
    assert value(text, "inter_token_latency_seconds_count", deployment="default") >= 8
    assert value(text, "prompt_tokens_total", deployment="default") > 5
    assert value(text, "queue_duration_seconds_count", outcome="dispatched") >= 2
    assert value(text, "api_key_requests_total", key="app") == 2
    assert value(text, "api_key_refusals_total") == 1
    limit = {"key": "limited", "limit": "requests_per_minute"}
    assert value(text, "api_key_limited_total", **limit) == 1
    assert value(text, "agent_up", agent="a1") == 1
    assert value(text, "agent_slots", agent="a1", state="idle") == 2
    assert value(text, "agent_phase", agent="a1", phase="serving") == 1
    assert value(text, "slots_usable") == 2
    assert value(text, "deployment_agents", deployment="default", state="serving") == 1
    assert value(text, "rollout_state", deployment="default", phase="complete") == 1
    assert value(text, "model_load_seconds_count") == 1
    assert value(text, "kv_bytes", agent="a1", kind="weights") > 1e6


def test_an_agent_counts_what_its_engine_did(scraped: Scraped) -> None:
    text = scraped.texts[1]
    assert value(text, "slots_total") == 2
    assert value(text, "agent_link_up", deployment="default") == 1
    assert value(text, "agent_link_connections_total", deployment="default") == 1
    assert value(text, "engine_generated_tokens_total", deployment="default") >= 12
    assert value(text, "engine_passes_total", deployment="default") >= 10
    assert value(text, "embedded_documents_total", deployment="default") == 2
    assert value(text, "agent_slots", deployment="default", state="idle") == 2
    assert value(text, "model_load_seconds_count") == 1
    assert value(text, "model_cache_free_bytes") > 0
    cells = [
        value(text, "kv_cells", deployment="default", state=state)
        for state in ("used", "resident", "free")
    ]
    assert cells[0] == 0 < cells[1] < sum(cells)


def test_openmetrics_is_for_those_who_accept_it_and_has_exemplars(scraped: Scraped) -> None:
    answer = scrape(scraped.fleet.management_url, OPENMETRICS)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = {each.name: each for each in openmetrics_families(answer.text)}
    ttft = families["paddler_time_to_first_token_seconds"]
    (exemplar,) = (each.exemplar for each in ttft.samples if each.exemplar)
    assert exemplar.labels == {"trace_id": TRACE}
    assert 0 < exemplar.value < END_S
    assert families["paddler_requests"].type == "counter"
    assert families["paddler_build"].type == "info"
    plain = scrape(scraped.fleet.management_url, "text/plain;q=0.5, */*;q=0.1")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "trace_id" not in plain.text
    assert list(openmetrics_families(scrape(scraped.agents_url, OPENMETRICS).text))


def test_what_llm_d_is_configured_with_is_in_a_scrape(scraped: Scraped) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    section = page.partition("engineConfigs:")[2].partition("```")[0]
    specs = dict(re.findall(r'(\w+)Spec: "(\w+)"', section))
    assert specs.keys() == {"queuedRequests", "runningRequests", "kvUsage"}
    for name in specs.values():
        (sample,) = (each for (of, _), each in samples(scraped.texts[0]).items() if of == name)
        assert sample.labels == {}
        assert sample.value >= 0
    (agents,) = re.findall(r'kvUsageSpec: "(\w+)\{deployment=\\"default\\"\}"', page)
    assert samples(scraped.texts[1])[agents, (("deployment", "default"),)].value >= 0


def test_head_has_the_headers_of_get(scraped: Scraped) -> None:
    for url in (scraped.fleet.management_url, scraped.agents_url):
        head = httpx.head(f"{url}/metrics", trust_env=False, verify=NO_TLS, timeout=END_S)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 5000
        assert head.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert httpx.get(f"{scraped.agents_url}/", trust_env=False, timeout=END_S).status_code == 404


def test_promtool_has_nothing_to_object_to(scraped: Scraped) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert "CI" not in os.environ, "CI needs promtool: install Debian's prometheus"
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for text in scraped.texts:  # promtool reads Prometheus's format alone
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
        )
        assert set((checked.stdout + checked.stderr).splitlines()) <= OLDER_THAN_THE_CONVENTIONS
        assert checked.returncode in (0, 3), checked


def test_an_engine_that_was_killed_is_counted_as_that(scraped: Scraped) -> None:
    fleet = scraped.fleet
    fleet.wait_serving()
    engine = fleet.agents["a1"].engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    fleet.wait_until(
        lambda view: (
            _engine(view).get("restarts_killed") == 1 and view["agents"][0]["is_accepting"]
        ),
        what="the engine is back",
    )
    labels = {"agent": "a1", "reason": "killed"}
    assert _openmetrics(fleet.management_url, "engine_restarts_total", labels) == 1
    labels = {"deployment": "default", "reason": "killed"}
    assert _openmetrics(scraped.agents_url, "engine_restarts_total", labels) == 1


def test_a_page_of_a_browser_reads_no_metrics_under_a_name_of_its_own(scraped: Scraped) -> None:
    answer = httpx.get(
        f"{scraped.agents_url}/metrics",
        headers={"Host": "evil.example"},
        trust_env=False,
        timeout=END_S,
    )
    assert answer.status_code == 403
    assert "paddler_" not in answer.text


def test_a_port_for_metrics_that_is_taken_ends_the_agent_with_the_reason(scraped: Scraped) -> None:
    address = scraped.agents_url.removeprefix("http://")
    ended = forked_processes.run(
        "agent",
        f"--management-addr={scraped.fleet.management}",
        "--slots=1",
        f"--metrics-addr={address}",
    )
    assert ended.returncode != 0
    assert f"cannot listen on {address}: address already in use" in ended.stderr

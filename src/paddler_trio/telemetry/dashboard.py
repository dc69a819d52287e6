"""A Grafana dashboard over the metrics of the registry, as the JSON that Grafana imports.

Every query names its metrics through the registry, so a metric cannot be renamed without it. The
data source, the balancer (``instance``) and the deployment are variables of the dashboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from paddler_trio.telemetry import balancer_metrics as of_balancer
from paddler_trio.telemetry import shared_metrics as of_both
from paddler_trio.telemetry import store_metrics as of_store
from paddler_trio.telemetry.alerts import prefixed
from paddler_trio.telemetry.grafana_panels import SOURCE, Json, Panel, Query, Row, laid_out
from paddler_trio.telemetry.metric_kind import MetricDefinition

RATE: Final = "$__rate_interval"
HERE: Final = 'instance=~"$instance"'
DEPLOYED: Final = f'{HERE},deployment=~"$deployment"'


def dashboard() -> Json:
    """Return the whole dashboard."""
    return {
        "uid": "paddler-trio",
        "title": "paddler-trio",
        "description": "Requests, agents and tokens of a fleet, from the balancer's /metrics.",
        "tags": ["paddler-trio", "llama.cpp", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": laid_out(rows()),
    }


def rows() -> Sequence[Row]:
    """Return the rows of the dashboard, from the top."""
    return (
        _overview(),
        _latency(),
        _tokens(),
        _queue(),
        _agents(),
        _fleet(),
        _store(),
        _trouble(),
        _itself(),
    )


def queries() -> Sequence[Query]:
    """Return the queries of all panels."""
    return [query for row in rows() for panel in row.panels for query in panel.queries]


# ------------------------------------------------------------------------------------ the rows


def _overview() -> Row:
    busy, total = _named(of_both.SLOTS_PROCESSING), _named(of_both.SLOTS_TOTAL)
    waiting, up = _named(of_both.REQUESTS_BUFFERED), _named(of_balancer.AGENT_UP)
    tokens, requests = _named(of_balancer.GENERATION_TOKENS), _named(of_balancer.REQUESTS)
    return Row(
        "Overview",
        (
            _stat("Busy slots", f"sum({busy}{{{HERE}}})"),
            _stat("Slots", f"sum({total}{{{HERE}}})"),
            _stat("Waiting requests", f"sum({waiting}{{{HERE}}})"),
            _stat("Agents", f"sum({up}{{{HERE}}})"),
            _stat("Tokens a second", f"sum(rate({tokens}{{{HERE}}}[{RATE}]))"),
            _stat("Requests a second", f"sum(rate({requests}{{{HERE}}}[{RATE}]))", "reqps"),
            Panel(
                "Slots and queue",
                (
                    Query(f"sum({busy}{{{HERE}}})", "busy"),
                    Query(f"sum({waiting}{{{HERE}}})", "waiting"),
                    Query(f"sum({total}{{{HERE}}})", "slots"),
                ),
                width=12,
            ),
            Panel(
                "Requests by outcome",
                (Query(f"sum by (outcome) (rate({requests}{{{HERE}}}[{RATE}]))", "{{outcome}}"),),
                unit="reqps",
                width=12,
                stacked=True,
            ),
        ),
    )


def _latency() -> Row:
    return Row(
        "Latency",
        (
            _quantiles("Time to first token", of_balancer.TIME_TO_FIRST_TOKEN, DEPLOYED),
            _quantiles("Between two tokens", of_balancer.INTER_TOKEN_LATENCY, DEPLOYED),
            _quantiles("Whole request", of_balancer.REQUEST_DURATION, DEPLOYED),
        ),
    )


def _tokens() -> Row:
    generated = _named(of_balancer.GENERATION_TOKENS)
    prompt, cached = _named(of_balancer.PROMPT_TOKENS), _named(of_balancer.CACHED_PROMPT_TOKENS)
    return Row(
        "Tokens",
        (
            Panel(
                "Generated, by class",
                (Query(f"sum by (class) (rate({generated}{{{DEPLOYED}}}[{RATE}]))", "{{class}}"),),
                stacked=True,
            ),
            Panel(
                "Prompts",
                (
                    Query(f"sum(rate({prompt}{{{DEPLOYED}}}[{RATE}]))", "all"),
                    Query(f"sum(rate({cached}{{{DEPLOYED}}}[{RATE}]))", "cached"),
                ),
            ),
            Panel(
                "Share of prompts from the cache",
                (
                    Query(
                        f"sum by (deployment) (rate({cached}{{{DEPLOYED}}}[{RATE}])) / "
                        f"sum by (deployment) (rate({prompt}{{{DEPLOYED}}}[{RATE}]))",
                        "{{deployment}}",
                    ),
                ),
                unit="percentunit",
            ),
        ),
    )


def _queue() -> Row:
    waiting = _named(of_balancer.DEPLOYMENT_REQUESTS_BUFFERED)
    oldest = _named(of_balancer.QUEUE_OLDEST_SECONDS)
    estimate = _named(of_balancer.QUEUE_POSITION_SECONDS_ESTIMATE)
    return Row(
        "Queue",
        (
            Panel(
                "Waiting, by deployment",
                (Query(f"{waiting}{{{DEPLOYED}}}", "{{deployment}}"),),
                stacked=True,
            ),
            _quantiles("Stays in the queue", of_balancer.QUEUE_DURATION, HERE),
            Panel(
                "Oldest request, and expected wait",
                (
                    Query(f"{oldest}{{{DEPLOYED}}}", "oldest of {{deployment}}"),
                    Query(f"{estimate}{{{DEPLOYED}}}", "expected for {{deployment}}"),
                ),
                unit="s",
            ),
        ),
    )


def _agents() -> Row:
    slots, kv = _named(of_balancer.AGENT_SLOTS), _named(of_balancer.KV_CACHE_USAGE_RATIO)
    memory, width = _named(of_balancer.KV_BYTES), _named(of_balancer.BATCH_WIDTH)
    prefill = _named(of_balancer.PREFILL_TOKENS_PER_SECOND)
    decode = _named(of_balancer.DECODE_TOKENS_PER_SECOND)
    return Row(
        "Agents",
        (
            Panel(
                "Slots by state",
                (Query(f"sum by (state) ({slots}{{{HERE}}})", "{{state}}"),),
                stacked=True,
            ),
            Panel("KV cache in use", (Query(f"{kv}{{{HERE}}}", "{{agent}}"),), unit="percentunit"),
            Panel(
                "Memory of models",
                (Query(f"sum by (agent, kind) ({memory}{{{HERE}}})", "{{agent}} {{kind}}"),),
                unit="bytes",
                stacked=True,
            ),
            Panel("Decode tokens/s", (Query(f"{decode}{{{HERE}}}", "{{agent}}"),)),
            Panel("Prefill tokens/s", (Query(f"{prefill}{{{HERE}}}", "{{agent}}"),)),
            Panel("Sequences in a pass", (Query(f"{width}{{{HERE}}}", "{{agent}}"),)),
        ),
    )


def _fleet() -> Row:
    load, received = _named(of_balancer.MODEL_LOAD), _named(of_balancer.DOWNLOAD_BYTES)
    state = _named(of_balancer.ROLLOUT_STATE)
    agents = _named(of_balancer.DEPLOYMENT_AGENTS)
    return Row(
        "Models and rollouts",
        (
            Panel(
                "Agents of each deployment",
                (Query(f"{agents}{{{DEPLOYED}}}", "{{deployment}} {{state}}"),),
                width=6,
            ),
            Panel(
                "Rollouts",
                (Query(f"{state}{{{DEPLOYED}}} == 1", "{{deployment}} {{phase}}"),),
                width=6,
                help="1 for the phase that a deployment's newest rollout is in.",
            ),
            Panel(
                "Downloads",
                (Query(f"rate({received}{{{HERE}}}[{RATE}])", "{{agent}}"),),
                unit="Bps",
                width=6,
            ),
            Panel(
                "Loading a model",
                (
                    Query(
                        f"rate({load}_sum{{{HERE}}}[1h]) / rate({load}_count{{{HERE}}}[1h])",
                        "mean of the last hour",
                    ),
                ),
                unit="s",
                width=6,
            ),
        ),
    )


def _store() -> Row:
    held, limit = _named(of_store.STORE_BYTES), _named(of_store.STORE_LIMIT_BYTES)
    fetched, sent = _named(of_store.STORE_FETCHED_BYTES), _named(of_store.STORE_SENT_BYTES)
    pushed, evicted = _named(of_store.STORE_PUSHED_BYTES), _named(of_store.STORE_EVICTIONS)
    requests, ended = _named(of_store.STORE_REQUESTS), _named(of_store.STORE_DOWNLOADS)
    return Row(
        "Model store",
        (
            Panel(
                "Room",
                (
                    Query(f"{held}{{{HERE}}}", "taken"),
                    Query(f"{limit}{{{HERE}}}", "limit"),
                ),
                unit="bytes",
                width=6,
                help="Of a balancer with --model-store.",
            ),
            Panel(
                "Bytes of files",
                (
                    Query(f"rate({fetched}{{{HERE}}}[{RATE}])", "from sources"),
                    Query(f"rate({pushed}{{{HERE}}}[{RATE}])", "pushed"),
                    Query(f"rate({sent}{{{HERE}}}[{RATE}])", "sent"),
                ),
                unit="Bps",
                width=6,
            ),
            Panel(
                "Requests, by what was there",
                (Query(f"sum by (found) (rate({requests}{{{HERE}}}[{RATE}]))", "{{found}}"),),
                unit="reqps",
                width=6,
                stacked=True,
            ),
            Panel(
                "Downloads that ended, and evictions",
                (
                    Query(f"sum by (outcome) (increase({ended}{{{HERE}}}[{RATE}]))", "{{outcome}}"),
                    Query(f"increase({evicted}{{{HERE}}}[{RATE}])", "evicted"),
                ),
                width=6,
            ),
        ),
    )


def _trouble() -> Row:
    retries, restarts = _named(of_balancer.RETRIES), _named(of_balancer.ENGINE_RESTARTS)
    continued, preempted = _named(of_balancer.CONTINUATIONS), _named(of_balancer.PREEMPTIONS)
    issues = _named(of_balancer.AGENT_ISSUES)
    return Row(
        "Trouble",
        (
            Panel(
                "Lost slots, by reason",
                (Query(f"sum by (reason) (increase({retries}{{{HERE}}}[{RATE}]))", "{{reason}}"),),
            ),
            Panel(
                "Continuations and preemptions",
                (
                    Query(f"sum(increase({continued}{{{HERE}}}[{RATE}]))", "continued elsewhere"),
                    Query(f"sum(increase({preempted}{{{HERE}}}[{RATE}]))", "preempted"),
                ),
            ),
            Panel(
                "Engine restarts and issues",
                (
                    Query(
                        f"sum by (agent) (increase({restarts}{{{HERE}}}[{RATE}]))",
                        "restarts of {{agent}}",
                    ),
                    Query(f"{issues}{{{HERE}}}", "issues of {{agent}}"),
                ),
            ),
        ),
    )


def _itself() -> Row:
    held, most = _named(of_balancer.INPUT_BYTES), _named(of_balancer.INPUT_BYTES_LIMIT)
    keys = _named(of_balancer.API_KEY_REQUESTS)
    return Row(
        "The balancer itself",
        (
            _quantiles("Lag of the event loop", of_both.LOOP_LAG_SECONDS, HERE),
            Panel(
                "Input held",
                (
                    Query(f"{held}{{{HERE}}}", "held"),
                    Query(f"{most}{{{HERE}}}", "limit"),
                ),
                unit="bytes",
            ),
            Panel(
                "Requests by API key",
                (Query(f"sum by (key) (rate({keys}{{{HERE}}}[{RATE}]))", "{{key}}"),),
                unit="reqps",
                stacked=True,
            ),
        ),
    )


# --------------------------------------------------------------------------------- the pieces


def _named(metric: MetricDefinition) -> str:
    return prefixed(metric)


def _stat(title: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, (Query(expression, ""),), unit=unit, width=4, kind="stat")


def _quantiles(title: str, metric: MetricDefinition, selector: str) -> Panel:
    buckets = f"sum by (le) (rate({prefixed(metric)}_bucket{{{selector}}}[{RATE}]))"
    return Panel(
        title,
        [
            Query(f"histogram_quantile({quantile}, {buckets})", f"p{quantile * 100:g}")
            for quantile in (0.5, 0.95, 0.99)
        ],
        unit="s",
    )


def _variables() -> Sequence[Json]:
    def values(name: str, label: str, metric: MetricDefinition) -> Json:
        query = f"label_values({prefixed(metric)}, {name})"
        return {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }

    return (
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        },
        values("instance", "Balancer", of_both.SLOTS_TOTAL),
        values("deployment", "Deployment", of_balancer.DEPLOYMENT_AGENTS),
    )

"""Alerts for Prometheus, over the metrics of the registry: a starting point for operators.

Each says what is wrong in its summary, and in its description what to look at and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.telemetry import agent_metrics as of_agents
from paddler_trio.telemetry import balancer_metrics as of_balancer
from paddler_trio.telemetry import shared_metrics as of_both
from paddler_trio.telemetry import store_metrics as of_store
from paddler_trio.telemetry.metric_kind import MetricDefinition

Severity: TypeAlias = Literal["critical", "warning"]

PREFIX: Final = "paddler_"
"""The default of ``--statsd-prefix``, which what is generated uses."""
TTFT_TARGET_S: Final = 10
"""The time that the alert calls slow; an operator's own target replaces it."""


@attrs.frozen(kw_only=True)
class Alert:
    """One rule. ``expression`` is PromQL over prefixed names; ``lasts`` is how long it must hold,
    ``0s`` for at once."""

    name: str
    expression: str
    lasts: str
    severity: Severity
    summary: str
    description: str


def prefixed(metric: MetricDefinition) -> str:
    """Return the name of a metric as Prometheus has it."""
    return f"{PREFIX}{metric.name}"


def alerts() -> Sequence[Alert]:
    """Return all alerts, the worst first."""
    return (
        *_alerts_of_queues(),
        *_alerts_of_latency(),
        *_alerts_of_connections(),
        *_alerts_of_the_balancer(),
        *_alerts_of_the_store(),
        *_alerts_of_agents(),
    )


def _alerts_of_queues() -> Sequence[Alert]:
    buffered, processing = prefixed(of_both.REQUESTS_BUFFERED), prefixed(of_both.SLOTS_PROCESSING)
    usable = prefixed(of_balancer.SLOTS_USABLE)
    limit = prefixed(of_balancer.REQUESTS_BUFFERED_LIMIT)
    waiting = prefixed(of_balancer.DEPLOYMENT_REQUESTS_BUFFERED)
    return (
        Alert(
            name="PaddlerNoUsableSlot",
            expression=f"{usable} == 0",
            lasts="1m",
            severity="critical",
            summary="No agent of {{ $labels.instance }} can take a request",
            description="Every slot is gone, loading, drained or ejected: requests wait and then "
            "get 504. Look at `paddler-trio agents`, at the issues there, and at the log of the "
            "agents.",
        ),
        Alert(
            name="PaddlerQueueWithFreeSlots",
            expression=f"min_over_time({buffered}[5m]) > 0 and "
            f"min_over_time(({usable} - {processing})[5m:15s]) > 0",
            lasts="0s",
            severity="warning",
            summary="Requests of {{ $labels.instance }} wait although slots are free",
            description="With several deployments the free slots may be another one's: compare "
            f"`{waiting}` and the slots of its agents. With one deployment it is a bug: "
            "`paddler-trio explain ID` says why a request waits.",
        ),
        Alert(
            name="PaddlerQueueNearlyFull",
            expression=f"max by (instance) ({waiting}) / on (instance) {limit} > 0.8",
            lasts="2m",
            severity="warning",
            summary="The queue of a deployment of {{ $labels.instance }} is more than 80 % full",
            description="Soon requests get 503. Add slots or agents, or raise "
            "--max-buffered-requests if clients may wait longer.",
        ),
    )


def _alerts_of_latency() -> Sequence[Alert]:
    ttft = prefixed(of_balancer.TIME_TO_FIRST_TOKEN)
    between = prefixed(of_balancer.INTER_TOKEN_LATENCY)
    return (
        Alert(
            name="PaddlerSlowFirstToken",
            expression=f"histogram_quantile(0.95, sum by (instance, deployment, le) "
            f"(rate({ttft}_bucket[10m]))) > {TTFT_TARGET_S}",
            lasts="10m",
            severity="warning",
            summary="One in twenty requests of {{ $labels.deployment }} waits longer than "
            f"{TTFT_TARGET_S} s for its first token",
            description="If the queue is long there are too few slots; if not, prompts are long "
            "or agents slow: compare prefill tokens/s and the queue's duration.",
        ),
        Alert(
            name="PaddlerSlowTokens",
            expression=f"(histogram_quantile(0.95, sum by (instance, deployment, le) "
            f"(rate({between}_bucket[15m]))) > 2 * histogram_quantile(0.95, "
            f"sum by (instance, deployment, le) (rate({between}_bucket[15m] offset 1d)))) > 0.05",
            lasts="15m",
            severity="warning",
            summary="Tokens of {{ $labels.deployment }} come half as fast as a day ago",
            description="An agent may be throttled, swapping, or shared with something else: "
            "compare decode tokens/s of the agents.",
        ),
    )


def _alerts_of_connections() -> Sequence[Alert]:
    restarts = prefixed(of_balancer.ENGINE_RESTARTS)
    return (
        Alert(
            name="PaddlerAgentGone",
            expression=f"{prefixed(of_balancer.AGENT_UP)} == 0",
            lasts="2m",
            severity="warning",
            summary="The agent {{ $labels.agent }} is gone",
            description="Its connection was lost and it has not come back. Look at the machine "
            "and at the agent's log. After an hour it is forgotten.",
        ),
        Alert(
            name="PaddlerAgentFlapping",
            expression=f"increase({prefixed(of_balancer.AGENT_CONNECTIONS)}[10m]) > 2",
            lasts="0s",
            severity="warning",
            summary="The agent {{ $labels.agent }} has connected three times in ten minutes",
            description="Its process or its network is unstable: the agent's log has the reason "
            "of each end.",
        ),
        Alert(
            name="PaddlerAgentIssue",
            expression=f'{prefixed(of_balancer.AGENT_ISSUES)}{{agent!=""}} > 0',
            lasts="5m",
            severity="warning",
            summary="The agent {{ $labels.agent }} reports a problem",
            description="`paddler-trio agents` and the panel show its issues, with their causes.",
        ),
        Alert(
            name="PaddlerEngineRestarts",
            expression=f"sum by (instance, agent) (increase({restarts}[1h])) > 2",
            lasts="0s",
            severity="warning",
            summary="The engine of {{ $labels.agent }} has died three times in an hour",
            description="The agent's log has the last words of each. A request that kills "
            "engines is isolated after its second one; a machine that runs out of memory is not.",
        ),
    )


def _alerts_of_the_balancer() -> Sequence[Alert]:
    buffered, processing = prefixed(of_both.REQUESTS_BUFFERED), prefixed(of_both.SLOTS_PROCESSING)
    total, lag = prefixed(of_both.SLOTS_TOTAL), prefixed(of_both.LOOP_LAG_SECONDS)
    return (
        Alert(
            name="PaddlerRolloutStalled",
            expression=f"{prefixed(of_balancer.ROLLOUT_STALLED_SECONDS)} > 900",
            lasts="0s",
            severity="warning",
            summary="The rollout of {{ $labels.deployment }} has made no progress for 15 minutes",
            description="`paddler-trio rollout` says what it waits for; it can be paused, "
            "aborted or undone.",
        ),
        Alert(
            name="PaddlerEventLoopLag",
            expression=f"histogram_quantile(0.99, sum by (instance, le) (rate({lag}_bucket[5m]))) "
            "> 0.1",
            lasts="5m",
            severity="warning",
            summary="The event loop of {{ $labels.instance }} is late by more than 100 ms",
            description="Tokens are late by as much. The machine has too little processor time "
            "for it, or one input is too expensive: the log names stalls.",
        ),
        Alert(
            name="PaddlerCertificateExpires",
            expression=f"{prefixed(of_balancer.TLS_CERTIFICATE_EXPIRY_SECONDS)} < {7 * 86_400}",
            lasts="1h",
            severity="warning",
            summary="The TLS certificate of {{ $labels.instance }} expires within a week",
            description="Renew it: a running balancer reads it again by itself. Its log has the "
            "reason if it could not; `docs/tls.md` has the commands.",
        ),
        Alert(
            name="PaddlerScaleUp",
            expression=f"({processing} + {buffered}) / ({total} > 0) > 0.7",
            lasts="10m",
            severity="warning",
            summary="{{ $labels.instance }} has used more than 70 % of its slots for ten minutes",
            description="The signal to add agents by. Use it together with waiting requests, "
            "which also say that there is demand when there is no slot at all.",
        ),
    )


def _alerts_of_the_store() -> Sequence[Alert]:
    up, downloads = prefixed(of_store.STORE_UP), prefixed(of_store.STORE_DOWNLOADS)
    return (
        Alert(
            name="PaddlerModelStoreDown",
            expression=f"{up} == 0",
            lasts="5m",
            severity="warning",
            summary="The model store of {{ $labels.instance }} does not serve",
            description="Agents fetch from the sources, those without a way out fetch nothing. The "
            "balancer's log has the store's last words: a folder that another store uses, a disk "
            "that failed.",
        ),
        Alert(
            name="PaddlerModelStoreDownloadsFail",
            expression=f'increase({downloads}{{outcome="failed"}}[30m]) > 3',
            lasts="0s",
            severity="warning",
            summary="Downloads of the model store of {{ $labels.instance }} fail again and again",
            description="The issues of agents that wait for the file say why: no way out, no "
            "right, no room. `paddler-trio model prune --store` and `model unpin` make room.",
        ),
    )


def _alerts_of_agents() -> Sequence[Alert]:
    free = prefixed(of_agents.CACHE_FREE_BYTES)
    return (
        Alert(
            name="PaddlerCacheDiskFull",
            expression=f"{free} < 5e9",
            lasts="5m",
            severity="warning",
            summary="Less than 5 GB are free where {{ $labels.instance }} keeps its models",
            description="The next model may not fit: `paddler-trio model prune` removes "
            "what is not used.",
        ),
    )

"""The metrics that ``GET /metrics`` of an agent shows (``--metrics-addr``).

The measures that a balancer has too have the names that they have there, with ``deployment`` for
``agent``.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.telemetry.balancer_metrics import (
    AGENT_ISSUES,
    AGENT_PHASE,
    AGENT_SLOTS,
    BATCH_WIDTH,
    DECODE_TOKENS_PER_SECOND,
    DOWNLOAD_BYTES,
    ENGINE_RESTARTS,
    KV_BYTES,
    KV_CACHE_USAGE_RATIO,
    MODEL_LOAD,
    PREEMPTIONS,
    PREFILL_TOKENS_PER_SECOND,
)
from paddler_trio.telemetry.metric_kind import MetricDefinition, metric


def _on_agent(balancers: MetricDefinition, *labels: str) -> MetricDefinition:
    """Return the same metric as the agent itself measures it."""
    return attrs.evolve(balancers, labels=labels, where="agent")


AGENTS_ISSUES: Final = _on_agent(AGENT_ISSUES, "deployment")
AGENTS_PHASE: Final = _on_agent(AGENT_PHASE, "deployment", "phase")
AGENTS_SLOTS: Final = _on_agent(AGENT_SLOTS, "deployment", "state")
AGENTS_BATCH_WIDTH: Final = _on_agent(BATCH_WIDTH, "deployment")
AGENTS_DECODE_TOKENS_PER_SECOND: Final = _on_agent(DECODE_TOKENS_PER_SECOND, "deployment")
AGENTS_DOWNLOAD_BYTES: Final = _on_agent(DOWNLOAD_BYTES, "deployment")
AGENTS_ENGINE_RESTARTS: Final = _on_agent(ENGINE_RESTARTS, "deployment", "reason")
AGENTS_KV_BYTES: Final = _on_agent(KV_BYTES, "deployment", "kind")
AGENTS_KV_CACHE_USAGE_RATIO: Final = _on_agent(KV_CACHE_USAGE_RATIO, "deployment")
AGENTS_MODEL_LOAD: Final = _on_agent(MODEL_LOAD)
AGENTS_PREEMPTIONS: Final = _on_agent(PREEMPTIONS, "deployment")
AGENTS_PREFILL_TOKENS_PER_SECOND: Final = _on_agent(PREFILL_TOKENS_PER_SECOND, "deployment")

AGENT_LINK_UP: Final = metric(
    "gauge",
    "agent_link_up",
    "1 while the link to the balancer is up",
    "deployment",
    where="agent",
)
AGENT_LINK_CONNECTIONS: Final = metric(
    "counter",
    "agent_link_connections_total",
    "Times the link to the balancer came up",
    "deployment",
    where="agent",
)
KV_CELLS: Final = metric(
    "gauge",
    "kv_cells",
    "Cells of the KV cache, of one token each: used by running requests, resident prefixes, free",
    "deployment",
    "state",
    where="agent",
)
PREFIX_STORE_TOKENS: Final = metric(
    "gauge",
    "prefix_store_tokens",
    "Tokens of prefixes that were moved to the memory of the machine",
    "deployment",
    unit="tokens",
    where="agent",
)
PREFIX_STORE_BYTES: Final = metric(
    "gauge",
    "prefix_store_bytes",
    "Memory that these prefixes take",
    "deployment",
    unit="bytes",
    where="agent",
)
PREFIX_STORE_HITS: Final = metric(
    "counter",
    "prefix_store_hits_total",
    "Prompts that began with a prefix from there",
    "deployment",
    where="agent",
)
PREFIX_STORE_HIT_TOKENS: Final = metric(
    "counter",
    "prefix_store_hit_tokens_total",
    "Tokens of these prefixes, which are among the cached ones",
    "deployment",
    where="agent",
)
ENGINE_PROMPT_TOKENS: Final = metric(
    "counter",
    "engine_prompt_tokens_total",
    "Tokens of prompts that the engine computed",
    "deployment",
    where="agent",
)
ENGINE_CACHED_TOKENS: Final = metric(
    "counter",
    "engine_cached_tokens_total",
    "Tokens of prompts that the engine found in resident or stored prefixes",
    "deployment",
    where="agent",
)
ENGINE_GENERATED_TOKENS: Final = metric(
    "counter",
    "engine_generated_tokens_total",
    "Tokens that the engine sampled",
    "deployment",
    where="agent",
)
ENGINE_DRAFTED_TOKENS: Final = metric(
    "counter",
    "engine_drafted_tokens_total",
    "Tokens that a draft proposed",
    "deployment",
    where="agent",
)
ENGINE_ACCEPTED_TOKENS: Final = metric(
    "counter",
    "engine_accepted_tokens_total",
    "Drafted tokens that the model agreed with",
    "deployment",
    where="agent",
)
ENGINE_THREADS: Final = metric(
    "gauge",
    "engine_threads",
    "Threads that compute its passes; fewer than it was given while other programs keep cores busy",
    "deployment",
    where="agent",
)
ENGINE_PASSES: Final = metric(
    "counter",
    "engine_passes_total",
    "Passes through the model",
    "deployment",
    where="agent",
)
ENGINE_BUSY_SECONDS: Final = metric(
    "counter",
    "engine_busy_seconds_total",
    "Time spent computing passes",
    "deployment",
    unit="seconds",
    where="agent",
)
ENGINE_SAMPLING_SECONDS: Final = metric(
    "counter",
    "engine_sampling_seconds_total",
    "Time spent sampling from them",
    "deployment",
    unit="seconds",
    where="agent",
)
EMBEDDED_DOCUMENTS: Final = metric(
    "counter",
    "embedded_documents_total",
    "Texts that were embedded; a chunk is one",
    "deployment",
    where="agent",
)
EMBEDDED_TOKENS: Final = metric(
    "counter", "embedded_tokens_total", "Tokens of these texts", "deployment", where="agent"
)
CACHE_FREE_BYTES: Final = metric(
    "gauge",
    "model_cache_free_bytes",
    "Bytes free on the disk of the model cache",
    unit="bytes",
    where="agent",
)

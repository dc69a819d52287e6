"""The metrics that ``GET /metrics`` of a balancer shows, beside those that both daemons have.

The model store, where there is one, is a process of its own, which reports once a second; its
totals begin anew with it.
"""

from __future__ import annotations

from typing import Final

from paddler_trio.telemetry.metric_kind import (
    DURATION_BUCKETS_S,
    INTER_TOKEN_BUCKETS_S,
    LOAD_BUCKETS_S,
    QUEUE_BUCKETS_S,
    TTFT_BUCKETS_S,
    histogram,
    metric,
)

STORE_UP: Final = metric("gauge", "model_store_up", "1 while the process of the model store serves")
STORE_BYTES: Final = metric(
    "gauge",
    "model_store_bytes",
    "Bytes that count as taken: of files that lie there, and of those on their way in full",
    unit="bytes",
)
STORE_LIMIT_BYTES: Final = metric(
    "gauge", "model_store_limit_bytes", "Bytes that it may take of the disk", unit="bytes"
)
STORE_FILES: Final = metric("gauge", "model_store_files", "Files that lie there, whole or not")
STORE_REQUESTS: Final = metric(
    "counter",
    "model_store_requests_total",
    "Requests for files, by what was there of the file; an agent asks for a file in parts",
    "found",
)
STORE_FETCHED_BYTES: Final = metric(
    "counter",
    "model_store_fetched_bytes_total",
    "Bytes of files that it received from their sources",
    unit="bytes",
)
STORE_PUSHED_BYTES: Final = metric(
    "counter",
    "model_store_pushed_bytes_total",
    "Bytes of files that were pushed to it",
    unit="bytes",
)
STORE_SENT_BYTES: Final = metric(
    "counter",
    "model_store_sent_bytes_total",
    "Bytes of files that it sent to agents and to other clients",
    unit="bytes",
)
STORE_EVICTIONS: Final = metric(
    "counter", "model_store_evictions_total", "Files that went for want of room"
)
STORE_DOWNLOADS_RUNNING: Final = metric(
    "gauge", "model_store_downloads_running", "Files on their way from their sources"
)
STORE_DOWNLOADS: Final = metric(
    "counter",
    "model_store_downloads_total",
    "Downloads from sources that are over, by outcome",
    "outcome",
)


INPUT_BYTES: Final = metric("gauge", "input_bytes", "Bytes held of requests under way")
INPUT_BYTES_LIMIT: Final = metric("gauge", "input_bytes_limit", "Bytes that may be held of them")
INPUT_REFUSALS: Final = metric(
    "gauge", "input_refusals", "Requests and messages refused for want of room"
)
EVENT_LOOP_LAG_MILLISECONDS: Final = metric(
    "gauge",
    "event_loop_lag_milliseconds",
    "The latest the event loop was in the last minute or two",
)
EVENT_LOOP_STALLS: Final = metric("gauge", "event_loop_stalls", "Times it was later than 250 ms")
API_KEY_REQUESTS: Final = metric(
    "counter",
    "api_key_requests_total",
    "Requests let in, by the name of their API key",
    "key",
)
API_KEY_REFUSALS: Final = metric(
    "counter", "api_key_refusals_total", "Requests refused for want of an API key"
)
API_KEY_LIMITED: Final = metric(
    "counter",
    "api_key_limited_total",
    "Requests refused because their API key was at a limit",
    "key",
    "limit",
)

REQUESTS: Final = metric(
    "counter",
    "requests_total",
    "Inference requests that are over for their clients, by route and outcome",
    "route",
    "outcome",
)
REQUEST_DURATION: Final = histogram(
    "request_duration_seconds",
    "From the arrival of a request until it was over for its client",
    "deployment",
    buckets=DURATION_BUCKETS_S,
)
QUEUE_DURATION: Final = histogram(
    "queue_duration_seconds",
    "Stays in the queue, by how they ended",
    "outcome",
    buckets=QUEUE_BUCKETS_S,
)
TIME_TO_FIRST_TOKEN: Final = histogram(
    "time_to_first_token_seconds",
    "From the arrival of a request until its first token left for the client",
    "deployment",
    buckets=TTFT_BUCKETS_S,
)
INTER_TOKEN_LATENCY: Final = histogram(
    "inter_token_latency_seconds",
    "Between two tokens of one answer; several of one step share its time",
    "deployment",
    buckets=INTER_TOKEN_BUCKETS_S,
)
PROMPT_TOKENS: Final = metric(
    "counter",
    "prompt_tokens_total",
    "Tokens of prompts that agents took, cached ones included",
    "deployment",
)
CACHED_PROMPT_TOKENS: Final = metric(
    "counter",
    "cached_prompt_tokens_total",
    "Tokens of prompts that were not computed, since an agent had them",
    "deployment",
)
REUSABLE_PROMPT_TOKENS: Final = metric(
    "counter",
    "reusable_prompt_tokens_total",
    "Tokens of prompts that an agent was believed to have when a slot was given",
)
MISSED_PROMPT_TOKENS: Final = metric(
    "counter",
    "missed_prompt_tokens_total",
    "Reusable tokens that were computed again: their agent was busy or slower, or had forgotten",
    "reason",
)
PLACEMENT_FIRST_TOKEN: Final = histogram(
    "placement_first_token_seconds",
    "From a slot until the first token, as it was predicted and as agents measured it",
    "kind",
    buckets=TTFT_BUCKETS_S,
)
GENERATION_TOKENS: Final = metric(
    "counter",
    "generation_tokens_total",
    "Tokens that were passed on to clients, by class",
    "deployment",
    "class",
)
EMBEDDINGS: Final = metric(
    "counter", "embeddings_total", "Embeddings that were passed on to clients", "deployment"
)
PREEMPTIONS: Final = metric(
    "counter",
    "preemptions_total",
    "Times an engine set an answer aside for others",
)
CONTINUATIONS: Final = metric(
    "counter",
    "continuations_total",
    "Answers that were begun and went on in another slot after a loss",
)
RETRIES: Final = metric(
    "counter",
    "retries_total",
    "Requests that lost their slot and were placed again, by reason",
    "reason",
)

REQUESTS_BUFFERED_LIMIT: Final = metric(
    "gauge", "requests_buffered_limit", "Requests that may wait, of one deployment"
)
QUEUE_OLDEST_SECONDS: Final = metric(
    "gauge",
    "queue_oldest_seconds",
    "How long the request that came first has been waiting",
    "deployment",
    unit="seconds",
)
QUEUE_POSITION_SECONDS_ESTIMATE: Final = metric(
    "gauge",
    "queue_position_seconds_estimate",
    "How long a request that comes now is expected to wait",
    "deployment",
    unit="seconds",
)
DEPLOYMENT_REQUESTS_BUFFERED: Final = metric(
    "gauge",
    "deployment_requests_buffered",
    "Requests and questions that wait, by deployment",
    "deployment",
)
DEPLOYMENT_REQUESTS_RUNNING: Final = metric(
    "gauge", "deployment_requests_running", "Requests in slots, by deployment", "deployment"
)
DEPLOYMENT_AGENTS: Final = metric(
    "gauge",
    "deployment_agents",
    "Agents of a deployment: serving, those that get work, and not_serving",
    "deployment",
    "state",
)
SLOTS_USABLE: Final = metric("gauge", "slots_usable", "Slots that may be given work now")

AGENT_UP: Final = metric(
    "gauge",
    "agent_up",
    "1 while an agent is connected, 0 for an hour after its connection was lost",
    "agent",
)
AGENT_CONNECTIONS: Final = metric(
    "counter", "agent_connections_total", "Times an agent has registered", "agent"
)
AGENT_PHASE: Final = metric(
    "gauge", "agent_phase", "1 for the phase that an agent reports", "agent", "phase"
)
AGENT_ISSUES: Final = metric("gauge", "agent_issues", "Issues that an agent reports", "agent")
AGENT_SLOTS: Final = metric("gauge", "agent_slots", "Slots of an agent, by state", "agent", "state")
FLEET_KV_CACHE_USAGE_RATIO: Final = metric(
    "gauge",
    "fleet_kv_cache_usage_ratio",
    "Share of the KV cells of all engines that running requests hold",
    unit="ratio",
)
KV_CACHE_USAGE_RATIO: Final = metric(
    "gauge",
    "kv_cache_usage_ratio",
    "Share of the KV cells of an engine that running requests hold",
    "agent",
    unit="ratio",
)
KV_BYTES: Final = metric(
    "gauge",
    "kv_bytes",
    "Memory of the model in force, on all devices: weights, KV cache, compute buffers",
    "agent",
    "kind",
    unit="bytes",
)
BATCH_WIDTH: Final = metric(
    "gauge", "batch_width", "Sequences in the newest pass of an engine", "agent"
)
PREFILL_TOKENS_PER_SECOND: Final = metric(
    "gauge",
    "prefill_tokens_per_second",
    "Tokens of prompts an engine computed a second, over the last seconds",
    "agent",
)
DECODE_TOKENS_PER_SECOND: Final = metric(
    "gauge",
    "decode_tokens_per_second",
    "Tokens an engine generated a second, over the last seconds",
    "agent",
)
ENGINE_RESTARTS: Final = metric(
    "counter",
    "engine_restarts_total",
    "Times an engine ended unasked and was started again, since its agent was started",
    "agent",
    "reason",
)
MODEL_LOAD: Final = histogram(
    "model_load_seconds",
    "From the start of an engine until it was proved",
    buckets=LOAD_BUCKETS_S,
)
DOWNLOAD_BYTES: Final = metric(
    "counter",
    "download_bytes_total",
    "Bytes of models that an agent received, as its reports show them",
    "agent",
)
ROLLOUT_PHASE: Final = metric(
    "gauge",
    "rollout_phase",
    "1 for what an agent is doing for a rollout under way",
    "agent",
    "phase",
)
ROLLOUT_STATE: Final = metric(
    "gauge",
    "rollout_state",
    "1 for the phase of a deployment's newest rollout",
    "deployment",
    "phase",
)
ROLLOUT_STALLED_SECONDS: Final = metric(
    "gauge",
    "rollout_stalled_seconds",
    "Since when no agent has advanced in a rollout under way",
    "deployment",
    unit="seconds",
)
TLS_CERTIFICATE_EXPIRY_SECONDS: Final = metric(
    "gauge",
    "tls_certificate_expiry_seconds",
    "Until the certificate of the ports expires, negative once it has; of ports with TLS",
    unit="seconds",
)

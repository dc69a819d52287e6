"""All metrics of an agent, in their order, each read at the moment at which it is rendered.

What the engines count begins anew with each engine, as counters may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeAlias

import attrs
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.telemetry.agent_metrics import (
    AGENT_LINK_CONNECTIONS,
    AGENT_LINK_UP,
    AGENTS_BATCH_WIDTH,
    AGENTS_DECODE_TOKENS_PER_SECOND,
    AGENTS_DOWNLOAD_BYTES,
    AGENTS_ENGINE_RESTARTS,
    AGENTS_ISSUES,
    AGENTS_KV_BYTES,
    AGENTS_KV_CACHE_USAGE_RATIO,
    AGENTS_MODEL_LOAD,
    AGENTS_PHASE,
    AGENTS_PREEMPTIONS,
    AGENTS_PREFILL_TOKENS_PER_SECOND,
    AGENTS_SLOTS,
    CACHE_FREE_BYTES,
    EMBEDDED_DOCUMENTS,
    EMBEDDED_TOKENS,
    ENGINE_ACCEPTED_TOKENS,
    ENGINE_BUSY_SECONDS,
    ENGINE_CACHED_TOKENS,
    ENGINE_DRAFTED_TOKENS,
    ENGINE_GENERATED_TOKENS,
    ENGINE_PASSES,
    ENGINE_PROMPT_TOKENS,
    ENGINE_SAMPLING_SECONDS,
    ENGINE_THREADS,
    KV_CELLS,
    PREFIX_STORE_BYTES,
    PREFIX_STORE_HIT_TOKENS,
    PREFIX_STORE_HITS,
    PREFIX_STORE_TOKENS,
)
from paddler_trio.telemetry.engine_rates import EngineRates
from paddler_trio.telemetry.label_values import KV_KINDS, RESTART_REASONS
from paddler_trio.telemetry.metric_kind import MetricDefinition
from paddler_trio.telemetry.recording import Family, Histogram, distributed, family, single
from paddler_trio.telemetry.shared_metrics import (
    LOOP_LAG_SECONDS,
    REQUESTS_BUFFERED,
    SLOTS_PROCESSING,
    SLOTS_TOTAL,
    build_info,
)
from paddler_trio.wire.engine.engine_pipe import EngineStats

SAMPLE_S: Final = 1.0


class Link(Protocol):
    """The link to the balancer, as metrics show it."""

    is_up: bool
    num_connections: int


Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


@attrs.define(eq=False)
class _Instance:
    """The measurements of one deployment."""

    status: AgentStatus
    link: Link
    rates: EngineRates = attrs.field(factory=EngineRates)
    load_s: float | None = None

    @property
    def stats(self) -> EngineStats:
        return self.status.stats or _NOTHING

    def sample(self, now_s: float, loads: Histogram) -> None:
        """Look at what is seen only in passing."""
        self.rates.sample(now_s, None if self.status.stats is None else attrs.asdict(self.stats))
        load_s = self.status.load_s
        if load_s is not None and load_s != self.load_s:
            loads.of().add(load_s)
        self.load_s = load_s


_NOTHING: Final = EngineStats()


@attrs.define(eq=False, repr=False)
class InstanceMeasures:
    """See the module docstring.

    Args:
      deployments: those that the agent serves, or is to serve; None for all that were added.
      free_bytes: on the disk of the model cache, as it was last asked; None if that is unknown.
    """

    lag: LoopLag
    free_bytes: Callable[[], int | None] = lambda: None
    deployments: Callable[[], Iterable[str]] | None = None
    _instances: dict[str, _Instance] = attrs.field(factory=dict, init=False)
    """The instances by deployment, the first link's first."""
    _lags: Histogram = attrs.field(factory=lambda: Histogram(LOOP_LAG_SECONDS), init=False)
    _loads: Histogram = attrs.field(factory=lambda: Histogram(AGENTS_MODEL_LOAD), init=False)

    def __attrs_post_init__(self) -> None:
        self.lag.on_late = self._lags.of().add

    def __repr__(self) -> str:
        return f"<InstanceMeasures of {', '.join(self._instances)}>"

    def add(self, deployment: str, status: AgentStatus, link: Link) -> None:
        """Add the instance of a deployment that is shown from now on."""
        self._instances[deployment] = _Instance(status, link)

    async def run(self) -> None:
        """Sample what is seen only in passing, until cancelled."""
        while True:
            now_s = trio.current_time()
            for each in self._instances.values():
                each.sample(now_s, self._loads)
            await trio.sleep(SAMPLE_S)

    def collect(self) -> Iterator[Family]:
        """Yield the families of ``telemetry/agent_metrics.py``."""
        self._forget()
        statuses = [each.status for each in self._instances.values()]
        yield single(SLOTS_PROCESSING, sum(each.requests_running for each in statuses))
        yield single(SLOTS_TOTAL, sum(each.slots_total for each in statuses))
        yield single(
            REQUESTS_BUFFERED, sum(each.stats.waiting for each in self._instances.values())
        )
        yield distributed(self._lags)
        yield build_info("agent")
        yield self._of(AGENT_LINK_UP, lambda each: [((), each.link.is_up)])
        yield self._of(AGENT_LINK_CONNECTIONS, lambda each: [((), each.link.num_connections)])
        yield self._of(AGENTS_PHASE, lambda each: [((each.status.phase,), 1)])
        yield self._of(AGENTS_ISSUES, lambda each: [((), len(each.status.issues))])
        yield self._of(AGENTS_SLOTS, _slots)
        yield self._of(AGENTS_KV_CACHE_USAGE_RATIO, _kv_ratio)
        yield self._of(KV_CELLS, _kv_cells)
        yield self._of(AGENTS_KV_BYTES, _kv_bytes)
        yield self._stat(AGENTS_BATCH_WIDTH, lambda stats: stats.last_sequences)
        yield self._rate(AGENTS_PREFILL_TOKENS_PER_SECOND, "prompt_tokens_per_s")
        yield self._rate(AGENTS_DECODE_TOKENS_PER_SECOND, "generated_tokens_per_s")
        yield self._stat(PREFIX_STORE_TOKENS, lambda stats: stats.stored_tokens)
        yield self._stat(PREFIX_STORE_BYTES, lambda stats: stats.stored_bytes)
        yield self._stat(PREFIX_STORE_HITS, lambda stats: stats.restores)
        yield self._stat(PREFIX_STORE_HIT_TOKENS, lambda stats: stats.restored_tokens)
        yield self._stat(ENGINE_PROMPT_TOKENS, lambda stats: stats.prompt_tokens)
        yield self._stat(ENGINE_CACHED_TOKENS, lambda stats: stats.cached_tokens)
        yield self._stat(ENGINE_GENERATED_TOKENS, lambda stats: stats.drawn_tokens)
        yield self._stat(ENGINE_DRAFTED_TOKENS, lambda stats: stats.drafted_tokens)
        yield self._stat(ENGINE_ACCEPTED_TOKENS, lambda stats: stats.accepted_tokens)
        yield self._stat(ENGINE_THREADS, lambda stats: stats.threads)
        yield self._stat(ENGINE_PASSES, lambda stats: stats.passes)
        yield self._stat(ENGINE_BUSY_SECONDS, lambda stats: stats.busy_ms / 1000)
        yield self._stat(ENGINE_SAMPLING_SECONDS, lambda stats: stats.draw_ms / 1000)
        yield self._stat(EMBEDDED_DOCUMENTS, lambda stats: stats.embedding_documents)
        yield self._stat(EMBEDDED_TOKENS, lambda stats: stats.embedding_tokens)
        yield self._stat(AGENTS_PREEMPTIONS, lambda stats: stats.preemptions)
        yield self._of(AGENTS_ENGINE_RESTARTS, _restarts)
        yield distributed(self._loads)
        yield self._of(AGENTS_DOWNLOAD_BYTES, lambda each: [((), each.status.downloaded_bytes)])
        free_bytes = self.free_bytes()
        if free_bytes is not None:
            yield single(CACHE_FREE_BYTES, free_bytes)

    def _forget(self) -> None:
        """Forget instances that are not served any more."""
        if self.deployments is not None:
            served = set(self.deployments())
            for name in [each for each in self._instances if each not in served]:
                del self._instances[name]

    def _of(self, definition: MetricDefinition, read: Callable[[_Instance], Values]) -> Family:
        values = {
            (name, *labels): value
            for name, each in self._instances.items()
            for labels, value in read(each)
        }
        return family(definition, values)

    def _stat(self, definition: MetricDefinition, read: Callable[[EngineStats], float]) -> Family:
        return self._of(definition, lambda each: [((), read(each.stats))])

    def _rate(self, definition: MetricDefinition, name: str) -> Family:
        def read(each: _Instance) -> Values:
            rate = (each.rates.view() or {}).get(name)
            return [] if rate is None else [((), rate)]

        return self._of(definition, read)


def _slots(each: _Instance) -> Values:
    status = each.status
    processing = status.requests_running
    idle = max(0, status.slots_total - processing)
    yield ("processing",), processing
    yield ("idle",), idle
    yield ("unusable",), max(0, status.slots - processing - idle)


def _kv_ratio(each: _Instance) -> Values:
    if total := each.stats.cells_total:
        yield (), max(0, each.stats.cells_used - each.stats.cells_resident) / total


def _kv_cells(each: _Instance) -> Values:
    stats = each.stats
    yield ("used",), max(0, stats.cells_used - stats.cells_resident)
    yield ("resident",), stats.cells_resident
    yield ("free",), max(0, stats.cells_total - stats.cells_used)


def _kv_bytes(each: _Instance) -> Values:
    memory = each.status.memory
    if memory is not None:
        for kind in KV_KINDS:
            known = [getattr(device, kind) for device in memory.devices]
            if any(size is not None for size in known):
                yield (kind,), sum(size or 0 for size in known)


def _restarts(each: _Instance) -> Values:
    for reason in RESTART_REASONS[:-1]:
        yield (reason,), each.status.restart_kinds[reason]

"""Measure what agents report, for ``/metrics``.

Agents go by their names in labels; one that has none, or the name of another that is here, goes by
its id. Figures of an agent are there while it is; what counts is kept for an hour after it has
left, as is the fact that its connection was lost, and then forgotten. Beyond a thousand agents
their figures are added up as ``other``, and of ratios the largest is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.telemetry.balancer_metrics import (
    AGENT_CONNECTIONS,
    AGENT_ISSUES,
    AGENT_PHASE,
    AGENT_SLOTS,
    AGENT_UP,
    BATCH_WIDTH,
    DECODE_TOKENS_PER_SECOND,
    DOWNLOAD_BYTES,
    ENGINE_RESTARTS,
    FLEET_KV_CACHE_USAGE_RATIO,
    KV_BYTES,
    KV_CACHE_USAGE_RATIO,
    MODEL_LOAD,
    PREFILL_TOKENS_PER_SECOND,
)
from paddler_trio.telemetry.engine_rates import EngineRates
from paddler_trio.telemetry.label_values import AGENT_PHASES, KV_KINDS, RESTART_REASONS
from paddler_trio.telemetry.metric_kind import OTHER, MetricDefinition
from paddler_trio.telemetry.recording import (
    BoundedValues,
    Family,
    Histogram,
    distributed,
    family,
    single,
)
from paddler_trio.wire.trio.trio_link import RESTARTS
from paddler_trio.wire.visible_text import visible

REMEMBERED_S: Final = 3600.0
MAX_LABEL_CHARS: Final = 256

Values: TypeAlias = Iterator[tuple[tuple[str, ...], float]]


@attrs.define(eq=False)
class _Kept:
    """Keep what a label counted, as long as it is remembered."""

    connections: int = 0
    num_here: int = 0
    """Agents that go by it; two if the name of one is the id of another."""
    download_bytes: int = 0
    holder: AgentKey | None = None
    """The connection that goes by it now."""
    agent_id: str = ""
    was_lost: bool = False


@attrs.define(eq=False)
class _Here:
    """An agent that is connected."""

    label: str
    rates: EngineRates = attrs.field(factory=EngineRates)
    load_s: float | None = None
    has_reported: bool = False
    download: tuple[str | None, int] = (None, 0)


@attrs.define(eq=False, repr=False)
class AgentMeasures:
    """See the module docstring.

    Args:
      agents: returns those that are connected.
    """

    agents: Callable[[], Mapping[AgentKey, AgentConnection]]
    loads: Histogram = attrs.field(factory=lambda: Histogram(MODEL_LOAD), init=False)
    _here: dict[AgentKey, _Here] = attrs.field(factory=dict, init=False)
    _kept: dict[str, _Kept] = attrs.field(factory=dict, init=False)
    _left_s: dict[str, float] = attrs.field(factory=dict, init=False)
    """When those left whose labels nobody goes by now, the first one first."""
    _labels: BoundedValues = attrs.field(
        factory=lambda: BoundedValues(AGENT_UP.max_label_values), init=False
    )

    def __repr__(self) -> str:
        return f"<AgentMeasures of {len(self._here)} agents, {len(self._kept)} remembered>"

    # ------------------------------------------------------------ observing

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        """It joined, or may report something else, or has left."""
        now_s = trio.current_time()
        if is_here:
            self._note(agent, now_s)
        else:
            self._left(agent, now_s)

    def _note(self, agent: AgentConnection, now_s: float) -> None:
        here = self._here.get(agent.key)
        if here is None:
            here = self._here[agent.key] = self._joined(agent, now_s)
        kept = self._kept[here.label]
        report, status = agent.report, agent.status
        if report is not None:
            here.rates.sample(now_s, report.engine)
            load_s = report.load_s
            if here.has_reported and load_s is not None and load_s != here.load_s:
                self.loads.of().add(load_s)
            here.load_s, here.has_reported = load_s, True
        name, before = here.download
        current = status.download_current
        if status.download_filename is not None and status.download_filename == name:
            kept.download_bytes += max(0, current - before)
        here.download = (status.download_filename, current)

    def _joined(self, agent: AgentConnection, now_s: float) -> _Here:
        self._forget(now_s)
        label = self._labels.bounded(self._free_label(agent))
        kept = self._kept.setdefault(label, _Kept())
        kept.connections += 1
        kept.num_here += 1
        kept.holder, kept.agent_id = agent.key, agent.id
        kept.was_lost = False
        self._left_s.pop(label, None)
        return _Here(label)

    def _free_label(self, agent: AgentConnection) -> str:
        """Return its name, unless another agent that is here has it."""
        name = writable(agent.label)
        kept = self._kept.get(name)
        is_taken = kept is not None and kept.holder is not None and kept.agent_id != agent.id
        return writable(agent.id) if is_taken else name

    def _left(self, agent: AgentConnection, now_s: float) -> None:
        here = self._here.pop(agent.key, None)
        if here is None:
            return
        kept = self._kept[here.label]
        kept.num_here -= 1
        if kept.holder == agent.key:  # else it is back already, on another connection
            kept.holder = None
        if kept.num_here == 0 and here.label != OTHER:
            self._left_s[here.label] = now_s
            kept.was_lost = not agent.said_goodbye

    def _forget(self, now_s: float) -> None:
        while self._left_s:
            name, left_s = next(iter(self._left_s.items()))
            if now_s - left_s <= REMEMBERED_S:
                break
            del self._left_s[name], self._kept[name]
            self._labels.forget(name)

    # -------------------------------------------------------------- reading

    def families(self) -> Iterator[Family]:
        """Return the families, each as it is when it is asked
        for."""
        now_s = trio.current_time()
        self._forget(now_s)
        for key, here in self._here.items():  # of an idle engine there is no news
            agent = self.agents().get(key)
            if agent is not None and agent.report is not None:
                here.rates.sample(now_s, agent.report.engine)
        yield family(AGENT_UP, self._up())
        yield self._kept_counts(AGENT_CONNECTIONS, lambda each: each.connections)
        yield self._shown(AGENT_PHASE, _phase)
        yield self._shown(AGENT_ISSUES, lambda agent: [((), len(agent.status.issues))])
        yield self._shown(AGENT_SLOTS, _slots)
        yield from self._fleet_kv()
        yield self._shown(KV_CACHE_USAGE_RATIO, _kv_ratio, join=max)
        yield self._shown(KV_BYTES, _kv_bytes)
        yield self._shown(BATCH_WIDTH, _batch_width)
        yield self._rates(PREFILL_TOKENS_PER_SECOND, "prompt_tokens_per_s")
        yield self._rates(DECODE_TOKENS_PER_SECOND, "generated_tokens_per_s")
        yield self._shown(ENGINE_RESTARTS, _restarts)
        yield distributed(self.loads)
        yield self._kept_counts(DOWNLOAD_BYTES, lambda each: each.download_bytes)

    def _up(self) -> dict[tuple[str, ...], float]:
        values: dict[tuple[str, ...], float] = {
            (name,): 0 for name, each in self._kept.items() if each.was_lost
        }
        for agent_here in self._here.values():
            label = (agent_here.label,)
            values[label] = values.get(label, 0) + 1 if agent_here.label == OTHER else 1
        return values

    def _kept_counts(self, definition: MetricDefinition, count: Callable[[_Kept], int]) -> Family:
        return family(definition, {(name,): count(each) for name, each in self._kept.items()})

    def _labelled(self) -> Iterator[tuple[str, AgentConnection, _Here]]:
        """Return one connection for each label, but for ``other``."""
        for key, here in self._here.items():
            agent = self.agents().get(key)
            if agent is not None and (here.label == OTHER or self._kept[here.label].holder == key):
                yield here.label, agent, here

    def _shown(
        self,
        definition: MetricDefinition,
        read: Callable[[AgentConnection], Iterable[tuple[tuple[str, ...], float]]],
        join: Callable[[float, float], float] = lambda one, other: one + other,
    ) -> Family:
        values: dict[tuple[str, ...], float] = {}
        for label, agent, _ in self._labelled():
            for labels, value in read(agent):
                key = (label, *labels)
                values[key] = join(values[key], value) if key in values else value
        return family(definition, values)

    def _rates(self, definition: MetricDefinition, name: str) -> Family:
        values: dict[tuple[str, ...], float] = {}
        for label, _, here in self._labelled():
            view = here.rates.view()
            rate = None if view is None else view[name]
            if rate is not None:
                values[(label,)] = values.get((label,), 0) + rate
        return family(definition, values)

    def _fleet_kv(self) -> Iterator[Family]:
        cells = [_cells(agent) for agent in self.agents().values()]
        total = sum(each[1] for each in cells)
        used = sum(each[0] for each in cells)
        yield single(FLEET_KV_CACHE_USAGE_RATIO, used / total if total else 0.0)


def writable(name: str) -> str:
    """Return ``name`` as a label: not too long, and without what cannot be seen, or, as halves of
    surrogate pairs, not be written in UTF-8."""
    return visible(name[:MAX_LABEL_CHARS])


def _phase(agent: AgentConnection) -> Values:
    """A Paddler agent reports none."""
    if agent.report is not None:
        phase = agent.report.phase
        yield (phase if phase in AGENT_PHASES else OTHER,), 1


def _slots(agent: AgentConnection) -> Values:
    processing = agent.slots_processing
    idle = max(0, agent.usable_slots - processing) if agent.is_accepting else 0
    configured = max(agent.status.desired_slots_total, agent.status.slots_total)
    yield ("processing",), processing
    yield ("idle",), idle
    yield ("unusable",), max(0, configured - processing - idle)


def _stat(agent: AgentConnection, name: str) -> float:
    """Return a number that its engine counted; 0 for none, and for what is no count."""
    engine = None if agent.report is None else agent.report.engine
    value = None if engine is None else engine.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0.0


def _cells(agent: AgentConnection) -> tuple[float, float]:
    """Return those that running requests hold, and all; resident prefixes give way to others."""
    total = _stat(agent, "cells_total")
    held = _stat(agent, "cells_used") - _stat(agent, "cells_resident")
    return min(total, max(0.0, held)), total


def _kv_ratio(agent: AgentConnection) -> Values:
    used, total = _cells(agent)
    if total:
        yield (), used / total


def _kv_bytes(agent: AgentConnection) -> Values:
    memory = None if agent.report is None else agent.report.memory
    if memory is not None:
        for kind in KV_KINDS:
            known = [getattr(device, kind) for device in memory.devices]
            if any(each is not None for each in known):
                yield (kind,), sum(each or 0 for each in known)


def _batch_width(agent: AgentConnection) -> Values:
    if agent.report is not None and agent.report.engine is not None:
        yield (), _stat(agent, "last_sequences")


def _restarts(agent: AgentConnection) -> Values:
    """Return the restarts as the agent counts them since its own start."""
    if agent.report is None:
        return
    named = 0.0
    for reason in RESTART_REASONS[:-1]:
        number = _stat(agent, f"{RESTARTS}_{reason}")
        named += number
        yield (reason,), number
    yield (RESTART_REASONS[-1],), max(0.0, agent.engine_restarts - named)

"""The feed's topic ``agents``: each connection as ``/api/v2/agents`` has it, and what it does now.

An agent is rendered again when something about it is another object or number than before; reports
and statuses are replaced whole, so that is enough. Its lanes are rendered apart, by request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import attrs

from paddler_trio.balancer.activity.feed_document import Change
from paddler_trio.balancer.activity.feed_topic import shown
from paddler_trio.balancer.activity.moments import ms
from paddler_trio.balancer.agents.agent_snapshot import snapshot_v2
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.telemetry.engine_rates import EngineRates


class Lanes(Protocol):
    """The requests that each agent works on."""

    def open(self) -> None: ...

    def refresh(self) -> Iterator[None]:
        """Look what has changed, in pieces."""
        ...

    def text(self, agent: AgentKey) -> bytes:
        """``[[request, phase, since_ms], ...]``; the same object if nothing changed."""
        ...

    def close(self) -> None: ...


@attrs.define(eq=False)
class _Shown:
    looks: tuple[object, ...]
    snapshot: bytes
    """An object without its last brace."""
    rates: EngineRates = attrs.field(factory=EngineRates, init=False)


@attrs.define(eq=False)
class AgentsTopic:
    """A :class:`~paddler_trio.balancer.activity.feed_topic.Topic`."""

    dispatcher: Dispatcher
    lanes: Lanes
    revision_of: Callable[[str, str], int | None] = lambda deployment, digest: None
    """The revision that brought what an agent of a deployment serves."""
    name: str = attrs.field(default="agents", init=False)
    _shown: dict[AgentKey, _Shown] = attrs.field(factory=dict, init=False)

    def open(self) -> None:
        self._shown = {}
        self.lanes.open()

    def look(self, now_s: float) -> Iterator[Change | None]:
        yield from self.lanes.refresh()
        for key, agent in list(self.dispatcher.agents.items()):
            if key in self.dispatcher.agents:
                yield str(key), self._text(agent, now_s)
        for key in [key for key in self._shown if key not in self.dispatcher.agents]:
            del self._shown[key]
            yield str(key), None

    def close(self) -> None:
        self._shown = {}
        self.lanes.close()

    def _text(self, agent: AgentConnection, now_s: float) -> bytes:
        slots = self.dispatcher.slots_processing(agent.key)
        looks = (
            agent.status,
            agent.report,
            agent.upstream,
            agent.is_accepting,
            agent.is_drained,
            agent.usable_slots,
            slots,
        )
        known = self._shown.get(agent.key)
        if known is None or not _same(known.looks, looks):
            snapshot = shown(snapshot_v2(agent, slots))[:-1]
            if known is None:
                known = self._shown[agent.key] = _Shown(looks, snapshot)
            known.looks, known.snapshot = looks, snapshot
        known.rates.sample(now_s, None if agent.report is None else agent.report.engine)
        more = shown(self._more(agent, known.rates.view(), now_s))
        lanes = self.lanes.text(agent.key)
        return b'%b,%b,"lanes":%b}' % (known.snapshot, more[1:-1], lanes)

    def _more(
        self, agent: AgentConnection, rates: Mapping[str, object] | None, now_s: float
    ) -> Mapping[str, object]:
        ejected_until_s = agent.health.ejected_until_s(agent.label, now_s)
        return {
            "key": agent.key,
            "label": agent.label,
            "joined_ms": ms(agent.joined_s),
            "revision": None
            if agent.upstream is not None or agent.revision is None
            else self.revision_of(agent.deployment, agent.revision),
            "rates": rates,
            "ejected_until_ms": None if ejected_until_s is None else ms(ejected_until_s),
            "engine_restarts": agent.engine_restarts,
        }


def _same(looks: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Return whether these are the same objects and numbers; not only equal ones, which would have
    to be compared."""
    return all(
        one is other or (isinstance(one, int) and one == other)
        for one, other in zip(looks, others, strict=True)
    )

"""The requests that each agent works on, as short JSON texts; rendered again when one changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.moments import ms
from paddler_trio.balancer.activity.request_activity import RequestActivity, Touched
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.scheduler.dispatch.placement import AgentKey

RECORDS_OF_A_PIECE: Final = 100


@attrs.define
class _Agent:
    requests: dict[int, bytes] = attrs.field(factory=dict)
    """``[request, phase, since_ms]`` of each."""
    text: bytes | None = None
    """Of all of them; None if that is to be made."""


@attrs.define(eq=False)
class RequestLanes:
    """The :class:`~paddler_trio.balancer.activity.agents_topic.Lanes` of the requests in flight.

    A phase is ``p`` (no result yet), ``d`` (results come) or ``s`` (over for the client: the agent
    has not confirmed it).
    """

    activity: RequestActivity
    _agents: dict[AgentKey, _Agent] = attrs.field(factory=dict, init=False)
    _places: dict[int, AgentKey] = attrs.field(factory=dict, init=False)
    """Of each request that is on an agent."""
    _subscription: ExitStack = attrs.field(factory=ExitStack, init=False)
    _touched: Touched = attrs.field(factory=Touched, init=False)

    def open(self) -> None:
        self.close()
        self._touched = self._subscription.enter_context(self.activity.subscribe())
        for record in self.activity.in_flight.values():
            self._touched.add(record)

    def refresh(self) -> Iterator[None]:
        for number, record in enumerate(self._touched.take()):
            if number % RECORDS_OF_A_PIECE == 0:
                yield None
            self._update(record)

    def text(self, agent: AgentKey) -> bytes:
        known = self._agents.get(agent)
        if known is None:
            return b"[]"
        if known.text is None:
            known.text = b"[" + b",".join(known.requests.values()) + b"]"
        return known.text

    def close(self) -> None:
        self._subscription.close()
        self._agents, self._places = {}, {}
        self._touched = Touched()

    def _update(self, record: RequestRecord) -> None:
        placement = record.placements[-1] if record.placements else None
        here = (
            None
            if placement is None or placement.ended_s is not None
            else AgentKey(placement.agent_key)
        )
        before = self._places.get(record.key)
        if before is not None and before != here:
            self._leave(record.key, before)
        if here is None or placement is None:
            return
        if record.phase == "stopping":
            phase, since_s = "s", trio.current_time()
        elif placement.first_s is not None:
            phase, since_s = "d", placement.first_s
        else:
            phase, since_s = "p", placement.at_s
        agent = self._agents.get(here)
        if agent is None:
            agent = self._agents[here] = _Agent()
        self._places[record.key] = here
        agent.requests[record.key] = b'[%d,"%b",%d]' % (record.key, phase.encode(), ms(since_s))
        agent.text = None

    def _leave(self, key: int, place: AgentKey) -> None:
        del self._places[key]
        agent = self._agents[place]
        del agent.requests[key]
        agent.text = None
        if not agent.requests:
            del self._agents[place]

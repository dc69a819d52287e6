"""The instances of every host, as the balancer sees them: one connection each, and its history.

A host is an agent's process. Its first connection serves ``default``; each other deployment that is
placed there has a connection of its own, on which it gets its state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import trio

from paddler_trio.balancer.fleet.host_knowledge import HostId
from paddler_trio.balancer.fleet.placed_instance import NOTHING, PlacedInstance, State
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.synchronization import ChangedItems
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
    Instances,
    InstanceWanted,
    render_extension,
)

FORGET_S: Final = 10.0
"""How long a host that lost its connections keeps its place: a link is up again within seconds, and
a model is loaded elsewhere in many."""


@attrs.define(eq=False)
class PlacedHost:
    """A host and its instances; it stays known for a moment when its connections are lost."""

    id: HostId
    dispatcher: Dispatcher
    number: int
    """In the order in which hosts became known."""
    first: AgentConnection | None = None
    instances: dict[str, PlacedInstance] = attrs.field(factory=dict)
    lost_s: float | None = attrs.field(default=None, init=False)
    """Since when it has no connection."""
    left: bool = attrs.field(default=False, init=False)
    """Its agent said goodbye."""
    _label: str = attrs.field(default="", init=False)
    """Of its newest first connection, also after its end."""
    _sent: tuple[InstanceWanted, ...] | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<PlacedHost {self.id}: {', '.join(self.instances) or 'empty'}>"

    @property
    def label(self) -> str:
        """Return its name in logs."""
        return self._label or self.id

    @property
    def labels(self) -> Mapping[str, str]:
        """Return its labels, as its agent was started with."""
        return next((agent.labels for agent in self.connections), {})

    @property
    def connections(self) -> list[AgentConnection]:
        """Return all that are up, the first one first."""
        others = (placed.agent for placed in self.instances.values())
        both = [self.first, *(agent for agent in others if agent is not self.first)]
        return [agent for agent in both if agent is not None]

    @property
    def back_until_s(self) -> float | None:
        """Return until when it may be back whose connections are lost; None while one is up."""
        return None if self.connections or self.lost_s is None else self.lost_s + FORGET_S

    @property
    def held(self) -> dict[str, Mapping[str, int]]:
        """Return what each instance takes, in bytes by device: as allocated where that is known,
        else as predicted."""
        held: dict[str, Mapping[str, int]] = {}
        for name, placed in self.instances.items():
            report = None if placed.agent is None else placed.agent.report
            if report is not None and report.memory is not None:
                held[name] = {
                    each.device: (each.predicted if each.actual is None else each.actual) or 0
                    for each in report.memory.devices
                }
        return held

    def place(self, deployment: str) -> PlacedInstance:
        """Return the instance of this deployment, new if it has none."""
        placed = self.instances.get(deployment)
        if placed is None:
            placed = self.instances[deployment] = PlacedInstance(
                self.id, deployment, self.dispatcher
            )
        return placed

    def assign(self, deployment: str, state: State) -> None:
        """Serve this; a deployment that is new here gets an instance."""
        self.place(deployment).assign(state)
        self.send_instances()

    def unload(self, deployment: str, nothing: State = NOTHING) -> None:
        """Run no instance of this deployment any more; see :meth:`PlacedInstance.unload`."""
        placed = self.instances[deployment]
        placed.unload(nothing)
        if placed.agent is None and deployment != DEFAULT_DEPLOYMENT:
            del self.instances[deployment]  # no connection whose end would tell that it is gone
        self.send_instances()

    def send_instances(self) -> None:
        """Send the list of what it shall run beside its first connection, if that changed."""
        if self.first is None or not self.first.kind.runs_instances:
            return
        wanted = tuple(
            InstanceWanted(
                deployment=name, slots=None if placed.state is None else placed.state.slots
            )
            for name, placed in sorted(self.instances.items())
            if name != DEFAULT_DEPLOYMENT and not placed.is_unloading
        )
        if wanted != self._sent:
            self._sent = wanted
            self.first.send(render_extension(Instances(instances=wanted)))

    def first_connected(self, agent: AgentConnection) -> None:
        """Note that its first connection is up (again). What it runs already stays, whoever asked
        for it."""
        self.first, self._label, self._sent = agent, agent.label, None
        for deployment in agent.instances:
            self.place(deployment)
        if not agent.instances:
            self._sent = ()  # that is what it runs
        self.send_instances()


@attrs.define(eq=False)
class PlacedHosts:
    """All hosts, by their ids; :meth:`follow` brings them up to date.

    ``unsettled``: those that a look has to see to; see ``scheduler/fleet/settled_hosts.py``. The
    caller that settles a host decides what that means; a change of one of its connections unsettles
    it again.
    """

    dispatcher: Dispatcher
    known: dict[HostId, PlacedHost] = attrs.field(factory=dict, init=False)
    unsettled: dict[HostId, PlacedHost] = attrs.field(factory=dict, init=False)
    _lost: dict[HostId, PlacedHost] = attrs.field(factory=dict, init=False)
    """Those without a connection."""
    _changed: ChangedItems[AgentConnection] = attrs.field(init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def __attrs_post_init__(self) -> None:
        self._changed = self.dispatcher.agents.changed()

    def follow(self) -> list[HostId]:
        """Note which connections came, changed and went; costs what that is.

        Returns:
          The hosts that have been gone for so long that they are forgotten.
        """
        now_s = trio.current_time()
        changed = [agent for agent in self._changed.take() if not agent.kind.forwards]
        came: list[AgentConnection] = []
        for agent in changed:
            if self.dispatcher.agents.get(agent.key) is agent:
                came.append(agent)
            else:
                self._went(agent)
        for agent in came:
            self._is_here(agent)
        for agent in changed:
            host = self.known.get(agent.host)
            if host is not None and not host.connections:
                host.lost_s = now_s if host.lost_s is None else host.lost_s
                self._lost[host.id] = host
        gone = []
        for host in list(self._lost.values()):
            assert host.lost_s is not None, f"{host} is not lost"
            if host.left or now_s >= host.lost_s + FORGET_S:
                del self.known[host.id], self._lost[host.id]
                self.unsettled.pop(host.id, None)
                gone.append(host.id)
        return gone

    def _went(self, agent: AgentConnection) -> None:
        host = self.known.get(agent.host)
        if host is None:
            return
        self.unsettled[host.id] = host
        if host.first is agent:
            host.left |= agent.said_goodbye
            host.first = None
        placed = host.instances.get(agent.deployment)
        if placed is not None and placed.agent is agent:
            placed.agent = None
            if placed.is_unloading and placed.deployment != DEFAULT_DEPLOYMENT:
                del host.instances[placed.deployment]

    def _is_here(self, agent: AgentConnection) -> None:
        host = self.known.get(agent.host)
        if host is None:
            host = PlacedHost(agent.host, self.dispatcher, next(self._numbers))
            self.known[agent.host] = host
        self.unsettled[host.id] = host
        host.lost_s = None
        self._lost.pop(host.id, None)
        if agent.deployment == DEFAULT_DEPLOYMENT and host.first is not agent:
            host.first_connected(agent)
        placed = host.place(agent.deployment)
        if placed.agent is not agent:
            placed.connected(agent)

    def unsettle(self, host: HostId) -> None:
        """A look has to see to it."""
        if host in self.known:
            self.unsettled[host] = self.known[host]

    def unsettle_all(self) -> None:
        """Note that what hosts are to serve may be something else."""
        self.unsettled = dict(self.known)

    def in_order(self) -> list[PlacedHost]:
        """Return those that are not settled, in the order in which they became known."""
        return sorted(self.unsettled.values(), key=lambda host: host.number)

    def forgets_at_s(self) -> float | None:
        """Return when the next host is forgotten."""
        lost = [host.lost_s for host in self._lost.values() if host.lost_s is not None]
        return min(lost) + FORGET_S if lost else None

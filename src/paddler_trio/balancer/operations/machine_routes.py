"""The machines of agents, on the management port.

GET  /api/v2/machines                      {"machines": [...]}, by the names of their agents
GET  /api/v2/agents/{agent}/machine        one of them

A machine has the id of its ``host``, the ``name`` of its agent, ``agents`` with what each
connection serves, ``devices`` as llama.cpp calls them with the memory that models may take, and
``facts`` (a ``MachineFacts``) that are ``age_s`` old; both are null where an agent, Paddler's or an
older one, says nothing. Facts are the agent's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import trio

from paddler_trio.balancer.agents.agent_machines import AgentMachines, KnownMachine
from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.trio.operations.machine_facts import MachineFacts


@attrs.frozen(kw_only=True)
class AgentThere:
    """One connection of an agent; ``phase``: None where it does not report any."""

    id: str
    deployment: str
    phase: str | None


@attrs.frozen(kw_only=True)
class DeviceThere:
    """A device as llama.cpp calls it, and the memory that all models together may take of it."""

    device: str
    most_bytes: int


@attrs.frozen(kw_only=True)
class MachineView:
    """One machine, as operators are shown it; see the module docstring."""

    host: str
    name: str
    agents: tuple[AgentThere, ...]
    devices: tuple[DeviceThere, ...]
    age_s: float | None
    facts: MachineFacts | None


@attrs.frozen(eq=False)
class MachineRoutes:
    """``find``: an agent by id or name; HttpProblem 404 if there is none."""

    dispatcher: Dispatcher
    machines: AgentMachines
    find: Callable[[str], AgentConnection]

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/machines", self._all)
        routes.http("GET", "/api/v2/agents/{agent_id}/machine", self._one)

    async def _all(self, exchange: Exchange, params: Params) -> None:
        by_host: dict[str, list[AgentConnection]] = {}
        for agent in self.dispatcher.agents.values():
            by_host.setdefault(agent.host, []).append(agent)
        views = sorted((self._view(each) for each in by_host.values()), key=lambda each: each.name)
        await send_json(exchange.send, 200, {"machines": [attrs.asdict(each) for each in views]})

    async def _one(self, exchange: Exchange, params: Params) -> None:
        host = self.find(params["agent_id"]).host
        agents = [each for each in self.dispatcher.agents.values() if each.host == host]
        await send_json(exchange.send, 200, attrs.asdict(self._view(agents)))

    def _view(self, agents: list[AgentConnection]) -> MachineView:
        first = next((each for each in agents if each.id == each.host), agents[0])
        known = _newest(self.machines.of(each) for each in agents)
        return MachineView(
            host=first.host,
            name=first.label,
            agents=tuple(
                AgentThere(
                    id=each.id,
                    deployment=each.deployment,
                    phase=None if each.report is None else each.report.phase,
                )
                for each in agents
            ),
            devices=_devices(agents),
            age_s=None if known is None else round(trio.current_time() - known.told_s, 1),
            facts=None if known is None else known.facts,
        )


def _newest(known: Iterable[KnownMachine | None]) -> KnownMachine | None:
    there = [each for each in known if each is not None]
    return max(there, key=lambda each: each.told_s, default=None)


def _devices(agents: Iterable[AgentConnection]) -> tuple[DeviceThere, ...]:
    """Return the devices that any of these connections reports; they share them."""
    reports = [agent.report for agent in agents if agent.report is not None]
    most = {room.device: room.most for report in reports for room in report.room}
    return tuple(DeviceThere(device=name, most_bytes=size) for name, size in most.items())

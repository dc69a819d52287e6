"""What everybody in a simulation shares: the trace, the stories of all requests, the ways in.

Agents and clients write down what they did and saw; the checks read it. A rule broken on the spot
raises at once, so that the last lines of the trace show how it came about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import trio
from language import Result
from scenario import AgentPlan, Ask, ClientPlan, Scenario
from sim_wire import Wire

from paddler_trio.net.server.exchange import App

SLACK_S = 1e-6


class SimulationFailure(BaseException):  # no handler of the balancer may catch it
    """The balancer broke a promise."""


Body: TypeAlias = Mapping[str, Any] | bytes
"""An agent request's body, or its JSON."""


def _read(body: Body) -> Mapping[str, Any]:
    return json.loads(body) if isinstance(body, bytes) else body


def prompt_in(work: Body) -> str:
    """The prompt of an agent request's body, which names the request all through the simulation;
    of embeddings, the id of the first document, which begins with that name."""
    (body,) = _read(work).values()
    if "input_batch" in body:
        return str(body["input_batch"][0]["id"])
    if "prompt" in body:
        return str(body["prompt"]["Text"]["text"])
    if "raw_prompt" in body:
        return str(body["raw_prompt"])
    return str(body["conversation_history"][0]["content"])


def documents_in(work: Body) -> list[str] | None:
    """The ids of what is to be embedded; None for a generation."""
    (body,) = work.values()
    return [document["id"] for document in body["input_batch"]] if "input_batch" in body else None


@attrs.frozen
class Beginning:
    """An agent took a request up, after ``num_tokens`` that were produced before."""

    name: str | None
    weights: str
    seed: int
    num_tokens: int


@attrs.define(eq=False)
class Story:
    """Everything known about one request of one client."""

    ask: Ask
    client: ClientPlan
    request_id: str
    submitted_s: float | None = None
    was_buffer_full: bool = False
    longest_wait_s: float = 0.0
    """For a slot, at one go."""
    was_stranded: bool = False
    """Its answer was begun by weights that nobody served any more, while others did."""
    was_named_by_broken_frame: bool = False
    spoke_without_tokens: bool = False
    """It has output whose tokens the agent did not say: nobody can continue it."""
    beginnings: list[Beginning] = attrs.field(factory=list)
    grants: int = 0
    suspicions: int = 0
    """How often an engine or an agent died that it may have killed, for all anybody knows."""
    kills: int = 0
    """How often it did."""
    was_silent_too_long: bool = False
    """How its leases ended, by the class of the outcome."""
    status: int | None = None
    results: list[Result] = attrs.field(factory=list)
    failed_parts: list[str] = attrs.field(factory=list)
    """Of embeddings: how sub-batches failed."""
    endings: list[str] = attrs.field(factory=list)
    """``done``, ``disabled`` or ``error <code> <description>``; exactly one in the end."""
    stopped_at_s: float | None = None
    left_at_s: float | None = None
    was_cut: bool = False
    """The connection ended under it."""
    was_refused: bool = False
    """There was no listener any more."""

    @property
    def is_over(self) -> bool:
        return bool(self.endings) or self.was_cut or self.was_refused

    @property
    def nobody_wants_it_since_s(self) -> float | None:
        times = [at_s for at_s in (self.stopped_at_s, self.left_at_s) if at_s is not None]
        return min(times, default=None)


@attrs.define(eq=False)
class World:
    """The simulation's common ground."""

    scenario: Scenario
    trace: list[str] = attrs.field(factory=list, init=False)
    stories: dict[str, Story] = attrs.field(factory=dict, init=False)
    errors_logged: list[str] = attrs.field(factory=list, init=False)
    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The balancer is down."""
    clients_gone: trio.Event = attrs.field(factory=trio.Event, init=False)
    draining_since_s: float | None = attrs.field(default=None, init=False)
    is_ending: bool = attrs.field(default=False, init=False)
    """Requests had their time; every connection is being closed."""
    killed: bool = attrs.field(default=False, init=False)
    drained: set[str] = attrs.field(factory=set, init=False)
    """Ids of the agents that the operator drained."""
    wires: list[Wire] = attrs.field(factory=list, init=False)
    _words_s: dict[int, list[float]] = attrs.field(factory=dict, init=False)
    """When an agent was given a request, or said something of it; by arrival number."""
    _connections: trio.Nursery | None = attrs.field(default=None, init=False)
    _inference: App | None = attrs.field(default=None, init=False)
    _management: App | None = attrs.field(default=None, init=False)

    def open(self, connections: trio.Nursery, *, inference: App, management: App) -> None:
        self._connections = connections
        self._inference, self._management = inference, management

    def close_listeners(self) -> None:
        self._connections = None

    def note(self, who: str, what: str) -> None:
        """One line of the trace."""
        self.trace.append(f"{trio.current_time():9.3f} {who}: {what}")

    def fail(self, what: str) -> None:
        self.note("FAILURE", what)
        self.is_ending = True  # what follows from it is no finding
        raise SimulationFailure(what)

    def story_of(self, work: Body) -> Story:
        """Whose request an agent request belongs to."""
        return self.stories[prompt_in(work).partition("/")[0]]

    def heard_of(self, number: int) -> None:
        """An agent was given the request with this arrival number, or said something of it."""
        self._words_s.setdefault(number, []).append(trio.current_time())

    def silent_s(self, number: int) -> float:
        """For how long nothing was said of it, not counting this very instant."""
        now_s = trio.current_time()
        return now_s - max(at_s for at_s in self._words_s[number] if at_s < now_s)

    # ------------------------------------------------------------------- ways in

    def dial_client(self, client: ClientPlan, scope: dict[str, Any]) -> Wire | None:
        """A connection to the inference port; None when nobody accepts any more."""
        return self._dial(self._inference, scope, client.kernel_messages)

    def dial_agent(self, agent: AgentPlan, kernel_messages: int = 16) -> Wire | None:
        """A connection to the management port, as an agent makes it."""
        scope = {
            "type": "websocket",
            "path": f"/api/v1/agent_socket/{agent.id}",
            "headers": [],
            "subprotocols": [] if agent.is_paddler else ["paddler-trio.1"],
        }
        return self._dial(self._management, scope, kernel_messages)

    def _dial(self, app: App | None, scope: dict[str, Any], kernel_messages: int) -> Wire | None:
        if self._connections is None or app is None:
            return None
        is_direct = scope["type"] == "http" and len(self.wires) % 2 == 0
        wire = Wire(scope, kernel_messages, self.scenario.write_timeout_s, is_direct)
        if scope["type"] == "websocket":
            wire.connect()
        self.wires.append(wire)
        self._connections.start_soon(wire.run, app, name=f"connection to {scope['path']}")
        return wire

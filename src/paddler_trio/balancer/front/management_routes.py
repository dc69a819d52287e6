"""The routes of the management port: for operators, and for agents that connect.

The ordinary routes are Quart's. Event streams, long lists, probes and the agent socket are routes
of our router: they outlive what Quart expects of a request. ``/api/v1`` is Paddler's and frozen:
nothing is added to its bodies. Our additions are under ``/api/v2``, in response headers, and in
``/livez`` and ``/readyz``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

import attrs
import trio

from paddler_trio.balancer.agents.agent_snapshot import snapshot, snapshot_v2
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.fleet_routes import (
    FleetRoutes,
    NoRollouts,
    RolloutControl,
    RolloutRoutes,
    author_of,
)
from paddler_trio.balancer.fleet.shared_view import AgentsView, SharedView, without_models
from paddler_trio.balancer.fleet.stored_fleet import FleetTooLargeError
from paddler_trio.balancer.front.cache_routes import CacheRoutes
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.balancer.front.fit_routes import FitRoutes
from paddler_trio.balancer.front.inference_routes import health
from paddler_trio.balancer.front.template_routes import TemplateRoutes
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.operations.machine_routes import MachineRoutes
from paddler_trio.balancer.operations.order_routes import OrderRoutes
from paddler_trio.errors import LinkError, StateDatabaseError
from paddler_trio.net.server.asgi import HttpProblem, send_empty, send_json, send_text
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.quart_adapter import QuartRouter
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.printed_tree import running_tree_json
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, desired_state_problem
from paddler_trio.wire.trio.desired_state_extras import ExtendedDesiredState, Extras
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

AGENT_ANSWER_S = 3.0
MAX_IDS_SHOWN: Final = 8
"""Of agents with the same name."""
STATE_DIGEST_HEADER = b"x-paddler-state-digest"

T = TypeVar("T")


_COMPUTING: Final = re.compile(r"/api/v2/(?:template/preview|capacity|agents/[^/]+/fit)")
"""POST here is a question with a body."""


def may_change(exchange: Exchange) -> bool:
    """Return whether a request that is not a GET changes anything."""
    is_dry = b"dry_run=true" in exchange.query
    return not is_dry and _COMPUTING.fullmatch(exchange.path) is None


class RouteGroup(Protocol):
    """Routes of one subject."""

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        ...


@attrs.define(eq=False)
class ManagementRoutes:
    """The application of the management port."""

    dispatcher: Dispatcher
    states: FleetKeeper
    agent_socket: AgentSocket
    goodbye: trio.Event
    keys: KeyRing = attrs.field(factory=KeyRing)
    rollouts: RolloutControl = attrs.field(factory=NoRollouts)
    progress: AgentsProgress = attrs.field(
        default=attrs.Factory(lambda self: AgentsProgress(self.dispatcher), takes_self=True)
    )
    more: Sequence[RouteGroup] = ()
    moving: trio.Event = attrs.field(
        default=attrs.Factory(lambda self: self.goodbye, takes_self=True)
    )
    """Set when another process has this port, or at the goodbye: event streams end."""
    _agents_v1: SharedView = attrs.field(init=False)
    _agents_v2: SharedView = attrs.field(init=False)
    _buffered_requests: SharedView = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        dispatcher, states = self.dispatcher, self.states
        changes = dispatcher.agents_changed
        v1 = AgentsView(dispatcher, snapshot, hides=without_models)
        v2 = AgentsView(dispatcher, snapshot_v2, lambda: {"desired_state_digest": states.digest})
        self._agents_v1 = SharedView(v1.render, changes)
        self._agents_v2 = SharedView(v2.render, changes)
        self._buffered_requests = SharedView(
            lambda: dumps({"buffered_requests_current": dispatcher.statistics().requests_buffered}),
            dispatcher.buffer_changed,
        )

    def app(self) -> Router:
        """Return a router with all routes, whose ordinary ones are Quart's."""
        router = QuartRouter()
        for path, view in (
            ("/api/v1/agents", self._agents_v1),
            ("/api/v2/agents", self._agents_v2),
            ("/api/v1/buffered_requests", self._buffered_requests),
        ):
            router.http("GET", path, _shows(view))
            router.stream("GET", f"{path}/stream", event_stream(view, goodbye=self.moving))
        router.http("GET", "/api/v1/balancer_desired_state", self._desired_state)
        router.http("PUT", "/api/v1/balancer_desired_state", self._replace_state)
        router.http("GET", "/api/v2/balancer_desired_state", self._extended_state)
        router.http("PUT", "/api/v2/balancer_desired_state", self._replace_extended_state)
        router.http("GET", "/api/v1/balancer_applicable_state", self._applicable_state)
        for name, query, tag in (
            ("model_metadata", "GetModelMetadata", "ModelMetadata"),
            ("chat_template_override", "GetChatTemplateOverride", "ChatTemplateOverride"),
        ):
            router.http("GET", f"/api/v1/agent/{{agent_id}}/{name}", self._asks(query, tag))
        for method, drained in (("POST", True), ("DELETE", False)):
            router.http(method, "/api/v2/agents/{agent_id}/drain", self._drains(drained=drained))
        router.http("GET", "/api/v2/tree", self._tree)
        router.http("GET", "/api/v2/agents/{agent_id}/tree", self._agent_tree)
        groups: Sequence[RouteGroup] = (
            FleetRoutes(self.states, self.progress),
            RolloutRoutes(self.rollouts, self.moving),
            FitRoutes(self._find, self.agent_socket.machines),
            TemplateRoutes(self.dispatcher),
            CacheRoutes(self.dispatcher, self.goodbye),
            OrderRoutes(self.dispatcher, self._find),
            MachineRoutes(self.dispatcher, self.agent_socket.machines, self._find),
            *self.more,
        )
        for group in groups:
            group.add_to(router)
        router.probe("/health", health)
        router.probe("/livez", health)
        router.probe("/readyz", self._ready)
        router.websocket("/api/v1/agent_socket/{agent_id}", self._agent)
        return router

    async def _ready(self, exchange: Exchange, params: Params) -> None:
        if self.dispatcher.is_draining:
            await send_text(exchange.send, 503, "draining: the balancer is shutting down")
        else:
            await send_text(exchange.send, 200, "OK")

    async def _agent(self, exchange: Exchange, params: Params) -> None:
        await self.agent_socket.serve(exchange, params["agent_id"])

    async def _desired_state(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, unstructure(self.states.desired))

    async def _replace_state(self, exchange: Exchange, params: Params) -> None:
        desired = await json_body(exchange, lambda value: structured(value, BalancerDesiredState))
        await self._replace(exchange, desired)

    async def _extended_state(self, exchange: Exchange, params: Params) -> None:
        both = ExtendedDesiredState(state=self.states.desired, extras=self.states.extras)
        await send_json(exchange.send, 200, unstructure(both))

    async def _replace_extended_state(self, exchange: Exchange, params: Params) -> None:
        both = await json_body(exchange, lambda value: structured(value, ExtendedDesiredState))
        await self._replace(exchange, both.state, both.extras)

    async def _applicable_state(self, exchange: Exchange, params: Params) -> None:
        applicable = self.states.applicable
        body = None if applicable is None else unstructure(applicable)
        await send_json(exchange.send, 200, body)

    async def _tree(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, await running_tree_json())

    async def _agent_tree(self, exchange: Exchange, params: Params) -> None:
        agent = self._find(params["agent_id"])
        if not agent.kind.answers_questions:
            raise HttpProblem(501, f"agent {agent.label} is Paddler's: it prints no tree")
        with trio.move_on_after(AGENT_ANSWER_S):
            try:
                tree = await agent.questions.ask_tree()
            except LinkError as error:
                raise HttpProblem(502, str(error)) from error
            await send_json(exchange.send, 200, tree)
            return
        raise HttpProblem(504, f"agent {agent.label} did not answer in {AGENT_ANSWER_S:g} s")

    async def _replace(
        self, exchange: Exchange, desired: BalancerDesiredState, extras: Extras | None = None
    ) -> None:
        problem = desired_state_problem(desired)
        if problem is not None:
            raise HttpProblem(400, problem)
        before = self.states.digest
        try:
            digest = await self.states.replace(desired, extras, author=author_of(exchange))
        except FleetTooLargeError as error:
            raise HttpProblem(413, str(error)) from error
        except StateDatabaseError as error:
            raise HttpProblem(500, str(error)) from error
        exchange.audit.record(
            exchange,
            "desired state replaced",
            DEFAULT_DEPLOYMENT,
            before=before,
            after=digest,
            revision=self.states.current.revision,
        )
        await send_empty(exchange.send, 204, headers=[(STATE_DIGEST_HEADER, digest.encode())])

    def _drains(self, *, drained: bool) -> Handler:
        action = "agent drained" if drained else "agent undrained"

        async def drain(exchange: Exchange, params: Params) -> None:
            agent = self._find(params["agent_id"])
            self.dispatcher.drain_agent(agent, drained=drained)
            exchange.audit.record(exchange, action, agent.label, agent_id=agent.id)
            shown = snapshot_v2(agent, self.dispatcher.slots_processing(agent.key))
            await send_json(exchange.send, 200, shown)

        return drain

    def _find(self, agent_id: str) -> AgentConnection:
        """Find an agent by id, else by name, which is that of all instances on one host: their
        first link.

        HttpProblem 404 if there is none, 409 if several hosts have the name.
        """
        agents = self.dispatcher.agents.values()
        for agent in agents:
            if agent.id == agent_id:
                return agent
        named = [agent for agent in agents if agent.name == agent_id]
        if not named:
            raise HttpProblem(404, "")
        hosts = {agent.host: agent for agent in reversed(named)}
        if len(hosts) > 1:
            ids = " or ".join(sorted(agent.id for agent in hosts.values())[:MAX_IDS_SHOWN])
            raise HttpProblem(
                409, f"{len(hosts)} agents are called {agent_id!r}; give the id of one: {ids}"
            )
        return next((agent for agent in named if agent.id == agent.host), named[0])

    def _asks(self, query: str, tag: str) -> Handler:
        async def ask(exchange: Exchange, params: Params) -> None:
            agent = self._find(params["agent_id"])
            with trio.move_on_after(AGENT_ANSWER_S):
                try:
                    response = await agent.questions.ask(query)
                except LinkError as error:
                    raise HttpProblem(502, "") from error
                if not isinstance(response, dict) or tag not in response:
                    raise HttpProblem(404, "")
                await send_json(exchange.send, 200, response[tag])
                return
            raise HttpProblem(504, "")

        return ask


def _shows(view: SharedView) -> Handler:
    async def show(exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, view.current())

    return show

"""The routes of the management port: for operators, and for agents that connect.

Quart has the routes that answer at once. Event streams, probes and the agent socket are routes of
our router, which comes first: they outlive what Quart expects of a request. ``/api/v1`` is
Paddler's and frozen: nothing is added to its bodies. Our additions are under ``/api/v2``, in
response headers, and in ``/livez`` and ``/readyz``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar, cast

import attrs
import trio
from quart import Response, request
from quart_trio import QuartTrio

from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress, FleetProgress
from paddler_trio.balancer.fleet.fleet_routes import FleetRoutes, author_of
from paddler_trio.balancer.fleet.rollout_routes import NoRollouts, RolloutControl, RolloutRoutes
from paddler_trio.balancer.fleet.shared_view import AgentsView, SharedView
from paddler_trio.balancer.fleet.stored_fleet import FleetTooLargeError
from paddler_trio.balancer.front.cache_routes import CacheRoutes
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.balancer.front.fit_routes import FitRoutes
from paddler_trio.balancer.front.inference_routes import health
from paddler_trio.balancer.front.template_routes import TemplateRoutes
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import LinkError, StateDatabaseError
from paddler_trio.net.server.asgi import HttpProblem, Scope, send_text
from paddler_trio.net.server.exchange import App, AsgiApp, Exchange, Params
from paddler_trio.net.server.json_body import (
    MAX_JSON_BODY_BYTES,
    check_media_type,
    decoded,
    structured,
)
from paddler_trio.net.server.quart_adapter import adapted, exchange_of
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_snapshot import snapshot, snapshot_v2
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.tree_in_pieces import running_tree_json
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, desired_state_problem
from paddler_trio.wire.trio.desired_state_extras import ExtendedDesiredState, Extras
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

AGENT_ANSWER_S = 3.0
MAX_IDS_SHOWN: Final = 8
"""Of agents with the same name."""
STATE_DIGEST_HEADER = "X-Paddler-State-Digest"

T = TypeVar("T")


_COMPUTING: Final = re.compile(r"/api/v2/(?:template/preview|agents/[^/]+/fit)")
"""POST here is a question with a body."""


def may_change(exchange: Exchange) -> bool:
    """Whether a request that is not a GET changes anything."""
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
    progress: FleetProgress = attrs.field(
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
        v1 = AgentsView(dispatcher, snapshot)
        v2 = AgentsView(dispatcher, snapshot_v2, lambda: {"desired_state_digest": states.digest})
        self._agents_v1 = SharedView(v1.render, changes)
        self._agents_v2 = SharedView(v2.render, changes)
        self._buffered_requests = SharedView(
            lambda: dumps({"buffered_requests_current": dispatcher.statistics().requests_buffered}),
            dispatcher.buffer_changed,
        )

    def app(self) -> App:
        """Our router with the streams and the socket; Quart for everything else."""
        quart = adapted(cast("AsgiApp", self._quart()), max_body_bytes=MAX_JSON_BODY_BYTES)
        return self._routed(Router(otherwise=quart))

    def routes(self) -> Iterator[tuple[str, str]]:
        """Every method and pattern answered here, written as `Router` has them."""
        yield from self._routed(Router()).routes()
        for rule in self._quart().url_map.iter_rules():
            pattern = rule.rule.replace("<", "{").replace(">", "}")
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                yield method, pattern

    def _routed(self, router: Router) -> Router:
        """``router``, with everything that is not Quart's."""
        for path, view in (
            ("/api/v1/agents/stream", self._agents_v1),
            ("/api/v2/agents/stream", self._agents_v2),
            ("/api/v1/buffered_requests/stream", self._buffered_requests),
        ):
            router.http("GET", path, event_stream(view, goodbye=self.moving))
        FleetRoutes(self.states, self.progress).add_to(router)
        RolloutRoutes(self.rollouts, self.moving).add_to(router)
        FitRoutes(self._find).add_to(router)
        TemplateRoutes(self.dispatcher).add_to(router)
        CacheRoutes(self.dispatcher, self.goodbye).add_to(router)
        for group in self.more:
            group.add_to(router)
        router.probe("/health", health)
        router.probe("/livez", health)
        router.probe("/readyz", self._ready)
        router.websocket("/api/v1/agent_socket/{agent_id}", self._agent)
        return router

    # ------------------------------------------------------------ the app

    async def _ready(self, exchange: Exchange, params: Params) -> None:
        if self.dispatcher.is_draining:
            await send_text(exchange.send, 503, "draining: the balancer is shutting down")
        else:
            await send_text(exchange.send, 200, "OK")

    async def _agent(self, exchange: Exchange, params: Params) -> None:
        await self.agent_socket.serve(exchange, params["agent_id"])

    def _quart(self) -> QuartTrio:
        app = QuartTrio(__name__, static_folder=None)
        app.config["RESPONSE_TIMEOUT"] = None
        app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
        app.url_map.strict_slashes = True
        app.url_map.merge_slashes = False

        @app.errorhandler(404)
        @app.errorhandler(405)
        async def not_found(_: Exception) -> Response:
            return Response(b"", 404)

        @app.errorhandler(HttpProblem)
        async def refused(problem: HttpProblem) -> Response:
            plain = "text/plain; charset=utf-8"
            response = Response(problem.text, problem.status, content_type=plain)
            for name, value in problem.headers:
                response.headers[name.decode()] = value.decode()
            return response

        @app.get("/api/v1/agents")
        async def agents_v1() -> Response:
            return _json_text(self._agents_v1.current())

        @app.get("/api/v2/agents")
        async def agents_v2() -> Response:
            return _json_text(self._agents_v2.current())

        @app.get("/api/v1/buffered_requests")
        async def buffered_requests() -> Response:
            return _json_text(self._buffered_requests.current())

        @app.get("/api/v1/balancer_desired_state")
        async def get_desired_state() -> Response:
            return _json(unstructure(self.states.desired))

        @app.put("/api/v1/balancer_desired_state")
        async def put_desired_state() -> Response:
            desired = await _body(lambda value: structured(value, BalancerDesiredState))
            return await self._replace(desired)

        @app.get("/api/v2/balancer_desired_state")
        async def get_extended_state() -> Response:
            both = ExtendedDesiredState(state=self.states.desired, extras=self.states.extras)
            return _json(unstructure(both))

        @app.put("/api/v2/balancer_desired_state")
        async def put_extended_state() -> Response:
            both = await _body(lambda value: structured(value, ExtendedDesiredState))
            return await self._replace(both.state, both.extras)

        @app.get("/api/v1/balancer_applicable_state")
        async def applicable_state() -> Response:
            applicable = self.states.applicable
            return _json(None if applicable is None else unstructure(applicable))

        @app.get("/api/v1/agent/<agent_id>/model_metadata")
        async def model_metadata(agent_id: str) -> Response:
            return _json(await self._asked(agent_id, "GetModelMetadata", "ModelMetadata"))

        @app.get("/api/v1/agent/<agent_id>/chat_template_override")
        async def chat_template_override(agent_id: str) -> Response:
            return _json(
                await self._asked(agent_id, "GetChatTemplateOverride", "ChatTemplateOverride")
            )

        @app.post("/api/v2/agents/<agent_id>/drain")
        async def drain_agent(agent_id: str) -> Response:
            return self._drain(agent_id, drained=True)

        @app.delete("/api/v2/agents/<agent_id>/drain")
        async def undrain_agent(agent_id: str) -> Response:
            return self._drain(agent_id, drained=False)

        @app.get("/api/v2/tree")
        async def tree() -> Response:
            return _json_text(await running_tree_json())

        @app.get("/api/v2/agents/<agent_id>/tree")
        async def agent_tree(agent_id: str) -> Response:
            agent = self._find(agent_id)
            if not agent.kind.answers_questions:
                raise HttpProblem(501, f"agent {agent.label} is Paddler's: it prints no tree")
            with trio.move_on_after(AGENT_ANSWER_S):
                try:
                    return _json(await agent.ask_tree())
                except LinkError as error:
                    raise HttpProblem(502, str(error)) from error
            raise HttpProblem(504, f"agent {agent.label} did not answer in {AGENT_ANSWER_S:g} s")

        return app

    async def _replace(
        self, desired: BalancerDesiredState, extras: Extras | None = None
    ) -> Response:
        problem = desired_state_problem(desired)
        if problem is not None:
            raise HttpProblem(400, problem)
        try:
            exchange = exchange_of(cast("Scope", request.scope))
            before = self.states.digest
            digest = await self.states.replace(desired, extras, author=author_of(exchange))
            exchange.audit.record(
                exchange,
                "desired state replaced",
                DEFAULT_DEPLOYMENT,
                before=before,
                after=digest,
                revision=self.states.current.revision,
            )
        except FleetTooLargeError as error:
            raise HttpProblem(413, str(error)) from error
        except StateDatabaseError as error:
            raise HttpProblem(500, str(error)) from error
        return Response(b"", 204, headers={STATE_DIGEST_HEADER: digest})

    def _drain(self, agent_id: str, *, drained: bool) -> Response:
        agent = self._find(agent_id)
        self.dispatcher.drain_agent(agent, drained=drained)
        exchange = exchange_of(cast("Scope", request.scope))
        action = "agent drained" if drained else "agent undrained"
        exchange.audit.record(exchange, action, agent.label, agent_id=agent.id)
        return _json(snapshot_v2(agent, self.dispatcher.slots_processing(agent.key)))

    def _find(self, agent_id: str) -> AgentConnection:
        """By id, else by name, which is that of all instances on one host: their first link.

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

    async def _asked(self, agent_id: str, query: str, tag: str) -> object:
        agent = self._find(agent_id)
        with trio.move_on_after(AGENT_ANSWER_S):
            try:
                response = await agent.ask(query)
            except LinkError as error:
                raise HttpProblem(502, "") from error
            if not isinstance(response, dict) or tag not in response:
                raise HttpProblem(404, "")
            return response[tag]
        raise HttpProblem(504, "")


async def _body(read: Callable[[object], T]) -> T:
    """Return the JSON body of Quart's request, read as ``json_body`` reads all others."""
    exchange = exchange_of(cast("Scope", request.scope))
    check_media_type(exchange)
    data = await request.get_data(cache=False)
    assert isinstance(data, bytes)
    return await decoded(exchange, bytearray(data), read, limit_bytes=MAX_JSON_BODY_BYTES)


def _json(value: object) -> Response:
    return _json_text(dumps(value))


def _json_text(text: bytes) -> Response:
    return Response(text, content_type="application/json")

"""``/api/v2/models`` on the management port: what agents keep, and commands about it.

    GET  /api/v2/models?agent=NAME      what is there
    POST /api/v2/models/pull            {"models": [...]}: fetch, serve nothing
    POST /api/v2/models/verify          {"sources": [...]}: hash again
    POST /api/v2/models/prune           {"sources", "newest", "used_within_s", "dry_run"}: remove

Each body may have ``agents``, names or ids; without it all agents are meant. All four are answered
by lines of JSON as they come, each with the ``agent`` and its ``name`` and one of ``progress``,
``answer``, or ``problem`` with a ``code``; the shapes are those of ``wire/trio/cache_commands.py``.
Empty lines keep the connection alive. An agent has had its last word when its ``answer`` or
``problem`` is out; if the connection ends before, the balancer or the client left.

A command is its request's: when the client leaves, agents are sent a stop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import parse_qs

import attrs
import structlog
import trio

from paddler_trio.errors import LinkError
from paddler_trio.net.server.asgi import HttpProblem, Send
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.net.server.streaming import UNBUFFERED, cancelled_on_disconnect
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.cache_commands import (
    CacheProgress,
    CacheRequest,
    ListCache,
    Prune,
    Pull,
    Verify,
)

log = structlog.get_logger("cache")

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MAX_AGENT_NAMES: Final = 1024
MAX_STREAMS: Final = 16
"""Commands of all clients at once; each has a task for each agent."""
MAX_AT_ONCE: Final = 8
"""Agents that are asked at once for what they answer at once: an answer may be a megabyte."""
MAX_RECORDED: Final = 16
"""Names of agents in a record of the audit log."""
KEEP_ALIVE_S: Final = 3.0
LEAST_PAUSE_S: Final = 0.25
MAX_LINES_PER_S: Final = 200
"""Of progress, of all agents of one command together."""
_HEADERS: Final = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    *UNBUFFERED,
]


@attrs.define(eq=False)
class CacheRoutes:
    """The handlers of these routes."""

    dispatcher: Dispatcher
    goodbye: trio.Event
    _streams: int = attrs.field(default=0, init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.stream("GET", "/api/v2/models", self._list)
        routes.stream("POST", "/api/v2/models/pull", self._commands(Pull))
        routes.stream("POST", "/api/v2/models/verify", self._commands(Verify))
        routes.stream("POST", "/api/v2/models/prune", self._commands(Prune))

    async def _list(self, exchange: Exchange, params: Params) -> None:
        query = parse_qs(exchange.query.decode("latin-1"))
        agents = self._named(query.get("agent"))
        await self._run(ListCache(), agents, exchange)

    def _commands(self, shape: type[Pull | Verify | Prune]) -> Handler:
        def read(value: object) -> tuple[CacheRequest, object]:
            if not isinstance(value, dict):
                raise HttpProblem(400, "Json deserialize error: expected an object @ $")
            fields = {name: field for name, field in value.items() if name != "agents"}
            request: CacheRequest = structured(fields, shape, tag=shape.__name__)
            return request, value.get("agents")

        async def handle(exchange: Exchange, params: Params) -> None:
            request, names = await json_body(exchange, read, limit_bytes=MAX_BODY_BYTES)
            agents = self._named(names)
            labels = ", ".join(agent.label for agent in agents[:MAX_RECORDED])
            action = f"models {shape.__name__.lower()}"
            exchange.audit.record(exchange, action, labels, agents=len(agents))
            await self._run(request, agents, exchange)

        return handle

    # ----------------------------------------------------------------- the agents

    def _named(self, names: object) -> list[AgentConnection]:
        """Return the agents of these ids or names, all for None; HttpProblem for anything else."""
        agents = self.dispatcher.agents.with_models()
        if names is None:
            return agents
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise HttpProblem(400, "agents must be a list of names or ids @ $.agents")
        if len(names) > MAX_AGENT_NAMES:
            raise HttpProblem(
                400, f"{len(names)} agents, the limit is {MAX_AGENT_NAMES} @ $.agents"
            )
        chosen: dict[AgentConnection, None] = {}
        for name in names:
            found = [agent for agent in agents if agent.id == name] or [
                agent for agent in agents if agent.name == name
            ]
            if not found:
                raise HttpProblem(404, f"no agent {name[:200]!r} is connected")
            chosen |= dict.fromkeys(found)
        return list(chosen)

    async def _run(
        self,
        request: CacheRequest,
        agents: Sequence[AgentConnection],
        exchange: Exchange,
    ) -> None:
        if self._streams >= MAX_STREAMS:
            raise HttpProblem(
                503,
                f"{MAX_STREAMS} commands about models run already; try again later",
                [(b"retry-after", b"5")],
            )
        self._streams += 1
        try:
            async with cancelled_on_disconnect(exchange) as watches:
                watches.start_soon(_until, self.goodbye, watches.cancel_scope, name="goodbye watch")
                await exchange.send(
                    {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                )
                lines = _Lines(exchange.send, max(LEAST_PAUSE_S, len(agents) / MAX_LINES_PER_S))
                watches.start_soon(lines.keep_alive, name="keep-alive")
                limit = trio.CapacityLimiter(
                    MAX_AT_ONCE if isinstance(request, ListCache) else max(1, len(agents))
                )
                async with trio.open_nursery() as nursery:
                    for agent in agents:
                        name = f"{type(request).__name__.lower()} on {agent.label}"
                        nursery.start_soon(_serve, agent, request, lines, limit, name=name)
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams -= 1


@attrs.define(eq=False)
class _Lines:
    """The lines of one response; several tasks write them, each ``pause_s`` apart."""

    send: Send
    pause_s: float
    _one: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _written_s: float = attrs.field(factory=trio.current_time, init=False)

    async def write(self, line: bytes) -> None:
        async with self._one:
            await self.send({"type": "http.response.body", "body": line + b"\n", "more_body": True})
            self._written_s = trio.current_time()

    async def keep_alive(self) -> None:
        """Write an empty line after each silence, until cancelled."""
        while True:
            await trio.sleep_until(self._written_s + KEEP_ALIVE_S)
            if trio.current_time() >= self._written_s + KEEP_ALIVE_S:
                await self.write(b"")


@attrs.define(eq=False)
class _Newest:
    """The newest progress of one agent; what a slow client missed is gone."""

    changes: Changes = attrs.field(factory=Changes)
    progress: CacheProgress | None = None

    def set(self, progress: CacheProgress) -> None:
        self.progress = progress
        self.changes.notify()


async def _serve(
    agent: AgentConnection, request: CacheRequest, lines: _Lines, limit: trio.CapacityLimiter
) -> None:
    """Serve one agent: its progress, then its answer or its problem."""
    about: dict[str, object] = {"agent": agent.id, "name": agent.name}
    async with limit:
        if not agent.kind.answers_questions:
            problem = "it is Paddler 4.1's agent, which has no commands about its cache"
            await lines.write(dumps({**about, "problem": problem, "code": 501}))
            return
        newest = _Newest()
        last: dict[str, object]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_show, newest, about, lines, name="progress")
            last = await _asked(lambda: agent.questions.command_cache(request, newest.set))
            nursery.cancel_scope.cancel(reason="it has answered")
        line = await trio.to_thread.run_sync(dumps_in_runs, {**about, **last})
        await lines.write(line)


async def _asked(command: Callable[[], Awaitable[object]]) -> dict[str, object]:
    try:
        return {"answer": await command()}
    except QuestionRefusedError as refused:
        return {"problem": refused.problem, "code": refused.code}
    except LinkError as error:
        return {"problem": str(error), "code": 502}


async def _show(newest: _Newest, about: dict[str, object], lines: _Lines) -> None:
    ordinal = 0
    while True:
        ordinal = await newest.changes.wait_beyond(ordinal)
        progress = unstructure(newest.progress, CacheProgress)
        assert isinstance(progress, dict)
        fields = progress["CacheProgress"]
        del fields["id"]
        await lines.write(dumps({**about, "progress": fields}))
        await trio.sleep(lines.pause_s)


async def _until(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="balancer is shutting down")

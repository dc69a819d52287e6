"""The port of ``--reverseproxy-addr``: every request there is for a server behind an agent.

Two paths are answered here, for all servers together: ``/health``, and ``/slots`` where it is
allowed, because it shows what others ask. Whatever else a server serves is the server's, also what
is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

import attrs

from paddler_trio.balancer.reverse_proxy.forwarding import (
    BODY_DEADLINE_S,
    MAX_BODY_BYTES,
    Forwarding,
)
from paddler_trio.balancer.reverse_proxy.server_pools import ServerPools, model_in, must_allow
from paddler_trio.balancer.reverse_proxy.slot_paths import plain_path, takes_slot
from paddler_trio.net.server.asgi import (
    HttpProblem,
    Message,
    Receive,
    Send,
    read_body,
    send_json,
    send_text,
)
from paddler_trio.net.server.exchange import App, Exchange, Refuse
from paddler_trio.net.server.router import cause_of
from paddler_trio.net.server.streaming import whole_body
from paddler_trio.nursery_tree.pool import Pool

MAX_FIELDS: Final = 64
"""Of the query of a WebSocket's address."""
NO_TRACE: Final = (
    "TRACE is not passed on: its answer would show what the agent adds, such as the server's key"
)
SLOTS_OFF = (
    "/slots shows the prompts of others: start the balancer with --slots-endpoint-enable, or ask a "
    "server itself"
)


@attrs.frozen(eq=False)
class ReverseProxy:
    """An application; see the module docstring.

    Args:
      shows_slots: ``/slots`` is answered.
    """

    forwarding: Forwarding
    pools: ServerPools
    shows_slots: bool = False

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        assert exchange.is_http, "WebSockets are requests on this port"
        send = exchange.send
        guarded = _Guarded(send)
        exchange.send = guarded.send
        try:
            await self._answer(exchange)
        except Exception as error:  # noqa: BLE001  # the boundary of a request
            problem = guarded.problem_of(error, exchange)
            if problem is not None:
                await send_text(send, problem.status, problem.text, headers=problem.headers)

    async def _answer(self, exchange: Exchange) -> None:
        path = plain_path(exchange.path)
        if path == "/health" and exchange.written.method in (b"GET", b"HEAD"):
            await self._health(exchange.send)
        # what is kept from servers is kept from them in any letters: some overlook their case
        elif path.lower() == "/slots" and exchange.method.upper() in ("GET", "HEAD"):
            await self._slots(exchange.send)
        elif exchange.method == "TRACE":
            raise HttpProblem(501, NO_TRACE)
        else:
            exchange.check_announced(MAX_BODY_BYTES)
            body = await whole_body(
                exchange, limit_bytes=MAX_BODY_BYTES, deadline_s=BODY_DEADLINE_S
            )
            pool = await self._pool(exchange, body)
            must_allow(exchange, pool)
            await self.forwarding.forward(exchange, pool, body)

    async def _pool(self, exchange: Exchange, body: bytes | bytearray) -> Pool:
        pools = self.pools.all()
        if len(pools) > 1 and (model := await self._model(exchange, body)) is not None:
            named = self.pools.called(model)
            if named is not None:
                return named
        pool = self.pools.any_of()
        assert pool is not None, "the balancer with this port opens a pool of servers"
        return pool

    async def _model(self, exchange: Exchange, body: bytes | bytearray) -> str | None:
        """WebSockets have no body, and name their model in the query."""
        if exchange.upgrade is None:
            return await model_in(exchange, body)
        try:
            query = parse_qs(exchange.query.decode("latin-1"), max_num_fields=MAX_FIELDS)
        except ValueError:
            return None  # too many: the server that gets it says what is wrong with it
        return next(iter(query.get("model", ())), None)

    async def _health(self, send: Send) -> None:
        """Answer as llama-server does, with the slots of all servers: 503 while there is no
        server."""
        agents = [agent for pool in self.pools.all() for agent in pool.agents.values()]
        ready = [agent for agent in agents if agent.is_accepting]
        busy = sum(agent.slots_processing for agent in agents)
        body = {
            "status": "ok" if ready else "no server",
            "slots_idle": max(0, sum(agent.usable_slots for agent in ready) - busy),
            "slots_processing": busy,
        }
        await send_json(send, 200 if ready else 503, body)

    async def _slots(self, send: Send) -> None:
        """Show the slots of all servers, as this balancer counts them: no prompts."""
        if not self.shows_slots:
            raise HttpProblem(501, SLOTS_OFF)
        slots = []
        for pool in self.pools.all():
            for agent in pool.agents.values():
                total = max(agent.usable_slots, agent.slots_processing)
                slots += [
                    {
                        "id": place,
                        "agent": agent.label,
                        "deployment": pool.name,
                        "is_processing": place < agent.slots_processing,
                    }
                    for place in range(total)
                ]
        await send_json(send, 200, slots)


@attrs.frozen(eq=False, kw_only=True)
class UpstreamFront:
    """Requests for a model that a server has go to the server; the others go to ``api``.

    It stands before the APIs on the inference port, for the paths that a server answers in the same
    way.

    Args:
      refuse: answers with a problem in the words of the APIs.
      limited: puts an application within the limits of keys, as ``api`` is.
      is_unserved: there is no model for a request that names none.
    """

    api: App
    refuse: Refuse
    limited: Callable[[App], App]
    forwarding: Forwarding
    pools: ServerPools
    is_unserved: Callable[[], bool]

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        is_forwardable = exchange.is_http and takes_slot(exchange.method, exchange.path)
        if not is_forwardable or not self.pools.all():
            await self.api(exchange)
            return
        send = exchange.send
        guarded = _Guarded(send)
        exchange.send = guarded.send
        try:
            await self._answer(exchange)
        except Exception as error:  # noqa: BLE001  # the boundary of a request
            problem = guarded.problem_of(error, exchange)
            if problem is not None:
                exchange.send = send  # not by way of those behind this
                await self.refuse(exchange, problem)

    async def _answer(self, exchange: Exchange) -> None:
        exchange.check_announced(MAX_BODY_BYTES)
        body = await read_body(
            exchange.receive, limit_bytes=MAX_BODY_BYTES, deadline_s=BODY_DEADLINE_S
        )
        model = await model_in(exchange, body)
        pool = None if model is None else self.pools.called(model)
        if pool is None and self.is_unserved():
            pool = self.pools.any_with_servers()
        if pool is None:
            exchange.receive = _again(body, exchange.receive)
            await self.api(exchange)
            return
        must_allow(exchange, pool)
        chosen = pool

        async def forward(exchange: Exchange) -> None:
            await self.forwarding.forward(exchange, chosen, body)

        await self.limited(forward)(exchange)


@attrs.define(eq=False)
class _Guarded:
    """One response, and whether it has begun."""

    _send: Send
    _has_begun: bool = attrs.field(default=False, init=False)

    async def send(self, message: Message) -> None:
        self._has_begun = True
        await self._send(message)

    def problem_of(self, error: Exception, exchange: Exchange) -> HttpProblem | None:
        """Return what to answer; None when nothing can be."""
        cause = cause_of(error, f"{exchange.method} {exchange.path}", (HttpProblem,))
        if cause is None or self._has_begun:
            return None
        return (
            cause if isinstance(cause, HttpProblem) else HttpProblem(500, "Internal server error")
        )


def _again(body: bytearray, receive: Receive) -> Receive:
    """Return the body that was read, and then what follows it."""
    first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again

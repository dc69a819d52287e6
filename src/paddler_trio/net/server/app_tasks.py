"""The application calls of one connection, and how each of them ends.

Hypercorn starts a call for every request and WebSocket through its "task group". Ours gives each
call an `AppInbox`, so that a disconnect always reaches it and the reader never waits for a call
that has ended. It keeps the running calls and is the boundary for their exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config

from paddler_trio.errors import one_line
from paddler_trio.net.server.app_inbox import AppInbox, PassableConnection
from paddler_trio.net.server.asgi import ClientGoneError, Message, Scope
from paddler_trio.net.server.client_identity import SOURCE, Source, client_behind
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.net.server.plain_protocol import UpgradeStream
from paddler_trio.net.server.protocol import Http11Protocol
from paddler_trio.net.websocket.arrivals import Arrivals
from paddler_trio.net.websocket.bounded_websocket import BoundedWebSocket

logger = logging.getLogger(__name__)

HTTP_INBOX_BYTES = 262_144
"""Body bytes held for an application that has not read them yet."""


class AppTasks:
    """The application calls of one connection; hypercorn's task group."""

    def __init__(
        self,
        app: App,
        nursery: trio.Nursery,
        limits: HttpLimits,
        budget: InputBudget,
        *,
        share: float,
    ) -> None:
        self._app = app
        self._nursery = nursery
        self._limits = limits
        self._budget = budget
        self._share = share
        self._inboxes: dict[AppInbox, Message] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self.protocol: Http11Protocol | None = None
        self.passable: PassableConnection | None = None

    async def spawn_app(
        self,
        app: object,  # hypercorn's signature; ours was given once
        config: Config,
        scope: Scope,
        send: Callable[[Any], Awaitable[None]],
    ) -> Callable[[Message], Awaitable[None]]:
        """Start the application on a request; return the function that delivers messages to it."""
        protocol = self.protocol
        assert protocol is not None
        stream = protocol.stream
        peer = (scope.get("client") or ("unknown",))[0]
        proxies = self._limits.trusted_proxies
        if proxies and (client := client_behind(scope, proxies)) is not None:
            scope["client"] = (client, 0)
        address = (scope.get("client") or ("",))[0]
        room = self._budget.reservation(share=self._share, client=address)
        is_http = scope["type"] == "http"
        max_bytes = HTTP_INBOX_BYTES if is_http else self._limits.max_websocket_message_bytes
        inbox = AppInbox(max_bytes=max_bytes, room=room)
        exchange = Exchange(scope, inbox.receive, send, room, inbox)
        exchange.peer = str(peer)
        exchange.open_body = partial(protocol.direct_body, stream)
        if isinstance(stream, BoundedWebSocket):
            stream.room = room
            exchange.websocket, exchange.arrivals = stream, Arrivals(stream, protocol)
        if is_http:
            exchange.raw_response = protocol.raw_response(stream)
            exchange.written_head = protocol.written_head
        if isinstance(stream, UpgradeStream):
            exchange.upgrade = stream.upgrade
        if is_http and protocol.may_pass(scope["path"]):
            exchange.passable = self.passable
        self._inboxes[inbox] = (
            {"type": "http.disconnect"}
            if is_http
            else {"type": "websocket.disconnect", "code": 1006}
        )
        name = f"{scope.get('method', 'WebSocket')} {scope['path']}"
        self._nursery.start_soon(self._run_app, exchange, inbox, send, name=name)
        return inbox.put

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task that lives as long as the connection (hypercorn's pings)."""
        self._nursery.start_soon(task, *args)

    def disconnect(self) -> None:
        """Deliver a disconnect to every call that is still running."""
        for inbox, message in self._inboxes.items():
            inbox.end(message)

    async def wait_finished(self) -> None:
        """Return when no call is running."""
        while self._inboxes:
            await self._changed.park()

    async def _run_app(
        self, exchange: Exchange, inbox: AppInbox, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        SOURCE.set(Source.of(exchange))
        try:
            try:
                await self._app(exchange)
            except* ClientGoneError as gone:
                # expected of a call that writes to a client that has left
                logger.debug("%s: %s", exchange.path, one_line(gone))
            except* Exception:
                logger.exception("application failed on %s", exchange.path)
            inbox.discard()
            await send(None)
        finally:
            inbox.discard()
            exchange.part()
            del self._inboxes[inbox]
            self._changed.unpark_all()

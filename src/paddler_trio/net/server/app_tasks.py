"""The application calls of one connection, and how each of them ends.

Hypercorn starts a call for every request and WebSocket through its "task group". Ours gives each
call an `AppInbox`, so that a disconnect always reaches it and the reader never waits for a call
that has ended. It keeps the running calls and is the boundary for their exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config

from paddler_trio.errors import one_line
from paddler_trio.net.server.app_inbox import AppInbox
from paddler_trio.net.server.asgi import App, ClientGoneError, Message, Scope
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.input_budget import INPUT, InputBudget
from paddler_trio.net.server.passing import PASSING, PassableConnection
from paddler_trio.net.server.plain_protocol import UpgradeStream
from paddler_trio.net.server.protocol import Http11Protocol
from paddler_trio.net.server.raw_response import RAW_RESPONSE
from paddler_trio.net.server.streaming import CLIENT_WATCH, DIRECT_BODY
from paddler_trio.net.server.trusted_proxies import look_behind
from paddler_trio.net.server.upgrade import UPGRADE
from paddler_trio.net.server.written_head import WRITTEN_HEAD
from paddler_trio.net.websocket.arrivals import ARRIVALS, Arrivals
from paddler_trio.net.websocket.bounded_websocket import (
    DIRECT_FRAMES,
    TEXT_FRAMES,
    TEXT_SINK,
    BoundedWebSocket,
)

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
        scope["extensions"][DIRECT_BODY] = {"open": lambda: protocol.direct_body(stream)}
        if self._limits.trusted_proxies:
            look_behind(scope, self._limits.trusted_proxies)
        address = (scope.get("client") or ("",))[0]
        room = self._budget.reservation(share=self._share, client=address)
        scope["extensions"][INPUT] = room
        if isinstance(stream, BoundedWebSocket):
            scope["extensions"][ARRIVALS] = Arrivals(stream, protocol)
            scope["extensions"][TEXT_FRAMES] = stream.send_text
            scope["extensions"][DIRECT_FRAMES] = stream
            scope["extensions"][TEXT_SINK] = stream.take_texts_to
        is_http = scope["type"] == "http"
        if is_http:
            scope["extensions"][RAW_RESPONSE] = protocol.raw_response(stream)
            scope["extensions"][WRITTEN_HEAD] = protocol.written_head
        if isinstance(stream, UpgradeStream):
            scope["extensions"][UPGRADE] = stream.upgrade
        if is_http and protocol.may_pass(scope["path"]):
            scope["extensions"][PASSING] = self.passable
        max_bytes = HTTP_INBOX_BYTES if is_http else self._limits.max_websocket_message_bytes
        inbox = AppInbox(max_bytes=max_bytes, room=room)
        scope["extensions"][CLIENT_WATCH] = inbox
        self._inboxes[inbox] = (
            {"type": "http.disconnect"}
            if is_http
            else {"type": "websocket.disconnect", "code": 1006}
        )
        name = f"{scope.get('method', 'WebSocket')} {scope['path']}"
        self._nursery.start_soon(self._run_app, scope, inbox, send, name=name)
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
        self, scope: Scope, inbox: AppInbox, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        try:
            try:
                await self._app(scope, inbox.receive, send)
            except* ClientGoneError as gone:
                # expected of a call that writes to a client that has left
                logger.debug("%s: %s", scope["path"], one_line(gone))
            except* Exception:
                logger.exception("application failed on %s", scope["path"])
            inbox.discard()
            await send(None)
        finally:
            inbox.discard()
            scope["extensions"][INPUT].close()
            scope["extensions"].clear()  # they know the stream, whose scope this is
            del self._inboxes[inbox]
            self._changed.unpark_all()

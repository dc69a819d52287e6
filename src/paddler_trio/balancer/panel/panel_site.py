"""The panel as one tree of relative URLs under a base, so that any port and any proxy will do.

    BASE              the page
    BASE/assets/…     its files
    BASE/session      who is signed in
    BASE/info         what the page has to know of the balancer
    BASE/api/…        the application of the management port
    BASE/inference/…  that of the inference port

The last two are called in this process, with the base taken off their paths: what they answer, and
how they refuse, is theirs. Agents dial in at the management port and nowhere else, and the model
store passes whole connections on, so neither is reached through here.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import attrs

from paddler_trio.balancer.panel.panel_assets import SECURITY_HEADERS, PanelAssets
from paddler_trio.net.server.asgi import (
    HttpProblem,
    Message,
    Send,
    send_empty,
    send_text,
)
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.router import refuse_upgrade

READS: Final = frozenset({"GET", "HEAD"})
ASSETS: Final = "assets/"
API: Final = "api/"
INFERENCE: Final = "inference/"
OWN: Final = frozenset({"session", "info"})
NOT_THROUGH_HERE: Final = ("api/v1/agent_socket/", "api/v2/store")


@attrs.frozen(eq=False)
class PanelSite:
    """Hold what is under the base; each application has its own guard around it.

    Args:
      own: answers ``/session`` and ``/info``.
      management, inference: of the ports of these names; HTTP, and WebSockets of inference.
    """

    assets: PanelAssets
    own: App
    management: App
    inference: App

    def at(self, base: str) -> App:
        """Return an application for the paths of ``base``, which ends in a slash."""

        async def answer(exchange: Exchange) -> None:
            path: str = exchange.path
            try:
                if path + "/" == base:
                    _must_read(exchange)
                    # relative: what a proxy has put before the path stays before it
                    location = base.rstrip("/").rpartition("/")[2] + "/"
                    await send_empty(exchange.send, 307, headers=[(b"location", location.encode())])
                else:
                    rest = path.removeprefix(base)
                    await self._answer(exchange, base=base, rest=rest)
            except HttpProblem as problem:
                if exchange.is_websocket:
                    await refuse_upgrade(exchange.send, problem)
                else:
                    headers = (*problem.headers, *SECURITY_HEADERS)
                    await send_text(exchange.send, problem.status, problem.text, headers=headers)

        return answer

    async def _answer(self, exchange: Exchange, *, base: str, rest: str) -> None:
        is_socket = exchange.is_websocket
        if rest.startswith(INFERENCE):
            await self.inference(_below(exchange, base + INFERENCE))
        elif is_socket:
            raise HttpProblem(403, "only inference has WebSockets here: use the management port")
        elif rest.startswith(NOT_THROUGH_HERE):
            raise HttpProblem(404, "not through the panel: use the management port")
        elif rest.startswith(API):
            await self.management(_below(exchange, base))
        elif rest in OWN:
            await self.own(_below(exchange, base))
        elif rest == "":
            _must_read(exchange)
            await self.assets.send_index(exchange)
        elif rest.startswith(ASSETS):
            _must_read(exchange)
            await self.assets.send_asset(exchange, rest.removeprefix(ASSETS))
        else:
            raise HttpProblem(404, "the panel has no such page")


def below(base: str, site: App, *, otherwise: App) -> App:
    """Return one application of two: ``site`` for paths of ``base``, with or without its last
    slash."""

    async def answer(exchange: Exchange) -> None:
        path = exchange.path
        is_its = path.startswith(base) or path + "/" == base
        await (site if is_its else otherwise)(exchange)

    return answer


def _must_read(exchange: Exchange) -> None:
    if exchange.is_websocket:
        raise HttpProblem(403, "this path has no WebSocket")
    if exchange.method not in READS:
        raise HttpProblem(405, "this can only be read", [(b"allow", b"GET, HEAD")])


def _below(exchange: Exchange, base: str) -> Exchange:
    """Return the exchange as the application behind the base has to see it."""
    path, raw = "/" + exchange.path.removeprefix(base), exchange.scope.get("raw_path", b"")
    prefix = base.encode()
    rest = raw[len(prefix) - 1 :] if raw.startswith(prefix) else quote(path).encode()
    seen = exchange.seen_as(path=path, raw_path=rest)
    seen.send = _hardened(exchange.send)
    return seen


def _hardened(send: Send) -> Send:
    """``send`` with headers for answers that a browser may be made to show as a page."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await send(message)

    return send_with_headers

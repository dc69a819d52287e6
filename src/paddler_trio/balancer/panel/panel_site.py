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
    App,
    HttpProblem,
    Message,
    Receive,
    Scope,
    Send,
    send_empty,
    send_text,
)
from paddler_trio.net.server.router import refuse_upgrade

READS: Final = frozenset({"GET", "HEAD"})
ASSETS: Final = "assets/"
API: Final = "api/"
INFERENCE: Final = "inference/"
OWN: Final = frozenset({"session", "info"})
NOT_THROUGH_HERE: Final = ("api/v1/agent_socket/", "api/v2/store")


@attrs.frozen(eq=False)
class PanelSite:
    """What is under the base; each application has its own guard around it.

    Args:
      own: answers ``/session`` and ``/info``.
      management, inference: of the ports of these names; HTTP, and WebSockets of inference.
    """

    assets: PanelAssets
    own: App
    management: App
    inference: App

    def at(self, base: str) -> App:
        """An application for the paths of ``base``, which ends in a slash."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            path: str = scope["path"]
            try:
                if path + "/" == base:
                    _must_read(scope)
                    # relative: what a proxy has put before the path stays before it
                    location = base.rstrip("/").rpartition("/")[2] + "/"
                    await send_empty(send, 307, headers=[(b"location", location.encode())])
                else:
                    rest = path.removeprefix(base)
                    await self._answer(scope, receive, send, base=base, rest=rest)
            except HttpProblem as problem:
                if scope["type"] == "websocket":
                    await refuse_upgrade(send, problem)
                else:
                    headers = (*problem.headers, *SECURITY_HEADERS)
                    await send_text(send, problem.status, problem.text, headers=headers)

        return answer

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, *, base: str, rest: str
    ) -> None:
        is_socket = scope["type"] == "websocket"
        if rest.startswith(INFERENCE):
            await self.inference(_below(scope, base + INFERENCE), receive, _hardened(send))
        elif is_socket:
            raise HttpProblem(403, "only inference has WebSockets here: use the management port")
        elif rest.startswith(NOT_THROUGH_HERE):
            raise HttpProblem(404, "not through the panel: use the management port")
        elif rest.startswith(API):
            await self.management(_below(scope, base), receive, _hardened(send))
        elif rest in OWN:
            await self.own(_below(scope, base), receive, _hardened(send))
        elif rest == "":
            _must_read(scope)
            await self.assets.send_index(scope, send)
        elif rest.startswith(ASSETS):
            _must_read(scope)
            await self.assets.send_asset(scope, send, rest.removeprefix(ASSETS))
        else:
            raise HttpProblem(404, "the panel has no such page")


def below(base: str, site: App, *, otherwise: App) -> App:
    """One application of two: ``site`` for paths of ``base``, with or without its last slash."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_its = path.startswith(base) or path + "/" == base
        await (site if is_its else otherwise)(scope, receive, send)

    return answer


def _must_read(scope: Scope) -> None:
    if scope["type"] == "websocket":
        raise HttpProblem(403, "this path has no WebSocket")
    if scope["method"] not in READS:
        raise HttpProblem(405, "this can only be read", [(b"allow", b"GET, HEAD")])


def _below(scope: Scope, base: str) -> Scope:
    """The scope as the application behind the base has to see it."""
    path, raw = "/" + scope["path"].removeprefix(base), scope.get("raw_path", b"")
    prefix = base.encode()
    return {
        **scope,
        "path": path,
        "raw_path": raw[len(prefix) - 1 :] if raw.startswith(prefix) else quote(path).encode(),
    }


def _hardened(send: Send) -> Send:
    """``send`` with headers for answers that a browser may be made to show as a page."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *SECURITY_HEADERS]}
        await send(message)

    return send_with_headers

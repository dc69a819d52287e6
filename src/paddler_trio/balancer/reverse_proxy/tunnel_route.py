"""Take the tunnels that agents were asked for, at ``/api/v2/tunnel/{secret}``.

The connection leaves HTTP behind: once it is answered with 101, it is the agent's tunnel, and lives
as long as the agent's link.
"""

from __future__ import annotations

import os
import socket

import attrs

from paddler_trio.net.server.asgi import (
    ClientGoneError,
    HttpProblem,
    send_text,
)
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.tunnels import Tunnels
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.kernel.socket_options import allow_unacknowledged
from paddler_trio.wire.trio.upstream_messages import (
    CARRIES_FIELD,
    CARRIES_WEBSOCKETS,
    TUNNEL_PATH,
    TUNNEL_PROTOCOL,
)

_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %b\r\n\r\n"
    % TUNNEL_PROTOCOL.encode()
)


def is_tunnel_path(path: str) -> bool:
    """``path`` is percent-decoded."""
    return path.startswith(TUNNEL_PATH)


@attrs.frozen(eq=False)
class TunnelRoute:
    """An application for the paths below ``TUNNEL_PATH``."""

    dispatcher: Dispatcher

    async def __call__(self, exchange: Exchange) -> None:
        """Take the connection over, or answer why not."""
        try:
            self._take_over(exchange)
        except HttpProblem as problem:
            await send_text(exchange.send, problem.status, problem.text)

    def _take_over(self, exchange: Exchange) -> None:
        secret = exchange.path.removeprefix(TUNNEL_PATH)
        tunnels = self._asked_for(secret)
        if tunnels is None:
            raise HttpProblem(404, "no agent was asked for this tunnel, or it came too late")
        connection = exchange.passable
        assert connection is not None, "the server passes on what is_tunnel_path holds for"
        descriptor = connection.fileno()
        if descriptor < 0:
            raise ClientGoneError("the agent closed its tunnel at once")
        if connection.unread():
            raise HttpProblem(400, "nothing is sent through a tunnel before it is answered")
        try:
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError as error:
            raise HttpProblem(503, f"no tunnel: {error.strerror}") from error
        try:
            # some 90 bytes into the empty buffer of a new connection
            copy.send(_SWITCHING)
        except OSError as error:
            copy.close()
            raise ClientGoneError("the agent closed its tunnel at once") from error
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            # a server may be busy before it reads a request: its agent says when that is too long
            allow_unacknowledged(copy, 0)
        connection.release()
        carried = exchange.header(CARRIES_FIELD.lower().encode())
        is_able = carried == CARRIES_WEBSOCKETS.encode()
        if not tunnels.dialled(secret, copy, carries_websockets=is_able):
            copy.close()

    def _asked_for(self, secret: str) -> Tunnels | None:
        for agent in self.dispatcher.agents.values():
            if agent.tunnels is not None and agent.tunnels.expects(secret):
                return agent.tunnels
        return None

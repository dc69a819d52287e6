"""The accept loops of a balancer's ports, and what the tree needs of the servers behind them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from paddler_trio.net.server.server import HttpServer

MANAGEMENT: Final = "management"
"""The name of the service that agents dial."""


@attrs.define(eq=False)
class Ports:
    """The accept loops; that of the management port can be ended before the others."""

    ports: Sequence[tuple[HttpServer, list[socket.socket]]]
    listeners: trio.Nursery
    connections: trio.Nursery
    addresses: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _management: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def open_management(self) -> None:
        """Accept operators and agents."""
        for server, sockets in self.ports:
            if server.name == MANAGEMENT:
                await self._start(server, sockets, self._management)

    async def open_others(self) -> None:
        """Accept clients."""
        for server, sockets in self.ports:
            if server.name != MANAGEMENT:
                await self._start(server, sockets, trio.CancelScope())

    def close_management(self) -> None:
        """Accept no operator and no agent any more; those that wait in the queue of the socket are
        the other process's."""
        self._management.cancel(reason="another process accepts")

    async def _start(
        self, server: HttpServer, sockets: list[socket.socket], scope: trio.CancelScope
    ) -> None:
        async def serve(*, task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await server.serve(sockets, connections=self.connections, task_status=task_status)

        found = await self.listeners.start(serve, name=f"{server.name} listener")
        self.addresses[server.name.replace(" ", "_")] = found

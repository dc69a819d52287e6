"""The accept loops of a balancer's ports, and what the tree needs of the servers behind them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import attrs
import trio

MANAGEMENT: Final = "management"
"""The name of the service that agents dial."""


class Server(Protocol):
    """One port: its accept loop, and the connections that it accepted."""

    @property
    def name(self) -> str: ...

    async def serve(
        self,
        sockets: Iterable[socket.socket],
        *,
        connections: trio.Nursery,
        task_status: trio.TaskStatus[list[str]] = ...,
    ) -> None:
        """Accept until cancelled. Started with the addresses."""
        ...

    def close_after_next(self) -> None:
        """Every connection, new ones too, ends with the response that is next."""
        ...

    @property
    def num_fresh(self) -> int:
        """How many connections have sent no request yet."""
        ...

    def close_quiet(self, *, fresh: bool) -> None:
        """End connections on which nothing happens; also new ones if ``fresh``."""
        ...

    def close_idle(self) -> None: ...

    def cut_all(self) -> None: ...

    async def wait_all_closed(self) -> None: ...


@attrs.define(eq=False)
class Ports:
    """The accept loops; that of the management port can be ended before the others."""

    ports: Sequence[tuple[Server, list[socket.socket]]]
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
        self, server: Server, sockets: list[socket.socket], scope: trio.CancelScope
    ) -> None:
        async def serve(*, task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await server.serve(sockets, connections=self.connections, task_status=task_status)

        found = await self.listeners.start(serve, name=f"{server.name} listener")
        self.addresses[server.name.replace(" ", "_")] = found


async def wait_all_closed(servers: Sequence[Server]) -> None:
    """Until no connection to any of them is open."""
    for server in servers:
        await server.wait_all_closed()

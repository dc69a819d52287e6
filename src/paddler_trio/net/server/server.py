"""The listeners of the balancer: the accept loop, and how its connections end.

A *listener* accepts until it is cancelled. The *connections* it starts live in a nursery that is
passed to it and outlive it, so the nursery tree ends them in order: closing a listener harms no
connection. The tree then calls `close_idle` (requests in progress go on, everything else ends) and,
at its deadline, `cut_all`, together with cancelling their nursery.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs
import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from paddler_trio.net.server.connection import HttpConnection
from paddler_trio.net.server.connection_limits import ConnectionShares, HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.net.server.listening import bound_address
from paddler_trio.net.server.plain_protocol import PlainProtocol
from paddler_trio.net.server.protocol import Http11Protocol
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.net.tls.tls_connection import TlsConnection

logger = logging.getLogger(__name__)

OUT_OF_CAPACITY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
ACCEPT_RETRY_S = 0.1
"""Pause after the system refused us a descriptor: the kernel keeps the client waiting meanwhile."""
COMPLAIN_S = 10.0
"""Between two lines of the log about that."""
ACCEPTED_AT_ONCE = 16
"""In one turn of the event loop, for each listener: what these cost, tokens of others wait for."""


@attrs.frozen
class HttpStatistics:
    """The counts of one server since it was made, and what it holds now."""

    open_connections: int
    accepted: int
    refused: int
    """Closed because ``max_connections`` were open: new ones, and those that made room for them."""
    dropped_for_abuse: int
    """Rules broken by clients: malformed or oversized requests, headers or reads too slow."""


class HttpServer:
    """Serves one ASGI application; knows its open connections.

    Lifespan events are not sent.

    Args:
      app: called for each HTTP request and each WebSocket.
      name: what its tasks are called in the printed tree.
      budget: what requests may hold, shared with other servers; one of its own by default.
      share: of the budget, for clients of this server.
      passes: on which paths the application may pass a connection on; see ``passing``.
      forwards: most responses are raw ones; see ``plain_protocol``.
      tls: for every connection; None for plain ones.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str,
        limits: HttpLimits | None = None,
        budget: InputBudget | None = None,
        share: float = 1.0,
        passes: Callable[[str], bool] = lambda path: False,
        forwards: bool = False,
        tls: ServerTls | None = None,
    ) -> None:
        self._app = app
        self._connect = HttpConnection if tls is None else partial(TlsConnection, tls=tls)
        self._name = name
        self._budget = budget or InputBudget()
        self._share = share
        self._passes = passes
        self._protocol = PlainProtocol if forwards else Http11Protocol
        self._limits = limits or HttpLimits()
        self._config = _hypercorn_config(self._limits)
        self._context = WorkerContext(None)
        self._open: set[HttpConnection] = set()
        self._shares = ConnectionShares[HttpConnection](self._limits.trusted_proxies)
        self._closings = trio.lowlevel.ParkingLot()
        self._draining = False
        self._closes_after_next = False
        self._accepted = 0
        self._refused = 0
        self._dropped_for_abuse = 0

    @property
    def name(self) -> str:
        """Return the name of its tasks in the printed tree."""
        return self._name

    async def serve(
        self,
        sockets: Iterable[socket.socket],
        *,
        connections: trio.Nursery,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept on ``sockets`` (from `listen`) until cancelled; then close them.

        Args:
          connections: each connection becomes a child of this nursery; none ever fails.
          task_status: reports the bound addresses.

        Cancellation: the sockets are closed and new clients refused; no connection is harmed.
        """
        listening = list(sockets)
        addresses = [bound_address(sock) for sock in listening]
        try:
            async with trio.open_nursery() as listeners:
                for sock, address in zip(listening, addresses, strict=True):
                    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
                    name = f"{self._name} listener {address}"
                    listeners.start_soon(self._accept, listener, sock, connections, name=name)
                task_status.started(addresses)
        finally:
            for sock in listening:
                sock.close()

    @property
    def num_fresh(self) -> int:
        """Return how many connections have sent no request yet."""
        return sum(connection.is_fresh for connection in self._open)

    def close_after_next(self) -> None:
        """Every connection, new ones too, ends with the response that is next: the client hears so
        in it, and no request is lost on the way to a connection that is being closed."""
        self._closes_after_next = True
        for connection in self._open:
            connection.closes_after_next = True

    def close_quiet(self, *, fresh: bool) -> None:
        """End connections on which nothing is in progress or has arrived; the others end with their
        next response, which has all the time it takes.

        Args:
          fresh: also those that have not had a request yet.
        """
        self._closes_after_next = True
        for connection in list(self._open):
            connection.close_quiet(fresh=fresh)

    def close_idle(self) -> None:
        """End connections without a request in progress; the others end after theirs."""
        self._draining = True
        for connection in list(self._open):
            connection.drain()

    async def wait_all_closed(self) -> None:
        """Wait until no connection is open; only sensible once the listeners are closed."""
        while self._open:
            await self._closings.park()

    def cut_all(self) -> None:
        """End every connection now: calls are cancelled, sockets closed under shielded writes."""
        for connection in list(self._open):
            connection.cut()

    def statistics(self) -> HttpStatistics:
        """Count connections since the start, and those open now."""
        return HttpStatistics(
            open_connections=len(self._open),
            accepted=self._accepted,
            refused=self._refused,
            dropped_for_abuse=self._dropped_for_abuse,
        )

    async def _accept(
        self, listener: trio.SocketListener, sock: socket.socket, connections: trio.Nursery
    ) -> None:
        """``sock`` is that of ``listener``."""
        complained_s = -math.inf
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in OUT_OF_CAPACITY:
                    raise
                if trio.current_time() >= complained_s + COMPLAIN_S:
                    complained_s = trio.current_time()
                    reason = os.strerror(error.errno)
                    logger.error(
                        "%s cannot accept: %s; clients wait until there is room again. Is the "
                        "limit of open files (ulimit -n, LimitNOFILE= of a unit) high enough?",
                        self._name,
                        reason,
                    )
                await trio.sleep(ACCEPT_RETRY_S)
                continue
            self._start(stream, connections)
            for stream in more_clients(sock, ACCEPTED_AT_ONCE - 1):
                self._start(stream, connections)

    def _start(self, stream: trio.SocketStream, connections: trio.Nursery) -> None:
        try:
            address = stream.socket.getpeername()[0]
        except OSError:  # it has left
            stream.socket.close()
            return
        if len(self._open) >= self._limits.max_connections:
            self._refused += 1
            given_up = self._shares.gives_up(address)
            if given_up is None:
                stream.socket.close()
                return
            self._shares.remove(given_up)
            self._open.discard(given_up)
            given_up.cut()
        connection = self._connect(
            self._app,
            stream,
            limits=self._limits,
            config=self._config,
            context=self._context,
            budget=self._budget,
            share=self._share,
            passes=self._passes,
            protocol=self._protocol,
            on_abuse=self._count_abuse,
        )
        connection.draining = self._draining
        connection.closes_after_next = self._closes_after_next
        self._accepted += 1
        self._open.add(connection)
        self._shares.add(connection, address)
        name = f"{self._name} connection {self._accepted}"
        connections.start_soon(self._run, connection, name=name)

    async def _run(self, connection: HttpConnection) -> None:
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            self._shares.remove(connection)
            self._closings.unpark_all()

    def _count_abuse(self) -> None:
        self._dropped_for_abuse += 1


def more_clients(sock: socket.socket, most: int) -> Iterator[trio.SocketStream]:
    """Up to so many connections that are there already, without a turn of the event loop for each:
    in a busy balancer a turn takes long, and clients would wait as many turns as they are."""
    for _ in range(most):
        try:
            client, _ = sock.accept()
        except OSError:  # none is there; whatever else it is meets the next one that is waited for
            return
        yield trio.SocketStream(trio.socket.from_stdlib_socket(client))


def _hypercorn_config(limits: HttpLimits) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_header_bytes
    config.keep_alive_max_requests = 1_000_000
    config.websocket_max_message_size = limits.max_websocket_message_bytes
    config.websocket_ping_interval = limits.ping_interval_s
    return config


async def wait_all_closed(servers: Sequence[HttpServer]) -> None:
    """Wait until no connection to any of them is open."""
    for server in servers:
        await server.wait_all_closed()

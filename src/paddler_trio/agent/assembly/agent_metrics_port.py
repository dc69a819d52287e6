"""The port on which an agent shows its metrics (``--metrics-addr``): one route, no changes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.agent.model.disk_space import DiskSpace
from paddler_trio.agent.requests.instance_measures import InstanceMeasures
from paddler_trio.net.server.allowed_hosts import AllowedHosts
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.listening import beyond_loopback, bound_address, listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.tls.server_context import TlsFiles
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.telemetry.exposition import Exposition
from paddler_trio.telemetry.metric_kind import AGENT_PREFIX

log = structlog.get_logger("agent")

MAX_CONNECTIONS: Final = 64
"""Scrapers, and people who look."""


def bind_metrics(address: str | None) -> list[socket.socket]:
    """Return the sockets of the port, none without an address; ConfigurationError if it cannot be
    had."""
    if address is None:
        return []
    sockets = listen(address)
    if exposed := beyond_loopback(sockets):
        log.warning(
            "METRICS ARE OPEN: every client that reaches them sees what this agent serves and how "
            "busy it is; bind --metrics-addr to 127.0.0.1, or let only your Prometheus reach it",
            addresses=exposed,
        )
    return sockets


def tls_of(config: AgentConfig) -> ServerTls | None:
    """Return the TLS of the port, None for none; ConfigurationError."""
    files = TlsFiles.of(
        config.metrics_tls_cert,
        config.metrics_tls_key,
        config.metrics_tls_client_ca,
        flags="--metrics-tls",
    )
    if files is None:
        return None
    tls = ServerTls.read(files)
    tls.log_use("the port of the metrics")
    return tls


@attrs.frozen(eq=False)
class AgentMetricsPort:
    """One life of it; see the module docstring.

    Args:
      sockets: from :func:`bind_metrics`; closed at the end.
      tls: from :func:`tls_of`.
    """

    sockets: Sequence[socket.socket]
    measures: InstanceMeasures
    disk: DiskSpace
    tls: ServerTls | None = None

    async def run(self) -> None:
        """Serve, and sample what is served, until cancelled; then every connection ends at once."""
        server = HttpServer(
            self._app(),
            name="metrics",
            limits=HttpLimits(max_connections=MAX_CONNECTIONS),
            tls=self.tls,
        )
        async with trio.open_nursery() as connections:
            if self.tls is not None:
                connections.start_soon(self.tls.run, name="certificate watch")
            connections.start_soon(self.measures.run, name="metrics samples")
            connections.start_soon(self.disk.run, name="disk space")
            log.info("metrics", addresses=[bound_address(each) for each in self.sockets])
            await server.serve(self.sockets, connections=connections)

    def _app(self) -> App:
        router = Router()
        Exposition(AGENT_PREFIX, self.measures.collect).add_to(router)
        if beyond_loopback(self.sockets):
            return router
        # a page of a browser on this machine must not read it under a name of its own
        return AllowedHosts(frozenset(), is_loopback=True, requires_key=lambda: False)(router)

"""An agent in front of a server: no model, a link, and tunnels to the server."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from paddler_trio.agent.assembly.machine_watch import MachineWatch
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink, new_agent_id
from paddler_trio.agent.model.server_files import ServerFiles
from paddler_trio.agent.servers.tunnel_dial import ForwardedStreams
from paddler_trio.agent.servers.upstream_monitor import MonitorSettings, UpstreamMonitor
from paddler_trio.agent.servers.upstream_parts import NoModels, UpstreamRequests, UpstreamTunnels
from paddler_trio.agent.servers.upstream_shown import UpstreamShown
from paddler_trio.net.client.upstream_address import UpstreamTimeouts, parse_upstream_address
from paddler_trio.net.client.upstream_client import UpstreamClient, make_upstream_client
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.nursery_tree.agent_tree import AgentParts
from paddler_trio.nursery_tree.instance_tree import InstanceParts
from paddler_trio.system.settings.agent_config import AgentConfig, UpstreamConfig
from paddler_trio.wire.trio.trio_link import Placement

LONGEST_SILENCE_S: Final = 6 * 3600.0
"""The silence of a server in a request: the balancer, which knows its clients' patience, gives up
before."""


def upstream_agent_parts(config: AgentConfig, server: UpstreamConfig) -> AgentParts:
    """Call it inside the trio run.

    Errors:
      ConfigurationError: no address of a server, or a file that cannot be read.
    """
    client, monitor = _monitored(server)
    status = AgentStatus(server.slots or 1)
    shown = UpstreamShown(status, monitor, server.external_address or client.address.authority)
    host = new_agent_id()
    address = BalancerAddress(config.management_host, config.management_port, config.has_tls)
    tls = ClientTls(
        config.tls_ca, config.tls_fingerprint, config.tls_client_cert, config.tls_client_key
    )
    # the first link of a host is that of `default`, which servers never are
    placement = Placement(host=host, deployment=server.deployment, labels=config.labels)

    async def authorization() -> bytes | None:
        return await link.authorization()

    streams = ForwardedStreams(server.stream_interval_ms / 1000)
    machine = MachineWatch()
    tunnels = UpstreamTunnels(client, monitor, streams, address, tls, authorization, shown.show)
    requests = UpstreamRequests(tunnels)
    link = BalancerLink(
        address,
        config.name,
        status,
        NoModels(),
        requests,
        token_file=config.secret_file,
        tls=tls,
        id=f"{host}.{server.deployment}",
        placement=lambda: placement,
        offer=lambda: shown.offer,
        machine=lambda: machine.facts,
    )

    def offer_nothing() -> None:
        status.set(is_leaving=True)
        tunnels.leave()

    first = InstanceParts(
        name=config.name or host,
        services={
            "machine": machine.keep_looking,
            "upstream monitor": monitor.run,
            "upstream status": shown.run,
            "upstream connections": client.run,
            "forwarded streams": streams.run,
        },
        link=link,
        open_requests=partial(requests.open, status=status),
        offer_nothing=offer_nothing,
        drain_timeout_s=config.drain_timeout_s,
    )
    return AgentParts(first, _no_instances)


def _monitored(server: UpstreamConfig) -> tuple[UpstreamClient, UpstreamMonitor]:
    """Return a client of the server, and what looks after the server with it."""
    files = ServerFiles.read(server.key_file, server.ca)
    upstream = parse_upstream_address(server.url)
    client = make_upstream_client(
        upstream,
        timeouts=UpstreamTimeouts(first_byte_s=LONGEST_SILENCE_S, idle_s=LONGEST_SILENCE_S),
        bearer=files.bearer,
        ca_file=server.ca,
    )
    settings = MonitorSettings(
        slots=server.slots,
        busy_s=server.interval_s,
        idle_s=server.interval_s,
    )
    has_files = server.key_file is not None or server.ca is not None
    monitor = UpstreamMonitor(
        client,
        settings,
        server.key_file is not None,
        renew=partial(files.renew, client) if has_files else None,
    )
    return client, monitor


async def _no_instances(stop: trio.Event) -> None:
    """Wait: nothing else is served beside it."""
    await stop.wait()

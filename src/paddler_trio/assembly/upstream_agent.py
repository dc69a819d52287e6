"""An agent in front of a server: no model, a link, and tunnels to the server."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

import trio

from paddler_trio.agent.balancer_link import BalancerLink
from paddler_trio.agent.status import AgentStatus
from paddler_trio.agent.upstream_parts import NoModels, UpstreamRequests
from paddler_trio.agent.upstream_tunnels import UpstreamTunnels
from paddler_trio.config import AgentConfig, UpstreamConfig
from paddler_trio.daemon.secret_file import read_secret
from paddler_trio.nursery_tree.agent_tree import AgentParts
from paddler_trio.nursery_tree.instance_tree import InstanceParts
from paddler_trio.tls.address import BalancerAddress
from paddler_trio.tls.client_tls import ClientTls
from paddler_trio.upstream.upstream_address import parse_upstream_address
from paddler_trio.upstream.upstream_client import make_upstream_client
from paddler_trio.wire.trio.trio_link import Placement
from paddler_trio.wire.trio.upstream_messages import Upstream


def upstream_agent_parts(config: AgentConfig, server: UpstreamConfig) -> AgentParts:
    """Call it inside the trio run.

    Errors:
      ConfigurationError: no address of a server, or a file that cannot be read.
    """
    bearer = None if server.key_file is None else read_secret(server.key_file).encode()
    client = make_upstream_client(
        parse_upstream_address(server.url), bearer=bearer, ca_file=server.ca
    )
    host = secrets.token_urlsafe(16)
    status = AgentStatus(server.slots or 1)
    address = BalancerAddress(config.management_host, config.management_port, config.has_tls)
    tls = ClientTls(
        config.tls_ca, config.tls_fingerprint, config.tls_client_cert, config.tls_client_key
    )
    # the first link of a host is that of `default`, which servers never are
    placement = Placement(host=host, deployment=server.deployment, labels=config.labels)
    status.set(is_serving=True, phase="serving")

    async def nothing_to_wait_for() -> None:
        await trio.lowlevel.checkpoint()

    async def authorization() -> bytes | None:
        return await link.authorization()

    tunnels = UpstreamTunnels(client, address, tls, authorization, nothing_to_wait_for)
    link = BalancerLink(
        address,
        config.name,
        status,
        NoModels(),
        UpstreamRequests(tunnels),
        token_file=config.token_file,
        tls=tls,
        id=f"{host}.{server.deployment}",
        placement=lambda: placement,
        offer=lambda: Upstream(phase="ready"),
    )

    def offer_nothing() -> None:
        status.set(is_leaving=True)
        tunnels.leave()

    services: Mapping[str, Callable[[], Awaitable[None]]] = {"upstream client": client.run}
    first = InstanceParts(
        name=config.name or host,
        services=services,
        link=link,
        open_requests=tunnels.open,
        offer_nothing=offer_nothing,
        drain_timeout_s=config.drain_timeout_s,
    )
    return AgentParts(first, _no_instances)


async def _no_instances(stop: trio.Event) -> None:
    """A server is what it is: nothing else is served beside it."""
    await stop.wait()

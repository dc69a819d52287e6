"""Put together what forwards requests to servers behind agents: a port of its own, and a part of
inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.assembly.port_guards import PortGuards
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.reverse_proxy.forwarding import Forwarding
from paddler_trio.balancer.reverse_proxy.reverse_proxy import ReverseProxy, UpstreamFront
from paddler_trio.balancer.reverse_proxy.server_pools import ServerPools
from paddler_trio.net.server.exchange import App, Refuse
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM

REVERSE_PROXY: Final = "reverse proxy"
"""The name of the port's service."""
PADDLER_V1_OVERFLOW: Final = 429


@attrs.frozen(eq=False)
class Upstreams:
    """One for a balancer."""

    forwarding: Forwarding
    pools: ServerPools
    deployments: Deployments
    shows_slots: bool

    @classmethod
    def of(
        cls,
        config: BalancerConfig,
        core: BalancerCore,
        guards: PortGuards,
        deployments: Deployments,
    ) -> Upstreams:
        """Make the forwarding; with a port for them, requests may wait before the first server is
        there."""
        if config.reverseproxy_addr is not None:
            core.dispatcher.pools.open_upstream(DEFAULT_UPSTREAM)
        forwarding = Forwarding(
            dispatcher=core.dispatcher,
            response_timeout_s=config.reverseproxy_response_timeout_s,
            rewrites_host=config.rewrite_host_header,
            needs_keys=lambda: guards.use.requires_key,
        )
        return cls(forwarding, ServerPools(core.dispatcher), deployments, config.slots_endpoint)

    def proxy(self) -> App:
        """Return the application of the port. It refuses more than the queue takes as Paddler 1.x
        did."""
        forwarding = attrs.evolve(self.forwarding, overflow_status=PADDLER_V1_OVERFLOW)
        return ReverseProxy(forwarding, self.pools, self.shows_slots)

    def front(self, api: App, refuse: Refuse, limited: Callable[[App], App]) -> App:
        """``api`` behind what sends requests for a server's model to the server.

        Args:
          refuse: in the words of the APIs.
          limited: puts an application within the limits of keys.
        """
        return UpstreamFront(
            api=api,
            refuse=refuse,
            limited=limited,
            forwarding=self.forwarding,
            pools=self.pools,
            is_unserved=lambda: self.deployments.default.is_empty,
        )

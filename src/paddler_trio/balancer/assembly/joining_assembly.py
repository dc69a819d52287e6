"""Put together who may dial in: the registry of agents, its guard, its routes and its task."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.joining.agent_guard import AgentGuard, legacy_networks
from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.announcement import AdvertisedAddress, Announcement
from paddler_trio.balancer.joining.join_exchange import JoinExchange
from paddler_trio.balancer.joining.join_pins import JoinPins
from paddler_trio.balancer.joining.join_routes import JoinTokenRoutes
from paddler_trio.balancer.joining.pin_routes import PinRoutes
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.reverse_proxy.tunnel_exchange import is_tunnel_path
from paddler_trio.balancer.status.refused_agents import RefusedAgents
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.service_type import balancer_name
from paddler_trio.net.server.listening import beyond_loopback
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.processes.model_store.store_messages import is_store_path
from paddler_trio.system.settings.balancer_config import BalancerConfig

SUFFIX: Final = ".agents.json"
"""Of the file beside a state database."""


def agents_path(config: BalancerConfig) -> Path | None:
    """Return the file of join tokens and credentials; None without a place for it.
    ConfigurationError."""
    if config.agents_file is not None:
        return config.agents_file.absolute()
    state = state_file(config.state_database)
    return None if state is None else state.with_name(state.name + SUFFIX)


@attrs.frozen(eq=False)
class Joining:
    """One of each for a balancer."""

    registry: AgentRegistry
    exchange: JoinExchange
    tokens: JoinTokenRoutes
    pins: PinRoutes
    address: AdvertisedAddress

    @classmethod
    def of(
        cls,
        config: BalancerConfig,
        keys: KeyRing,
        tls: ServerTls | None,
        address: AdvertisedAddress,
    ) -> Joining:
        """Read the file; ConfigurationError for one that cannot be used. It blocks."""
        registry = AgentRegistry.read(agents_path(config))

        def certificates() -> Sequence[str]:
            if tls is None:
                return ()
            return [ssl.DER_cert_to_PEM_cert(each.der) for each in tls.chain]

        name = balancer_name(address.port)
        tokens = JoinTokenRoutes(
            registry, keys, address, lambda: None if tls is None else tls.ca_hash
        )
        pins = JoinPins(registry, name, lambda: None if tls is None else tls.fingerprint)
        return cls(
            registry,
            JoinExchange(registry, certificates),
            tokens,
            PinRoutes(pins, tokens),
            address,
        )

    def owned(self, config: BalancerConfig) -> dict[str, Run]:
        """Return what only one balancer may run; ConfigurationError for what cannot be
        announced."""
        owned: dict[str, Run] = {"agents' credentials": self.registry.run}
        if config.discoverable:
            bound = [each.getsockname()[0] for each in self.address.sockets]
            announcement = Announcement(self.pins.pins.name, self.address.port, bound)
            announcement.check(can_join=self.pins.problem())
            if not beyond_loopback(self.address.sockets):
                raise ConfigurationError(
                    "--discoverable: the management port listens on the loopback, where no other "
                    f"machine reaches it: give --management-addr 0.0.0.0:{self.address.port}"
                )
            owned["announcement"] = announcement.run
        return owned

    def guard(
        self, config: BalancerConfig, manage: Authentication, refused: RefusedAgents
    ) -> AgentGuard:
        """Return the guard of the management port; ConfigurationError for a network that is
        none."""
        return AgentGuard(
            self.registry, manage, _is_agents_path, legacy_networks(config.legacy_agents), refused
        )


def _is_agents_path(path: str) -> bool:
    """Return whether this is a path that a credential opens beside the socket, for reading."""
    return is_store_path(path) or is_tunnel_path(path)

"""The sockets of a balancer's ports, bound before anything of it runs."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from paddler_trio.balancer.assembly.panel_assembly import PANEL
from paddler_trio.balancer.assembly.upstream_assembly import REVERSE_PROXY
from paddler_trio.balancer.front.exposure import check_exposure
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.listening import adopt, listen, warn_of_plain_ports
from paddler_trio.net.tls.server_tls import ServerTls, server_tls
from paddler_trio.system.settings.balancer_config import BalancerConfig


@attrs.frozen(eq=False)
class BoundBalancer:
    """Ports are bound before anything runs: one in use is an error and nothing has started."""

    config: BalancerConfig
    listeners: Mapping[str, list[socket.socket]]
    """By the name of the service: inference, management and, if there are such ports, compat
    openai, compat ollama, reverse proxy and web admin panel."""
    keys: KeyRing = attrs.field(factory=KeyRing)
    tls: ServerTls | None = None
    """The TLS of every port; None for ports without it."""
    inheritance: Inheritance | None = None
    """The inheritance from the balancer that this one takes over from."""

    @classmethod
    def bind(
        cls,
        config: BalancerConfig,
        *,
        inheritance: Inheritance | None = None,
        passed: Mapping[str, list[socket.socket]] = MappingProxyType({}),
    ) -> BoundBalancer:
        """Raises ConfigurationError, with nothing left open; also for a port that would be open to
        a network without saying so.

        Args:
          inheritance: whose sockets are used where they are bound for the same address.
          passed: listening sockets of systemd, by :data:`SOCKET_NAMES`; used in any case.
        """
        listeners = {name.replace("-", " "): sockets for name, sockets in passed.items()}
        try:
            keys = KeyRing.read(config.api_key_file)
            tls = server_tls(config)
            addresses = addresses_in(config)
            for name in listeners.keys() - addresses.keys():
                raise ConfigurationError(
                    f"systemd passed a socket for {name}, and there is no such service: give "
                    "its address, which is not bound then"
                )
            # one by one: what was bound before an error is there to be closed
            for name, address in addresses.items():
                sockets = listeners.get(name)
                if sockets is None and inheritance is not None:
                    sockets = inheritance.take_port(name, address)
                if sockets is not None:
                    adopt(sockets)
                listeners[name] = listen(address) if sockets is None else sockets
            check_exposure(
                keys,
                inference=[
                    *listeners["inference"],
                    *listeners.get("compat openai", ()),
                    *listeners.get("compat ollama", ()),
                    *listeners.get(REVERSE_PROXY, ()),
                ],
                management=listeners["management"],
                panel=listeners.get(PANEL, ()),
                insecure_management=config.insecure_management,
            )
            if tls is None:
                warn_of_plain_ports([each for bound in listeners.values() for each in bound])
        except BaseException:
            for bound in listeners.values():
                for each in bound:
                    each.close()
            raise
        return cls(config, listeners, keys, tls, inheritance)


SOCKET_NAMES: Final = frozenset(
    {
        *("inference", "management", "compat-openai", "compat-ollama"),
        *("reverse-proxy", "web-admin-panel"),
    }
)
"""The names of the sockets that systemd may pass."""


def addresses_in(config: BalancerConfig) -> dict[str, str]:
    """Return the address of each service that there is to be."""
    addresses = {
        "inference": config.inference_addr,
        "management": config.management_addr,
        "compat openai": config.compat_openai_addr,
        "compat ollama": config.compat_ollama_addr,
        REVERSE_PROXY: config.reverseproxy_addr,
        PANEL: config.web_admin_panel_addr,
    }
    return {name: address for name, address in addresses.items() if address is not None}

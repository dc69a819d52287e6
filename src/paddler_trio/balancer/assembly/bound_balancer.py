"""The sockets of a balancer's ports, bound before anything of it runs.

Put together what forwards requests to servers behind agents: a port of its own, and a part of
inference.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs

from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.cors import Cors
from paddler_trio.balancer.front.exposure import check_exposure
from paddler_trio.balancer.front.origins import Origins
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.joining.agent_guard import AgentGuard
from paddler_trio.balancer.keys.api_keys import KeyScope
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.panel.info_routes import InfoRoutes
from paddler_trio.balancer.panel.panel_access import PanelAccess
from paddler_trio.balancer.panel.panel_assets import PanelAssets
from paddler_trio.balancer.panel.panel_site import PanelSite
from paddler_trio.balancer.panel.session_routes import SessionRoutes
from paddler_trio.balancer.reverse_proxy.forwarding import Forwarding
from paddler_trio.balancer.reverse_proxy.reverse_proxy import ReverseProxy, UpstreamFront
from paddler_trio.balancer.reverse_proxy.server_pools import ServerPools
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.allowed_hosts import AllowedHosts, allowed_names
from paddler_trio.net.server.exchange import App, AuditTrail, Refuse, refuse_in_plain_text
from paddler_trio.net.server.listening import (
    adopt,
    beyond_loopback,
    bound_address,
    listen,
    warn_of_plain_ports,
)
from paddler_trio.net.server.router import Router, by_path
from paddler_trio.net.tls.server_tls import ServerTls, server_tls
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM


@attrs.frozen(eq=False)
class PortGuards:
    """``use`` is for clients of inference, ``manage`` for the management port, ``operate`` for the
    panel, which asks for a key as soon as there is one."""

    names: frozenset[str]
    """Under which ports answer that ask for no key."""
    use: Authentication
    manage: Authentication
    operate: Authentication
    inference_pages: Origins
    """Of which origins may use inference."""
    management_pages: Origins

    @classmethod
    def of(cls, config: BalancerConfig, keys: KeyRing, host_names: frozenset[str]) -> PortGuards:
        """``host_names`` are those of this machine."""
        return cls(
            names=allowed_names(config.allowed_hosts) | host_names,
            use=Authentication(keys, KeyScope.INFERENCE),
            manage=Authentication(keys, KeyScope.MANAGEMENT, is_waived=config.insecure_management),
            operate=Authentication(keys, KeyScope.MANAGEMENT),
            inference_pages=Origins(
                config.inference_cors_allowed_hosts, flag="--inference-cors-allowed-host"
            ),
            management_pages=Origins(
                config.management_cors_allowed_hosts, flag="--management-cors-allowed-host"
            ),
        )

    def hosts(
        self, listener: Sequence[socket.socket], keys: Authentication | AgentGuard
    ) -> AllowedHosts:
        """Return what checks the Host header of requests to these sockets."""
        return AllowedHosts(
            self.names,
            is_loopback=not beyond_loopback(listener),
            requires_key=lambda: keys.requires_key,
        )

    def inference(
        self,
        app: App,
        listener: Sequence[socket.socket],
        cors: Cors,
        refuse: Refuse = refuse_in_plain_text,
    ) -> App:
        """``app`` as a port for clients of inference serves it."""
        return self._guarded(app, listener, cors, self.inference_pages, self.use, refuse)

    def forwarded(self, app: App, listener: Sequence[socket.socket]) -> App:
        """``app`` as a port serves it whose answers are other servers': what they allow pages of
        other origins is for them to say."""
        named = self.hosts(listener, self.use)
        keys = self.use(app, refuse=refuse_in_plain_text)
        return named(self.inference_pages(keys, refuse=refuse_in_plain_text))

    def management(
        self, app: App, listener: Sequence[socket.socket], cors: Cors, agents: AgentGuard
    ) -> App:
        """``app`` as the management port serves it, to operators and to ``agents``."""
        return self._guarded(
            app, listener, cors, self.management_pages, agents, refuse_in_plain_text
        )

    def _guarded(
        self,
        app: App,
        listener: Sequence[socket.socket],
        cors: Cors,
        pages: Origins,
        keys: Authentication | AgentGuard,
        refuse: Refuse,
    ) -> App:
        named = self.hosts(listener, keys)
        return cors(named(pages(keys(app, refuse=refuse), refuse=refuse), refuse=refuse))


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


PANEL: Final = "web admin panel"
"""The service of ``--web-admin-panel-addr``; the same site is below ``/panel/`` of management."""


def panel_info(
    listeners: Mapping[str, Sequence[socket.socket]],
    *,
    agents_need_key: Callable[[], bool],
    captures: bool,
    is_encrypted: bool,
) -> InfoRoutes:
    """Return what pages have to know; `listeners` of all services are by their names."""
    named = {
        "inference": "inference",
        "management": "management",
        "openai": "compat openai",
        "ollama": "compat ollama",
        "panel": PANEL,
    }
    return InfoRoutes(
        addresses={
            called: [bound_address(each) for each in listeners.get(name, ())]
            for called, name in named.items()
        },
        agents_need_key=agents_need_key,
        captures=captures,
        is_encrypted=is_encrypted,
    )


def panel_site(
    info_routes: InfoRoutes,
    keys: KeyRing,
    *,
    management: App,
    inference: App,
    apis: ApiRouter,
    limited_apis: App,
    use: Authentication,
    operators: Authentication,
    pages: Origins,
    audit: AuditTrail,
) -> PanelSite:
    """Return the panel, over the applications of the ports that it stands for.

    Args:
      keys: what people sign in with.
      limited_apis: ``apis`` within the limits of keys, as ``inference`` is.
      use, operators: keys that requests may bring instead of a session.
      pages: of which origins may change anything.
      audit: who signed in and out.
    """
    access = PanelAccess(keys)
    own = Router()
    SessionRoutes(access, operators).add_to(own)
    info = Router()
    info_routes.add_to(info)
    return PanelSite(
        PanelAssets.read(),
        own=by_path(
            "/info".__eq__,
            access(info, otherwise=operators),
            otherwise=pages(audited(own, audit, changes=lambda exchange: False)),
        ),
        management=pages(access(management, otherwise=operators)),
        inference=by_path(
            apis.serves,
            pages(access(limited_apis, otherwise=use, refuse=apis.refuse), refuse=apis.refuse),
            otherwise=pages(access(inference, otherwise=use)),
        ),
    )


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

"""Under which names, to which pages and for which keys each port serves its application."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import attrs

from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.cors import Cors
from paddler_trio.balancer.front.origins import Origins
from paddler_trio.balancer.joining.agent_guard import AgentGuard
from paddler_trio.balancer.keys.api_keys import KeyScope
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.net.server.allowed_hosts import AllowedHosts, allowed_names
from paddler_trio.net.server.exchange import App, Refuse, refuse_in_plain_text
from paddler_trio.net.server.listening import beyond_loopback
from paddler_trio.system.settings.balancer_config import BalancerConfig


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

"""Find where new machines are told to reach the management service, as far as that can be known
here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import TLS_SCHEME
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.system.config import is_loopback_host, split_address


@attrs.frozen
class AdvertisedAddress:
    """The address that a join token carries if none was asked for.

    It is the name under which the operator reached the balancer, if other machines may use that
    too; else the address that the port is bound to, else this machine's name.

    Args:
      sockets: of the management service.
      names: of this machine, the most complete last.
    """

    sockets: Sequence[socket.socket]
    has_tls: bool
    names: Sequence[str]

    @property
    def port(self) -> int:
        """Return the port of the management service; 0 without a socket."""
        return int(self.sockets[0].getsockname()[1]) if self.sockets else 0

    def __call__(self, exchange: Exchange) -> str:
        """``host:port``, with ``https://`` before it if there is TLS."""
        bound = [each.getsockname() for each in self.sockets]
        port = self.port
        text = (exchange.header(b"host") or b"").decode("latin-1")
        host, asked_port = _split(text)
        if asked_port is None or (exchange.scope.get("server") or ("", None))[1] != port:
            asked_port = port  # it came over the panel's port, or through none that it names
        if host and not is_loopback_host(host):
            return self._text(host, asked_port)
        addresses = [ipaddress.ip_address(each[0].partition("%")[0]) for each in bound]
        for address in addresses:
            if not (address.is_loopback or address.is_unspecified):
                return self._text(str(address), port)
        names = [name for name in self.names if not name.startswith("localhost")]
        if any(address.is_unspecified for address in addresses) and names:
            return self._text(names[-1], port)
        return self._text(host or str(addresses[0]), port)

    def _text(self, host: str, port: int) -> str:
        scheme = TLS_SCHEME if self.has_tls else ""
        return f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}"


def _split(text: str) -> tuple[str, int | None]:
    """Return the host and port of a ``Host`` header; no host if it is none."""
    try:
        return split_address(text)
    except ConfigurationError:
        pass
    try:
        host, _ = split_address(f"{text}:1")
    except ConfigurationError:
        return "", None
    return host, None

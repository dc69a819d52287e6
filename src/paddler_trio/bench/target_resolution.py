"""What a base URL resolves to, and whether that is one's own network."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs
import trio

from paddler_trio.bench.target_address import BaseUrl
from paddler_trio.errors import ConfigurationError


@attrs.frozen
class Resolved:
    """A base URL, and the one IP address that all connections go to, as text: a link-local one has
    its zone."""

    url: BaseUrl
    ip: str

    @property
    def is_public(self) -> bool:
        """Whether it may be a machine of other people."""
        address: IPv4Address | IPv6Address = ip_address(self.ip.partition("%")[0])
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        return address.is_global


async def resolve(url: BaseUrl) -> Resolved:
    """Ask for the address once: what was asked about is what gets the load.

    Errors:
      ConfigurationError: there is no such host.
    """
    try:
        found = await trio.socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot find the host of {url}: {reason}") from error
    return Resolved(url, str(found[0][4][0]))

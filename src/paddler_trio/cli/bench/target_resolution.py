"""The addresses of a base URL: whether they are of one's own network, and which one answers."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import attrs
import trio

from paddler_trio.cli.bench.target_address import BaseUrl
from paddler_trio.errors import ConfigurationError

MAX_ADDRESSES: Final = 8
CONNECT_S: Final = 5.0


@attrs.frozen
class Resolved:
    """A base URL, and its IP addresses as texts, the system's favourite first: a link-local one has
    its zone."""

    url: BaseUrl
    ips: tuple[str, ...]

    @property
    def public_ip(self) -> str | None:
        """One that may be a machine of other people; None if all are of one's own network."""
        return next((ip for ip in self.ips if _is_public(ip)), None)

    async def answering_ip(self) -> str:
        """The one address that all connections go to: the first that takes one, else the first.

        A host may have several and its server listen on one: ``localhost`` often is ``::1`` first,
        and llama-server is at 127.0.0.1.
        """
        for ip in self.ips if len(self.ips) > 1 else ():
            try:
                stream = await connected(ip, self.url.port)
            except OSError:
                continue
            await trio.aclose_forcefully(stream)
            return ip
        return self.ips[0]


async def connected(ip: str, port: int) -> trio.SocketStream:
    """A connection within ``CONNECT_S``; OSError."""
    try:
        with trio.fail_after(CONNECT_S):
            return await trio.open_tcp_stream(ip, port)
    except trio.TooSlowError as error:
        raise OSError(f"no connection within {CONNECT_S:g} s") from error


def _is_public(ip: str) -> bool:
    address: IPv4Address | IPv6Address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_global


async def resolve(url: BaseUrl) -> Resolved:
    """Ask for the addresses once: what was asked about is what gets the load.

    Errors:
      ConfigurationError: there is no such host.
    """
    try:
        found = await trio.socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot find the host of {url}: {reason}") from error
    ips = dict.fromkeys(str(address[0]) for *_, address in found)
    return Resolved(url, tuple(ips)[:MAX_ADDRESSES])

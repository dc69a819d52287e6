"""Networks that flags name: written exactly, compared by address alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from paddler_trio.errors import ConfigurationError

MAX_NETWORKS: Final = 64
MAPPED_BITS: Final = 96

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(texts: Iterable[str], flag: str) -> tuple[Network, ...]:
    """Return the networks that ``flag`` was given; ConfigurationError for one that is no network,
    or if there are too many."""
    found = tuple(_network(text, flag) for text in texts)
    if len(found) > MAX_NETWORKS:
        raise ConfigurationError(f"{flag} is given {len(found)} times, the limit is {MAX_NETWORKS}")
    return found


def is_within(networks: Sequence[Network], address: str) -> bool:
    """Return whether the address of a connection is in one of the networks."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return any(found in network for network in networks)


def household(address: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, which one household has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        found64 = ipaddress.ip_network((found, 64), strict=False)
        return str(found64.network_address if mapped is None else mapped)
    return str(found)


def _unmapped(network: Network) -> Network:
    """Return the IPv4 network that an IPv6 notation stands for, else the network itself."""
    if not isinstance(network, ipaddress.IPv6Network) or network.prefixlen < MAPPED_BITS:
        return network
    mapped = network.network_address.ipv4_mapped
    if mapped is None:
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - MAPPED_BITS))


def _network(text: str, flag: str) -> Network:
    try:
        return _unmapped(ipaddress.ip_network(text))
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigurationError(
            f"{flag} {text[:80]!r} is no network: write one such as 10.0.0.0/24 or fd00::/64"
        ) from error
    raise ConfigurationError(
        f"{flag} {text!r} has bits set behind its mask: write {meant} for the network"
    )

"""Networks of agents that have nothing to show: written exactly, compared by address alone."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.joining.agent_guard import legacy_networks
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.networks import MAX_NETWORKS, is_within

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@pytest.mark.parametrize(
    ("address", "is_in"),
    [
        ("10.0.0.1", True),
        ("10.0.1.1", False),
        ("::ffff:10.0.0.1", True),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fd01::1", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_addresses_of_networks(address: str, is_in: bool) -> None:
    assert is_within(legacy_networks(["10.0.0.0/24", "fd00::/64"]), address) is is_in


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10.0.0.5/24", "write 10.0.0.0/24"),
        ("all", "no network"),
        ("10.0.0.0/33", "no network"),
        ("", "no network"),
    ],
)
def test_what_is_no_network_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        legacy_networks([text])


def test_there_is_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="65 times"):
        legacy_networks(["10.0.0.1"] * (MAX_NETWORKS + 1))


def plain(address: Address) -> Address:
    """An IPv4 address that is written as one of IPv6 is that address."""
    return getattr(address, "ipv4_mapped", None) or address


@given(st.ip_addresses(), st.ip_addresses())
def test_one_address_is_a_network_of_itself(one: Address, other: Address) -> None:
    networks = legacy_networks([str(one)])
    assert is_within(networks, str(one))
    if plain(other) != plain(one):
        assert not is_within(networks, str(other))

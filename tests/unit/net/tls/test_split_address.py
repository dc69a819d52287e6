"""Addresses of which the resolver would make no question are none."""

from __future__ import annotations

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import split_address


@pytest.mark.parametrize("host", ["a..b", ".", ".a", "a" * 64, f"{'a' * 64}.example"])
def test_a_name_that_cannot_be_looked_up_is_no_host(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address"):
        split_address(f"{host}:8125")


def test_a_port_of_thousands_of_digits_is_none() -> None:
    with pytest.raises(ConfigurationError, match="is not an address"):
        split_address("a:" + "9" * 5_000)


@pytest.mark.parametrize("host", ["a", "a.", "a_b.example", "a" * 63, "é.example", "127.0.0.1"])
def test_other_names_are_hosts(host: str) -> None:
    assert split_address(f"{host}:8125") == (host, 8125)


def test_an_address_of_ipv6_is_a_host() -> None:
    assert split_address("[fe80::1%eth0]:8125") == ("fe80::1%eth0", 8125)

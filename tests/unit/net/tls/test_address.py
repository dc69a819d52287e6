"""Addresses with and without a scheme."""

from __future__ import annotations

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8060", BalancerAddress("127.0.0.1", 8060)),
        ("http://localhost:1", BalancerAddress("localhost", 1)),
        ("ws://localhost:1/", BalancerAddress("localhost", 1)),
        ("https://llm.example.org:8061", BalancerAddress("llm.example.org", 8061, is_tls=True)),
        ("HTTPS://llm.example.org:8061/", BalancerAddress("llm.example.org", 8061, is_tls=True)),
        ("wss://[::1]:8060", BalancerAddress("::1", 8060, is_tls=True)),
    ],
)
def test_what_people_write(text: str, expected: BalancerAddress) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


def test_texts() -> None:
    address = BalancerAddress("::1", 8060, is_tls=True)
    assert (str(address), address.authority) == ("https://[::1]:8060", "[::1]:8060")
    assert BalancerAddress("h", 1).url == "http://h:1"
    assert str(BalancerAddress("h", 1)) == "h:1"


@pytest.mark.parametrize(
    "text",
    ["", "https://", "https://host", "host", "ftp://h:1", "https://h:1/path", "https://me@h:1",
     "https://h:70000", "https://" + "h" * 400 + ":1"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address") as caught:
        parse_address(text)
    assert len(str(caught.value)) < 500

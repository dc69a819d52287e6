"""Which address a token leads to: one that other machines may use, if that can be known."""

from __future__ import annotations

import socket

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.joining.announcement import AdvertisedAddress


class Bound(socket.socket):
    """A socket that says where it is bound."""

    def __init__(self, host: str, port: int) -> None:
        self.where = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self.where


@pytest.mark.parametrize(
    ("bound", "host", "server_port", "expected"),
    [
        ("0.0.0.0", "10.0.0.1:8060", 8060, "10.0.0.1:8060"),
        ("0.0.0.0", "llm.example.org:9000", 8060, "llm.example.org:9000"),  # mapped
        ("0.0.0.0", "llm.example.org", 8060, "llm.example.org:8060"),
        ("0.0.0.0", "10.0.0.1:8062", 8062, "10.0.0.1:8060"),  # the panel's port
        ("0.0.0.0", "127.0.0.1:8060", 8060, "box.example.org:8060"),
        ("0.0.0.0", "", 8060, "box.example.org:8060"),
        ("::", "localhost:8060", 8060, "box.example.org:8060"),
        ("10.0.0.9", "localhost:8060", 8060, "10.0.0.9:8060"),
        ("fd00::1", "[::1]:8060", 8060, "[fd00::1]:8060"),
        ("127.0.0.1", "localhost:8060", 8060, "localhost:8060"),
        ("127.0.0.1", "llm.example.org:443", 8060, "llm.example.org:443"),
        ("::1", "", 8060, "[::1]:8060"),
    ],
)
def test_addresses(bound: str, host: str, server_port: int, expected: str) -> None:
    scope = {"headers": [(b"host", host.encode())], "server": (bound, server_port)}
    for has_tls, scheme in ((False, ""), (True, "https://")):
        names = ["box", "box.example.org", "localhost.localdomain"]
        address = AdvertisedAddress([Bound(bound, 8060)], has_tls, names)
        assert address(exchange_for(scope)) == scheme + expected

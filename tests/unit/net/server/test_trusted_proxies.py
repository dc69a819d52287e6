"""Whom trusted proxies forward for, and that nobody else can say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.net.networks import parse_networks
from paddler_trio.net.server.asgi import Scope
from paddler_trio.net.server.client_identity import FLAG, client_behind

PROXIES = parse_networks(["127.0.0.0/8", "10.0.0.0/24", "fd00::/64"], FLAG)


def seen(peer: str, *values: str) -> str:
    headers = [(b"x-forwarded-for", value.encode("latin-1", "replace")) for value in values]
    scope: Scope = {"client": (peer, 7), "headers": headers}
    return client_behind(scope, PROXIES) or peer


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["198.51.100.9, 192.0.2.1"], "192.0.2.1"),  # the first is what the client wrote
        (["192.0.2.1, 10.0.0.5"], "192.0.2.1"),
        (["198.51.100.9", "192.0.2.1,10.0.0.5 , fd00::1"], "192.0.2.1"),
        (["10.0.0.4, 10.0.0.5"], "10.0.0.4"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["::ffff:10.0.0.5, ::ffff:10.0.0.5"], "::ffff:a00:5"),
        (["192.0.2.1, unknown"], "10.0.0.1"),
        (["unknown, 10.0.0.5"], "10.0.0.5"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_last_hop_that_is_no_proxy_is_the_client(values: list[str], client: str) -> None:
    assert seen("10.0.0.1", *values) == client


@given(st.lists(st.text() | st.ip_addresses().map(str)).map(", ".join))
def test_others_say_nothing_about_themselves(value: str) -> None:
    assert seen("192.0.2.7", value) == "192.0.2.7"


@given(st.lists(st.text() | st.ip_addresses().map(str)).map(", ".join))
def test_no_header_hides_the_last_hop(value: str) -> None:
    assert seen("10.0.0.1", value, "192.0.2.1") == "192.0.2.1"


def test_very_many_hops_are_not_followed() -> None:
    assert seen("10.0.0.1", ", ".join(["192.0.2.1", *["10.0.0.5"] * 1000])) == "10.0.0.5"

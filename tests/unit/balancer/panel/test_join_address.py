"""The address that a new agent is given: the one that works, or why there is none."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges import exchange_for
from paddler_trio.balancer.panel.join_address import Join, host_of, join_address, own_address
from paddler_trio.net.server.exchange import Exchange

EVERYWHERE, HERE, SOMEWHERE = ["0.0.0.0:8060"], ["127.0.0.1:8060"], ["10.1.2.3:8060"]


def asked(host: str, forwarded: str = "") -> Exchange:
    headers = [(b"host", host.encode("latin-1"))]
    if forwarded:
        headers.append((b"x-forwarded-host", forwarded.encode()))
    return exchange_for({"headers": headers})


def joined(host: str, management: list[str], own: str | None = None, forwarded: str = "") -> Join:
    return join_address(asked(host, forwarded), management, find_own=lambda: own)


@pytest.mark.parametrize(
    ("host", "management", "address"),
    [
        ("gpu-box:8062", EVERYWHERE, "gpu-box:8060"),
        ("192.168.1.7:8062", EVERYWHERE, "192.168.1.7:8060"),
        ("[2001:db8::1]:8062", ["[::]:8060"], "[2001:db8::1]:8060"),
        ("llm.example.org", EVERYWHERE, "llm.example.org:8060"),
        ("gpu-box:8062", SOMEWHERE, "10.1.2.3:8060"),
        ("localhost:8062", SOMEWHERE, "10.1.2.3:8060"),
        ("gpu-box", ["127.0.0.1:8060", "10.1.2.3:8060"], "10.1.2.3:8060"),
    ],
)
def test_agents_dial_the_name_that_the_browser_used(
    host: str, management: list[str], address: str
) -> None:
    assert joined(host, management) == Join(address)


def test_agents_dial_with_tls_where_the_port_has_it() -> None:
    join = join_address(asked("gpu-box:8062"), EVERYWHERE, is_encrypted=True)
    assert join == Join("https://gpu-box:8060")
    nowhere = join_address(asked("gpu-box"), HERE, is_encrypted=True)
    assert nowhere.address is None


def test_a_name_before_a_proxy_goes_before_the_one_behind_it() -> None:
    assert joined("127.0.0.1:8062", EVERYWHERE, forwarded="llm.example.org") == Join(
        "llm.example.org:8060"
    )


@pytest.mark.parametrize("host", ["localhost:8062", "127.0.0.1:8062", "[::1]:8062", "a.localhost"])
def test_the_loopback_is_no_address_for_other_machines(host: str) -> None:
    assert joined(host, EVERYWHERE, own="192.168.1.7") == Join("192.168.1.7:8060")
    alone = joined(host, EVERYWHERE)
    assert alone.address == "127.0.0.1:8060"
    assert alone.problem is not None
    assert "no address in a network" in alone.problem


def test_a_management_port_on_the_loopback_says_what_to_start_instead() -> None:
    for host, address in (("localhost:8062", "127.0.0.1:8060"), ("gpu-box:8062", None)):
        join = joined(host, HERE)
        assert join.address == address
        assert join.problem is not None
        assert "--management-addr 0.0.0.0:8060" in join.problem
        assert "--api-key-file" in join.problem


@given(st.text(max_size=40))
def test_nothing_that_a_shell_interprets_comes_out_of_a_host(host: str) -> None:
    found = host_of(exchange_for({"headers": [(b"host", host.encode("utf-8"))]}))
    if found is not None:
        assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-_:")
        assert not found.startswith("-")


@pytest.mark.parametrize("host", ["$(id)", "a;b", "a b", "-rf", "", "`id`", "a'b", "é", "x" * 300])
def test_a_bad_host_gives_this_machines_address(host: str) -> None:
    assert joined(host, EVERYWHERE, own="10.0.0.1") == Join("10.0.0.1:8060")


def test_the_address_of_this_machine_is_none_of_its_loopback() -> None:
    found = own_address()
    assert found is None or not ipaddress.ip_address(found).is_loopback

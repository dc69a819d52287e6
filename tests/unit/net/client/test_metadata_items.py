"""``aws:metadata:ITEM`` in texts: what is asked for, and what stands there then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.agent.servers.metadata_items import (
    HOSTS,
    NAMES,
    check_item,
    filled_in,
    is_value_of,
    items_in,
    stood_in,
)
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.upstream_address import parse_upstream_address
from paddler_trio.system.config import split_address

VALUES = {"local-ipv4": "10.0.3.17", "ipv6": "2001:db8::7", "local-hostname": "ip-10-0-3-17.ec2"}
PORTS = st.integers(1, 65_535)


@given(st.sampled_from(sorted(VALUES)), PORTS, st.booleans())
def test_an_item_in_an_address_becomes_its_host(item: str, port: int, in_brackets: bool) -> None:
    host = f"[aws:metadata:{item}]" if in_brackets else f"aws:metadata:{item}"
    text = f"{host}:{port}"
    assert items_in(text) == [item]
    assert split_address(filled_in(text, VALUES, is_address=True)) == (VALUES[item], port)
    url = filled_in(f"https://{text}/llm", VALUES, is_address=True)
    address = parse_upstream_address(url)
    assert (address.host, address.port, address.prefix) == (VALUES[item], port, "/llm")


@given(st.text("aws:metd[]/-1.h"))
def test_a_text_without_an_item_stays_as_it_is(text: str) -> None:
    if "aws:metadata:" not in text:
        assert items_in(text) == []
        assert filled_in(text, {}, is_address=True) == text


def test_a_name_may_have_an_item_among_other_words() -> None:
    text = "gpu-aws:metadata:instance-id"
    assert items_in(text) == ["instance-id"]
    assert filled_in(text, {"instance-id": "i-0ab"}, is_address=False) == "gpu-i-0ab"


@pytest.mark.parametrize("item", ["", "iam", "user-data", "LOCAL-IPV4"])
@pytest.mark.parametrize("is_address", [True, False])
def test_nothing_else_of_an_instance_can_be_asked_for(item: str, is_address: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"write aws:metadata: and one of local-ipv4"):
        check_item(item, is_address=is_address)


def test_a_name_of_an_instance_is_no_host() -> None:
    assert set(NAMES) - set(HOSTS) == {"instance-id"}
    check_item("instance-id", is_address=False)
    with pytest.raises(ConfigurationError, match="is no host"):
        check_item("instance-id", is_address=True)


def test_an_address_is_judged_before_anybody_is_asked() -> None:
    assert stood_in("http://aws:metadata:local-ipv4:80") == "http://127.0.0.1:80"
    assert stood_in("10.0.0.1:80") == "10.0.0.1:80"
    with pytest.raises(ConfigurationError, match="is no host"):
        stood_in("aws:metadata:instance-id:80")
    assert stood_in("aws:metadata:instance-id", is_address=False) == "127.0.0.1"


@pytest.mark.parametrize(
    ("item", "value", "fits"),
    [
        ("local-ipv4", "10.0.3.17", True),
        ("local-ipv4", "2001:db8::7", False),
        ("local-ipv4", "ip-10-0-3-17.ec2.internal", False),
        ("ipv6", "2001:db8::7", True),
        ("ipv6", "10.0.3.17", False),
        ("ipv6", "fe80::1%eth0", False),
        ("local-hostname", "ip-10-0-3-17.ec2.internal", True),
        ("local-hostname", "a:80", False),
        ("local-hostname", "<html>", False),
        ("local-hostname", "a/b", False),
        ("instance-id", "i-0abcdef", True),
        ("instance-id", "", False),
        ("instance-id", "a b", False),
    ],
)
def test_a_value_is_what_its_item_says(item: str, value: str, fits: bool) -> None:
    assert is_value_of(item, value) is fits

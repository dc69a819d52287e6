"""Base URLs, and what is public."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.bench.target import Resolved
from paddler_trio.cli.bench.target_address import BaseUrl, parse_base_url
from paddler_trio.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8061", BaseUrl("127.0.0.1", 8061)),
        ("http://127.0.0.1:8080/v1", BaseUrl("127.0.0.1", 8080)),
        ("http://127.0.0.1:8080/v1/", BaseUrl("127.0.0.1", 8080)),
        ("https://llm.example", BaseUrl("llm.example", 443, is_tls=True)),
        ("http://box", BaseUrl("box", 80)),
        ("https://host:8443/api/llm/v1", BaseUrl("host", 8443, is_tls=True, path="/api/llm")),
        ("[::1]:11434", BaseUrl("::1", 11434)),
        ("http://[::1]/", BaseUrl("::1", 80)),
    ],
)
def test_a_base_url_may_have_a_scheme_a_port_and_a_path(text: str, url: BaseUrl) -> None:
    assert parse_base_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:0",
        "host:65536",
        "ftp://host:1",
        "http://user:secret@host:1",
        "http://host:1/v1?key=x",
        "http://host:1/\r\nX: y",
        "http://ho st:1",
        "http://" + "a" * 400 + ":1",
    ],
)
def test_what_is_no_base_url_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="such as http://127"):
        parse_base_url(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused_and_its_own_text_reads_as_the_same(text: str) -> None:
    try:
        url = parse_base_url(text)
    except ConfigurationError:
        return
    assert parse_base_url(str(url)) == url


@pytest.mark.parametrize(
    ("ip", "is_public"),
    [
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.1.9", False),
        ("100.64.0.7", False),
        ("169.254.1.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd12::1", False),
        ("::ffff:10.0.0.1", False),
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("::ffff:8.8.8.8", True),
        ("224.0.0.1", True),
    ],
)
def test_one_s_own_networks_are_not_public(ip: str, is_public: bool) -> None:
    for ips in ((ip,), ("127.0.0.1", ip)):
        assert Resolved(BaseUrl("host", 80), ips).public_ip == (ip if is_public else None)

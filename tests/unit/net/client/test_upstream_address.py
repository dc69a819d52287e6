"""Addresses of upstream servers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.upstream_address import UpstreamAddress, parse_upstream_address

HOSTS = st.sampled_from(["127.0.0.1", "localhost", "gpu-1.example", "::1", "fe80::1%eth0"])
PREFIXES = st.sampled_from(["", "/a", "/a/b", "/~x/v%201"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:8080", UpstreamAddress("127.0.0.1", 8080)),
        ("http://127.0.0.1:8080/", UpstreamAddress("127.0.0.1", 8080)),
        ("HTTPS://gpu:8443/llm/", UpstreamAddress("gpu", 8443, True, "/llm")),
        ("http://[::1]:11434", UpstreamAddress("::1", 11434)),
        ("http://gpu", UpstreamAddress("gpu", 80)),
        ("https://[::1]", UpstreamAddress("::1", 443, True)),
    ],
)
def test_an_address_is_read(text: str, address: UpstreamAddress) -> None:
    assert parse_upstream_address(text) == address


@given(HOSTS, st.integers(1, 65_535), st.booleans(), PREFIXES)
def test_the_text_of_an_address_reads_as_the_same_address(
    host: str, port: int, is_tls: bool, prefix: str
) -> None:
    address = UpstreamAddress(host, port, is_tls, prefix)
    assert parse_upstream_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8080",
        "ftp://127.0.0.1:8080",
        "http://",
        "http://:8080",
        "http://a:0",
        "http://a:65536",
        "http://a:b",
        "http://::1:80",
        "http://a:80?x=1",
        "http://a:80/p?x=1",
        "http://a:80/p#x",
        "http://a b:80",
        "http://a:80/ü",
        "http://a:80\r\nx: y",
        "http://" + "a" * 300,
    ],
)
def test_what_is_no_address_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--upstream .*http://"):
        parse_upstream_address(text)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_upstream_address("http://me:secret@a:80")
    assert "secret" not in str(caught.value)
    assert "--upstream-key-file" in str(caught.value)


@pytest.mark.parametrize(
    "target",
    [b"/", b"/v1/models", b"/v1/../v1/models", b"/a/./..", b"/...", b"/a?b=/../..", b"/a..b/.."],
)
def test_a_path_below_the_prefix_is_held(target: bytes) -> None:
    assert UpstreamAddress("gpu", 80, prefix="/llm").holds(target)


@pytest.mark.parametrize(
    "target",
    [
        b"/..",
        b"/../admin",
        b"/a/../../admin",
        b"/%2e%2E/admin",
        b"//../x",
        b"/a//..%2f../x?y",
        b"/..\\admin",
        b"/a/..%5c..\\admin",
        b"*",
    ],
)
def test_a_path_that_a_server_may_find_above_the_prefix_is_not_held(target: bytes) -> None:
    assert not UpstreamAddress("gpu", 80, prefix="/llm").holds(target)
    assert UpstreamAddress("gpu", 80).holds(target), "all of it is offered"

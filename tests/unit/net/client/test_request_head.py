"""Heads of requests, with h11's server as the judge."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.net.client.request_head import (
    MAX_HEAD_BYTES,
    RequestHead,
    UnsendableRequestError,
    request_head,
)

AUTHORITY = b"127.0.0.1:8080"
NAMES = st.sampled_from([b"Accept", b"x-TRACE", b"Cookie", b"authorization", b"X_y"])
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(
    lambda text: text.strip().encode()
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=6)


def judged(data: bytes) -> h11.Request:
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    event = server.next_event()
    assert isinstance(event, h11.Request)
    return event


def headed(
    *headers: tuple[bytes, bytes], method: bytes = b"POST", size: int | None = 2
) -> RequestHead:
    return request_head(method, b"/v1/x?y=%20", headers, authority=AUTHORITY, body_bytes=size)


@given(FIELDS, st.sampled_from([b"GET", b"POST", b"DELETE", b"OPTIONS"]), st.integers(0, 9))
def test_a_server_reads_the_fields_that_were_given_and_a_host(
    fields: list[tuple[bytes, bytes]], method: bytes, size: int
) -> None:
    request = judged(
        request_head(method, b"/p?q", fields, authority=AUTHORITY, body_bytes=size).data
    )
    raw = list(request.headers.raw_items())
    assert (request.method, request.target) == (method, b"/p?q")
    assert raw[0] == (b"Host", AUTHORITY)
    assert raw[1 : len(fields) + 1] == fields
    has_length = (b"Content-Length", b"%d" % size) in raw
    assert has_length == (size > 0 or method == b"POST")


@given(
    st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=12), st.binary(max_size=40)
)
def test_no_bytes_given_make_anything_but_one_request(
    name: bytes, value: bytes, method: bytes, target: bytes
) -> None:
    try:
        head = request_head(
            method, b"/" + target, [(name, value)], authority=AUTHORITY, body_bytes=0
        )
    except UnsendableRequestError:
        return
    assert head.data.count(b"\n") == head.data.count(b"\r\n")
    assert head.data.endswith(b"\r\n\r\n")
    assert head.data.count(b"\r\n\r\n") == 1
    assert judged(head.data).method == method


def test_the_framing_of_the_caller_is_kept() -> None:
    assert headed((b"content-LENGTH", b"7"), size=None).content_length == 7
    chunked = headed((b"Transfer-encoding", b"Chunked"), size=None)
    assert chunked.content_length is None
    assert chunked.data.count(b"hunked") == 1
    assert headed(size=None).content_length is None
    assert b"Transfer-Encoding: chunked" in headed(size=None).data
    assert headed().content_length == 2


def test_the_servers_key_replaces_what_the_caller_sent() -> None:
    head = request_head(
        b"GET",
        b"/",
        [(b"AUTHORIZATION", b"Bearer of-the-client"), (b"x", b"y")],
        authority=AUTHORITY,
        bearer=b"of-the-server",
    )
    assert b"of-the-client" not in head.data
    assert (b"authorization", b"Bearer of-the-server") in list(judged(head.data).headers)


@pytest.mark.parametrize(
    "fields",
    [
        [(b"Content-Length", b"2"), (b"Transfer-Encoding", b"chunked")],
        [(b"Content-Length", b"3")],
        [(b"Content-Length", b"2"), (b"Content-Length", b"2")],
        [(b"Content-Length", b"+2")],
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")],
        [(b"Upgrade", b"websocket")],
        [(b"Host", b"a"), (b"hOST", b"b")],
        [(b"a b", b"c")],
        [(b"a", b"b\r\nc: d")],
        [(b"a", b"\0")],
        [(b"a", b"b" * MAX_HEAD_BYTES)],
    ],
)
def test_what_could_be_read_in_two_ways_is_not_sent(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(UnsendableRequestError):
        headed(*fields)


@pytest.mark.parametrize(("method", "target"), [(b"CONNECT", b"/"), (b"A B", b"/"), (b"GET", b"*")])
def test_only_paths_are_asked_for(method: bytes, target: bytes) -> None:
    with pytest.raises(UnsendableRequestError):
        request_head(method, target, [], authority=AUTHORITY)


def test_of_the_whole_server_only_its_options_are_asked_for() -> None:
    assert request_head(b"OPTIONS", b"*", [], authority=AUTHORITY).data.startswith(b"OPTIONS * ")


def test_an_error_has_nothing_of_the_request() -> None:
    with pytest.raises(UnsendableRequestError) as caught:
        headed((b"Authorization", b"Bearer secret\n"))
    assert "secret" not in str(caught.value)

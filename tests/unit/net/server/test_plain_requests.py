"""A request that is read past h11 means the same to h11, whatever a client sends."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.server.plain_protocol import PlainRequest, plain_request

MAX_HEAD_BYTES = 8192
POST = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 2\r\n\r\n{}"
GET = b"GET / HTTP/1.1\r\nHOST:\ta \r\nConnection: Keep-Alive\r\nX: \r\n\r\n"

bound_parsing()

LINES = st.sampled_from(
    [
        b"POST /a HTTP/1.1",
        b"GET /b?c HTTP/1.1",
        b"GET /b HTTP/1.0",
        b"PUT http://a/b HTTP/1.1",
        b"CONNECT /b HTTP/1.1",
        b"get /b HTTP/1.1",
        b"Host: a",
        b"host:b",
        b"Content-Length: 0",
        b"Content-Length: 3",
        b"content-length: 3, 3",
        b"Content-Length: +3",
        b"Content-Length : 3",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"connection: keep-alive",
        b"Upgrade: websocket",
        b"Expect: 100-continue",
        b"Accept: text/html , */*",
        b"X-A:",
        b"X-B: \t a \t b\t",
        b"X-C: \xff",
        b" folded",
        b"no colon",
        b"",
    ]
)
HEADS = st.one_of(
    st.tuples(LINES, st.lists(LINES, max_size=6)).map(lambda each: [each[0], *each[1]]),
    st.lists(
        st.sampled_from([b"Content-Length: 3", b"Accept: */*", b"X-B: a\tb", b"TE: trailers"]),
        unique=True,
    ).map(lambda fields: [b"POST /a HTTP/1.1", b"Host: a", *fields]),
)
ENDS = st.sampled_from([b"", b"abc", b"abcd", b"3\r\nabc\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\n"])


def as_h11_reads_it(data: bytes) -> PlainRequest:
    """AssertionError if it is not one whole request, and nothing else."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert connection.trailing_data == (b"", False)
    assert connection.their_state is h11.DONE, "the connection may be used again"
    assert not connection.they_are_waiting_for_100_continue
    assert request.http_version == b"1.1"
    head = data[: len(data) - len(body)]
    names = [name for name, _ in request.headers.raw_items()]
    return PlainRequest(head, request.method, request.target, list(request.headers), names, body)


@given(HEADS, ENDS, st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
def test_what_is_plain_is_what_h11_reads(head: list[bytes], end: bytes, line_end: bytes) -> None:
    data = line_end.join([*head, b"", end])
    plain = plain_request(data, MAX_HEAD_BYTES)
    if plain is not None:
        assert plain == as_h11_reads_it(data)


@given(st.sampled_from([POST, GET]), st.integers(0, 80), st.binary(max_size=3))
def test_bytes_that_were_changed_mean_the_same_or_are_not_plain(
    data: bytes, at: int, put: bytes
) -> None:
    data = data[:at] + put + data[at + len(put) :]
    plain = plain_request(data, MAX_HEAD_BYTES)
    if plain is not None:
        assert plain == as_h11_reads_it(data)


@pytest.mark.parametrize("data", [POST, GET])
def test_what_programs_send_is_plain(data: bytes) -> None:
    assert plain_request(data, MAX_HEAD_BYTES) == as_h11_reads_it(data)


@pytest.mark.parametrize(
    "data",
    [
        POST[:-1],
        POST + b"G",
        GET + GET,
        POST.replace(b"1.1", b"1.0"),
        POST.replace(b"Host: a:1", b"Host: a\r\nHost: a"),
        POST.replace(b"Host: a:1", b"X: a"),
        POST.replace(b"Length: 2", b"Length: 2\r\nContent-Length: 2"),
        POST.replace(b"Length: 2", b"Length: 1234567890"),
        POST.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
        POST.replace(b"Host", b"Upgrade: h2c\r\nHost"),
        POST.replace(b"Host", b"Connection: close\r\nHost"),
        POST.replace(b"POST", b"CONNECT"),
        POST.replace(b"/v1/x", b"/" + b"x" * MAX_HEAD_BYTES),
        POST.replace(b"Host", b"X: y\r\n" * 100 + b"Host"),
        b"",
    ],
)
def test_all_else_is_not(data: bytes) -> None:
    assert plain_request(data, MAX_HEAD_BYTES) is None


def test_a_long_line_that_matches_nothing_costs_no_more_than_its_length() -> None:
    """Backtracking over these would take minutes."""
    for long in (b" \t" * 100_000, b"a " * 100_000, b"a:" * 100_000, b"a: b\r\n" * 30_000):
        assert plain_request(b"GET / HTTP/1.1\r\nHost: a\r\nX:" + long + b"\0", 1 << 20) is None

"""Heads and bodies of responses in any pieces, with h11 as the judge."""

from __future__ import annotations

import time
from itertools import pairwise

import h11
import pytest
from h11 import _readers
from hypothesis import example, given
from hypothesis import strategies as st

from paddler_trio.net.client.response_body import (
    BodyPart,
    ChunkedBody,
    LengthBody,
    MalformedAnswerError,
    ResponseBody,
    ResponseHead,
    UntilClosedBody,
    body_of,
    head_end,
    parse_head,
)

HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nX-Y:  a  b \r\nset-cookie: 1\r\nSet-Cookie: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def parsed(data: bytes) -> ResponseHead:
    assert head_end(data, 0) == len(data)
    return parse_head(data)


def fed(body: ResponseBody, *pieces: bytes) -> list[BodyPart]:
    parts: list[BodyPart] = []
    for piece in pieces:
        body.feed(piece, parts)
    return parts


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


def test_a_head_is_kept_as_it_came() -> None:
    head = parsed(HEAD)
    assert (head.status, head.reason, head.http_version) == (200, b"OK", b"1.1")
    assert head.headers[1:4] == [(b"X-Y", b"a  b"), (b"set-cookie", b"1"), (b"Set-Cookie", b"2")]
    assert head.is_chunked
    assert head.allows_another


def test_a_head_ends_at_the_same_byte_in_any_pieces() -> None:
    whole = HEAD + b"5\r\n"
    for cut in range(len(whole)):
        received, end, searched = bytearray(), 0, 0
        for piece in (whole[:cut], whole[cut:]):
            received += piece
            end = end or head_end(received, searched)
            searched = len(received)
        assert end == len(HEAD)


TOKENS = st.sampled_from(
    [b"HTTP/1.1", b"HTTP/1.0", b" ", b"200", b"404", b"99", b"OK", b"\r\n", b"\n", b"\r", b"a: b",
     b"Content-Length: 5", b"content-length: 6", b"Content-Length: 5, 5", b"Content-Length: -1",
     b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: close", b"\0", b":",
     b"\xff", b"x", b"\t"]
)  # fmt: skip
HEADS = st.one_of(
    st.lists(TOKENS, max_size=10).map(b"".join),
    st.lists(TOKENS, max_size=5).map(lambda fields: b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(fields)),
).map(lambda head: head + b"\r\n\r\n")


@given(HEADS)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n")
def test_what_we_accept_h11_reads_in_the_same_way(data: bytes) -> None:
    try:
        end = head_end(data, 0)
        head = parse_head(data[:end])
    except MalformedAnswerError:
        return
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    event = client.next_event()
    assert isinstance(event, h11.Response | h11.InformationalResponse)
    assert (event.status_code, event.reason) == (head.status, head.reason)
    assert event.http_version == head.http_version
    names = [name.lower() for name, _ in head.headers]
    assert [name for name, _ in event.headers if name != b"content-length"] == [
        name for name in names if name != b"content-length"
    ]
    assert client.trailing_data[0] == data[end:]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 \r\n\r\n",
        b"HTTP/1.0 500 Not so good\r\nA:\r\n\r\n",
        b"HTTP/1.1 200 OK\nA: b\n\n",
        b"HTTP/1.1 200 \xe4\r\nA: \xff\r\n\r\n",
    ],
)
def test_what_is_allowed_is_read(data: bytes) -> None:
    assert parsed(data).status in {200, 500}


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n a: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 65_536 + b"\r\n\r\n",
    ],
)
def test_what_breaks_the_rules_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        parse_head(data[: head_end(data, 0)])


def test_garbage_is_refused_at_its_first_byte_and_an_endless_head_at_its_limit() -> None:
    with pytest.raises(MalformedAnswerError, match=r"not HTTP/1: it begins b'SSH-2.0"):
        head_end(b"SSH-2.0-x", 0)
    with pytest.raises(MalformedAnswerError):
        head_end(b"HTTP/1.1 200 OK\r\na: " + b"b" * 65_536, 0)
    assert head_end(b"HTT", 0) == 0


@pytest.mark.parametrize("filler", [b" ", b" \t", b"\t x"])
def test_blanks_in_a_line_cost_no_more_than_other_bytes(filler: bytes) -> None:
    line = b"a: b" + filler * (60_000 // len(filler)) + b"\0"
    start = time.process_time()
    with pytest.raises(MalformedAnswerError):
        parse_head(b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n")
    assert time.process_time() - start < 5  # a pattern that backtracks takes more than ten


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSIONS = st.sampled_from([b"", b";a=b", b" ", b" ;q"])
CUTS = st.lists(st.integers(0, 400), max_size=8)


def encoded(chunks: list[bytes], extension: bytes, trailers: bytes = b"") -> bytes:
    sized = (b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return b"".join(sized) + b"0%b\r\n" % extension + trailers + b"\r\n"


@given(CHUNKS, EXTENSIONS, CUTS)
def test_chunks_come_out_as_they_went_in(
    chunks: list[bytes], extension: bytes, cuts: list[int]
) -> None:
    body = ChunkedBody()
    parts = fed(body, *in_pieces(encoded(chunks, extension, b"X-A: 1\r\nx-b: 2\r\n"), cuts))
    assert body.is_complete
    assert not body.has_excess
    assert body.trailers == [(b"X-A", b"1"), (b"x-b", b"2")]
    rebuilt: list[bytes] = []
    for part in parts:
        assert part.data
        if part.starts_chunk:
            rebuilt.append(b"")
        rebuilt[-1] += part.data
        assert part.ends_chunk == (rebuilt[-1] == chunks[len(rebuilt) - 1])
    assert rebuilt == chunks


@given(CHUNKS.filter(bool))
def test_a_chunk_that_comes_whole_is_one_part(chunks: list[bytes]) -> None:
    assert fed(ChunkedBody(), encoded(chunks, b"")) == [BodyPart(c, True, True) for c in chunks]


def test_a_chunked_body_is_the_same_split_at_every_byte() -> None:
    data = encoded([b"data: one\n\n", b"x" * 30], b"", b"a: b\r\n")
    for cut in range(len(data)):
        body = ChunkedBody()
        parts = fed(body, data[:cut], data[cut:])
        assert b"".join(part.data for part in parts) == b"data: one\n\n" + b"x" * 30
        assert body.is_complete == (not body.has_excess)
        before = ChunkedBody()
        fed(before, data[:cut])
        assert not before.is_complete
        assert before.missing() is not None


MUTATED = st.tuples(
    st.lists(
        st.sampled_from([b"5\r\n", b"hello", b"\r\n", b"0\r\n", b"a", b"\n", b"\r", b"-", b"G",
                         b";x\r\n", b" ", b"f" * 17, b"1\r\nz\r\n", b"t: u\r\n"]),
        max_size=12,
    ).map(b"".join),
    CUTS,
)  # fmt: skip


@given(MUTATED)
def test_chunks_we_accept_h11_reads_in_the_same_way(mutated: tuple[bytes, list[int]]) -> None:
    data, cuts = mutated
    body = ChunkedBody()
    try:
        parts = fed(body, *in_pieces(data, cuts))
    except MalformedAnswerError:
        return
    reader = _readers.ChunkedReader()
    buffer = h11._receivebuffer.ReceiveBuffer()
    buffer += data
    read = b""
    while isinstance(event := reader(buffer), h11.Data):
        read += event.data
    ours = b"".join(part.data for part in parts)
    assert isinstance(event, h11.EndOfMessage) == body.is_complete
    assert ours == read
    if event is not None:
        assert body.has_excess == bool(buffer)


@pytest.mark.parametrize(
    "data",
    [b"g\r\n", b"5\nhello", b"-1\r\n", b"\r\n", b"5\r\nhello!!", b"f" * 17 + b"\r\n",
     b"1;" + b"x" * 5000, b"0\r\n" + b"a" * 9000, b"0\r\na b: c\r\n\r\n",
     b"0\r\n" + b"a: b\r\n" * 101 + b"\r\n"],
)  # fmt: skip
def test_malformed_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        fed(ChunkedBody(), data)


def test_parts_before_malformed_bytes_are_delivered() -> None:
    parts: list[BodyPart] = []
    with pytest.raises(MalformedAnswerError):
        ChunkedBody().feed(b"5\r\nhello\r\nnonsense\r\n", parts)
    assert parts == [BodyPart(b"hello", True, True)]


@given(st.binary(max_size=60), st.integers(0, 60), CUTS)
def test_a_body_with_a_length_has_that_length(data: bytes, length: int, cuts: list[int]) -> None:
    body = LengthBody(length)
    parts = fed(body, *in_pieces(data, cuts))
    assert b"".join(part.data for part in parts) == data[:length]
    assert body.is_complete == (len(data) >= length)
    assert body.has_excess == (len(data) > length)
    assert (body.missing() is None) == body.is_complete


@pytest.mark.parametrize(
    ("head", "method", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", b"HEAD", LengthBody),
        (b"HTTP/1.1 204 OK\r\nContent-Length: 5", b"GET", LengthBody),
        (b"HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked", b"GET", LengthBody),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"HEAD", LengthBody),
    ],
)
def test_some_answers_have_no_body_whatever_they_say(
    head: bytes, method: bytes, kind: type[ResponseBody]
) -> None:
    body = body_of(parsed(head + b"\r\n\r\n"), method)
    assert isinstance(body, kind)
    assert body.is_complete


def test_a_body_without_framing_ends_with_its_connection() -> None:
    body = body_of(parsed(b"HTTP/1.1 200 OK\r\n\r\n"), b"GET")
    assert isinstance(body, UntilClosedBody)
    assert fed(body, b"a", b"b") == [BodyPart(b"a", True, True), BodyPart(b"b", True, True)]
    assert not body.is_complete
    assert body.missing() is None
    assert body.is_complete

"""The patterns put into h11 accept what its own accept, and cost no more than a line is long."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import h11
import pytest
from h11 import _abnf, _readers
from hypothesis import example, given
from hypothesis import strategies as st

from paddler_trio.net.h11_bounds import (
    CHUNK_HEADER,
    HEADER_LINE,
    MAX_HEADER_LINES,
    JoiningChunkedReader,
    bound_parsing,
)

THEIR_HEADER_LINE = re.compile(_abnf.header_field.encode())
THEIR_CHUNK_HEADER = re.compile(_abnf.chunk_header.encode())

LONG = 60_000
"""As much as one read from a socket can bring."""

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(raw: bytes) -> list[object]:
    """All events of a request, the last the error that ended it, if one did."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16_384)
    connection.receive_data(raw)
    events: list[object] = []
    try:
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            events.append(event)
    except h11.RemoteProtocolError as error:
        events.append(error)
    return events


def groups(pattern: re.Pattern[bytes], line: bytes) -> dict[str, bytes] | None:
    found = pattern.fullmatch(line)
    return None if found is None else found.groupdict()


@given(st.text("aZ0-: \t\0\x0b\r\n\xff", max_size=12).map(lambda text: text.encode("latin-1")))
@example(b"a:")
@example(b"a: \t b  c \t ")
def test_header_lines_are_read_as_before(line: bytes) -> None:
    assert groups(HEADER_LINE, line) == groups(THEIR_HEADER_LINE, line)


@given(st.text("1aG;= \t\0\r\n\xff", max_size=10).map(lambda text: text.encode("latin-1")))
@example(b"5 \t")
@example(b"5; a=b ")
@example(b"5;\r")
@example(b"1" * 20)
@example(b"1" * 21)
def test_chunk_headers_are_read_as_before(start: bytes) -> None:
    line = start + b"\r\n"
    ours, theirs = groups(CHUNK_HEADER, line), groups(THEIR_CHUNK_HEADER, line)
    assert (ours is None) == (theirs is None)
    assert (ours or {}).get("chunk_size") == (theirs or {}).get("chunk_size")


BLANKS = b" " * LONG


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"a:" + BLANKS + b"b\0\r\n\r\n",
        HEAD + b"a:" + BLANKS + b"b" + BLANKS + b"\0\r\n\r\n",
        HEAD + b"a:" + b" b" * (LONG // 2) + b"\0\r\n\r\n",
        HEAD + b"a:" + b"b" * LONG + b"\0\r\n\r\n",
        HEAD + b"a:b\r\n" + b" \r\n" * (LONG // 3) + b"\r\n",
        HEAD + b"a:b\r\n" * (LONG // 5) + b"\r\n",
        HEAD + b"a" * LONG + b" :b\r\n\r\n",
        b"GET " + b"/" * LONG + b" HTTP/1.1 \r\n\r\n",
        b"G" * LONG + b"\r\n\r\n",
        CHUNKED + b"5;" + BLANKS + b"\nx\r\n",
        CHUNKED + b"5" + BLANKS + b"\nx\r\n",
        CHUNKED + b"0\r\na:" + BLANKS + b"b\0\r\n\r\n",
        CHUNKED + b"0\r\n" + b"a:b\r\n" * (LONG // 5) + b"\r\n",
    ],
)
def test_no_line_costs_more_than_its_length(raw: bytes) -> None:
    """h11 alone takes between 0.1 and 20 s for most of these, of which a machine's load is no part.

    What is allowed is fifty times what it costs here.
    """
    bound_parsing()
    began_s = time.process_time()
    assert isinstance(read(raw)[-1], h11.RemoteProtocolError)
    assert time.process_time() - began_s < 0.05


@pytest.mark.parametrize("trailers", [False, True])
def test_lines_are_counted_before_they_are_read(trailers: bool) -> None:
    bound_parsing()
    start, lines_before = (CHUNKED + b"0\r\n", 0) if trailers else (HEAD, 1)
    lines = [b"a: b\r\n"] * (MAX_HEADER_LINES - lines_before)
    assert not isinstance(read(start + b"".join(lines) + b"\r\n")[-1], h11.RemoteProtocolError)
    refusal = read(start + b"".join([*lines, b"a: b\r\n"]) + b"\r\n")[-1]
    assert isinstance(refusal, h11.RemoteProtocolError)
    assert str(refusal) == "101 header lines, the limit is 100"
    assert refusal.error_status_hint == 431


# ------------------------------------------------------------------------------------- chunks


def body_of(pieces: list[bytes], reader: type[_readers.ChunkedReader]) -> tuple[bytes, str, int]:
    """What a reader makes of a chunked body: its bytes, how it ended, the number of events."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16_384)
    connection.receive_data(CHUNKED)
    connection.next_event()
    connection._reader = reader()
    body, num_events = b"", 0
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                num_events += 1
                if isinstance(event, h11.EndOfMessage):
                    return body, f"{event.headers} and {connection.trailing_data[0]!r}", num_events
                assert isinstance(event, h11.Data)
                body += event.data
    except h11.RemoteProtocolError as error:
        return body, str(error), num_events
    return body, "incomplete", num_events


honest_chunks = st.builds(
    lambda data, extension: b"%x%b\r\n%b\r\n" % (len(data), extension, data),
    st.sampled_from([b"x", b"0\r\n", b"\r\n1\r\n", b"x" * 17, b"x" * 300]),
    st.sampled_from([b"", b";", b";a=b", b" ", b"\t ", b";" + b"x" * 100]),
)
any_chunks = st.one_of(
    honest_chunks,
    st.sampled_from(
        [b"0\r\n\r\n", b"0\r\na: b\r\n\r\n", b"\r\n", b"1\r\nxx\r\n", b"00\r\n", b"\n"]
    ),
    st.text("1aG; \t\r\nx", max_size=6).map(str.encode),
)


@given(chunks=st.lists(any_chunks, max_size=12), cuts=st.sets(st.integers(1, 400), max_size=6))
@example(chunks=[b"1\r\nx\r\n", b"1\r\nx\r\n", b"0\r\n\r\nGET"], cuts={5, 7})
@example(chunks=[b"1\r\nx\r\n1\r\nx\rZ"], cuts=set())
def test_chunks_that_are_joined_are_the_same_body(chunks: list[bytes], cuts: set[int]) -> None:
    bound_parsing()
    raw = b"".join([*chunks, b"0\r\n\r\n"])
    borders = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[begin:end] for begin, end in pairwise(borders)]
    ours, theirs = body_of(pieces, JoiningChunkedReader), body_of(pieces, _readers.ChunkedReader)
    assert ours[:2] == theirs[:2]
    assert ours[2] <= theirs[2]


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;\r\nx\r\n", b"2 \r\nxx\r\n"])
def test_small_chunks_cost_events_by_the_read_and_not_by_the_chunk(chunk: bytes) -> None:
    bound_parsing()
    reads = [chunk * 10_000] * 10
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(CHUNKED)
    connection.next_event()
    assert isinstance(connection._reader, JoiningChunkedReader)
    body, ending, num_events = body_of([*reads, b"0\r\n\r\n"], JoiningChunkedReader)
    assert body.strip(b"x") == b""
    assert ending.startswith("<Headers([])>")
    assert num_events == len(reads) + 1

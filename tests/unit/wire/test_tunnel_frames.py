"""Frames of a tunnel come out as they went in, wherever the bytes are cut."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.trio.tunnel_frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Failed,
    FrameReader,
    Kind,
    RequestHead,
    ResponseHead,
    body_frames,
    end_frame,
    failed_frame,
    frame,
    read_end,
    read_failed,
    read_request,
    read_response,
    request_frame,
    response_frame,
)

NAMES = st.binary(min_size=1, max_size=20)
TOKENS = st.text("aZ09-_!~.", min_size=1, max_size=20).map(str.encode)
LINES = st.binary(max_size=40).map(lambda data: data.translate(None, b"\r\n\0"))
HEADERS = st.lists(st.tuples(TOKENS, LINES), max_size=5).map(tuple)
FRAMES = st.lists(
    st.tuples(st.sampled_from(Kind), st.binary(min_size=1, max_size=300))
    | st.just((Kind.END, b"")),
    max_size=6,
)


@given(FRAMES, st.data())
def test_frames_are_read_whole_wherever_the_bytes_are_cut(
    frames: list[tuple[Kind, bytes]], data: st.DataObject
) -> None:
    written = b"".join(frame(kind, payload) for kind, payload in frames)
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=8))
    reader = FrameReader()
    read: list[tuple[Kind, bytes]] = []
    for start, end in pairwise(sorted({0, len(written), *cuts})):
        read += reader.feed(written[start:end])
    assert read == frames
    assert reader.is_between_frames


@given(
    st.builds(
        RequestHead,
        id=st.text(max_size=20),
        method=NAMES,
        target=NAMES,
        headers=HEADERS,
        has_body=st.booleans(),
        rewrites_host=st.booleans(),
    )
)
def test_the_head_of_a_request_comes_back(head: RequestHead) -> None:
    assert read_request(request_frame(head)[HEADER_BYTES:]) == head


@given(
    st.builds(
        ResponseHead,
        status=st.integers(200, 999),
        reason=LINES,
        headers=HEADERS,
        is_sized=st.booleans(),
    )
)
def test_the_head_of_a_response_comes_back(head: ResponseHead) -> None:
    assert read_response(response_frame(head)[HEADER_BYTES:]) == head


@given(HEADERS)
def test_trailers_come_back(trailers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert read_end(end_frame(trailers)[HEADER_BYTES:]) == trailers


@pytest.mark.parametrize("broken", [b"a\r\nSet-Cookie: x", b"a\nb", b"a\0"])
def test_a_head_that_would_break_a_line_is_refused(broken: bytes) -> None:
    for reason, headers in (
        (broken, ()),
        (b"", ((b"name", broken),)),
        (b"", ((broken, b"value"),)),
    ):
        head = ResponseHead(status=200, reason=reason, headers=headers, is_sized=False)
        with pytest.raises(WireError):
            read_response(response_frame(head)[HEADER_BYTES:])


@pytest.mark.parametrize(
    "name", [b"", b"Content-Length ", b" x", b"Transfer-Encoding: chunked, x", b"a\tb", b"\xff"]
)
def test_a_field_whose_name_is_no_token_is_refused(name: bytes) -> None:
    head = ResponseHead(status=200, reason=b"", headers=((name, b"1"),), is_sized=False)
    with pytest.raises(WireError, match="token"):
        read_response(response_frame(head)[HEADER_BYTES:])
    with pytest.raises(WireError, match="token"):
        read_end(end_frame(((name, b"1"),))[HEADER_BYTES:])


def test_bytes_that_come_one_at_a_time_cost_no_more_than_their_number() -> None:
    """Of a frame of the largest size."""
    reader, written = FrameReader(), frame(Kind.BODY, b"x" * MAX_PAYLOAD_BYTES)
    began_s = time.process_time()
    read = [each for at in range(len(written)) for each in reader.feed(written[at : at + 1])]
    assert time.process_time() - began_s < 1.0
    assert read == [(Kind.BODY, b"x" * MAX_PAYLOAD_BYTES)]


def test_a_failure_comes_back() -> None:
    failed = Failed(kind="timeout", text="nothing for 3 s", may_repeat=False)
    assert read_failed(failed_frame(failed)[HEADER_BYTES:]) == failed


@given(st.binary(max_size=3 * MAX_PAYLOAD_BYTES))
def test_a_long_body_is_cut_into_frames_within_the_limit(data: bytes) -> None:
    read = list(FrameReader().feed(body_frames(data)))
    assert b"".join(payload for _, payload in read) == data
    assert {kind for kind, _ in read} <= {Kind.BODY}
    assert all(0 < len(payload) <= MAX_PAYLOAD_BYTES for _, payload in read)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00\x00",
        b"\x09\x00\x00\x00\x00",
        b"\x03\x80\x00\x00\x00",
        b"\x03\xff\xff\xff\xff",
        b"\x03\x00\x00\x00\x00",  # a chunk of nothing is the end of a body
    ],
)
def test_what_is_no_frame_is_refused_before_its_payload_is_awaited(data: bytes) -> None:
    with pytest.raises(WireError, match=r"no frame|no bytes"):
        list(FrameReader().feed(data))


@given(st.binary(max_size=60))
def test_any_payload_is_a_head_or_refused(payload: bytes) -> None:
    for read in (read_request, read_response, read_end, read_failed):
        try:
            read(payload)
        except WireError:
            continue

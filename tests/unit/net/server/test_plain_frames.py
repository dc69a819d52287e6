"""Whatever a client sends, in whatever pieces: what is read at once and what the full parser reads
are together what the full parser alone would have read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import RemoteProtocolError

from paddler_trio.net.websocket.plain_frames import LONGEST_HEADER_BYTES, PlainFrames


def frame(
    payload: bytes, *, first: int = 0x81, mask: bytes | None = b"\x01\x02\x03\x04", form: int = 0
) -> bytes:
    """``form``: 0 for the shortest length, else 126 or 127 whatever the length is."""
    size = len(payload)
    masked = 0 if mask is None else 0x80
    form = form or (size if size < 126 else 126 if size < 65_536 else 127)
    head = struct.pack("!BB", first, masked | form)
    if form == 126:
        head += struct.pack("!H", size)
    elif form == 127:
        head += struct.pack("!Q", size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


masks = st.sampled_from([b"\0\0\0\0", b"\x01\x02\x03\x04", b"\xff\x00\x80\x7f"])
texts = st.text(max_size=200).map(str.encode)
ordinary = st.builds(frame, texts, mask=masks)
fragmented = st.builds(
    lambda pieces, mask: b"".join(
        frame(
            piece,
            first=(0x01 if place == 0 else 0x00) | (0x80 if place + 1 == len(pieces) else 0),
            mask=mask,
        )
        for place, piece in enumerate(pieces)
    ),
    st.lists(st.text(alphabet="ab", max_size=20).map(str.encode), min_size=2, max_size=4),
    masks,
)
control = st.builds(frame, st.binary(max_size=20), first=st.sampled_from([0x89, 0x8A]), mask=masks)
binary = st.builds(frame, st.binary(max_size=20), first=st.just(0x82), mask=masks)
long = st.builds(lambda size, mask: frame(b"x" * size, mask=mask), st.integers(120, 70_000), masks)
wrong = st.one_of(
    st.builds(frame, texts, mask=st.none()),
    st.builds(frame, texts, first=st.integers(0, 255), mask=masks),
    st.builds(frame, st.binary(max_size=30), mask=masks),
    st.builds(frame, st.binary(max_size=30), mask=masks, form=st.sampled_from([126, 127])),
    st.binary(max_size=20),
    st.just(frame(b"begun", first=0x01) + frame(b"whole, before the other ended")),
    st.just(frame(b"begun", first=0x01) + frame(b"", first=0x89) + frame(b"ended", first=0x80)),
)


UNMASKED = b"\0" * LONGEST_HEADER_BYTES
"""No client may send this between frames."""


class Reader:
    """Messages as the application gets them, up to the first thing that ends the connection."""

    def __init__(self) -> None:
        self.connection = Connection(ConnectionType.SERVER)
        self.read: list[object] = []
        self.pieces: list[str] = []
        self.is_over = False

    def take(self, data: bytes) -> None:
        if self.is_over:
            return
        try:
            self.connection.receive_data(data)
            for event in self.connection.events():
                self._event(event)
        except RemoteProtocolError as error:
            self.read.append(f"closed {error}")
            self.is_over = True

    def text(self, text: str) -> None:
        if not self.is_over:
            self.read.append(text)

    def _event(self, event: Event) -> None:
        match event:
            case TextMessage(data=data, message_finished=is_whole):
                self.pieces.append(str(data))
                if is_whole:
                    self.read.append("".join(self.pieces))
                    self.pieces = []
            case BytesMessage(data=data):
                self.read.append(bytes(data))
            case Ping() | Pong():
                self.read.append((type(event).__name__, bytes(event.payload)))
            case CloseConnection(code=code):
                self.read.append(f"closed {code}")
                self.is_over = True


@pytest.mark.thorough
@given(
    st.lists(
        st.one_of(ordinary, ordinary, ordinary, fragmented, control, binary, long), max_size=8
    ),
    st.lists(wrong, max_size=1),
    st.one_of(
        st.none(), st.lists(st.one_of(st.integers(1, 30), st.integers(1, 5000)), max_size=30)
    ),
)
@settings(max_examples=300)
@example([frame(b"x" * 65_535), frame(b"y")], [], [3, 65_530])
@example([frame(b"abc", form=126)], [], [])
@example([frame(b"begun", first=0x01), frame(b"whole, before the other ended")], [], None)
def test_both_ways_read_the_same(
    right: list[bytes], wrong: list[bytes], steps: list[int] | None
) -> None:
    """Without ``steps`` each read returns what was sent at once."""
    steps = list(map(len, [*right, *wrong])) if steps is None else steps
    sent = b"".join([*right, *wrong, UNMASKED])  # which completes a header that was cut
    alone, both, frames = Reader(), Reader(), PlainFrames()
    alone.take(sent)
    at = 0
    for step in [*steps, len(sent)]:
        data = sent[at : at + step]
        text = frames.only_text(data)
        for piece in frames.feed(data) if text is None else [text]:
            if isinstance(piece, str):
                both.text(piece)
            else:
                both.take(piece)
        at += step
    binary_pieces = [part for part in both.read if isinstance(part, bytes)]
    assert [part for part in both.read if not isinstance(part, bytes)] == [
        part for part in alone.read if not isinstance(part, bytes)
    ]
    assert b"".join(binary_pieces) == b"".join(
        part for part in alone.read if isinstance(part, bytes)
    )


def test_whole_text_frames_need_no_other_parser() -> None:
    frames = PlainFrames()
    sent = [frame(b"one"), frame("zwei \N{SNOWMAN}".encode()), frame(b""), frame(b"x" * 300)]
    assert list(frames.feed(b"".join(sent))) == ["one", "zwei \N{SNOWMAN}", "", "x" * 300]


@given(st.binary(max_size=400), st.lists(st.integers(1, 40), max_size=20))
def test_no_more_is_held_than_the_beginning_of_a_header(sent: bytes, steps: list[int]) -> None:
    frames, at = PlainFrames(), 0
    for step in steps:
        for _ in frames.feed(sent[at : at + step]):
            pass
        at += step
        assert len(frames._header) < LONGEST_HEADER_BYTES

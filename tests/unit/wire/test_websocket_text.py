"""Frames built at once are those of the library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import TextMessage

from paddler_trio.wire.websocket_text import frame_header, masked, masked_frame

texts = st.text(st.characters(exclude_categories=["Cs"]))
masks = st.binary(min_size=4, max_size=4)


def read(data: bytes, reader: ConnectionType) -> list[str]:
    """Whole messages, as the library's parser reads them."""
    connection = Connection(reader)
    connection.receive_data(data)
    messages, text = [], ""
    for event in connection.events():
        assert isinstance(event, TextMessage), event
        text += event.data
        if event.message_finished:
            messages.append(text)
            text = ""
    assert not text
    return messages


@given(st.lists(st.tuples(texts, masks), max_size=4))
def test_a_server_reads_what_a_client_masks(sent: list[tuple[str, bytes]]) -> None:
    data = b"".join(masked_frame(text.encode(), mask) for text, mask in sent)
    assert read(data, ConnectionType.SERVER) == [text for text, _ in sent]


@given(st.lists(texts, max_size=4))
def test_frames_of_a_server_are_the_librarys(sent: list[str]) -> None:
    library = Connection(ConnectionType.SERVER)
    for text in sent:
        data = text.encode()
        assert frame_header(len(data)) + data == library.send(TextMessage(data=text))


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_every_width_of_a_length_is_read(size: int) -> None:
    text = "x" * size
    assert read(masked_frame(text.encode(), b"abcd"), ConnectionType.SERVER) == [text]
    assert read(frame_header(size) + text.encode(), ConnectionType.CLIENT) == [text]


@given(st.binary(), masks)
def test_a_mask_twice_is_none(data: bytes, mask: bytes) -> None:
    assert masked(masked(data, mask), mask) == data

"""Pings and pongs are told from what is said, whatever the read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.net.websocket.plain_frames import LOOKED_AT_BYTES, is_pings

PING, PONG, MASKED = b"\x89\x02hi", b"\x8a\x00", b"\x89\x82\1\2\3\4hi"


@pytest.mark.parametrize("data", [PING, PONG, MASKED, PING + MASKED + PONG])
def test_pings_and_pongs_are_no_speech(data: bytes) -> None:
    assert is_pings(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PING[:-1],
        PING + b"\x89",
        b"\x81\x02hi",
        PING + b"\x81\x02hi",
        b"\x88\x00",
        b"\x89\x7e\x00\x7e" + bytes(126),
        b"\x09\x00",
        PONG * LOOKED_AT_BYTES,
    ],
)
def test_all_else_is(data: bytes) -> None:
    assert not is_pings(data)


@given(st.lists(st.tuples(st.sampled_from([0x89, 0x8A]), st.binary(max_size=125)), max_size=30))
def test_any_number_of_them_is_known(frames: list[tuple[int, bytes]]) -> None:
    data = b"".join(bytes([kind, len(payload)]) + payload for kind, payload in frames)
    assert is_pings(data) == (0 < len(data) <= LOOKED_AT_BYTES)

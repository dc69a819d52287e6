"""Senders of very many small pieces are read in small portions."""

from __future__ import annotations

from paddler_trio.system.ready_sockets import (
    FEW_PIECES,
    LEAST_BYTES,
    MANY_PIECES,
    MOST_BYTES,
    ReadSize,
)


def test_many_pieces_make_reads_short_and_few_make_them_long_again() -> None:
    reads = ReadSize()
    sizes = []
    for num_pieces in [1, MANY_PIECES, *[MANY_PIECES + 1] * 3, MANY_PIECES, *[FEW_PIECES] * 5]:
        reads.note(num_pieces)
        sizes.append(reads.num_bytes)
    assert sizes[:5] == [MOST_BYTES, MOST_BYTES, 16_384, LEAST_BYTES, LEAST_BYTES]
    assert sizes[5:] == [LEAST_BYTES, 8192, 16_384, 32_768, MOST_BYTES, MOST_BYTES]


def test_the_smallest_pieces_of_a_tunnel_stay_short() -> None:
    """Six bytes each: a frame of one byte in a tunnel, a chunk of one byte of a server."""
    assert LEAST_BYTES // 6 > MANY_PIECES

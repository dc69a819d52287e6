"""Bytes to text, one token at a time, without losing a character at a token's edge.

A token is a piece of a byte string, not of a text: an emoji may arrive as three bytes and then
one. A carry belongs to one request and holds back at most three bytes, those that could still
become a character. What can no longer become one turns into U+FFFD at once, so that

    "".join(feed(piece) for each piece) + flush() == whole.decode("utf-8", errors="replace")

holds for every way of cutting ``whole`` into pieces.
"""

from __future__ import annotations

import codecs

_INCREMENTAL_DECODER = codecs.getincrementaldecoder("utf-8")


class Utf8Carry:
    """The unfinished character of one request's answer."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _INCREMENTAL_DECODER(errors="replace")

    @property
    def held_back(self) -> bytes:
        """Bytes that wait for the rest of their character; at most three."""
        return self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> str:
        """The text that ``piece`` completes; empty while a character is unfinished."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the answer: U+FFFD for a character that never became whole, else nothing.

        The carry is as new afterwards.
        """
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

"""Lines of an answer that comes in pieces, as a balancer means them.

``httpx`` ends a line at U+0085, U+2028 and U+2029 as well, which JSON may have in a text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator

import attrs


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of ``pieces`` as they end, the last one also if nothing ends it."""
    lines = _Lines()
    for piece in pieces:
        yield from lines.ended_by(piece)
    yield from lines.last()


async def async_lines_of(pieces: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the same lines as ``lines_of``, of pieces that are waited for."""
    lines = _Lines()
    async for piece in pieces:
        for line in lines.ended_by(piece):
            yield line
    for line in lines.last():
        yield line


@attrs.define
class _Lines:
    """The beginning of a line that has not ended, in the pieces in which it came."""

    _begun: list[bytes] = attrs.field(factory=list, init=False)

    def ended_by(self, piece: bytes) -> list[str]:
        first, *others = piece.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        ended = [b"".join(self._begun), *others[:-1]]
        self._begun = others[-1:]
        return [_text(line) for line in ended]

    def last(self) -> list[str]:
        line = _text(b"".join(self._begun))
        return [line] if line else []


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")

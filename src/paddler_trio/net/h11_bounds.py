"""h11's parsing of header lines and chunk headers, with bounded cost.

The patterns of h11 0.16 backtrack over the blanks of a line that does not match: one header line,
trailer or chunk header of 64 KB blocks the process for more than ten seconds: a client's before its
key was checked, and as well that of a server which an agent dials or downloads from, or which a
command asks. And h11 decodes all lines before it counts them. The patterns here accept exactly the
same lines without backtracking, and lines are counted first.

A body in chunks of one byte costs h11 and hypercorn two events and a message for each, more than a
hundred times what the same bytes cost in one chunk. `JoiningChunkedReader` makes one event of all
the whole chunks of one read, so a client that writes small chunks costs no more than others.

h11 has no setting for any of it: `bound_parsing` replaces them inside it, for the whole process.
``pyproject.toml`` keeps the version that was read for this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h11
from h11 import _readers
from h11._receivebuffer import ReceiveBuffer

MAX_HEADER_LINES = 100
"""In a request, and again in the trailers of its body."""

HEADER_LINE = re.compile(
    rb"(?P<field_name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+"
    rb"(?P<field_value>(?:[^\0\s]++(?:[ \t]++[^\0\s]++)*+)?+)[ \t]*+"
)
CHUNK_HEADER = re.compile(rb"(?P<chunk_size>[0-9A-Fa-f]{1,20}+)(?:(?P<chunk_ext>;.*)|[ \t]*+)\r\n")

USUAL_CHUNK_HEADER = re.compile(rb"([0-9A-Fa-f]{1,8}+)(?:;[^\r\n]{0,64}+|[ \t]{0,64}+)\r\n")
"""A subset of `CHUNK_HEADER` that needs no long look-ahead."""

_decode_lines = _readers._decode_header_lines


def bound_parsing() -> None:
    """Put the bounds into h11; once is enough, and more than once harmless."""
    _readers.header_field_re = HEADER_LINE
    _readers.chunk_header_re = CHUNK_HEADER
    _readers._decode_header_lines = _decode_counted_lines
    body_readers = _readers.READERS[h11.SEND_BODY]
    assert isinstance(body_readers, dict)
    body_readers["chunked"] = JoiningChunkedReader


class JoiningChunkedReader(_readers.ChunkedReader):
    """A reader like h11's that returns one `h11.Data` for all chunks that have arrived whole, line
    ends included.

    Everything else, what is malformed too, is left to h11's own reader.
    """

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        """The next event of the body, None without enough bytes for one."""
        if self._bytes_in_chunk == 0 and not self._reading_trailer:
            data = self._whole_chunks(buf)
            if data:
                return h11.Data(data=data)
        return super().__call__(buf)

    def _whole_chunks(self, buf: ReceiveBuffer) -> bytes:
        raw = buf._data
        at = len(self._bytes_to_discard)
        if not raw.startswith(self._bytes_to_discard):
            return b""
        pieces: list[bytearray] = []
        while (header := USUAL_CHUNK_HEADER.match(raw, at)) is not None:
            begin = header.end()
            end = begin + int(header[1], base=16)
            if end == begin or raw[end : end + 2] != b"\r\n":
                break
            pieces.append(raw[begin:end])
            at = end + 2
        if pieces:
            self._bytes_to_discard = b""
            buf._extract(at)
        return b"".join(pieces)


def _decode_counted_lines(lines: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    lines = list(lines)
    if len(lines) > MAX_HEADER_LINES:
        raise h11.RemoteProtocolError(
            f"{len(lines)} header lines, the limit is {MAX_HEADER_LINES}", error_status_hint=431
        )
    return _decode_lines(lines)

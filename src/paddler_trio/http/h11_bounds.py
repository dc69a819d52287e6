"""h11's reading of header lines and chunk headers, with a bound on what it can cost.

As h11 0.16 writes its patterns, the blanks of a line that is refused in the end are shared out
between two parts in every way there is: one header line, trailer or chunk header of 64 KB holds up
the process for more than ten seconds, before anybody was asked for a key. And all the lines that
came are decoded before they can be counted. The patterns here accept exactly the same lines without
giving back what they have taken, and lines are counted first.

h11 has no setting for either: `bound_parsing` replaces them inside it, for the whole process.
``pyproject.toml`` keeps the version that was read for this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h11
from h11 import _readers

MAX_HEADER_LINES = 100
"""In a request, and again in the trailers of its body."""

HEADER_LINE = re.compile(
    rb"(?P<field_name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+"
    rb"(?P<field_value>(?:[^\0\s]++(?:[ \t]++[^\0\s]++)*+)?+)[ \t]*+"
)
CHUNK_HEADER = re.compile(rb"(?P<chunk_size>[0-9A-Fa-f]{1,20}+)(?:(?P<chunk_ext>;.*)|[ \t]*+)\r\n")

_decode_lines = _readers._decode_header_lines


def bound_parsing() -> None:
    """Put the bounds into h11; once is enough, and more than once harmless."""
    _readers.header_field_re = HEADER_LINE
    _readers.chunk_header_re = CHUNK_HEADER
    _readers._decode_header_lines = _decode_counted_lines


def _decode_counted_lines(lines: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    lines = list(lines)
    if len(lines) > MAX_HEADER_LINES:
        raise h11.RemoteProtocolError(
            f"{len(lines)} header lines, the limit is {MAX_HEADER_LINES}", error_status_hint=431
        )
    return _decode_lines(lines)

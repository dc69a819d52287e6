"""The head of a response: its status line and header fields, as they came. Pure.

It accepts what h11 accepts, less line folding and what makes the length of a body ambiguous, in a
fifth of the time; its patterns do not backtrack.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.net.client.upstream_error import MalformedAnswerError

SWITCHING: Final = 101
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADER_LINES: Final = 100
_BEGINS: Final = b"HTTP/1."
_END: Final = re.compile(rb"\n\r?\n")
_STATUS_LINE: Final = re.compile(
    rb"HTTP/(?P<version>1\.[01]) (?P<status>[1-9][0-9]{2})"
    rb"(?: (?P<reason>[^\x00-\x08\x0a-\x1f\x7f]*+))?"
)
_HEADER_LINE: Final = re.compile(
    rb"(?P<name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+"
    rb"(?P<value>(?:[^\x00-\x20\x7f]++(?:[ \t]++[^\x00-\x20\x7f]++)*+)?+)[ \t]*+"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


@attrs.frozen
class ResponseHead:
    """Args:
    headers: in the order and case in which they came.
    length: bytes of the body by ``Content-Length``; None without one.
    is_chunked: the body comes in chunks. With neither, it lasts until the connection ends.
    allows_another: the connection may be used again once the body has ended.
    """

    status: int
    reason: bytes
    http_version: bytes
    headers: list[tuple[bytes, bytes]]
    length: int | None
    is_chunked: bool
    allows_another: bool


def head_end(received: bytes | bytearray, searched: int) -> int:
    """Return where the head ends, or 0 if its end has not arrived; the first ``searched`` bytes had
    no end.

    Errors:
      MalformedAnswerError: no HTTP/1, or too long.
    """
    if not received.startswith(_BEGINS) and not _BEGINS.startswith(received[: len(_BEGINS)]):
        raise MalformedAnswerError(f"the answer is not HTTP/1: it begins {bytes(received[:40])!r}")
    found = _END.search(received, max(0, searched - 2))
    end = 0 if found is None else found.end()
    if (end or len(received)) > MAX_HEAD_BYTES:
        raise MalformedAnswerError(f"the head of the answer is over {MAX_HEAD_BYTES} bytes")
    return end


def parse_head(head: bytes | bytearray) -> ResponseHead:
    """Read a whole head, its blank line included. MalformedAnswerError."""
    lines = bytes(head).split(b"\n")
    status_line = _STATUS_LINE.fullmatch(_bare(lines[0]))
    if status_line is None:
        raise MalformedAnswerError(f"the answer has the status line {_bare(lines[0])[:40]!r}")
    if len(lines) - 3 > MAX_HEADER_LINES:
        raise MalformedAnswerError(
            f"the answer has {len(lines) - 3} header lines, the limit is {MAX_HEADER_LINES}"
        )
    headers = parse_header_lines(lines[1:-2])
    version = status_line["version"]
    length: int | None = None
    is_chunked, may_stay = False, version == b"1.1"
    for name, value in headers:
        match name.lower():
            case b"content-length":
                for each in value.split(b","):
                    length = _one_length(each.strip(), length)
            case b"transfer-encoding":
                if is_chunked or value.lower() != b"chunked":
                    raise MalformedAnswerError("the answer has a Transfer-Encoding but 'chunked'")
                is_chunked = True
            case b"connection":
                if b"close" in value.lower():
                    may_stay = False
    if is_chunked and (length is not None or version == b"1.0"):
        raise MalformedAnswerError(
            "the answer is chunked and has a Content-Length or is of HTTP/1.0: its end is ambiguous"
        )
    return ResponseHead(
        int(status_line["status"]),
        status_line["reason"] or b"",
        version,
        headers,
        length,
        is_chunked,
        may_stay,
    )


def parse_header_lines(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Names and values without the blanks around them. MalformedAnswerError."""
    headers = []
    for line in lines:
        field = _HEADER_LINE.fullmatch(_bare(line))
        if field is None:
            raise MalformedAnswerError("the answer has a malformed header line")
        headers.append((field[1], field[2]))
    return headers


def _bare(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line


def _one_length(text: bytes, known: int | None) -> int:
    if _LENGTH.fullmatch(text) is None:
        raise MalformedAnswerError("the answer has a Content-Length that is no number")
    if known is not None and known != int(text):
        raise MalformedAnswerError("the answer has two different Content-Lengths")
    return int(text)

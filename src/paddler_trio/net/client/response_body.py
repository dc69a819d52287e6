"""The body of a response as it comes: by its length, in chunks, or until the connection ends. Pure.

Nothing is kept but the beginning of a line that has not come whole.

The head of a response: its status line and header fields, as they came. Pure.

It accepts what h11 accepts, less line folding and what makes the length of a body ambiguous, in a
fifth of the time; its patterns do not backtrack.
"""

from __future__ import annotations

import enum
import re
from collections.abc import MutableSequence
from typing import Final, NamedTuple

import attrs

from paddler_trio.errors import PaddlerError


class FailureKind(enum.Enum):
    """The side that may be at fault, and whether the request can be tried elsewhere."""

    CONNECT = "connect"
    """No connection: a refused or unanswered one, no such host, a TLS handshake that failed."""
    TIMEOUT = "timeout"
    """Silence: before the head of the answer, between parts of its body, or while it was sent the
    request."""
    CLOSED = "closed"
    """The connection was closed before the answer was whole."""
    PROTOCOL = "protocol"
    """What was received breaks HTTP's rules, or a limit of this client."""
    REQUEST = "request"
    """The request itself cannot be sent: what the caller gave breaks HTTP's rules."""


class UpstreamError(PaddlerError):
    """The text is one line, and has nothing of the request and at most 40 bytes of the answer.

    Args:
      before_first_byte: nothing of the answer had arrived, so another server can be asked without
        the client noticing. With ``CONNECT`` and ``REQUEST`` nothing of the request was sent.
    """

    def __init__(self, kind: FailureKind, message: str, *, before_first_byte: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.before_first_byte = before_first_byte


class MalformedAnswerError(Exception):
    """Bytes that break HTTP's rules; the text says which. The connection makes it an
    :class:`UpstreamError` with the server's address."""


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


MAX_CHUNK_LINE_BYTES: Final = 4096
MAX_TRAILER_BYTES: Final = 8192
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16}+)(?:[ \t]*+;[^\r\n]*+|[ \t]*+)\r\n")
_LONE_LF: Final = re.compile(rb"(?<!\r)\n")
_NO_BODY: Final = frozenset({204, 304})


class BodyPart(NamedTuple):
    """Bytes of a body, never none.

    ``starts_chunk`` and ``ends_chunk``: whether the chunk of the server begins and ends with these
    bytes. A body without chunks has one for each read.
    """

    data: bytes
    starts_chunk: bool
    ends_chunk: bool


class LengthBody:
    """A body of a known number of bytes. What comes behind it is ignored, and ``has_excess``."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._remaining = length
        self.is_complete = length == 0
        self.has_excess = False
        self.trailers: list[tuple[bytes, bytes]] = []

    @property
    def remaining(self) -> int:
        """Return how many bytes are still to come."""
        return self._remaining

    def skip(self, count: int) -> None:
        """Count bytes, at most ``remaining``, that were read without `feed`."""
        self._remaining -= count
        self.is_complete = self._remaining == 0

    def feed(self, data: bytes, parts: MutableSequence[BodyPart]) -> None:
        """Append the parts in these bytes."""
        if len(data) > self._remaining:
            self.has_excess = True
            data = data[: self._remaining]
        if data:
            self._remaining -= len(data)
            self.is_complete = self._remaining == 0
            parts.append(BodyPart(data, starts_chunk=True, ends_chunk=True))

    def missing(self) -> str | None:
        """Return what is missing where the connection ends here; None if that is the end."""
        if self.is_complete:
            return None
        return f"{self._remaining} of {self._length} bytes before the end of the answer"


class UntilClosedBody:
    """A body that the end of the connection ends."""

    def __init__(self) -> None:
        self.is_complete = False
        self.has_excess = False
        self.trailers: list[tuple[bytes, bytes]] = []

    def feed(self, data: bytes, parts: MutableSequence[BodyPart]) -> None:
        """Append the parts in these bytes."""
        if data:
            parts.append(BodyPart(data, starts_chunk=True, ends_chunk=True))

    def missing(self) -> str | None:
        """Return what is missing where the connection ends here; None if that is the end."""
        self.is_complete = True
        return None


class ChunkedBody:
    """A body in chunks. What comes behind its trailers is ignored, and ``has_excess``."""

    def __init__(self) -> None:
        self._held = b""
        self._remaining = 0
        self._starts_chunk = False
        self._line_end_is_due = False
        self._is_in_trailers = False
        self.is_complete = False
        self.has_excess = False
        self.trailers: list[tuple[bytes, bytes]] = []

    def feed(self, data: bytes, parts: MutableSequence[BodyPart]) -> None:
        """Append the parts in these bytes; a chunk that came whole is one part.
        MalformedAnswerError, with the parts before it appended."""
        if self.is_complete:
            self.has_excess = self.has_excess or bool(data)
            return
        if self._held:
            data, self._held = self._held + data, b""
        at, end = 0, len(data)
        while at < end and not self._is_in_trailers:
            if self._remaining:
                piece = data[at : at + self._remaining]
                at += len(piece)
                self._remaining -= len(piece)
                parts.append(BodyPart(piece, self._starts_chunk, not self._remaining))
                self._starts_chunk = False
                self._line_end_is_due = not self._remaining
            elif self._line_end_is_due:
                if data[at : at + 2] == b"\r\n":
                    at += 2
                    self._line_end_is_due = False
                elif data[at:] == b"\r":
                    break
                else:
                    raise MalformedAnswerError("a chunk of the answer is longer than it says")
            else:
                line = _CHUNK_LINE.match(data, at)
                if line is None:
                    self._check_part_of_line(data, at)
                    break
                at = line.end()
                self._remaining = int(line[1], 16)
                self._starts_chunk = True
                self._is_in_trailers = not self._remaining
        self._held = data[at:]
        if self._is_in_trailers:
            self._read_trailers()

    def missing(self) -> str | None:
        """Return what is missing where the connection ends here; None if that is the end."""
        return None if self.is_complete else "in the middle of a chunked answer"

    def _check_part_of_line(self, data: bytes, at: int) -> None:
        if data.find(b"\n", at) >= 0 or not data[at : at + 1].isalnum():
            raise MalformedAnswerError("the answer has a malformed chunk size")
        if len(data) - at > MAX_CHUNK_LINE_BYTES:
            raise MalformedAnswerError(
                f"the answer has a chunk header over {MAX_CHUNK_LINE_BYTES} bytes"
            )

    def _read_trailers(self) -> None:
        held = self._held
        if held.startswith(b"\r\n"):
            end, lines = 2, []
        else:
            end = held.find(b"\r\n\r\n") + 4
            if end == 3:
                if _LONE_LF.search(held):
                    raise MalformedAnswerError("the answer has a malformed trailer")
                if len(held) > MAX_TRAILER_BYTES:
                    raise MalformedAnswerError(
                        f"the answer has trailers over {MAX_TRAILER_BYTES} bytes"
                    )
                return
            lines = held[: end - 4].split(b"\r\n")
        if len(lines) > MAX_HEADER_LINES:
            raise MalformedAnswerError(
                f"the answer has {len(lines)} trailers, the limit is {MAX_HEADER_LINES}"
            )
        self.trailers = parse_header_lines(lines)
        self.is_complete = True
        self.has_excess = len(held) > end
        self._held = b""


ResponseBody = LengthBody | ChunkedBody | UntilClosedBody


def body_of(head: ResponseHead, method: bytes) -> ResponseBody:
    """Return the body that follows this head, as an answer to ``method``."""
    if head.status == SWITCHING:
        return UntilClosedBody()
    if method == b"HEAD" or head.status in _NO_BODY:
        return LengthBody(0)
    if head.is_chunked:
        return ChunkedBody()
    return UntilClosedBody() if head.length is None else LengthBody(head.length)

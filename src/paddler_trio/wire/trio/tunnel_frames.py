"""Frames of a tunnel: one HTTP exchange after the other goes through it.

    frame       = kind (1 byte), length of the payload (4 bytes, big endian), payload
    to agent    = REQUEST BODY* END       and, for the next exchange, the same again
    to balancer = RESPONSE BODY* END      or FAILED in the place of what is missing

A REQUEST whose fields ask for an upgrade may be answered by a RESPONSE with the status 101. From
then on each side sends BODY* END, whatever the other does: bytes of the other protocol, as they
came. The tunnel carries nothing else after that. An agent that can do so says it when it dials.

A BODY is as much as arrived at once, and never nothing: of a chunked body one chunk, if it was not
too long. Nothing is sent ahead: the next REQUEST follows the END or the FAILED of the exchange
before. Closing the tunnel in the middle of an exchange gives it up.

Decide which requests that take no slot may be sent to a server a second time, when it is not
known whether one has worked on them: RFC 9110, 9.2.2, forbids a proxy all others.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final, TypeAlias

import attrs
import msgpack

from paddler_trio.errors import WireError

MAX_PAYLOAD_BYTES: Final = 256 * 1024
"""Heads are below 64 KiB, bodies are sent as they are read."""
HEADER_BYTES: Final = 5
SWITCHING: Final = 101
_HEADER: Final = struct.Struct(">BI")
_BREAKS: Final = re.compile(rb"[\r\n\0]")
"""The characters that would end a line of a head, which is written as it is."""
_NAME: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++")
"""The name of a field: with a blank or a colon in it, others might read another name."""

Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"
"""Fields in the order in which they came, names as they were written."""


class Kind(IntEnum):
    """The kinds of frames."""

    REQUEST = 1
    RESPONSE = 2
    BODY = 3
    END = 4
    FAILED = 5


@attrs.frozen(kw_only=True)
class RequestHead:
    """An exchange begins.

    Args:
      id: of the lease of a slot; empty for a request that takes none.
      target: as it stands in the request line.
      has_body: BODY frames follow, even if the body is empty.
      rewrites_host: the server is shown its own address as ``Host``.
    """

    id: str
    method: bytes
    target: bytes
    headers: Headers
    has_body: bool
    rewrites_host: bool = False

    @property
    def upgrades(self) -> bool:
        """Return whether the request asks for another protocol."""
        return any(name == b"upgrade" for name, _ in self.headers)


@attrs.frozen(kw_only=True)
class ResponseHead:
    """The server answers.

    Args:
      is_sized: its ``Content-Length`` is the length of the body that follows.
    """

    status: int
    reason: bytes
    headers: Headers
    is_sized: bool


@attrs.frozen(kw_only=True)
class Failed:
    """There is no answer, or not all of it.

    Args:
      kind: ``connect``, ``timeout``, ``protocol`` or ``closed``; ``link``, ``full`` and ``unable``
        are the balancer's own.
      text: for people; no secrets.
      may_repeat: nothing of the answer had come, so another server may be asked.
    """

    kind: str
    text: str
    may_repeat: bool


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Return one frame; the payload has at most ``MAX_PAYLOAD_BYTES``."""
    return _HEADER.pack(kind, len(payload)) + payload


def body_frames(data: bytes) -> bytes:
    """Return a piece of a body of any length, as frames; nothing for none."""
    if len(data) <= MAX_PAYLOAD_BYTES:
        return _HEADER.pack(Kind.BODY, len(data)) + data if data else b""
    starts = range(0, len(data), MAX_PAYLOAD_BYTES)
    return b"".join(frame(Kind.BODY, data[at : at + MAX_PAYLOAD_BYTES]) for at in starts)


def request_frame(head: RequestHead, wire_id: str | None = None) -> bytes:
    """Return the frame of a request; ``wire_id`` takes the place of the head's."""
    fields = (
        head.id if wire_id is None else wire_id,
        head.method,
        head.target,
        head.headers,
        head.has_body,
        head.rewrites_host,
    )
    return frame(Kind.REQUEST, _packed(fields))


def response_frame(head: ResponseHead) -> bytes:
    return frame(Kind.RESPONSE, _packed((head.status, head.reason, head.headers, head.is_sized)))


def end_frame(trailers: Headers = ()) -> bytes:
    """Return the frame of an end; ``trailers`` are those of a chunked body."""
    return frame(Kind.END, _packed(trailers) if trailers else b"")


def failed_frame(failed: Failed) -> bytes:
    return frame(Kind.FAILED, _packed((failed.kind, failed.text, failed.may_repeat)))


def read_request(payload: bytes) -> RequestHead:
    """Return the head of a request; WireError for what is none."""
    match _unpacked(payload):
        case [
            str(wire_id),
            bytes(method),
            bytes(target),
            list(headers),
            bool(has_body),
            bool(rewrites_host),
        ]:
            return RequestHead(
                id=wire_id,
                method=method,
                target=target,
                headers=_headers(headers),
                has_body=has_body,
                rewrites_host=rewrites_host,
            )
    raise WireError("not the head of a request @ tunnel")


def read_response(payload: bytes) -> ResponseHead:
    """Return the head of an answer; WireError for what is none."""
    match _unpacked(payload):
        case [int(status), bytes(reason), list(headers), bool(is_sized)] if (
            status == SWITCHING or 200 <= status <= 999
        ) and not _BREAKS.search(reason):
            return ResponseHead(
                status=status, reason=reason, headers=_headers(headers), is_sized=is_sized
            )
    raise WireError("not the head of a response @ tunnel")


def read_end(payload: bytes) -> Headers:
    """Return the trailers; WireError for what are none."""
    if not payload:
        return ()
    match _unpacked(payload):
        case list(trailers):
            return _headers(trailers)
    raise WireError("not the end of a body @ tunnel")


def read_failed(payload: bytes) -> Failed:
    """Return the failure; WireError for what is none."""
    match _unpacked(payload):
        case [str(kind), str(text), bool(may_repeat)]:
            return Failed(kind=kind[:32], text=text[:512], may_repeat=may_repeat)
    raise WireError("not a failure @ tunnel")


class FrameReader:
    """Takes bytes as they arrive and gives whole frames.

    Bytes of a frame that is not whole are appended and not looked at: a peer that sends one at a
    time costs no more for each than one that sends many.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._needed = HEADER_BYTES
        """Bytes to be held before there is anything to read."""

    @property
    def is_between_frames(self) -> bool:
        """Return whether nothing of another frame has come."""
        return not self._data

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """Return the frames that are whole with ``data``.

        Errors:
          WireError: an unknown kind, a payload over the limit, or a BODY without one.
        """
        held = self._data
        if held:
            held += data
            if len(held) < self._needed:
                return []
            data = bytes(held)
            held.clear()
        start, size, self._needed = 0, len(data), HEADER_BYTES
        frames = []
        while size - start >= HEADER_BYTES:
            number, length = _HEADER.unpack_from(data, start)
            if number not in _KINDS or length > MAX_PAYLOAD_BYTES:
                raise WireError(f"no frame: kind {number}, {length} bytes @ tunnel")
            if not length and number == _BODY:
                raise WireError("a BODY of no bytes, which would end a body in chunks @ tunnel")
            end = start + HEADER_BYTES + length
            if end > size:
                self._needed = end - start
                break
            frames.append((_KINDS[number], data[start + HEADER_BYTES : end]))
            start = end
        if start < size:
            held += data[start:]
        return frames


_KINDS: Final = {kind.value: kind for kind in Kind}
_BODY: Final = Kind.BODY.value
_PACKER: Final = msgpack.Packer()
"""Kept: each has a buffer of 256 KiB, which ``packb`` would have the system map and unmap."""


def _packed(value: object) -> bytes:
    packed: bytes = _PACKER.pack(value)
    return packed


def _unpacked(payload: bytes) -> object:
    try:
        return msgpack.unpackb(payload, raw=False, max_str_len=MAX_PAYLOAD_BYTES)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"no msgpack: {str(error)[:80]} @ tunnel") from error


def _headers(pairs: list[object]) -> Headers:
    headers = []
    for pair in pairs:
        match pair:
            case [bytes(name), bytes(value)] if _NAME.fullmatch(name) and not _BREAKS.search(value):
                headers.append((name, value))
            case _:
                raise WireError("headers are pairs of a token and one line, in bytes @ tunnel")
    return tuple(headers)


_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})
_QUESTIONS: Final = frozenset(
    {
        b"/tokenize",
        b"/detokenize",
        b"/apply-template",
        b"/v1/messages/count_tokens",
        b"/api/show",
    }
)
"""Questions of llama-server, vLLM and Ollama: a ``POST`` that changes nothing."""


def may_be_repeated(method: bytes, target: bytes) -> bool:
    """Return whether a request may be sent again; ``target`` is as it stands in the request
    line."""
    if method in _IDEMPOTENT:
        return True
    return method == b"POST" and target.partition(b"?")[0] in _QUESTIONS

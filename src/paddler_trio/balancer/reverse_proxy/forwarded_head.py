"""The heads of messages as a proxy passes them on: what is about one connection ends here.

RFC 9110, 7.6.1: ``Connection`` and what it names, and the fields that are about a connection
without being named. Everything else passes as it came, in its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

import attrs

from paddler_trio.balancer.front.end_user import USER_HEADER
from paddler_trio.balancer.front.sessions import SESSION_COOKIE
from paddler_trio.errors import WireError
from paddler_trio.wire.trio.tunnel_frames import SWITCHING, Headers, ResponseHead

CONNECTION_FIELDS: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
AGENT_FIELD: Final = b"x-paddler-agent"
"""In a request: only the server behind this agent may answer. In a response: it did."""
_OURS: Final = frozenset(
    {AGENT_FIELD, b"x-paddler-client", b"x-paddler-priority", USER_HEADER, b"expect"}
)
"""Of requests: they are for the balancer; 100 (Continue) was sent here."""
_FORWARDED_FOR: Final = b"x-forwarded-for"
_FORWARDED_HOST: Final = b"x-forwarded-host"
_FORWARDED_PROTO: Final = b"x-forwarded-proto"
_KEYS: Final = frozenset({b"authorization", b"x-api-key"})
_SESSION_COOKIE: Final = SESSION_COOKIE.encode()
_NO_TRAILERS: Final = CONNECTION_FIELDS | {b"content-length", b"host", AGENT_FIELD}
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_MAX_FORWARDED_BYTES: Final = 1024
"""Of addresses that proxies before this one have noted; more is not believed."""


def request_headers(
    headers: Sequence[tuple[bytes, bytes]],
    names: Sequence[bytes],
    *,
    client: str,
    scheme: str,
    body_bytes: int | None,
    keeps_keys: bool,
    upgrades: bool = False,
) -> Headers:
    """Return the fields of a request as a server gets them.

    Args:
      headers: names in lower case.
      names: of the same fields, as they were written.
      client: its address.
      scheme: ``http`` or ``https``, of the client's connection.
      body_bytes: None for a request without a body. One that came in chunks is whole by now, so
        its length is announced.
      keeps_keys: the client's keys are for the server; otherwise they were for the balancer.
      upgrades: it asks for a WebSocket, and so it does of the server.
    """
    dropped = (_connection_fields(headers) - {b"host", b"content-length"}) | _OURS
    if not keeps_keys:
        dropped |= _KEYS
    length = None if body_bytes is None else b"%d" % body_bytes
    kept = [
        (name, written, value)
        for (name, value), written in zip(headers, names, strict=True)
        if name != _FORWARDED_FOR and name not in dropped
    ]
    given = {name: value for name, _, value in kept}
    passed = list(_passed(kept, length))
    before = b", ".join(value for name, value in headers if name == _FORWARDED_FOR and value)
    if len(before) > _MAX_FORWARDED_BYTES:
        before = b""
    addresses = b", ".join(each for each in (before, client.encode()) if each)
    passed.append((_FORWARDED_FOR, addresses))
    if given.get(b"host") and _FORWARDED_HOST not in given:
        passed.append((_FORWARDED_HOST, given[b"host"]))
    if _FORWARDED_PROTO not in given:
        passed.append((_FORWARDED_PROTO, scheme.encode()))
    if length is not None and b"content-length" not in given:
        passed.append((b"content-length", length))
    options = [b"Upgrade"] if upgrades else []
    if any(name == b"te" and _takes_trailers(value) for name, value in headers):
        options.append(b"TE")  # RFC 9110, 10.1.4: some servers send trailers to who takes them
    if options:
        passed.append((b"connection", b", ".join(options)))
    if upgrades:
        passed.append((b"upgrade", b"websocket"))
    if b"TE" in options:
        passed.append((b"te", b"trailers"))
    return tuple(passed)


def _passed(
    fields: Iterable[tuple[bytes, bytes, bytes]], length: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the client's fields, each a name, as it was written, and a value, as they are passed
    on: without the panel's sessions, and with the one ``length``."""
    for name, written, value in fields:
        if name == b"content-length":
            if length is not None:
                yield written, length
            length = None
        elif name == b"cookie" and _SESSION_COOKIE in value:
            if others := _others_cookies(value):
                yield written, others
        else:
            yield written, value


def _takes_trailers(codings: bytes) -> bool:
    return any(each.strip().lower() == b"trailers" for each in codings.split(b","))


def _others_cookies(value: bytes) -> bytes:
    """Without the sessions of the panel, which sign anybody in who sees them: browsers send the
    cookies of a host to all of its ports."""
    pairs = (pair.strip() for pair in value.split(b";"))
    return b"; ".join(pair for pair in pairs if not pair.startswith(_SESSION_COOKIE))


class Framing(Enum):
    """Say how the client knows where a body ends."""

    NONE = "there is none"
    LENGTH = "its length"
    CHUNKS = "chunks"
    CLOSE = "the end of the connection"


@attrs.frozen
class AnswerHead:
    """The head of an answer as it is written, and what follows it."""

    data: bytes
    framing: Framing
    body_bytes: int | None = None
    """That the client was told of; None where another framing says where the body ends."""


def answer_head(
    head: ResponseHead,
    *,
    method: bytes,
    is_http_1_1: bool,
    must_close: bool,
    upgrades: bool = False,
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> AnswerHead:
    """Return the head of a server's answer for a client.

    Args:
      method: of the request.
      is_http_1_1: the client reads chunks.
      must_close: no other request may follow on the connection.
      upgrades: the request asked for a WebSocket.
      extra: fields of ours.

    Errors:
      WireError: it says that the body has a length, and not which one; or it switches to a protocol
        that nobody asked for.
    """
    if head.status == SWITCHING:
        return _switching_head(head, extra, upgrades=upgrades)
    framing, body_bytes = Framing.CHUNKS, None
    if method == b"HEAD" or head.status in (204, 304):
        framing = Framing.NONE
    elif head.is_sized:
        framing, body_bytes = Framing.LENGTH, _one_length(head.headers)
    elif not is_http_1_1:
        framing = Framing.CLOSE
    dropped = _connection_fields((name.lower(), value) for name, value in head.headers)
    dropped |= {name.lower() for name, _ in extra}  # a server does not speak for us
    if framing is Framing.CHUNKS:
        dropped -= {b"trailer"}  # they follow
    if framing in (Framing.CHUNKS, Framing.CLOSE) or head.status == 204:
        dropped |= {b"content-length"}  # RFC 9110, 8.6: a 204 has none
    else:
        dropped -= {b"content-length"}  # whatever the server's Connection names
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    lines += [
        b"%b: %b\r\n" % (name, value)
        for name, value in _with_one_length(head.headers)
        if name.lower() not in dropped
    ]
    lines += [b"%b: %b\r\n" % (name, value) for name, value in extra]
    if framing is Framing.CHUNKS:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if must_close or framing is Framing.CLOSE:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return AnswerHead(b"".join(lines), framing, body_bytes)


def _switching_head(
    head: ResponseHead, extra: Sequence[tuple[bytes, bytes]], *, upgrades: bool
) -> AnswerHead:
    """Return the head of an answer that switches: what follows it is of another protocol, and ends
    with the connection."""
    fields = [(name.lower(), value) for name, value in head.headers]
    switched = [value.strip().lower() for name, value in fields if name == b"upgrade"]
    if not upgrades or switched != [b"websocket"]:
        raise WireError("a response switches to a protocol that nobody asked for @ tunnel")
    dropped = _connection_fields(fields) - {b"upgrade"} | {b"content-length"}
    dropped |= {name.lower() for name, _ in extra}
    passed = [pair for pair in head.headers if pair[0].lower() not in dropped]
    fields = [*passed, (b"Connection", b"Upgrade"), *extra]
    lines = [b"%b: %b\r\n" % pair for pair in fields]
    status = b"HTTP/1.1 %d %b\r\n" % (SWITCHING, head.reason)
    return AnswerHead(b"".join([status, *lines, b"\r\n"]), Framing.CLOSE)


def chunk(data: bytes) -> bytes:
    """Return one chunk; the last one is not written by this."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Headers = ()) -> bytes:
    """Without trailers that say something about framing, routing or a connection, which no message
    says behind its body (RFC 9110, 6.5.1): who adds them to the head would believe them."""
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in trailers
        if name.lower() not in _NO_TRAILERS
    ]
    return b"0\r\n%b\r\n" % b"".join(lines)


def is_event_stream(headers: Headers) -> bool:
    """Return whether a body with these fields is of server-sent events."""
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream")
        for name, value in headers
    )


def _one_length(headers: Headers) -> int:
    """Return the one length of the body as the client reads it, who has no agent to trust."""
    told = [
        each.strip()
        for name, value in headers
        if name.lower() == b"content-length"
        for each in value.split(b",")
    ]
    lengths = {int(each) if _LENGTH.fullmatch(each) else None for each in told}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None:
        raise WireError("the head of a response has not one Content-Length @ tunnel")
    return length


def _with_one_length(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """RFC 9110, 8.6: who has accepted the same length twice passes it on once."""
    is_told = False
    for name, value in headers:
        if name.lower() != b"content-length":
            yield name, value
        elif not is_told:
            is_told = True
            yield name, value.partition(b",")[0].rstrip()


def _connection_fields(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names of what is about one connection; ``headers`` have names in lower case."""
    named: set[bytes] = set(CONNECTION_FIELDS)
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named)

"""HTTP/1.1 and WebSocket as hypercorn parses them, with its open ends closed.

Hypercorn's protocol classes are kept for what they do well: h11, the WebSocket handshake and the
ASGI messages. Where they do not handle a hostile client, this module does:

* no HTTP/2, by upgrade or by prior knowledge: a request is 1.0 or 1.1 or it is refused;
* headers that later code would fail to decode, headers past the limits, and a body framed twice
  are refused before a stream exists, and parsing them costs no more than their length is worth;
* while a client has sent more than the request being answered, its disconnect is still noticed;
* WebSocket compression is never negotiated;
* the body of a request that may be passed on to another process is left alone;
* a response may be written past both of them, in bytes that are not ours.

`Wire` is what the protocol needs from its connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeAlias, TypeVar, cast

import attrs
import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Data, Request, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import (
    STREAM_ID,
    H11Protocol,
    H11WSConnection,
)
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext
from hypercorn.utils import suppress_body

from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.server.asgi import TEXT_PLAIN, ClientGoneError, Fields, Send
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import WrittenHead
from paddler_trio.net.websocket.bounded_websocket import BoundedWebSocket

bound_parsing()

Sendable: TypeAlias = h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage
AnyHttpStream = TypeVar("AnyHttpStream", bound=HTTPStream)
MAX_WITH_HEAD_BYTES = 65_536
"""Of a body's first piece, that is copied behind the head; a longer one has a write of its own."""
DECODED_HEADERS = (b"connection", b"host", b"upgrade", b"sec-websocket")
"""Headers (by prefix) that the WebSocket handshake reads as ASCII."""


class Wire(Protocol):
    """The connection as its protocol sees it."""

    @property
    def ends_with_response(self) -> bool:
        """True when a response that begins now is the last of its connection."""

    async def send(self, event: ConnectionEvent) -> None:
        """Write bytes, or note idleness or the end."""

    async def write(self, data: bytes) -> None:
        """Write ``data`` within the write deadline or raise ``ClientGoneError``."""

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; False if the next ``write`` has to send the rest of it."""

    async def receive(self) -> bytes:
        """The next bytes from the client; empty at the end."""

    async def wait_gone(self) -> None:
        """Wait until the client has closed its side; earlier bytes are received later."""

    def client_gone(self) -> None:
        """Stop reading: the client has closed its side."""

    def has_unread(self) -> bool:
        """Return whether bytes have arrived that were not read yet."""

    def abort(self) -> None:
        """Reset the connection."""

    def report_abuse(self, reason: str) -> None:
        """Log and count a client that broke a rule."""


class PausedGate:
    """Blocks the reader while a client has sent more than the request being answered.

    It replaces the event that ``H11Protocol`` waits on, and watches the client meanwhile: a reader
    that only waits does not notice that the client leaves.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._answered = trio.Event()

    async def clear(self) -> None:
        """A request is being answered."""
        self._answered = trio.Event()

    async def set(self) -> None:
        """It has been answered."""
        self._answered.set()

    def is_set(self) -> bool:
        """Return whether parsing may go on."""
        return self._answered.is_set()

    async def wait(self) -> None:
        """Wait for the end of the response, or for cancellation when the client leaves first."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_client)
            await self._answered.wait()
            nursery.cancel_scope.cancel()

    async def _watch_client(self) -> None:
        await self.wire.wait_gone()
        self.wire.client_gone()


@attrs.frozen
class Objection:
    """Why a request is not even given to the application."""

    status: int
    reason: str


def objection_to(request: h11.Request, limits: HttpLimits) -> Objection | None:
    """Check the header of a request; None if it may be served."""
    if request.http_version not in {b"1.0", b"1.1"}:
        return Objection(505, f"HTTP version {request.http_version!r}; 1.0 and 1.1 are supported")
    if len(request.target) > limits.max_target_bytes:
        reason = (
            f"the target has {len(request.target)} bytes, the limit is {limits.max_target_bytes}"
        )
        return Objection(414, reason)
    if b"#" in request.target:  # servers cut it off, each in its own way
        return Objection(400, "the target has a '#': a fragment is the client's, leave it out")
    authority, _ = _split(request.target, request.method)
    if authority is not None and (not authority or b"@" in authority):
        return Objection(400, "the target has no host, or a user's name before it")
    headers = list(request.headers)
    size_bytes = sum(len(name) + len(value) for name, value in headers)
    if size_bytes > limits.max_header_bytes:
        return Objection(431, f"{size_bytes} header bytes, the limit is {limits.max_header_bytes}")
    names = {name for name, _ in headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        return Objection(400, "both Content-Length and Transfer-Encoding")
    for name, value in headers:
        if name.startswith(DECODED_HEADERS) and not value.isascii():
            return Objection(400, f"header {name.decode('ascii')!r} is not ASCII")
    return None


_BETWEEN_REQUESTS = (h11.IDLE, h11.MUST_CLOSE)


class Parser(h11.Connection):
    """h11's errors are raised by a method of their own, whose frame is in their traceback: in a
    cycle, which would hold the connection until a full collection."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state in _BETWEEN_REQUESTS and self.trailing_data[0].startswith(b"\r\n"):
            # RFC 9112, 2.2: some clients end their bodies with a line break that is not counted
            self._receive_buffer.maybe_extract_at_most(2)
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None)  # noqa: B904  # it is the same one


class Http11Protocol(H11Protocol):
    """One connection's parser and its one request at a time."""

    passes_websockets: ClassVar[bool] = False
    """They are answered as requests, by a raw response, and nothing here reads their frames."""

    def __init__(
        self,
        *,
        config: Config,
        context: WorkerContext,
        tasks: object,
        limits: HttpLimits,
        wire: Wire,
        client: tuple[str, int],
        server: tuple[str, int],
        passes: Callable[[str], bool],
        is_encrypted: bool,
    ) -> None:
        # Streams hand the application to the task group, and ours knows its application.
        app = cast("AppWrapper", None)
        state = ConnectionState({})
        tasks = cast("TaskGroup", tasks)
        super().__init__(
            app, config, context, tasks, state, is_encrypted, client, server, wire.send
        )
        self.connection = Parser(
            h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_size
        )
        self.can_read = PausedGate(wire)
        self._limits = limits
        self.wire = wire
        self.is_chunked = False
        self._is_sized = False
        self._head = b""
        self._is_raw = False
        self.raw_fields: Fields = []
        """Of the raw response that has begun: its head as ASGI sent it."""
        self._passes = passes
        self.written_head = WrittenHead(b"", b"", ())
        """Of the request that began last."""

    async def handle(self, event: ConnectionEvent) -> None:
        """The bytes of a WebSocket go to their stream at once: hypercorn would put them into a
        buffer, and ask which of its events they are."""
        connection, stream = self.connection, self.stream
        if (
            type(event) is RawData
            and type(connection) is H11WSConnection
            and stream is not None
            and not connection.buffer  # what came with the handshake goes first
        ):
            await stream.handle(Data(stream_id=STREAM_ID, data=event.data))
        else:
            await super().handle(event)

    @property
    def texts(self) -> BoundedWebSocket | None:
        """The WebSocket, while its application takes texts in the step in which they are read, and
        nothing else is to be parsed."""
        connection, stream = self.connection, self.stream
        if type(connection) is not H11WSConnection or connection.buffer:
            return None
        return stream if isinstance(stream, BoundedWebSocket) and stream.takes_now else None

    def part(self) -> None:
        """The connection has ended: let go of what only a garbage collector would find."""
        self._part_stream()

    def _part_stream(self) -> None:
        if isinstance(self.stream, BoundedWebSocket):
            self.stream.part()

    async def _close_stream(self) -> None:
        self._part_stream()
        await super()._close_stream()

    def may_pass(self, path: str) -> bool:
        """Return whether another process may answer requests for ``path`` (percent-decoded)."""
        return self._passes(path)

    def unparsed(self) -> bytes:
        """Return the bytes of the connection that were read and not parsed."""
        data: bytes = self.connection.trailing_data[0]
        return data

    def has_unread(self) -> bool:
        """Return whether bytes have arrived that were not read yet."""
        return self.wire.has_unread()

    def direct_body(self, stream: object) -> ChunkedBody | None:
        """The body of the response in progress on ``stream``, if it is chunked."""
        body = ChunkedBody(self, stream)
        return body if body.is_open else None

    async def stream_send(self, event: StreamEvent) -> None:
        """Pass a stream's event on; the response's start decides how its body is framed."""
        self._note_fields(event)
        if isinstance(event, Response) and isinstance(self.stream, HTTPStream):
            scope = self.stream.scope
            sized = any(name.lower() == b"content-length" for name, _ in event.headers)
            bodiless = suppress_body(scope["method"], event.status_code)
            self.is_chunked = scope["http_version"] == "1.1" and not sized and not bodiless
            self._is_sized = sized
            # what is left of a body cannot be skipped: the client must not send a request after it
            is_unread = self.connection.their_state is h11.SEND_BODY
            is_last = self.wire.ends_with_response or is_unread
            if self._is_raw:
                await self._note_raw_response(event, is_last=self._is_last(event) or is_unread)
                return
            if is_last:
                event = Response(
                    stream_id=event.stream_id,
                    headers=[*event.headers, (b"connection", b"close")],
                    status_code=event.status_code,
                )
        await super().stream_send(event)

    def _note_fields(self, event: StreamEvent) -> None:
        if self._is_raw and isinstance(event, Response):
            self.raw_fields = event.headers

    def raw_response(self, stream: object) -> RawBytes:
        """The response in progress on ``stream``, for bytes that are not ours."""
        return RawBytes(self, stream)

    def may_write(self, stream: object) -> bool:
        """Return whether the response on ``stream`` goes on."""
        return self.stream is stream

    def write_raw(self) -> None:
        """Discard what h11 makes of the response in progress: its bytes are written raw."""
        self._is_raw, self.raw_fields = True, []

    def _is_last(self, event: Response) -> bool:
        """No request may follow this raw response."""
        return (
            self.wire.ends_with_response
            or (b"connection", b"close") in event.headers
            or self.keep_alive_requests >= self.config.keep_alive_max_requests
        )

    async def _note_raw_response(self, event: Response, *, is_last: bool) -> None:
        """h11 is told what decides about the connection, and of no field that it would only read,
        sort and render: nothing of that is written."""
        headers = [(b"connection", b"close")] if is_last else []
        await self._send_h11_event(h11.Response(headers=headers, status_code=event.status_code))

    async def _send_h11_event(self, event: Sendable) -> None:
        """Send an event as hypercorn does, but the head of a response of known length together with
        the beginning of its body: two writes would cost the client two wake-ups.
        """
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        if self._is_raw:
            return
        if self._is_sized and type(event) is h11.Response:
            self._head = data
            return
        head, self._head = self._head, b""
        if head and len(data) > MAX_WITH_HEAD_BYTES:
            await self.send(RawData(data=head))
            head = b""
        if type(event) is h11.EndOfMessage:
            await self._write_end(head + data)
        elif head or data:
            await self.send(RawData(data=head + data))

    async def _write_end(self, data: bytes) -> None:
        """Nearly always without a turn of the loop: the client may have its next request there by
        then, and the reader would pause for a response that is over."""
        try:
            if not self.wire.write_now(data):
                await self.wire.write(b"")
        except ClientGoneError:
            pass  # ASGI reports it by http.disconnect, never by send

    async def _maybe_recycle(self) -> None:
        self._is_raw = self._is_sized = False
        self._head = b""
        await super()._maybe_recycle()

    async def _check_protocol(self, event: h11.Request) -> None:
        """HTTP/2 is not supported; `objection_to` refuses its preface."""

    async def _create_stream(self, request: h11.Request) -> None:
        objection = objection_to(request, self._limits)
        if objection is not None:
            self.wire.report_abuse(objection.reason)
            await self._refuse(request, objection)
            return
        authority, target = _split(request.target, request.method)
        written = request.headers.raw_items()
        if authority is not None:
            written = _with_host(written, authority)
        self.written_head = WrittenHead(request.method, target, [name for name, _ in written])
        headers = [(name.lower(), value) for name, value in written]
        stream: HTTPStream | BoundedWebSocket
        asks_for_websocket = _asks_for_websocket(request)
        if asks_for_websocket and not self.passes_websockets:
            headers = [pair for pair in headers if pair[0] != b"sec-websocket-extensions"]
            self.stream = stream = BoundedWebSocket(
                self,
                wire=self.wire,
                max_message_bytes=self._limits.max_websocket_message_bytes,
                ping_interval_s=self._limits.ping_interval_s,
                on_abuse=self.wire.report_abuse,
            )
            self.connection = H11WSConnection(cast("h11.Connection", self.connection))
        else:
            stream = self._http_stream(
                upgrades=asks_for_websocket and request.http_version == b"1.1"
            )
        self.keep_alive_requests += 1
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode("ascii"),
                method=_asgi_method(request.method),
                raw_path=target,
                state=self.connection_state,
            )
        )
        if isinstance(stream, HTTPStream) and self._passes(stream.scope["path"]):
            await trio.sleep_forever()  # the end of the connection, here or elsewhere, ends this

    def _http_stream(self, *, upgrades: bool = False) -> HTTPStream:
        """Return the stream of the request that begins; ``upgrades`` means that it asks for a
        WebSocket that is passed on.
        """
        return self._open_stream(HTTPStream)

    def _open_stream(self, kind: type[AnyHttpStream]) -> AnyHttpStream:
        stream = kind(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.stream = stream
        return stream

    async def _refuse(self, request: h11.Request, objection: Objection) -> None:
        """Answer with the reason and end the connection."""
        body = objection.reason.encode()
        headers = [
            (b"content-type", TEXT_PLAIN),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=objection.status, headers=headers))
        if request.method != b"HEAD":
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())


@attrs.frozen(eq=False)
class ChunkedBody:
    """A `DirectBody`. h11 counts nothing in a chunked body, so chunks may go past it; the last
    piece must not."""

    _protocol: Http11Protocol
    _stream: object

    @property
    def is_open(self) -> bool:
        """Return whether this response goes on."""
        protocol = self._protocol
        return (
            protocol.connection.our_state is h11.SEND_BODY
            and protocol.is_chunked
            and protocol.stream is self._stream
        )

    async def write(self, piece: bytes) -> None:
        """Write a piece as `DirectBody` and `RawResponse` describe."""
        await self._protocol.wire.write(self._chunk(piece))

    def write_now(self, piece: bytes) -> bool:
        """Write a piece at once as `DirectBody` and `RawResponse` describe."""
        return self._protocol.wire.write_now(self._chunk(piece))

    def _chunk(self, piece: bytes) -> bytes:
        if not self.is_open:
            raise ClientGoneError("client gone, or response already ended")
        return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""  # an empty one ends it


@attrs.frozen(eq=False)
class RawBytes:
    """A `RawResponse`."""

    _protocol: Http11Protocol
    _stream: object

    @property
    def must_close(self) -> bool:
        """Return whether the connection must close, as `RawResponse` describes."""
        protocol = self._protocol
        return protocol.wire.ends_with_response or protocol.connection.their_state is h11.SEND_BODY

    async def begin(self, send: Send, status: int, *, closes: bool) -> Fields:
        """Begin the response as `RawResponse` describes."""
        self._check()
        protocol = self._protocol
        protocol.write_raw()
        headers = [(b"connection", b"close")] if closes else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        return [pair for pair in protocol.raw_fields if pair[0] != b"connection"]

    def write_now(self, data: bytes) -> bool:
        """Write a piece at once as `DirectBody` and `RawResponse` describe."""
        self._check()
        return self._protocol.wire.write_now(data)

    async def write(self, data: bytes) -> None:
        """Write a piece as `DirectBody` and `RawResponse` describe."""
        self._check()
        await self._protocol.wire.write(data)

    async def end(self, send: Send) -> None:
        """End the response as `RawResponse` describes."""
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        """Abort the response as `RawResponse` describes."""
        if self._protocol.may_write(self._stream):
            self._protocol.wire.abort()

    def _check(self) -> None:
        if not self._protocol.may_write(self._stream):
            raise ClientGoneError("client gone, or response already ended")


def _asks_for_websocket(request: h11.Request) -> bool:
    tokens: set[bytes] = set()
    upgrades: set[bytes] = set()
    for name, value in request.headers:
        if name == b"connection":
            tokens.update(token.strip().lower() for token in value.split(b","))
        elif name == b"upgrade":
            upgrades.add(value.strip().lower())
    return request.method == b"GET" and b"upgrade" in tokens and upgrades == {b"websocket"}


_PATH_OR_QUERY = re.compile(rb"[/?]")


def _asgi_method(method: bytes) -> str:
    """Return the method in capitals as ASGI wants it; one that is not spelled ``HEAD`` keeps its
    body, as h11 and the client expect.
    """
    text = method.decode("ascii")
    capitals = text.upper()
    return text if capitals == "HEAD" else capitals


def _split(target: bytes, method: bytes) -> tuple[bytes | None, bytes]:
    """The host that stands in a target which was sent as if we were a proxy (servers must accept
    those), None for any other; and the target without it. RFC 9112, 3.2.4: ``OPTIONS http://host``
    asks about the server as a whole."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in {b"http", b"https"}:
        return None, target
    begin = _PATH_OR_QUERY.search(rest)
    if begin is None:
        return rest, b"*" if method == b"OPTIONS" else b"/"
    found = rest[begin.start() :]
    return rest[: begin.start()], found if found.startswith(b"/") else b"/" + found


def _with_host(
    fields: Sequence[tuple[bytes, bytes]], authority: bytes
) -> list[tuple[bytes, bytes]]:
    """RFC 9112, 3.2.2: the host of the target counts, and ``Host`` does not."""
    return [(b"Host", authority), *(pair for pair in fields if pair[0].lower() != b"host")]

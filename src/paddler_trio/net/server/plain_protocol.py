"""HTTP/1.1 on a port whose responses are others' bytes: plain exchanges go past h11.

A request that is plain, answered by a raw response, needs nothing of h11 and hypercorn but their
states, and they cost more than all else that is done to read and to write it. So h11 is not told of
it. As soon as anything else happens (an ordinary response, bytes behind the request, a connection
that is to end) h11 is told what there was, and goes on as if it had seen it all.

A request for a WebSocket is answered like any other. If the raw response has the status 101, what
the client sends from then on is not read here: it goes to the :class:`Upgrade` of the request.

The requests that need no state machine, read at once.

What programs send to a server behind a proxy is one request after the other: HTTP/1.1, a path, some
fields, a body of known length, all of it in what one read of the socket returned. Those are read
here. Everything else (other versions, chunks, upgrades, ``Expect``, long heads, pieces, more than
one request, whatever is malformed) is None and left to h11, so that each rule of HTTP is applied in
one place. A request that is read here means the same to h11.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, cast

import attrs
import h11
import trio
from hypercorn.events import Event as ConnectionEvent
from hypercorn.events import RawData, Updated
from hypercorn.protocol.events import Data, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream

from paddler_trio.net.server.asgi import Upgrade
from paddler_trio.net.server.exchange import WrittenHead
from paddler_trio.net.server.protocol import Http11Protocol, Wire

MAX_LINES: Final = 64
_TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++"
_VALUE: Final = rb"(?:[\x21-\x7e]++(?:[ \t]++[\x21-\x7e]++)*+)?+"
_LINE: Final = re.compile(rb"(%b):[ \t]*+(%b)[ \t]*+\r\n" % (_TOKEN, _VALUE))
_HEAD: Final = re.compile(
    rb"(?P<method>[A-Z]{1,16}+) (?P<target>/[\x21\x22\x24-\x7e]*+) HTTP/1\.1\r\n"
    rb"(?P<fields>(?:%b:[ \t]*+%b[ \t]*+\r\n){1,%d}+)\r\n" % (_TOKEN, _VALUE, MAX_LINES)
)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}+")
_NOT_PLAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


@attrs.frozen
class PlainRequest:
    """One request, whole.

    Args:
      head: as it came; with the body behind it, it is all that came.
      headers: names in lower case.
      names: as they were written.
    """

    head: bytes = attrs.field(repr=False)
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    names: list[bytes]
    body: bytes = attrs.field(repr=False)


def plain_request(data: bytes, max_head_bytes: int) -> PlainRequest | None:
    """The request that these bytes are; None if h11 has to look at them."""
    head = _HEAD.match(data)
    if head is None or head.end() > max_head_bytes or head["method"] == b"CONNECT":
        return None
    written = _LINE.findall(head["fields"])
    headers = [(name.lower(), value) for name, value in written]
    length, num_hosts, num_lengths = 0, 0, 0
    for name, value in headers:
        if name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        if name == b"host":
            num_hosts += 1
        elif name == b"content-length":
            if _LENGTH.fullmatch(value) is None:
                return None
            length, num_lengths = int(value), num_lengths + 1
    if num_hosts != 1 or num_lengths > 1 or len(data) - head.end() != length:
        return None
    names = [name for name, _ in written]
    body = data[head.end() :]
    return PlainRequest(head[0], head["method"], head["target"], headers, names, body)


SWITCHING: int = 101


class UpgradeStream(HTTPStream):
    """A request for a WebSocket, and from its 101 on what the client sends."""

    upgrade: Upgrade
    wire: Wire

    async def handle(self, event: StreamEvent) -> None:
        """Handle an event as hypercorn's protocol does."""
        if isinstance(event, Data):
            self.upgrade.put(event.data)
            if self.upgrade.is_full:
                await self._wait_room()
            return
        if isinstance(event, StreamClosed):
            self.upgrade.end()
        await super().handle(event)

    async def _wait_room(self) -> None:
        """A reader that only waits would not notice that the client leaves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_client)
            await self.upgrade.wait_room()
            nursery.cancel_scope.cancel(reason="what was read is taken")

    async def _watch_client(self) -> None:
        await self.wire.wait_gone()
        self.upgrade.close()


class PlainProtocol(Http11Protocol):
    """See the module docstring."""

    passes_websockets: ClassVar[bool] = True
    _switched: UpgradeStream | None = None
    """It was answered with 101: its response goes on when the client has closed its side."""
    _plain: PlainRequest | None = None
    """The request in progress, as long as h11 does not know of it."""
    _status: int | None = None
    """Of the raw response to it, once that has begun."""
    _is_answered = False
    """All of the response was written."""

    async def handle(self, event: ConnectionEvent) -> None:
        """Handle an event as hypercorn's protocol does."""
        if isinstance(event, RawData):
            if self._plain is not None:
                self._tell_h11()
            elif self._is_between_requests():
                limits = self._limits
                longest = min(limits.max_target_bytes, limits.max_header_bytes)
                plain = plain_request(event.data, longest)
                if plain is not None:
                    await self._begin(plain)
                    return
        await super().handle(event)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send an event of the stream as hypercorn's protocol does."""
        self._note_fields(event)
        if isinstance(event, Response) and event.status_code == SWITCHING:
            await self._switch()
        elif self._plain is None:
            await super().stream_send(event)
        elif isinstance(event, Response) and self._is_raw and not self._is_last(event):
            self._status = event.status_code
        elif isinstance(event, EndBody) and self._status is not None:
            self._is_answered = True
        elif isinstance(event, StreamClosed) and self._is_answered:
            self._plain = None
            self._is_raw = False
            await self._close_stream()
            await self.send(Updated(idle=True))
        else:
            self._tell_h11()
            await super().stream_send(event)

    def part(self) -> None:
        """Part with the connection as `Http11Protocol` does."""
        self._switched = None
        super().part()

    def may_write(self, stream: object) -> bool:
        """Return whether the response on ``stream`` goes on, as `Http11Protocol` does."""
        return super().may_write(stream) or (stream is not None and stream is self._switched)

    def _http_stream(self, *, upgrades: bool = False) -> HTTPStream:
        if not upgrades:
            return super()._http_stream()
        stream = self._open_stream(UpgradeStream)
        stream.upgrade, stream.wire = Upgrade(), self.wire
        return stream

    async def _switch(self) -> None:
        """Hand over the bytes that h11 read behind the request, then let the reader go on."""
        stream = self.stream
        assert isinstance(stream, UpgradeStream), "nobody asked for another protocol"
        connection = cast("h11.Connection", self.connection)
        connection.send(h11.InformationalResponse(status_code=SWITCHING, headers=[]))
        self._switched = stream
        self.connection = H11WSConnection(connection)
        stream.upgrade.is_switched = True
        await self.can_read.set()

    def _is_between_requests(self) -> bool:
        connection = self.connection
        return (
            self.stream is None
            and connection.our_state is h11.IDLE
            and connection.their_state is h11.IDLE
            and not connection.trailing_data[0]
        )

    async def _begin(self, plain: PlainRequest) -> None:
        await self.send(Updated(idle=False))
        self._plain, self._status, self._is_answered = plain, None, False
        self.written_head = WrittenHead(plain.method, plain.target, plain.names)
        stream = self._http_stream()
        self.keep_alive_requests += 1
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=plain.headers,
                http_version="1.1",
                method=plain.method.decode("ascii"),
                raw_path=plain.target,
                state=self.connection_state,
            )
        )
        await stream.app_put({"type": "http.request", "body": plain.body, "more_body": False})

    def _tell_h11(self) -> None:
        plain, self._plain = self._plain, None
        assert plain is not None, "h11 knows it already"
        self.connection.receive_data(plain.head + plain.body)
        while not isinstance(self.connection.next_event(), h11.EndOfMessage):
            pass
        if self._status is not None:
            self.connection.send(h11.Response(headers=[], status_code=self._status))
            if self._is_answered:
                self.connection.send(h11.EndOfMessage())

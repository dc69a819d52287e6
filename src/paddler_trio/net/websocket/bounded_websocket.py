"""Hypercorn's WebSocket, with bounds, and with a close code for every end.

Hypercorn answers an over-long message with 1009 but goes on collecting it and does not inform the
application, closes a malformed stream without a close frame, reports every end as 1006 and leaves
the connection of a refused handshake open. Here:

* a message over the limit, counted in UTF-8 bytes, or a malformed frame gets its close frame, the
  application gets the same code, and nothing further is kept;
* a message for which the input budget has no room is answered with 1013, try again later;
* a message that does not arrive in time is answered with 1008, because it holds room;
* so is a client that sends pings or very small frames faster than it could need to: each costs what
  a large one does;
* so is a message in more fragments than its length explains: each costs the event loop 10 us;
* the code and reason with which a client closed reach the application, after all it sent before;
* a refused handshake ends its connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

import trio
from hypercorn.protocol.events import Body, Data, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Event, Message, Ping, Pong
from wsproto.frame_protocol import CloseReason

from paddler_trio.net.server.asgi import ClientGoneError
from paddler_trio.net.server.input_budget import (
    HELD,
    BudgetSpentError,
    Reservation,
    UploadDeadline,
)
from paddler_trio.net.websocket.plain_frames import PlainFrames
from paddler_trio.scheduler.limits.token_bucket import TokenBucket
from paddler_trio.wire.websocket_text import CONTINUATION, TEXT, frame_header

MESSAGES_AT_ONCE = 64
"""Messages of one connection after which other tasks have their turn."""

FRAGMENT_BYTES = 1_048_576
"""Of a message that is longer, each frame; control frames may pass between them."""

WIDEST_CHAR_BYTES = 4
"""In UTF-8."""

REASON_CHARS = 120
"""A close frame has room for 123 bytes of it."""

FREE_FRAGMENTS = 1024
LEAST_FRAGMENT_BYTES = 256
"""A message has at most so many fragments, and one more for each of these bytes. Parsing a frame
takes 10 us: without a limit 400 KB in frames of one byte stop the event loop for four seconds."""

MESSAGE_DEADLINE_S = 60.0
"""How long a message may take from its first byte to its last."""

SMALL_FRAME_BYTES = 32
"""Shorter frames are counted, and pings and pongs; every request is longer."""
SMALL_FRAMES = 2048
SMALL_FRAMES_PER_S = 200.0
"""The burst of small frames that is allowed, and the rate after it."""
TOO_MANY_SMALL = (
    f"more than {SMALL_FRAMES_PER_S:g} pings and frames below {SMALL_FRAME_BYTES} bytes each second"
)


_RECEIVED = (Data, Body)


class TextSink(Protocol):
    """Takes messages as they are read."""

    def takes_now(self, text: str) -> bool:
        """`take` would not wait for anything."""

    def take(self, texts: Sequence[str]) -> Awaitable[None] | None:
        """Take texts; an awaitable that this returns is awaited before more is read."""


class SocketWire(Protocol):
    """The connection, as far as frames are written past hypercorn."""

    async def write(self, data: bytes) -> None:
        """Write what is left of all before, then ``data``; ClientGoneError."""

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; False if the next ``write`` has to send the rest of it."""


class BoundedWebSocket(WSStream):
    """A WebSocket with bounded messages, whose every end is reported and closed."""

    def __init__(
        self,
        protocol: H11Protocol,
        *,
        wire: SocketWire,
        max_message_bytes: int,
        ping_interval_s: float,
        on_abuse: Callable[[str], None],
    ) -> None:
        super().__init__(
            protocol.app,
            protocol.config,
            protocol.context,
            protocol.task_group,
            protocol.ssl,
            protocol.client,
            protocol.server,
            protocol.stream_send,
            STREAM_ID,
        )
        self._ping_interval_s = ping_interval_s
        self._limit_bytes = max_message_bytes
        self._message_bytes = 0
        self._message_chars = 0
        self._message_frames = 0
        self._char_bytes = 1
        self._held_bytes = 0
        self._upload: UploadDeadline | None = None
        self._frame_bytes = 0
        self._small_frames = TokenBucket(SMALL_FRAMES, SMALL_FRAMES_PER_S, trio.current_time())
        self.last_arrival_s = trio.current_time()
        """When the latest piece of a message arrived."""
        self._on_abuse = on_abuse
        self._sink: TextSink | None = None
        self._frames = PlainFrames()
        self._left: deque[str | bytes] = deque()
        """Read, and not taken yet: texts of whole messages, and bytes for the parser."""
        self._wire = wire
        self.room: Reservation | None = None
        """What its messages hold of the input budget; there when the application is started."""

    def take_texts_to(self, sink: TextSink) -> None:
        """Give texts to ``sink`` instead of the application's queue; before the first one."""
        self._sink = sink

    def part(self) -> None:
        """Nothing is parsed any more. wsproto's parser is a generator that knows its owner, and
        ends by itself with a close frame only."""
        if self.handshake.accepted:
            self.connection._proto._parse_more.close()

    async def handle(self, event: StreamEvent) -> None:
        if self._sink is None or self.closed or not isinstance(event, _RECEIVED):
            await super().handle(event)
        elif self.handshake.accepted:
            if not self.take_now(event.data):
                await self.finish()
        else:
            await super().handle(event)

    @property
    def takes_now(self) -> bool:
        """`take_now` may be called."""
        return self._sink is not None and self._is_open and not self._left

    def take_now(self, data: bytes) -> bool:
        """Give whole texts to the sink, up to a number and as far as nothing has to wait; False if
        `finish` is to be awaited for the rest before more is taken."""
        sink = self._sink
        assert sink is not None
        text = self._frames.only_text(data)
        if text is not None and self._is_plain(text) and sink.takes_now(text):
            self.last_arrival_s = trio.current_time()
            sink.take((text,))  # as with nearly every token
            return True
        self._left.extend([text] if text is not None else self._frames.feed(data))
        texts: list[str] = []
        while self._left and len(texts) < MESSAGES_AT_ONCE:
            piece = self._left[0]
            if isinstance(piece, bytes) or not self._is_plain(piece) or not sink.takes_now(piece):
                break
            texts.append(piece)
            self._left.popleft()
        if texts:
            self.last_arrival_s = trio.current_time()
            sink.take(texts)
        return not self._left

    def _is_plain(self, text: str) -> bool:
        """Nothing is to be counted or refused."""
        size_bytes = WIDEST_CHAR_BYTES * len(text)
        return len(text) >= SMALL_FRAME_BYTES and size_bytes <= self._limit_bytes and self._is_open

    async def finish(self) -> None:
        """Take what `take_now` left: all else is parsed as ever."""
        sink = self._sink
        assert sink is not None
        texts: list[str] = []
        while self._left:
            piece = self._left.popleft()
            if isinstance(piece, bytes):
                await self._give(texts, sink)
                texts = []
                await self._parse(piece)
            elif self._is_open:
                problem = self._objection_to(piece)
                if problem is None:
                    texts.append(piece)
                if problem is not None or len(texts) == MESSAGES_AT_ONCE:
                    await self._give(texts, sink)
                    texts = []
                    await trio.lowlevel.checkpoint()
                if problem is not None:
                    self._left.clear()
                    await self._fail(*problem)
                    return
        await self._give(texts, sink)

    async def _parse(self, data: bytes) -> None:
        if not self.closed:
            self.connection.receive_data(data)
            await self._handle_events()

    def _objection_to(self, text: str) -> tuple[CloseReason, str] | None:
        """The close code and reason for a whole text that the client should not have sent."""
        if len(text) < SMALL_FRAME_BYTES and not self._small_frames.take(trio.current_time()):
            return CloseReason.POLICY_VIOLATION, TOO_MANY_SMALL
        if WIDEST_CHAR_BYTES * len(text) > self._limit_bytes < _utf8_length(text):
            return CloseReason.MESSAGE_TOO_BIG, self._too_big
        return None

    @property
    def _too_big(self) -> str:
        return f"message over the limit of {self._limit_bytes} bytes"

    async def _give(self, texts: Sequence[str], sink: TextSink) -> None:
        if texts:
            self.last_arrival_s = trio.current_time()
            pending = sink.take(texts)
            if pending is not None:
                await pending

    async def send_text(self, text: bytes) -> None:
        """Send ``text``, UTF-8, as one message; no more of it once either side has closed.

        Past wsproto, which takes text decoded to encode it again, and in fragments: a message of
        many MiB would otherwise block the event loop for a tenth of a second.
        """
        opcode = TEXT
        for start in range(0, max(1, len(text)), FRAGMENT_BYTES):
            piece = text[start : start + FRAGMENT_BYTES]
            is_last = start + FRAGMENT_BYTES >= len(text)
            if not self._is_open:
                return
            data = frame_header(len(piece), opcode=opcode, is_last=is_last) + piece
            await self.send(Data(stream_id=self.stream_id, data=data))
            opcode = CONTINUATION

    def write_now(self, piece: bytes) -> bool:
        """Write whole text frames without waiting; whether the kernel took all of them. What it did
        not take goes out before anything else: await `flush` soon. Not between the fragments of a
        message that `send_text` sends.

        Errors:
          ClientGoneError: either side has closed.
        """
        if not self._is_open:
            raise ClientGoneError("the WebSocket is closed")
        return self._wire.write_now(piece)

    async def flush(self) -> None:
        """Write what `write_now` left; nothing if the client is gone."""
        with suppress(ClientGoneError):
            await self._wire.write(b"")

    @property
    def _is_open(self) -> bool:
        is_connected = self.state is ASGIWebsocketState.CONNECTED
        return is_connected and self.connection.state is ConnectionState.OPEN

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if not self._may_send(event):
                await self._fail(CloseReason.POLICY_VIOLATION, TOO_MANY_SMALL)
                return
            if isinstance(event, Message):
                self.last_arrival_s = trio.current_time()
                self._message_bytes += _utf8_length(event.data)
                if self._message_bytes > self._limit_bytes:
                    await self._fail(CloseReason.MESSAGE_TOO_BIG, self._too_big)
                    return
                self._message_frames += event.frame_finished
                most = FREE_FRAGMENTS + self._message_bytes // LEAST_FRAGMENT_BYTES
                if self._message_frames > most:
                    reason = f"more than {most} fragments for {self._message_bytes} bytes"
                    await self._fail(CloseReason.POLICY_VIOLATION, reason)
                    return
                try:
                    self._count(event.data)
                except BudgetSpentError as refusal:
                    await self._fail(CloseReason.TRY_AGAIN_LATER, str(refusal))
                    return
                self.buffer.extend(event)
                if event.message_finished:
                    held_bytes = self._held_bytes
                    message = self.buffer.to_message() | {HELD: held_bytes}
                    self.buffer.clear()
                    self._message_bytes = self._message_chars = self._held_bytes = 0
                    self._message_frames = 0
                    self._char_bytes = 1
                    self._upload = None
                    if self._sink is not None and message["text"] is not None:
                        await self._give([message["text"]], self._sink)
                        self._room.shrink(held_bytes)
                    else:
                        await self._put(message)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionState.OPEN:  # not closed by them: unparseable
                    await self._fail(event.code, event.reason or "malformed frame")
                    return
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                await self._end(event.code, event.reason)

    def _may_send(self, event: Event) -> bool:
        """Count the frame that ends with this event, if it is small; False if too many came."""
        if isinstance(event, Message):
            self._frame_bytes += len(event.data)
            if not event.frame_finished:
                return True
            size_bytes, self._frame_bytes = self._frame_bytes, 0
            if size_bytes >= SMALL_FRAME_BYTES:
                return True
        elif not isinstance(event, Ping | Pong):
            return True
        return self._small_frames.take(trio.current_time())

    def _count(self, data: str | bytes | bytearray) -> None:
        """Reserve room for a piece of a message; the widest character decides the size of text."""
        self._message_chars += len(data)
        if isinstance(data, str):
            self._char_bytes = max(self._char_bytes, _char_bytes(data))
        size_bytes = self._message_chars * self._char_bytes
        self._room.grow(size_bytes - self._held_bytes)
        self._held_bytes = size_bytes
        if self._upload is None:
            self._upload = UploadDeadline(trio.current_time(), MESSAGE_DEADLINE_S)
        self._upload.received(len(data), trio.current_time())

    @property
    def _room(self) -> Reservation:
        assert self.room is not None, "the application was started"
        return self.room

    async def _send_pings(self) -> None:
        """Ping every few seconds, and check the deadline of a message that has begun."""
        while not self.closed:
            await self._send_wsproto_event(Ping())
            await trio.sleep(self._ping_interval_s)
            if self._upload is not None and self._upload.deadline_s < trio.current_time():
                reason = f"message incomplete: {self._message_bytes} bytes came and no more"
                await self._fail(CloseReason.POLICY_VIOLATION, reason)

    async def _send_error_response(self, status_code: int) -> None:
        await super()._send_error_response(status_code)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _fail(self, code: int, reason: str) -> None:
        self._on_abuse(reason)
        self._upload = None
        self.buffer.clear()
        self._room.shrink(self._held_bytes)
        self._held_bytes = 0
        await self._send_wsproto_event(CloseConnection(code=code, reason=reason[:REASON_CHARS]))
        await self._end(code, reason)

    async def _end(self, code: int, reason: str | None) -> None:
        await self._put({"type": "websocket.disconnect", "code": int(code), "reason": reason or ""})
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _put(self, message: dict[str, object]) -> None:
        assert self.app_put is not None  # frames are parsed only after an application accepted
        await self.app_put(message)


def _char_bytes(text: str) -> int:
    if text.isascii():
        return 1
    widest = ord(max(text))
    return 1 if widest < 0x100 else 2 if widest < 0x10000 else 4


def _utf8_length(data: str | bytes | bytearray) -> int:
    if isinstance(data, str) and not data.isascii():
        return len(data.encode())
    return len(data)

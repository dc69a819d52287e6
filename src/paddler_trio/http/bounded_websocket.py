"""A WebSocket as hypercorn speaks it, with bounds and with honest ends.

Hypercorn answers an over-long message with 1009 but goes on collecting it and never tells the
application, closes a malformed stream without a close frame, reports every end as 1006 and leaves
the connection of a refused handshake open. Here:

* a message over the limit, counted in UTF-8 bytes, or a malformed frame gets its close frame, the
  application is told with the same code, and nothing further is kept;
* the code and reason a client closed with reach the application, after everything it sent before;
* a refused handshake ends its connection.
"""

from __future__ import annotations

from collections.abc import Callable

from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason


class BoundedWebSocket(WSStream):
    """A WebSocket whose messages are bounded and whose every end is told and closed."""

    def __init__(
        self, protocol: H11Protocol, *, max_message_bytes: int, on_abuse: Callable[[str], None]
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
        self._limit_bytes = max_message_bytes
        self._message_bytes = 0
        self._on_abuse = on_abuse

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                self._message_bytes += _utf8_length(event.data)
                if self._message_bytes > self._limit_bytes:
                    reason = f"message over the limit of {self._limit_bytes} bytes"
                    await self._fail(CloseReason.MESSAGE_TOO_BIG, reason)
                    return
                self.buffer.extend(event)
                if event.message_finished:
                    await self._put(self.buffer.to_message())
                    self.buffer.clear()
                    self._message_bytes = 0
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionState.OPEN:  # not closed by them: unparseable
                    await self._fail(event.code, event.reason or "malformed frame")
                    return
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                await self._end(event.code, event.reason)

    async def _send_error_response(self, status_code: int) -> None:
        await super()._send_error_response(status_code)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _fail(self, code: int, reason: str) -> None:
        self._on_abuse(reason)
        await self._send_wsproto_event(CloseConnection(code=code, reason=reason))
        self.buffer.clear()
        await self._end(code, reason)

    async def _end(self, code: int, reason: str | None) -> None:
        await self._put({"type": "websocket.disconnect", "code": int(code), "reason": reason or ""})
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _put(self, message: dict[str, object]) -> None:
        assert self.app_put is not None  # frames are parsed only after an application accepted
        await self.app_put(message)


def _utf8_length(data: str | bytes | bytearray) -> int:
    if isinstance(data, str) and not data.isascii():
        return len(data.encode())
    return len(data)

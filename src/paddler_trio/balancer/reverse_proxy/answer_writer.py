"""One server's answer on its way to the client, in the bytes of the server."""

from __future__ import annotations

import json
from collections import deque
from typing import Final

import attrs

from paddler_trio.balancer.reverse_proxy.forwarded_head import (
    AGENT_FIELD,
    AnswerHead,
    Framing,
    answer_head,
    chunk,
    is_event_stream,
    last_chunk,
)
from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import Fields, RawResponse
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.wire.trio.tunnel_frames import SWITCHING, Headers, ResponseHead

TAIL_BYTES: Final = 8192


@attrs.define(eq=False, repr=False)
class AnswerWriter:
    """Takes the answer in pieces, and writes those of one read at once.

    Args:
      exchange: the client's request.
    """

    exchange: Exchange
    raw: RawResponse
    has_begun: bool = attrs.field(default=False, init=False)
    """The client has the head, or a part of it: it can get no other answer."""
    status: int | None = attrs.field(default=None, init=False)
    """The status of the answer that has begun."""
    is_switched: bool = attrs.field(default=False, init=False)
    """The client and the server speak another protocol from here on."""
    is_whole: bool = attrs.field(default=False, init=False)
    """All of it was written."""
    _head: AnswerHead | None = attrs.field(default=None, init=False)
    _is_event_stream: bool = attrs.field(default=False, init=False)
    _last: deque[bytes] = attrs.field(factory=lambda: deque(maxlen=4), init=False)
    """Pieces of the body: the last two events of a stream come in one or two of them each."""
    _pieces: list[bytes] = attrs.field(factory=list, init=False)
    _is_behind: bool = attrs.field(default=False, init=False)
    """The system did not take all that was written at once."""
    _remaining: int = attrs.field(default=0, init=False)
    """Of a body of known length, bytes to come."""

    def __repr__(self) -> str:
        framing = "no head yet" if self._head is None else self._head.framing.value
        return f"<AnswerWriter {self.exchange.path}: {framing}>"

    async def begin(self, head: ResponseHead, agent: str) -> None:
        """``agent``: in front of the server that answers. WireError, and nothing was written, if
        the head does not say how long its body is, and says that it does."""
        self._head = answer_head(
            head,
            method=self.exchange.written.method,
            is_http_1_1=self.exchange.scope["http_version"] != "1.0",
            must_close=self.raw.must_close,
            upgrades=self.exchange.upgrade is not None,
            extra=((AGENT_FIELD, field_text(agent)),),
        )
        self.is_switched = head.status == SWITCHING
        if self.is_switched:
            # the client may close its side and go on reading: that ends in time by itself
            self.exchange.client_watch.on_end = None
        self._remaining = self._head.body_bytes or 0
        self._is_event_stream = is_event_stream(head.headers)
        self.has_begun, self.status = True, head.status
        ours = await self.raw.begin(
            self.exchange.send, head.status, closes=self._head.framing is Framing.CLOSE
        )
        data = self._head.data
        self._pieces.append(with_fields(data, ours, head.headers) if ours else data)

    @property
    def tail(self) -> bytes:
        """Return the end of the body, as far as it has come."""
        return b"".join(self._last)[-TAIL_BYTES:]

    def add(self, data: bytes) -> None:
        """Add a piece of the body: of a chunked one, a chunk.

        Errors:
          WireError: there is more of it than the client was told of. It would be read as the answer
            to the next request of the connection.
        """
        assert self._head is not None, "the head comes first"
        framing = self._head.framing
        self._last.append(data)
        if framing is Framing.CHUNKS:
            self._pieces.append(chunk(data))
            return
        if framing is Framing.LENGTH:
            self._remaining -= len(data)
            if self._remaining < 0:
                raise WireError("a body is longer than its Content-Length @ tunnel")
        if framing is not Framing.NONE:
            self._pieces.append(data)

    async def flush(self) -> None:
        """Write what was added. ClientGoneError: the client left, or does not read."""
        if not self.flush_now():
            self._is_behind = False
            await self.raw.write(b"")

    def flush_now(self) -> bool:
        """Write what was added without waiting; False if `flush` is to follow before more is added.
        ClientGoneError."""
        pieces = self._pieces
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._is_behind = not self.raw.write_now(data)
        return not self._is_behind

    async def end(self, trailers: Headers) -> None:
        """The whole answer was added; ``close`` follows. WireError if it is not whole."""
        assert self._head is not None, "the head comes first"
        if self._remaining:
            raise WireError(f"{self._remaining} bytes of a body are missing at its end @ tunnel")
        if self._head.framing is Framing.CHUNKS:
            self._pieces.append(last_chunk(trailers))
        await self.flush()
        self.is_whole = True

    async def close(self) -> None:
        """Another request may follow on the connection. Nobody may watch for a disconnect now: the
        end of a request is reported as one."""
        if self.is_switched:
            return  # it ends with the connection
        await self.raw.end(self.exchange.send)

    async def break_off(self, code: int, text: str) -> None:
        """The rest will not come: a stream of events says why in its last one. The answer stays
        unfinished, so that nobody takes it for whole."""
        assert self._head is not None, "the head comes first"
        framing = self._head.framing
        if self._is_event_stream and framing is not Framing.LENGTH:
            is_between = not self.tail or self.tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
            self.add((b"" if is_between else b"\n\n") + error_event(code, text))
        await self.flush()
        if framing is Framing.CLOSE and not (self._is_event_stream or self.is_switched):
            self.raw.abort()


def with_fields(head: bytes, ours: Fields, servers: Headers) -> bytes:
    """Return the bytes of a head with those of our fields that the server did not send: its id of
    the request, what is left of a key's limits, whether a web page may read it."""
    sent = {name.lower() for name, _ in servers}
    lines = [b"%b: %b\r\n" % pair for pair in ours if pair[0].lower() not in sent]
    return head[:-2] + b"".join(lines) + b"\r\n"


def field_text(name: str) -> bytes:
    """Return an agent's name, which the agent chose, as the value of a field: of one line."""
    return "".join(each if each.isprintable() else "?" for each in name).encode(
        "latin-1", "replace"
    )


def error_body(code: int, text: str) -> bytes:
    """Return an error as OpenAI's API and llama-server have it."""
    kind = "invalid_request_error" if code < 500 else "server_error"
    body = {"error": {"message": text, "type": kind, "param": None, "code": code}}
    return json.dumps(body, ensure_ascii=False).encode()


def error_event(code: int, text: str) -> bytes:
    """Return an error as an event of a stream."""
    return b"data: %b\n\n" % error_body(code, text)

"""One client of a target: a connection that is kept, and one request after the other on it.

h11 speaks HTTP; times are noted as soon as bytes are here, and nothing is done with them that is
not needed to know when text came. After anything but a whole answer, which a refusal is too, the
next request gets another connection.
"""

from __future__ import annotations

import json
import ssl
from typing import Final

import attrs
import h11
import trio

from paddler_trio.cli.bench.answer_stream import AnswerStream, error_text
from paddler_trio.cli.bench.samples import Failure, FailureKind, Sample
from paddler_trio.cli.bench.target import Target
from paddler_trio.cli.bench.workloads import Ask
from paddler_trio.errors import leaves
from paddler_trio.net.h11_bounds import bound_parsing

bound_parsing()

READ_BYTES: Final = 64 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
"""Of a refusal's body; what is longer is not read."""
MAX_LIST_BYTES: Final = 4 * 1024 * 1024
"""Of a list of models; routers tell of thousands."""


@attrs.define(eq=False)
class ClientConnection:
    """See the module docstring. Close it with :meth:`close`, in a cancelled scope too."""

    target: Target
    _stream: trio.abc.Stream | None = attrs.field(default=None, init=False)
    _protocol: h11.Connection = attrs.field(init=False)
    _has_answer: bool = attrs.field(default=False, init=False)
    """A byte of the answer to the last request came."""
    _is_cut: bool = attrs.field(default=False, init=False)
    """The server has closed the connection."""

    async def ask(self, ask: Ask, *, timeout_s: float) -> Sample:
        """One request and the whole of its answer; never raises for what the target does."""
        sent_s = trio.current_time()
        answer = AnswerStream()
        with trio.move_on_after(timeout_s) as scope:
            answer.failure = await self._exchange(ask, answer) or answer.failure
        if scope.cancelled_caught:
            answer.failure = Failure(FailureKind.timeout, f"not over after {timeout_s:g} s")
        ended_s = trio.current_time()
        await self._settle()
        return Sample(
            kind=ask.kind,
            sent_s=sent_s,
            ended_s=ended_s,
            first_s=answer.first_s,
            gaps_s=answer.gaps_s,
            num_pieces=answer.num_pieces,
            counts=answer.counts,
            failure=answer.failure,
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        """The status and the body of a ``GET`` below the base URL, cut after 4 MiB.

        Errors:
          OSError, ssl.SSLError, trio.BrokenResourceError: no connection, or it ended early.
          h11.RemoteProtocolError: this is no HTTP.
        """
        await self._send("GET", path, b"")
        head = await self._head()
        body = await self._short_body(MAX_LIST_BYTES)
        return head.status_code, body

    async def close(self) -> None:
        """End the connection; the next request opens another one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)  # closes before it looks whether it is cancelled

    async def _exchange(self, ask: Ask, answer: AnswerStream) -> Failure | None:
        try:
            head = await self._head_of(ask)
            if head.status_code != 200:
                text = refusal_text(await self._short_body())
                return Failure(FailureKind.status, text, head.status_code)
            media_type = dict(head.headers).get(b"content-type", b"")
            if not media_type.startswith(b"text/event-stream"):
                shown = media_type.decode("latin-1")[:80] or "no type"
                return Failure(FailureKind.protocol, f"a stream was asked for, this is {shown}")
            await self._read(answer)
        except h11.RemoteProtocolError as error:
            kind = FailureKind.broken if self._is_cut else FailureKind.protocol
            return Failure(kind, str(error))
        except (OSError, trio.BrokenResourceError) as error:
            kind = FailureKind.connect if self._stream is None else FailureKind.broken
            return Failure(kind, cause_of(error))
        return None

    async def _head_of(self, ask: Ask) -> h11.Response:
        """A server may have closed a kept connection while nothing was under way: then there is
        another one, once, as every client does it."""
        body = self.target.body_of(ask)
        was_open = self._stream is not None
        try:
            await self._send("POST", "/v1/chat/completions", body)
            return await self._head()
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
            if not was_open or self._has_answer:
                raise
            await self.close()
        await self._send("POST", "/v1/chat/completions", body)
        return await self._head()

    async def _send(self, method: str, path: str, body: bytes) -> None:
        self._has_answer = self._is_cut = False
        if self._stream is None:
            self._stream = await self.target.connect()
            self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        else:
            self._protocol.start_next_cycle()
        protocol = self._protocol
        request = h11.Request(
            method=method,
            target=self.target.url.path + path,
            headers=self.target.headers(len(body)),
        )
        data = [protocol.send(request), protocol.send(h11.Data(body)) if body else b""]
        data.append(protocol.send(h11.EndOfMessage()))
        await self._stream.send_all(b"".join(each for each in data if each))

    async def _next(self) -> h11.Event | None:
        """None at the end of the answer, if there is more after it."""
        stream = self._stream
        assert stream is not None
        while True:
            event = self._protocol.next_event()
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                return None
            data = bytes(await stream.receive_some(READ_BYTES))
            self._has_answer, self._is_cut = self._has_answer or bool(data), not data
            self._protocol.receive_data(data)

    async def _head(self) -> h11.Response:
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.ConnectionClosed):
                raise trio.BrokenResourceError("the server closed the connection")

    async def _read(self, answer: AnswerStream) -> None:
        while answer.failure is None:
            event = await self._next()
            now_s = trio.current_time()
            if isinstance(event, h11.Data):
                answer.receive(now_s, bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                answer.end(now_s)
                break

    async def _short_body(self, most_bytes: int = MAX_ERROR_BYTES) -> bytes:
        body = bytearray()
        while len(body) < most_bytes:
            event = await self._next()
            if isinstance(event, h11.Data):
                body += event.data
            else:
                break
        return bytes(body[:most_bytes])

    async def _settle(self) -> None:
        """Keep the connection only if a whole answer came, and both sides may use it again."""
        if self._stream is None:
            return
        if (self._protocol.our_state, self._protocol.their_state) != (h11.DONE, h11.DONE):
            await self.close()


def refusal_text(body: bytes) -> str:
    """The words of a refusal; its first characters if it is no JSON."""
    try:
        return error_text(json.loads(body))
    except (ValueError, RecursionError):
        return error_text(body.decode(errors="replace").strip())


def cause_of(error: BaseException) -> str:
    """The operating system's words if it was asked, else the library's; of several addresses or
    attempts those of the last."""
    seen: BaseException | None = error
    words = ""
    while seen is not None:
        inner = list(leaves(seen))[-1]
        if isinstance(inner, ssl.SSLError):
            return inner.strerror or str(inner)
        if isinstance(inner, OSError) and inner.strerror:
            words = inner.strerror
        seen = inner.__cause__ or inner.__context__
    return words or str(error) or type(error).__name__

"""One client of a target: a connection that is kept, and one request after the other on it.

Times are noted as soon as bytes are here, and nothing is done with them that is not needed to know
when text came. After anything but a whole answer, which a refusal is too, the next request gets
another connection.
"""

from __future__ import annotations

import json
import math
import ssl
from typing import Final

import attrs
import httpx
import trio

from paddler_trio.cli.bench.answer_stream import AnswerStream, error_text
from paddler_trio.cli.bench.samples import Failure, FailureKind, Sample
from paddler_trio.cli.bench.target import Target
from paddler_trio.cli.bench.workloads import Ask
from paddler_trio.errors import leaves
from paddler_trio.net.client.http_client import (
    Answer,
    BodyBrokenError,
    BodyMalformedError,
    Connection,
)
from paddler_trio.net.client.upstream_error import MalformedAnswerError

MAX_ERROR_BYTES: Final = 64 * 1024
"""Of a refusal's body; what is longer is not read."""
MAX_LIST_BYTES: Final = 4 * 1024 * 1024
"""Of a list of models; routers tell of thousands."""


@attrs.define(eq=False)
class ClientConnection:
    """See the module docstring. Close it with :meth:`close`, in a cancelled scope too."""

    target: Target
    _connection: Connection | None = attrs.field(default=None, init=False)
    _last: Answer | None = attrs.field(default=None, init=False)

    async def ask(self, ask: Ask, *, timeout_s: float) -> Sample:
        """Send one request and read the whole of its answer; never raise for what the target
        does.
        """
        sent_s = trio.current_time()
        answer = AnswerStream()
        with trio.move_on_after(timeout_s) as scope:
            answer.failure = await self._exchange(ask, answer) or answer.failure
        if scope.cancelled_caught:
            answer.failure = Failure(FailureKind.timeout, f"not over after {timeout_s:g} s")
        ended_s = trio.current_time()
        if self._last is None or not self._last.may_be_kept:
            await self.close()
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
        """Return the status and the body of a ``GET`` below the base URL, cut after 4 MiB.

        Errors:
          OSError, ssl.SSLError, trio.BrokenResourceError, BodyBrokenError: no connection, or it
            ended early.
          MalformedAnswerError: this is no HTTP.
        """
        answer = await self._answer("GET", path, b"")
        body = await _short_body(answer, MAX_LIST_BYTES)
        return answer.status, body

    async def close(self) -> None:
        """End the connection; the next request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.end()

    async def _exchange(self, ask: Ask, stream: AnswerStream) -> Failure | None:
        try:
            answer = await self._answer("POST", "/v1/chat/completions", self.target.body_of(ask))
            if answer.status != 200:
                text = refusal_text(await _short_body(answer, MAX_ERROR_BYTES))
                return Failure(FailureKind.status, text, answer.status)
            media_type = answer.headers.get("content-type", "")
            if not media_type.startswith("text/event-stream"):
                shown = media_type[:80] or "no type"
                return Failure(FailureKind.protocol, f"a stream was asked for, this is {shown}")
            while stream.failure is None and (piece := await answer.receive()):
                stream.receive(trio.current_time(), piece)
            if stream.failure is None:
                stream.end(trio.current_time())
        except (MalformedAnswerError, BodyMalformedError) as error:
            return Failure(FailureKind.protocol, str(error))
        except BodyBrokenError as error:
            return Failure(FailureKind.broken, str(error))
        except (OSError, trio.BrokenResourceError) as error:
            kind = FailureKind.connect if self._connection is None else FailureKind.broken
            return Failure(kind, cause_of(error))
        return None

    async def _answer(self, method: str, path: str, body: bytes) -> Answer:
        """Send a request on the kept connection, or on a new one if the server has closed that
        while nothing was under way, once, as every client does it.
        """
        kept = self._connection
        if kept is not None:
            try:
                return await self._asked(kept, method, path, body)
            except (OSError, trio.BrokenResourceError):
                await self.close()
        stream = await self.target.connect()
        host = self.target.url.host
        self._connection = Connection(stream, host, math.inf, keep=lambda _: True)
        return await self._asked(self._connection, method, path, body)

    async def _asked(self, connection: Connection, method: str, path: str, body: bytes) -> Answer:
        url = httpx.URL(f"{self.target.url}{path}")
        self._last = None
        self._last = await connection.ask(method, url, dict(self.target.headers(len(body))), body)
        return self._last


async def _short_body(answer: Answer, most_bytes: int) -> bytes:
    body = bytearray()
    while len(body) < most_bytes and (piece := await answer.receive()):
        body += piece
    return bytes(body[:most_bytes])


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

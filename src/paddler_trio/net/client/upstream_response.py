"""An answer of an upstream server: its head, and its body while it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import attrs

from paddler_trio.net.client.response_body import (
    BodyPart,
    FailureKind,
    MalformedAnswerError,
    ResponseBody,
    ResponseHead,
    UpstreamError,
)
from paddler_trio.net.client.upstream_connection import UpstreamConnection


@attrs.define(eq=False)
class UpstreamResponse(AsyncIterator[BodyPart]):
    """Valid in the block of its request."""

    _head: ResponseHead
    _body: ResponseBody
    _connection: UpstreamConnection
    _idle_s: float
    _parts: deque[BodyPart] = attrs.field(factory=deque, init=False)
    _error: UpstreamError | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._feed(self._connection.take_received())

    @property
    def status(self) -> int:
        """Return the status: 200 or more, or 101 if that was asked for."""
        return self._head.status

    @property
    def reason(self) -> bytes:
        """Return the text that follows the status, which may be empty."""
        return self._head.reason

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Return the fields in the order and case of the server."""
        return self._head.headers

    @property
    def http_version(self) -> bytes:
        """``1.0`` or ``1.1``."""
        return self._head.http_version

    @property
    def trailers(self) -> Sequence[tuple[bytes, bytes]]:
        """Known once the body has ended."""
        return self._body.trailers

    @property
    def is_complete(self) -> bool:
        """All of the body came; some of it may not have been read here."""
        return self._body.is_complete

    @property
    def has_excess(self) -> bool:
        """The server sent more than the body."""
        return self._body.has_excess

    def body(self) -> AsyncIterator[BodyPart]:
        """Parts of the body as they come, each once; UpstreamError where it breaks off. At most 64
        KiB are read ahead of the reader."""
        return self

    def __aiter__(self) -> AsyncIterator[BodyPart]:
        return self

    def parts_here(self) -> list[BodyPart]:
        """Those that have come and were not read yet, without waiting for more."""
        parts = list(self._parts)
        self._parts.clear()
        return parts

    async def __anext__(self) -> BodyPart:
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._body.is_complete:
                raise StopAsyncIteration
            try:
                await self._read()
            except UpstreamError as error:
                self._error = error
                raise
        return self._parts.popleft()

    @property
    def can_pass_on(self) -> bool:
        """`pass_on` may be called."""
        return self._error is None and self._connection.can_pass_on

    async def pass_on(self, take: Callable[[list[BodyPart]], bool]) -> None:
        """Give parts to ``take`` in the step in which they are read, until it returns False, the
        body is complete, or the server breaks HTTP's rules: reading the body says so then.

        Errors:
          UpstreamError: the body breaks off, and whatever ``take`` raises.
        """

        def read(data: bytes) -> bool:
            self._take(data)
            wants_more = take(self.parts_here())
            return wants_more and self._error is None and not self._body.is_complete

        await self._connection.pass_on(self._idle_s, read)

    async def send(self, data: bytes) -> None:
        """After 101: bytes for the server as they are, empty for the end. UpstreamError."""
        await self._connection.send(data)

    async def _read(self) -> None:
        self._take(await self._connection.receive(self._idle_s))

    def _take(self, data: bytes) -> None:
        if data:
            self._feed(data)
            return
        missing = self._body.missing()
        if missing is not None:
            raise self._connection.failure(FailureKind.CLOSED, f"closed the connection, {missing}")

    def _feed(self, data: bytes) -> None:
        try:
            self._body.feed(data, self._parts)
            self._connection.reads.note(len(self._parts))
        except MalformedAnswerError as error:
            self._error = self._connection.failure(
                FailureKind.PROTOCOL, f"broke HTTP's rules: {error}"
            )
            self._error.__cause__ = error

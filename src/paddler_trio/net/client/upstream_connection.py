"""One connection to an upstream server: a request sent, and the answer read while it is sent."""

from __future__ import annotations

import math
import os
import select
import ssl
from collections.abc import AsyncIterable, Callable
from typing import Final

import attrs
import trio

from paddler_trio.net.client.request_head import (
    PIECE_BYTES,
    RequestHead,
    RequestNotTakenError,
    RequestSender,
    UnsendableRequestError,
)
from paddler_trio.net.client.response_body import (
    SWITCHING,
    FailureKind,
    MalformedAnswerError,
    ResponseHead,
    UpstreamError,
    head_end,
    parse_head,
)
from paddler_trio.net.client.tls_stream import read_some, write_all
from paddler_trio.net.client.upstream_address import UpstreamAddress, UpstreamTimeouts
from paddler_trio.system.ready_sockets import ReadSize, closing, read_while, reset_on_close

HEAD_READ_BYTES: Final = 4096
"""Until the head has come: what comes with it of the body is taken apart in one step, and may be
chunks of one byte."""
MAX_INFORMATIONAL: Final = 10
"""Answers with a status below 200 before the real one."""
LAST_WRITE_S: Final = 0.2
"""For the last piece of a request that is being written when its answer comes."""
_BROKEN: Final = (trio.BrokenResourceError, ssl.SSLError, OSError)

RequestBody = AsyncIterable[bytes] | bytes | None


@attrs.define(eq=False)
class UpstreamConnection:
    """Made by :class:`UpstreamClient`, and used for one request at a time."""

    stream: trio.abc.Stream
    address: UpstreamAddress
    dialled_by: object = None
    """What verified the server."""
    reads: ReadSize = attrs.field(factory=ReadSize, init=False, repr=False)
    """Of the bodies of answers; who takes them apart notes the pieces."""
    num_answers: int = attrs.field(default=0, init=False)
    """Whole ones; over zero, the server may close it at any time."""
    idle_since_s: float = attrs.field(default=0.0, init=False)
    is_watched: bool = attrs.field(default=False, init=False)
    due_s: float = attrs.field(default=math.inf, init=False)
    """When the read that is going on takes too long, if it is watched."""
    _is_cut: bool = attrs.field(default=False, init=False)
    _received: bytearray = attrs.field(factory=bytearray, init=False)
    _has_received: bool = attrs.field(default=False, init=False)
    _upgrades: bool = attrs.field(default=False, init=False)
    is_sent: bool = attrs.field(default=False, init=False)
    """The system has taken all of the last request."""
    body_was_touched: bool = attrs.field(default=False, init=False)
    """The body of the last request cannot be sent a second time."""

    def is_stale(self) -> bool:
        """Return whether the server has closed the connection or sent something unasked; this does
        not block.
        """
        stream = self.stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if not isinstance(stream, trio.SocketStream):
            return False
        poller = select.poll()
        poller.register(stream.socket.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    async def exchange(
        self,
        head: RequestHead,
        body: RequestBody,
        timeouts: UpstreamTimeouts,
        *,
        upgrades: bool = False,
    ) -> ResponseHead:
        """Send a request and read the head of its answer. A server that answers before it has all
        of the body gets no more of it. ``upgrades``: the answer may be 101.

        Errors:
          UpstreamError: then the connection is to be closed.
          Whatever iterating ``body`` raises.
        """
        self._has_received = self.is_sent = self.body_was_touched = False
        self._upgrades = upgrades
        try:
            if not isinstance(body, bytes | None):
                return await self._send_while_reading(head, body, timeouts)
            if body and len(head.data) + len(body) > PIECE_BYTES:
                return await self._send_while_reading(head, body, timeouts)
            data = head.data + body if body else head.data
            return await self._send_then_read(data, timeouts)
        except MalformedAnswerError as error:
            raise self.failure(FailureKind.PROTOCOL, f"broke HTTP's rules: {error}") from error
        except UnsendableRequestError as error:
            raise self.failure(FailureKind.REQUEST, f"was not sent the request: {error}") from error

    def take_received(self) -> bytes:
        """Take and return the bytes that arrived behind the head."""
        data = bytes(self._received)
        self._received.clear()
        return data

    async def receive(self, timeout_s: float) -> bytes:
        """The next bytes of a body, at most 64 KiB, empty at the end. UpstreamError."""
        try:
            if self.is_watched:
                self.due_s = trio.current_time() + timeout_s
                return await read_some(self.stream, self.reads.num_bytes)
            with trio.CancelScope(deadline=trio.current_time() + timeout_s):
                return await read_some(self.stream, self.reads.num_bytes)
        except _BROKEN as error:
            raise self._broken_off() from error
        except trio.ClosedResourceError:
            if not self._is_cut:
                raise
        finally:
            self.due_s = math.inf
        raise self._silent(timeout_s)

    @property
    def can_pass_on(self) -> bool:
        """`pass_on` may be called."""
        return self.is_watched

    async def pass_on(self, timeout_s: float, take: Callable[[bytes], bool]) -> None:
        """Give what `receive` would return to ``take`` in the step in which it is read, until it
        returns False.

        Errors:
          UpstreamError, and whatever ``take`` raises.
        """
        assert isinstance(self.stream, trio.SocketStream), "others are not watched"
        sock = self.stream.socket

        def read() -> bool:
            try:
                data = os.read(sock.fileno(), self.reads.num_bytes)
            except BlockingIOError:
                return True
            except OSError as error:
                raise self._broken_off() from error
            self.due_s = trio.current_time() + timeout_s
            return take(data)

        self.due_s = trio.current_time() + timeout_s
        try:
            if sock.fileno() < 0:
                raise trio.ClosedResourceError
            await read_while(sock.fileno(), read)
        except trio.ClosedResourceError:
            if not self._is_cut:
                raise
        else:
            return
        finally:
            self.due_s = math.inf
        raise self._silent(timeout_s)

    def watch(self) -> bool:
        """Hand the deadline to a watcher that looks at ``due_s`` and calls `cut`, and return
        whether this socket can be watched. A cancel scope around each read would cost half as much
        as the read.
        """
        self.is_watched = isinstance(self.stream, trio.SocketStream)
        return self.is_watched

    def cut(self) -> None:
        """End a read that is overdue."""
        assert isinstance(self.stream, trio.SocketStream)
        self._is_cut = True
        closing(self.stream.socket.fileno())
        self.stream.socket.close()

    async def send(self, data: bytes) -> None:
        """Bytes of the protocol that the server switched to; empty for the end of them, which over
        TLS cannot be said. UpstreamError."""
        try:
            if data:
                await write_all(self.stream, data)
            elif isinstance(self.stream, trio.SocketStream):
                await self.stream.send_eof()
        except (*_BROKEN, trio.ClosedResourceError) as error:
            raise self._broken_off() from error

    async def aclose(self) -> None:
        """Close at once, in a cancelled scope too: the server notices that nobody reads, also where
        it has not taken all of the request."""
        transport = self.stream
        if isinstance(transport, trio.SSLStream):
            transport = transport.transport_stream
        if not self.is_sent and isinstance(transport, trio.SocketStream):
            reset_on_close(transport.socket)
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(self.stream)

    def failure(self, kind: FailureKind, what: str) -> UpstreamError:
        """An error about this server; ``what`` it did."""
        return UpstreamError(
            kind,
            f"the upstream server {self.address.authority} {what}",
            before_first_byte=not self._has_received,
        )

    async def _send_then_read(self, data: bytes, timeouts: UpstreamTimeouts) -> ResponseHead:
        """Send a request so short that no server has to read it before it answers, then read the
        head.
        """
        try:
            with trio.fail_after(timeouts.first_byte_s):
                try:
                    await write_all(self.stream, data)
                    self.is_sent = True
                except _BROKEN:
                    pass  # its answer if there is one, or the end of the connection, says why
                return await self._read_head()
        except trio.TooSlowError as error:
            raise self._silent_before_head(timeouts) from error

    async def _send_while_reading(
        self, head: RequestHead, body: AsyncIterable[bytes] | bytes, timeouts: UpstreamTimeouts
    ) -> ResponseHead:
        sender = RequestSender(self.stream, head, timeouts.idle_s)
        sending, reading = trio.CancelScope(), trio.CancelScope()
        answer: ResponseHead | None = None
        problem: Exception | None = None

        async def read() -> None:
            nonlocal answer, problem
            with reading:
                try:
                    answer = await self._read_head()
                except (UpstreamError, MalformedAnswerError) as error:
                    problem = problem or error
            if sender.is_at_last_piece:
                sending.deadline = trio.current_time() + LAST_WRITE_S
            else:
                sending.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            with sending:
                try:
                    await sender.send(body)
                except _BROKEN:
                    pass  # as above
                except RequestNotTakenError:
                    problem = self.failure(
                        FailureKind.TIMEOUT, f"took nothing of a request for {timeouts.idle_s:g} s"
                    )
                    reading.cancel()
                except Exception as error:  # noqa: BLE001 - raised below, not in the nursery's group
                    answer, problem = None, error
                    reading.cancel()
            reading.deadline = trio.current_time() + timeouts.first_byte_s
        self.is_sent, self.body_was_touched = sender.is_sent, sender.body_was_touched
        if answer is not None:
            return answer
        raise problem or self._silent_before_head(timeouts)

    def _broken_off(self) -> UpstreamError:
        return self.failure(FailureKind.CLOSED, "broke the connection off within its answer")

    def _silent(self, timeout_s: float) -> UpstreamError:
        return self.failure(
            FailureKind.TIMEOUT, f"sent nothing for {timeout_s:g} s within its answer"
        )

    def _silent_before_head(self, timeouts: UpstreamTimeouts) -> UpstreamError:
        return self.failure(
            FailureKind.TIMEOUT, f"did not answer within {timeouts.first_byte_s:g} s"
        )

    async def _read_head(self) -> ResponseHead:
        received = self._received
        for _ in range(MAX_INFORMATIONAL + 1):
            searched = 0
            while not (end := head_end(received, searched)):
                searched = len(received)
                try:
                    data = await read_some(self.stream, HEAD_READ_BYTES)
                except _BROKEN as error:
                    raise self._closed_before_head() from error
                if not data:
                    raise self._closed_before_head()
                self._has_received = True
                received += data
            head = parse_head(received[:end])
            del received[:end]
            if head.status == SWITCHING:
                if self._upgrades:
                    return head
                raise MalformedAnswerError("it switches to a protocol that nobody asked for")
            if head.status >= 200:
                return head
        raise MalformedAnswerError(f"more than {MAX_INFORMATIONAL} answers below 200")

    def _closed_before_head(self) -> UpstreamError:
        part = "in the middle of the head of its answer" if self._has_received else "unanswered"
        return self.failure(FailureKind.CLOSED, f"closed the connection, the request {part}")

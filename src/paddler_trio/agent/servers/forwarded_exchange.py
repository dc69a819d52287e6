"""One exchange of a tunnel: the request goes to the server, its answer comes back as it arrives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from paddler_trio.agent.servers.tunnel_dial import AgentTunnel, ForwardedStream, ForwardedStreams
from paddler_trio.errors import LinkError, WireError, forget_frames
from paddler_trio.net.client.response_body import BodyPart, FailureKind, UpstreamError
from paddler_trio.net.client.upstream_client import UpstreamClient
from paddler_trio.net.client.upstream_response import UpstreamResponse
from paddler_trio.wire.trio.tunnel_frames import (
    SWITCHING,
    Failed,
    Headers,
    Kind,
    RequestHead,
    ResponseHead,
    body_frames,
    end_frame,
    failed_frame,
    may_be_repeated,
    response_frame,
)

_MAY_REPEAT: Final = frozenset({FailureKind.CONNECT, FailureKind.CLOSED, FailureKind.PROTOCOL})
"""Another server may answer. One that is only slow works on the request: it is not asked twice."""


@attrs.define(eq=False)
class ForwardedExchange:
    """See the module docstring.

    Args:
      head: of the request, read from the tunnel; its body follows there.
    """

    tunnel: AgentTunnel
    client: UpstreamClient
    streams: ForwardedStreams
    head: RequestHead
    error: UpstreamError | None = attrs.field(default=None, init=False)
    """Why the server did not answer, or not to the end."""
    _is_read: bool = attrs.field(default=False, init=False)
    """All of the request was."""
    _has_begun: bool = attrs.field(default=False, init=False)
    """A part of the answer may be on its way."""
    _is_ending: bool = attrs.field(default=False, init=False)
    """The last of the answer is on its way: what comes now is the next request."""
    _is_answered: bool = attrs.field(default=False, init=False)
    """It is answered by the server, or by its failure."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _is_switched: bool = attrs.field(default=False, init=False)
    """The server left HTTP: what comes now goes to it."""
    _disturbance: Kind | None = attrs.field(default=None, init=False)
    """A frame that came in the middle of the answer."""

    @property
    def is_whole(self) -> bool:
        """Return whether the server has answered, and all of it is on its way."""
        return self._is_answered and self.error is None

    async def run(self) -> bool:
        """Forward until the answer was sent, or nobody wants it; return True if there may be
        another exchange.

        Errors:
          WireError: the balancer sent something that is no request; in a group if the request's
            body came in pieces.
        """
        early = self._read_early()
        self.tunnel.on_news = self._look
        try:
            with self._scope:
                if not self.head.has_body:
                    await self._read_end()
                self._look()
                if self._scope.cancel_called:
                    pass
                elif self._is_read:
                    await self._answer(b"".join(early) if self.head.has_body else None)
                else:
                    await self._answer_while_reading(early)
        finally:
            self.tunnel.on_news = None
        if self._disturbance is not None:
            raise WireError(f"{self._disturbance.name} in the middle of an answer @ tunnel")
        return self._is_answered and self._is_read and not self._is_switched

    async def _answer_while_reading(self, early: list[bytes]) -> None:
        """Send the answer while reading: the end of the tunnel would not be read behind what the
        server does not take."""
        pieces, body = trio.open_memory_channel[bytes](0)
        async with trio.open_nursery() as watching:
            watching.start_soon(self._end_with_tunnel, name="end of the tunnel")
            async with trio.open_nursery() as reading, body:
                reading.start_soon(self._read_body, early, pieces, name="request body")
                await self._answer(body)
                if not self._is_answered:
                    reading.cancel_scope.cancel(reason="the exchange is over")
            watching.cancel_scope.cancel(reason="all of the request was read")

    async def _read_end(self) -> None:
        """Read the end of a request without a body, which may come a read later than its head."""
        while not self._is_read:
            frame = await self.tunnel.next_frame()
            if frame is None:
                self._scope.cancel(reason="the balancer closed the tunnel")
                return
            self._take(frame, [])

    def _look(self) -> None:
        """Look for the end of the tunnel: nothing else comes before the answer is out, and nobody
        wants it then.

        The balancer may have read the last of the answer, and have sent the next request, before
        the task that wrote the answer runs again. That request stays in the tunnel.
        """
        if not self._is_read:
            return  # the rest of the request
        if self.tunnel.has_unread and not (self._is_ending or self._is_switched):
            frame = self.tunnel.frame_here()
            assert frame is not None
            self._disturbance = frame[0]
            self._scope.cancel(reason="the balancer broke the rules")
        elif self.tunnel.has_ended:
            self._scope.cancel(reason="the balancer closed the tunnel")

    def _read_early(self) -> list[bytes]:
        """Return what has come of the body with the head."""
        pieces: list[bytes] = []
        while not self._is_read and (here := self.tunnel.frame_here()) is not None:
            self._take(here, pieces)
        return pieces

    async def _read_body(self, early: list[bytes], pieces: trio.MemorySendChannel[bytes]) -> None:
        """Hand it on as the server takes it; what it does not want is read all the same."""
        async with pieces:
            while True:
                for piece in early:
                    try:
                        await pieces.send(piece)
                    except trio.BrokenResourceError:
                        break  # it has answered without the rest
                if self._is_read:
                    break
                frame = await self.tunnel.next_frame()
                if frame is None:
                    self._scope.cancel(reason="the balancer closed the tunnel")
                    return
                early = []
                self._take(frame, early)
        self._look()

    def _take(self, frame: tuple[Kind, bytes], pieces: list[bytes]) -> None:
        kind, payload = frame
        if kind is Kind.END:
            self._is_read = True
        elif kind is Kind.BODY:
            pieces.append(payload)
        else:
            raise WireError(f"{kind.name} in the middle of a request @ tunnel")

    async def _answer(self, body: trio.MemoryReceiveChannel[bytes] | bytes | None) -> None:
        head, tunnel = self.head, self.tunnel
        try:
            try:
                async with self.client.request(
                    head.method,
                    head.target,
                    self._headers(),
                    body,
                    upgrades=head.upgrades,
                    may_repeat=bool(head.id) or may_be_repeated(head.method, head.target),
                ) as response:
                    if isinstance(body, trio.MemoryReceiveChannel):
                        body.close()  # what the server has not asked for by now, goes nowhere
                    if response.status == SWITCHING:
                        await self._pass_both_ways(response)
                    else:
                        await self._pass_on(response)
            except UpstreamError as error:
                forget_frames(error)  # which this exchange is in
                self.error = error
                await tunnel.send(failed_frame(self._failure(error)))
        except LinkError:
            return  # its end is seen, too
        self._is_answered = True

    async def _pass_both_ways(self, response: UpstreamResponse) -> None:
        """Pass bytes both ways until the server ends it, and the balancer has closed the tunnel
        upon that."""
        self._is_switched = True
        problem: UpstreamError | LinkError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with_tunnel, name="end of the tunnel")
            nursery.start_soon(self._send_on, response, name="to the server")
            try:
                await self._pass_on(response)
            except (UpstreamError, LinkError) as error:
                problem = error  # raised below, not in the nursery's group
            nursery.cancel_scope.cancel(reason="the server has ended")
        if problem is not None:
            raise problem
        while await self.tunnel.next_frame() is not None:
            pass  # what was on its way to the server

    async def _end_with_tunnel(self) -> None:
        """End with the tunnel, also while nothing is read of it, because the server takes
        nothing."""
        await self.tunnel.wait_given_up()
        self._scope.cancel(reason="the balancer closed the tunnel")

    async def _send_on(self, response: UpstreamResponse) -> None:
        while (frame := await self.tunnel.next_frame()) is not None:
            kind, payload = frame
            if kind not in (Kind.BODY, Kind.END):
                self._disturbance = kind
                self._scope.cancel(reason="the balancer broke the rules")
                return
            try:
                await response.send(payload if kind is Kind.BODY else b"")
            except UpstreamError:
                return  # who reads the server sees its end, too
            if kind is Kind.END:
                return

    async def _pass_on(self, response: UpstreamResponse) -> None:
        """Pass on what has come in one write: a small answer is one piece on its whole way."""
        self._has_begun = True
        body = response.body()
        frames = response_frame(_head_of(response))
        with self.streams.forward(response.headers, self.tunnel) as stream:
            while True:
                frames += _frames_of(response.parts_here())
                if response.is_complete:
                    break
                await self.tunnel.send(frames)
                if response.can_pass_on and self.tunnel.can_send_now:
                    frames = await self._pass_on_as_read(response, stream)
                else:
                    part = await anext(body, None)
                    frames = b"" if part is None else _frames_of([part])
        self._is_ending = True
        await self.tunnel.send(frames + end_frame(tuple(response.trailers)))

    async def _pass_on_as_read(self, response: UpstreamResponse, stream: ForwardedStream) -> bytes:
        """Pass on what is read until the tunnel is full or the body has ended; return what is to be
        sent first."""

        def pass_on(parts: list[BodyPart]) -> bool:
            if parts:
                stream.hold(_frames_of(parts))
            return response.is_complete or stream.pass_on()

        try:
            with stream.until_full():
                await response.pass_on(pass_on)
        except UpstreamError:
            await self.tunnel.send(stream.take_held())
            raise
        return stream.take_held()

    def _failure(self, error: UpstreamError) -> Failed:
        may_repeat = not self._has_begun and error.kind in _MAY_REPEAT
        return Failed(kind=error.kind.value, text=str(error), may_repeat=may_repeat)

    def _headers(self) -> Headers:
        if not self.head.rewrites_host:
            return self.head.headers
        host = self.client.address.authority.encode()
        kept = tuple(pair for pair in self.head.headers if pair[0].lower() != b"host")
        return ((b"host", host), *kept)


def _frames_of(parts: Iterable[BodyPart]) -> bytes:
    return b"".join([body_frames(part.data) for part in parts])


def _head_of(response: UpstreamResponse) -> ResponseHead:
    names = {name.lower() for name, _ in response.headers}
    return ResponseHead(
        status=response.status,
        reason=response.reason,
        headers=tuple(response.headers),
        is_sized=b"content-length" in names and b"transfer-encoding" not in names,
    )

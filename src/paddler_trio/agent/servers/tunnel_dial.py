"""Dialling a tunnel at the balancer's port, and the frames in it, one after the other.

Streams of servers: pieces that follow each other quickly go through a tunnel together.

A server sends a piece for each token, and each of them wakes two processes and the client. As with
the tokens of our own engines, short passes go together; see ``stream_interval.py``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.agent.link.balancer_dial import dial
from paddler_trio.errors import LinkError
from paddler_trio.net.client.tls_stream import read_some, write_all
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.scheduler.batching.stream_interval import StreamInterval
from paddler_trio.system.kernel.socket_options import wait_hung_up
from paddler_trio.system.ready_sockets import read_while
from paddler_trio.wire.trio.tunnel_frames import FrameReader, Kind
from paddler_trio.wire.trio.upstream_messages import (
    CARRIES_FIELD,
    CARRIES_WEBSOCKETS,
    TUNNEL_PATH,
    TUNNEL_PROTOCOL,
)

RECEIVE_BYTES: Final = 65_536
AHEAD_BYTES: Final = 262_144
MAX_ANSWER_BYTES: Final = 16_384


@attrs.define(eq=False)
class AgentTunnel:
    """The agent's end of a tunnel: `run` reads it all the time, so that its end is noticed in an
    exchange too; one task at a time takes the frames."""

    stream: trio.abc.Stream
    on_news: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Called when frames have come, or the end."""
    has_ended: bool = attrs.field(default=False, init=False)
    """Nothing comes any more, whatever ended it; frames that came before may be unread."""
    _is_leaving: bool = attrs.field(default=False, init=False)
    _reader: FrameReader = attrs.field(factory=FrameReader, init=False)
    _frames: deque[tuple[Kind, bytes]] = attrs.field(factory=deque, init=False)
    _unsent: bytes = attrs.field(default=b"", init=False)
    _unread_bytes: int = attrs.field(default=0, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __repr__(self) -> str:
        state = ", ended" if self.has_ended else ""
        return f"<AgentTunnel with {len(self._frames)} frames unread{state}>"

    async def run(self) -> None:
        """Read until the end, at most ``AHEAD_BYTES`` ahead of the task that takes the frames.

        Errors:
          WireError: what came are no frames.
        """
        while not self.has_ended:
            while not self._has_room:
                await self._taken.park()
            if isinstance(self.stream, trio.SocketStream):
                await self._read_socket(self.stream.socket.fileno())
                continue
            try:
                data = await read_some(self.stream, RECEIVE_BYTES)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._received(data)

    async def _read_socket(self, descriptor: int) -> None:
        """Read the socket while there is room, in the step in which something comes: only the task
        that takes the frames has a turn for them."""

        def read() -> bool:
            try:
                data = os.read(descriptor, RECEIVE_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            self._received(data)
            return self._has_room and not self.has_ended

        try:
            await read_while(descriptor, read)
        except trio.ClosedResourceError:
            self._received(b"")

    @property
    def _has_room(self) -> bool:
        return self._unread_bytes <= AHEAD_BYTES

    def _received(self, data: bytes) -> None:
        """Take in received bytes, empty at the end, whatever it is. WireError."""
        if data:
            self.feed(data)
        else:
            self.has_ended = True
        self._arrived.unpark_all()
        if self.on_news is not None:
            self.on_news()

    async def next_frame(self) -> tuple[Kind, bytes] | None:
        """Wait for the next frame; None at the end."""
        while not self._frames:
            if self.has_ended:
                return None
            await self._arrived.park()
        return self.frame_here()

    async def next_exchange(self) -> tuple[Kind, bytes] | None:
        """Wait for the first frame of an exchange; None at the end, and once `leave` was called."""
        while not (self._frames or self._is_leaving or self.has_ended):
            await self._arrived.park()
        return None if self._is_leaving else self.frame_here()

    def leave(self) -> None:
        """Note that no exchange begins any more; the one that is under way goes on."""
        self._is_leaving = True
        self._arrived.unpark_all()

    @property
    def has_unread(self) -> bool:
        """A frame has come that was not taken."""
        return bool(self._frames)

    def frame_here(self) -> tuple[Kind, bytes] | None:
        """Return the next frame, if it has come already."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._unread_bytes -= len(frame[1])
        self._taken.unpark_all()
        return frame

    def feed(self, data: bytes) -> None:
        """Take in bytes that were received; WireError."""
        for frame in self._reader.feed(data):
            self._frames.append(frame)
            self._unread_bytes += len(frame[1])

    @property
    def can_send_now(self) -> bool:
        """Return whether `send_now` may be called."""
        return isinstance(self.stream, trio.SocketStream)

    @property
    def has_unsent(self) -> bool:
        """Return whether the system did not take all of the last `send_now`."""
        return bool(self._unsent)

    def send_now(self, frames: bytes) -> bool:
        """Send without waiting; False if the system did not take all of it: a `send`, of nothing if
        need be, has to follow and sends the rest first. LinkError."""
        assert isinstance(self.stream, trio.SocketStream), "others cannot"
        assert not self._unsent, "what was left comes first"
        try:
            num_sent = os.write(self.stream.socket.fileno(), frames)
        except BlockingIOError:
            num_sent = 0
        except OSError as error:
            raise LinkError("the balancer closed the tunnel") from error
        self._unsent = frames[num_sent:]
        return not self._unsent

    async def wait_given_up(self) -> None:
        """Wait until the balancer has closed the tunnel, unread frames before that or not: it never
        closes one side only. OSError where no descriptor is left to notice it."""
        stream = self.stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        assert isinstance(stream, trio.SocketStream), "tunnels are dialled"
        await wait_hung_up(stream.socket)

    async def send(self, frames: bytes) -> None:
        """Send a frame; LinkError if the balancer has closed the tunnel."""
        if self._unsent:
            frames, self._unsent = self._unsent + frames, b""
        try:
            await write_all(self.stream, frames)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LinkError("the balancer closed the tunnel") from error


async def dial_tunnel(
    address: BalancerAddress, tls: ClientTls, secret: str, authorization: bytes | None
) -> AgentTunnel:
    """Dial, and ask for the tunnel of this secret; the caller closes its stream.

    Errors:
      OSError: no connection.
      LinkError: no TLS, or the balancer refused.
      ConfigurationError: a file of ``tls`` cannot be used.
    """
    stream = await dial(address, tls)
    try:
        await stream.send_all(_upgrade(address, secret, authorization))
        answer = b""
        while b"\r\n\r\n" not in answer:  # behind it there may be a request already
            data = await stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise LinkError("the balancer closed the tunnel before it was agreed on")
            if len(answer) > MAX_ANSWER_BYTES:
                raise LinkError(f"no answer within {MAX_ANSWER_BYTES} bytes: this is no balancer")
            answer += data
        head, _, rest = answer.partition(b"\r\n\r\n")
        status, _, _ = head.partition(b"\r\n")
        if not status.startswith(b"HTTP/1.1 101"):
            what = status.decode("latin-1")[:80]
            raise LinkError(f"the balancer refused a tunnel: {what} {_text(rest)}".rstrip())
        tunnel = AgentTunnel(stream)
        tunnel.feed(rest)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        await trio.aclose_forcefully(stream)
        raise LinkError("the balancer closed the tunnel before it was agreed on") from error
    except BaseException:
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(stream)
        raise
    return tunnel


def _upgrade(address: BalancerAddress, secret: str, authorization: bytes | None) -> bytes:
    lines = [
        f"GET {TUNNEL_PATH}{secret} HTTP/1.1".encode(),
        b"Host: " + address.authority.encode(),
        b"Connection: upgrade",
        b"Upgrade: " + TUNNEL_PROTOCOL.encode(),
        f"{CARRIES_FIELD}: {CARRIES_WEBSOCKETS}".encode(),
    ]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    return b"\r\n".join([*lines, b"", b""])


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").replace("\n", " ")


MAX_HELD_BYTES: Final = 16_384
"""The bytes of one stream. Where more comes within an interval, deliveries are not what costs."""
_STREAMS: Final = frozenset({b"text/event-stream", b"application/x-ndjson", b"application/jsonl"})


def is_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether the body is events, one after the other, for a reader that follows them."""
    types = [value for name, value in headers if name.lower() == b"content-type"]
    return bool(types) and types[0].partition(b";")[0].strip().lower() in _STREAMS


@attrs.define(eq=False)
class ForwardedStream:
    """The body of one answer on its way into its tunnel; see :meth:`ForwardedStreams.forward`."""

    _tunnel: AgentTunnel
    _interval: StreamInterval | None
    """None: nothing is held."""
    _waiting: _Waiting
    _held: list[bytes] = attrs.field(factory=list, init=False)
    _num_held_bytes: int = attrs.field(default=0, init=False)
    _passing_on: trio.CancelScope | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<ForwardedStream, {self._num_held_bytes} bytes held>"

    @property
    def due_s(self) -> float:
        """The time at which what is held goes out, whatever comes until then."""
        assert self._interval is not None, "nothing is held"
        return self._interval.due_s

    def hold(self, frames: bytes) -> None:
        """Hold pieces: they go out with what comes next, or when they are due."""
        self._held.append(frames)
        self._num_held_bytes += len(frames)

    def pass_on(self) -> bool:
        """Note that something was read. What is held is sent if it is time, without waiting; False
        if the tunnel did not take all of it. LinkError."""
        if not self._held:
            return True
        if self._tunnel.has_unsent:
            return False
        if self._interval is None:
            return self._tunnel.send_now(self.take_held())
        now_s = trio.current_time()
        if self._interval.passed(now_s) or self._num_held_bytes > MAX_HELD_BYTES:
            return self._send(now_s)
        self._waiting.add(self)
        return True

    def pass_on_overdue(self, now_s: float) -> None:
        """Pass on what is held: nothing has come in time with which it could go. If the tunnel does
        not take it, the block of `until_full` ends."""
        try:
            is_sent = self._send(now_s)
        except LinkError:
            is_sent = False  # whoever writes to the tunnel next sees why
        if not is_sent and self._passing_on is not None:
            self._passing_on.cancel(reason="the tunnel is full")

    @contextmanager
    def until_full(self) -> Iterator[None]:
        """Let who reads pieces pass them on in this block."""
        with trio.CancelScope() as self._passing_on:
            yield
        self._passing_on = None

    def take_held(self) -> bytes:
        """Return what is held; the caller sends it, behind what the tunnel did not take."""
        self._waiting.discard(self)
        held = b"".join(self._held)
        self._held.clear()
        self._num_held_bytes = 0
        return held

    def _send(self, now_s: float) -> bool:
        assert self._interval is not None
        self._interval.delivered(now_s)
        return self._tunnel.send_now(self.take_held())


@attrs.define(eq=False)
class _Waiting:
    """Streams that hold something."""

    streams: set[ForwardedStream] = attrs.field(factory=set, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def add(self, stream: ForwardedStream) -> None:
        if not self.streams:
            self._arrived.unpark_all()
        self.streams.add(stream)

    def discard(self, stream: ForwardedStream) -> None:
        self.streams.discard(stream)

    async def wait(self) -> None:
        """Wait until there is one."""
        while not self.streams:
            await self._arrived.park()


@attrs.define(eq=False)
class ForwardedStreams:
    """All forwarded streams of an agent.

    Args:
      interval_s: no piece is held longer than this; 0 for none at all.
    """

    _interval_s: float
    _waiting: _Waiting = attrs.field(factory=_Waiting, init=False)

    @contextmanager
    def forward(
        self, headers: Sequence[tuple[bytes, bytes]], tunnel: AgentTunnel
    ) -> Iterator[ForwardedStream]:
        """Forward the body of an answer with these headers. What is still held at the end of the
        block is nobody's any more."""
        holds = self._interval_s > 0 and is_stream(headers)
        interval = StreamInterval(self._interval_s) if holds else None
        stream = ForwardedStream(tunnel, interval, self._waiting)
        try:
            yield stream
        finally:
            stream.take_held()

    async def run(self) -> None:
        """Pass on what is overdue, until cancelled."""
        while True:
            await self._waiting.wait()
            await trio.sleep_until(min(stream.due_s for stream in self._waiting.streams))
            now_s = trio.current_time()
            for stream in [each for each in self._waiting.streams if each.due_s <= now_s]:
                stream.pass_on_overdue(now_s)

"""Dialling a tunnel at the balancer's port, and the frames in it, one after the other."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from paddler_trio.agent.link.balancer_dial import dial
from paddler_trio.errors import LinkError
from paddler_trio.net.client.tls_stream import read_some, write_all
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import ClientTls
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

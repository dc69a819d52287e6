"""The tunnels of one agent that stands in front of a server: dialled when needed, and kept.

A tunnel carries one HTTP exchange at a time (``wire/trio/tunnel_frames.py``). An agent dials, also
here, so that it works behind NAT: the balancer asks over the link and the new connection names the
secret of the question. An exchange that ended in order leaves its tunnel to the next; any other end
closes it. All of them end with the link.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from paddler_trio.errors import LinkError
from paddler_trio.system.ready_sockets import ReadSize, closing, read_while, reset_on_close
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.trio.trio_link import render_extension
from paddler_trio.wire.trio.tunnel_frames import FrameReader, Kind
from paddler_trio.wire.trio.upstream_messages import OpenTunnel

DIAL_S: Final = 10.0
"""For an agent to dial a tunnel that was asked for."""


@attrs.define(eq=False)
class Tunnel:
    """One connection; ``close`` is synchronous and may be called twice, also under a reader.

    It reads and writes its socket without a stream of Trio's in between, which would cost as much
    as all else that is done with a small answer.

    Args:
      socket: connected, and non-blocking.
      carries_websockets: the agent can pass on what follows a 101.
    """

    _socket: socket.socket
    carries_websockets: bool = attrs.field(default=False, kw_only=True)
    _frames: FrameReader = attrs.field(factory=FrameReader, init=False)
    _reads: ReadSize = attrs.field(factory=ReadSize, init=False)
    _poller: select.poll = attrs.field(factory=select.poll, init=False)
    """For this socket."""

    def __attrs_post_init__(self) -> None:
        self._poller.register(self._socket.fileno(), select.POLLIN)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<Tunnel {state}>"

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    @property
    def is_usable(self) -> bool:
        """Nothing has come since the last exchange, not even the end."""
        if self.is_closed or not self._frames.is_between_frames:
            return False
        return not self._poller.poll(0)

    async def send(self, frames: bytes) -> None:
        """LinkError if the tunnel is closed or broke."""
        left = memoryview(frames)
        self._check_open()
        try:
            while True:
                with suppress(BlockingIOError):
                    left = left[self._socket.send(left) :]
                if not left:
                    return
                await trio.lowlevel.wait_writable(self._socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise LinkError("the tunnel to the agent broke") from error

    async def receive(self) -> list[tuple[Kind, bytes]]:
        """Return the frames that have arrived, at least one.

        Errors:
          LinkError: the tunnel was closed or broke.
          WireError: what came are no frames.
        """
        frames: list[tuple[Kind, bytes]] = []
        while not frames:
            self._check_open()
            try:
                await trio.lowlevel.wait_readable(self._socket)
                data = self._socket.recv(self._reads.num_bytes)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise LinkError("the tunnel to the agent broke") from error
            if not data:
                raise LinkError("the agent closed the tunnel")
            frames = self._frames.feed(data)
        self._reads.note(len(frames))
        return frames

    async def pass_on(self, take: Callable[[list[tuple[Kind, bytes]]], bool]) -> None:
        """Give frames to ``take`` in the step in which they are read, until it returns False.

        Errors:
          As of `receive`, and whatever ``take`` raises.
        """

        def read() -> bool:
            try:
                data = self._socket.recv(self._reads.num_bytes)
            except BlockingIOError:
                return True
            except OSError as error:
                raise LinkError("the tunnel to the agent broke") from error
            if not data:
                raise LinkError("the agent closed the tunnel")
            frames = self._frames.feed(data)
            self._reads.note(len(frames))
            return not frames or take(frames)

        if self.is_closed:
            raise LinkError("the tunnel to the agent broke")
        try:
            await read_while(self._socket.fileno(), read)
        except trio.ClosedResourceError as error:
            raise LinkError("the tunnel to the agent broke") from error

    def _check_open(self) -> None:
        """Raise LinkError after a close; Trio would say that there is no such descriptor."""
        if self.is_closed:
            raise LinkError("the tunnel to the agent was closed")

    def forget_unsent(self) -> None:
        """`close` does not deliver what the agent has not taken: its end would come behind that,
        and never to an agent whose server takes nothing."""
        reset_on_close(self._socket)

    def close(self) -> None:
        if not self.is_closed:
            closing(self._socket.fileno())
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


@attrs.define(eq=False, repr=False)
class Tunnels:
    """See the module docstring.

    Args:
      label: of the agent, for errors.
      send: a frame over the agent's link.
      most: at once, under way and kept; it may change.
    """

    label: str
    send: Callable[[bytes], None]
    most: Callable[[], int]
    num_beside: int = attrs.field(default=0, init=False)
    """Exchanges that take no slot and are under way, or wait for a tunnel."""
    websockets: set[Tunnel] = attrs.field(factory=set, init=False)
    """Those that carry WebSockets beside the slots."""
    _idle: list[Tunnel] = attrs.field(factory=list, init=False)
    _all: set[Tunnel] = attrs.field(factory=set, init=False)
    _asked: dict[str, Future[Tunnel | None]] = attrs.field(factory=dict, init=False)
    """The tunnels that the agent was asked to dial, by their secrets."""
    _answered: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    """Who waits here goes on when one of them is dialled, or given up."""
    _is_closed: bool = attrs.field(default=False, init=False)
    _dials_no_more: bool = attrs.field(default=False, init=False)

    def __repr__(self) -> str:
        return f"<Tunnels of {self.label}: {len(self._all)} open, {len(self._idle)} idle>"

    @property
    def are_used(self) -> bool:
        """An exchange is under way in one of them, or waits for one."""
        return len(self._all) > len(self._idle) or bool(self._asked)

    async def take(self) -> Tunnel:
        """Return a tunnel for one exchange: ``give_back`` it, or ``close`` it, whatever happens.

        Errors:
          LinkError: the agent is gone, has too many, or did not dial in time.
        """
        while self._idle:
            tunnel = self._idle.pop()
            if tunnel.is_usable:
                return tunnel
            self.close(tunnel)
        return await self._dial()

    async def dial_spare(self, num_idle: int) -> None:
        """Have so many idle ones dialled, as far as the agent dials them, for a time when it dials
        no more."""
        missing = min(num_idle - len(self._idle), self.most() - len(self._all) - len(self._asked))
        async with trio.open_nursery() as dials:
            for _ in range(missing):
                dials.start_soon(self._dial_one_spare)

    async def _dial_one_spare(self) -> None:
        with suppress(LinkError):
            self.give_back(await self._dial())

    def dial_no_more(self) -> None:
        """The agent is about to reach another process; what it has dialled goes on, and so does
        what it was asked for."""
        self._dials_no_more = True

    async def wait_asked(self) -> None:
        """Until what the agent was asked for is dialled, or not waited for any more."""
        while self._asked:
            await self._answered.park()

    def give_up_asked(self) -> None:
        """Expect no more what the agent was asked for and now dials at another process."""
        for future in self._asked.values():
            future.set(None)

    async def _dial(self) -> Tunnel:
        """Have the agent dial a new one, as `take` does where none is idle; LinkError."""
        if self._is_closed:
            raise LinkError(f"the agent {self.label} has left")
        if self._dials_no_more:
            raise LinkError(self._taken_over)
        if len(self._all) + len(self._asked) >= (most := self.most()):
            raise LinkError(f"the agent {self.label} has {most} tunnels already")
        secret = secrets.token_urlsafe(24)
        future = self._asked[secret] = Future()
        try:
            self.send(render_extension(OpenTunnel(secret)))
            with trio.move_on_after(DIAL_S):
                await future.wait()
        except trio.Cancelled:
            if (late := future.value) is not None:
                self.give_back(late)
            raise
        finally:
            del self._asked[secret]
            self._answered.unpark_all()
        dialled = future.value
        if dialled is not None:
            return dialled
        if future.is_set and not self._is_closed:
            raise LinkError(self._taken_over)
        why = "has left" if self._is_closed else f"dialled no tunnel within {DIAL_S:g} s"
        raise LinkError(f"the agent {self.label} {why}")

    @property
    def _taken_over(self) -> str:
        return f"another balancer has taken over the agent {self.label}: ask again"

    def expects(self, secret: str) -> bool:
        """Return whether the agent was asked for this tunnel, and has not dialled it yet."""
        future = self._asked.get(secret)
        return future is not None and not future.is_set

    def dialled(
        self, secret: str, connection: socket.socket, *, carries_websockets: bool = False
    ) -> bool:
        """The agent dialled the tunnel of this secret; False if it is not expected any more."""
        if not self.expects(secret):
            return False
        connection.setblocking(False)
        tunnel = Tunnel(connection, carries_websockets=carries_websockets)
        self._all.add(tunnel)
        return self._asked[secret].set(tunnel)

    def give_back(self, tunnel: Tunnel) -> None:
        """Take back a tunnel whose exchange has ended in order."""
        if self._is_closed:
            self.close(tunnel)
        else:
            self._idle.append(tunnel)

    def close(self, tunnel: Tunnel) -> None:
        """Give up what is under way in it."""
        tunnel.close()
        self._all.discard(tunnel)

    def close_all(self) -> None:
        """The agent has left. Safe to repeat."""
        self._is_closed = True
        for tunnel in self._all:
            tunnel.close()
        self._all.clear()
        self._idle.clear()
        for future in self._asked.values():
            future.set(None)

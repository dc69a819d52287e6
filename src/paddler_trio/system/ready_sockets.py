"""One task reads all sockets whose bytes are only passed on.

A task that waits for its socket, event by event, costs more than what it does with a small event:
Trio arms the socket anew for each wait, and resumes the task through all that awaits it. So these
sockets stay armed, in an epoll of their own, and one task of the tree waits for that epoll. It
calls what reads each socket that is ready; the call does not wait.

The task that a socket belongs to sleeps until the call has nothing more to do: it still owns the
work, and its scopes end it.

Choose how much of a socket is read at once, where what arrives is taken apart piece by piece.

Bytes cost little, pieces cost as much each as a thousand bytes: 64 KiB that are ten thousand chunks
of one byte hold the event loop up for longer than anybody should wait. A sender of such pieces is
read in small portions, so that others have their turn between them.

Connections that are closed by a reset instead of in order.

A close in order comes behind all that was written: to a side that reads nothing it never comes, and
one that has read it may take for whole what it has.
"""

from __future__ import annotations

import contextvars
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import trio

MOST_AT_ONCE: Final = 64
"""The number of sockets that are read before other tasks have a turn."""
TURN_S: Final = 0.005
"""After so many seconds of calls other tasks have a turn; the remaining sockets are read next."""
_RUNNING: Final[trio.lowlevel.RunVar[_ReadySockets | None]] = trio.lowlevel.RunVar(
    "ready sockets", None
)
"""The one of a run of Trio."""


async def run_ready_sockets() -> None:
    """Read sockets that are ready until cancelled; what is watched then is waited for by its task.

    A second task in one run of Trio does nothing, nor does any where there is no epoll: then each
    task waits for its own socket.
    """
    if sys.platform == "linux" and _RUNNING.get() is None:
        with select.epoll() as epoll:
            sockets = _ReadySockets(epoll)
            _RUNNING.set(sockets)
            try:
                while True:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    await sockets.read_ready()
            finally:
                _RUNNING.set(None)
                sockets.leave_all()
    await trio.sleep_forever()


async def read_while(descriptor: int, on_ready: Callable[[], bool]) -> None:
    """Call ``on_ready`` whenever the socket or pipe can be read or has ended, until it returns
    False.

    Args:
      on_ready: it does not wait, and may leave some of what has come for the next call. It runs in
        the context of this task.

    Errors:
      Whatever ``on_ready`` raises.
      trio.ClosedResourceError: the socket was closed; see :func:`closing`.
    """
    sockets = _RUNNING.get()
    if sockets is not None and await sockets.read_while(descriptor, on_ready):
        return
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        if not on_ready():
            return


def closing(descriptor: int) -> None:
    """End the reading of a socket that is about to be closed; its reader gets the error.

    Trio is to be told as well.
    """
    sockets = _RUNNING.get()
    if sockets is not None:
        sockets.closing(descriptor)


@attrs.define(eq=False)
class _Watched:
    """One descriptor, and the task that sleeps meanwhile."""

    on_ready: Callable[[], bool]
    context: contextvars.Context
    """The context of the task."""
    wakes: trio.Event = attrs.field(factory=trio.Event, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    """Whether its last call said so, or failed."""
    error: Exception | None = attrs.field(default=None, init=False)


class Poller(Protocol):
    """This part of :class:`select.epoll`, which only Linux has, is used."""

    def register(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]: ...


@attrs.define(eq=False)
class _ReadySockets:
    """See the module docstring."""

    _epoll: Poller
    _watched: dict[int, _Watched] = attrs.field(factory=dict, init=False)
    """What is watched, by descriptor."""

    def __repr__(self) -> str:
        return f"<ReadySockets: {len(self._watched)} watched>"

    async def read_while(self, descriptor: int, on_ready: Callable[[], bool]) -> bool:
        """Read as the function of this name does; return False if it is not over, and nothing is
        watched here any more."""
        assert descriptor not in self._watched, "one task reads a socket"
        self._epoll.register(descriptor, select.POLLIN)
        context = trio.lowlevel.current_task().context
        watched = self._watched[descriptor] = _Watched(on_ready, context)
        try:
            await watched.wakes.wait()
        finally:
            self._forget(descriptor, watched)
        error, watched.error = watched.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback knows this frame: the collector would find a cycle
        return watched.is_over

    async def read_ready(self) -> None:
        """Call for each socket that is ready now; other tasks have a turn in between."""
        turn_ends_s = time.monotonic() + TURN_S
        for descriptor, _ in self._epoll.poll(0, MOST_AT_ONCE):
            watched = self._watched.get(descriptor)
            if watched is None:
                continue  # closed or cancelled meanwhile
            if time.monotonic() > turn_ends_s:
                await trio.lowlevel.checkpoint()
                turn_ends_s = time.monotonic() + TURN_S
                if self._watched.get(descriptor) is not watched:
                    continue
            try:
                if not watched.context.run(watched.on_ready):
                    self._end(descriptor, watched)
            except Exception as error:  # noqa: BLE001  # raised in the task whose socket it is
                self._end(descriptor, watched, error)

    def leave_all(self) -> None:
        """Watch nothing any more."""
        for descriptor, watched in tuple(self._watched.items()):
            self._forget(descriptor, watched)
            watched.wakes.set()

    def closing(self, descriptor: int) -> None:
        """End a reading as the function of this name does."""
        watched = self._watched.get(descriptor)
        if watched is not None:
            self._end(descriptor, watched, trio.ClosedResourceError("the socket was closed"))

    def _end(self, descriptor: int, watched: _Watched, error: Exception | None = None) -> None:
        watched.is_over, watched.error = True, error
        self._forget(descriptor, watched)
        watched.wakes.set()

    def _forget(self, descriptor: int, watched: _Watched) -> None:
        """Stop watching; safe to repeat, also when the descriptor is another socket's by now."""
        if self._watched.get(descriptor) is watched:
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)


MOST_BYTES: Final = 65_536
LEAST_BYTES: Final = 4096
MANY_PIECES: Final = 512
"""Pieces in one read; from these on the next read is shorter."""
FEW_PIECES: Final = 128


@attrs.define
class ReadSize:
    """The size of the reads of one socket; ``num_bytes`` is for the next one."""

    num_bytes: int = attrs.field(default=MOST_BYTES, init=False)

    def note(self, num_pieces: int) -> None:
        """Note that so many pieces were in what was read."""
        if num_pieces > MANY_PIECES:
            self.num_bytes = max(LEAST_BYTES, self.num_bytes // 4)
        elif num_pieces <= FEW_PIECES and self.num_bytes < MOST_BYTES:
            self.num_bytes *= 2


_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""``SO_LINGER``: a close waits for nothing, and resets."""


def reset_on_close(sock: socket.socket | trio.socket.SocketType) -> None:
    """Make the close of this socket reset its connection; what was not taken by then is lost.
    Nothing changes for one that is closed."""
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

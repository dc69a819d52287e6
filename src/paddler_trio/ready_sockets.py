"""Reads of many sockets by one task, where what arrives is passed on in the step that reads it.

A task that waits for its socket, event by event, costs more than what it does with a small event:
Trio arms the socket anew for each wait, and resumes the task through all that awaits it. Here
sockets stay armed in an epoll of their own, which Trio waits for, and a call that does not wait
takes what came. The task sleeps until that call has nothing more to do: it still owns the work, and
its scopes end it.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

import attrs
import trio

MOST_AT_ONCE: Final = 64
"""Sockets that are read before other tasks have their turn."""


@attrs.define(eq=False)
class _Watched:
    """One socket, and the task that sleeps meanwhile."""

    on_ready: Callable[[], bool]
    is_over: trio.Event = attrs.field(factory=trio.Event, init=False)
    error: Exception | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class ReadySockets:
    """See the module docstring. :meth:`run` is to run, and to outlive the tasks that sleep here."""

    _epoll: select.epoll | None = attrs.field(default=None, init=False)
    _watched: dict[int, _Watched] = attrs.field(factory=dict, init=False)
    """By their descriptors."""

    def __repr__(self) -> str:
        return f"<ReadySockets: {len(self._watched)} watched>"

    @property
    def is_running(self) -> bool:
        """Sockets can be watched; without, a task waits for each of its own."""
        return self._epoll is not None

    async def run(self) -> None:
        """Until cancelled; tasks that sleep here then go on."""
        with select.epoll() as epoll:
            self._epoll = epoll
            try:
                while True:
                    await trio.lowlevel.wait_readable(epoll.fileno())
                    self._call(epoll.poll(0, MOST_AT_ONCE))
            finally:
                self._epoll = None
                for descriptor, watched in tuple(self._watched.items()):
                    self._end(descriptor, watched, None)

    async def read_while(self, descriptor: int, on_ready: Callable[[], bool]) -> None:
        """Call ``on_ready`` whenever the socket can be read or has ended, until it returns False or
        `run` has ended.

        Args:
          on_ready: it does not wait, and may leave some of what has come for the next call. It runs
            in another task, and may be called once more after the scope of this one was cancelled.

        Errors:
          Whatever ``on_ready`` raises.
          trio.ClosedResourceError: the socket was closed; see :meth:`closing`.
        """
        assert self._epoll is not None, "it is to run"
        assert descriptor not in self._watched, "one task reads a socket"
        self._epoll.register(descriptor, select.EPOLLIN)
        watched = self._watched[descriptor] = _Watched(on_ready)
        try:
            await watched.is_over.wait()
        finally:
            self._forget(descriptor, watched)
        error, watched.error = watched.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback knows this frame: the collector would find a cycle

    def closing(self, descriptor: int) -> None:
        """The socket of this descriptor is about to be closed: its reader gets the error."""
        watched = self._watched.get(descriptor)
        if watched is not None:
            self._end(descriptor, watched, trio.ClosedResourceError("the socket was closed"))

    def _call(self, ready: list[tuple[int, int]]) -> None:
        for descriptor, _ in ready:
            watched = self._watched.get(descriptor)
            if watched is None:
                continue  # closed or cancelled in the call before
            try:
                if not watched.on_ready():
                    self._end(descriptor, watched, None)
            except Exception as error:  # noqa: BLE001  # raised in the task whose socket it is
                self._end(descriptor, watched, error)

    def _end(self, descriptor: int, watched: _Watched, error: Exception | None) -> None:
        watched.error = error
        watched.is_over.set()
        self._forget(descriptor, watched)

    def _forget(self, descriptor: int, watched: _Watched) -> None:
        """Safe to repeat, also when the descriptor is another socket's by now."""
        if self._watched.get(descriptor) is watched:
            del self._watched[descriptor]
            if self._epoll is not None:
                self._epoll.unregister(descriptor)

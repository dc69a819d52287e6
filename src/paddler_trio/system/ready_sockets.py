"""Reads that cost no turn of the event loop: what arrives is passed on in the step that reads it.

A task that waits for its socket, event by event, costs more than what it does with a small event:
Trio arms the socket anew for each wait, looks at its deadlines and its tasks, and resumes this one
through all that awaits it. So sockets stay armed here, in an epoll of their own, and an instrument
of Trio's, which is called before each of its waits, waits in its place: for these sockets and for
the descriptor with which Trio waits. What comes is taken by a call that does not wait. As soon as
Trio has anything to do (something of its own is ready, a deadline has passed, a task was scheduled)
it has its turn.

The task that a socket belongs to sleeps until that call has nothing more to do: it still owns the
work, and its scopes end it. The calls run in no task, and must not wait.
"""

from __future__ import annotations

import contextvars
import math
import select
import time
from collections.abc import Callable, Sized
from typing import Final

import attrs
import trio

MOST_AT_ONCE: Final = 64
"""Sockets that are read before Trio is looked at again."""
TURN_S: Final = 0.005
"""Trio has its turn after so long a time of calls; the other sockets are read after that."""
BUSY_S: Final = 0.0005
"""While tasks are scheduled turn after turn, sockets are looked at so often."""
LOOK_S: Final = 0.1
"""The time after a call until Trio looks at its deadlines: the call may have set one."""
_RUNNING: Final[trio.lowlevel.RunVar[_ReadySockets | None]] = trio.lowlevel.RunVar(
    "ready sockets", None
)
"""The sockets of a run of Trio, which has one wait."""


async def run_ready_sockets() -> None:
    """Wait in Trio's place until cancelled. What is watched then is waited for by its own task, as
    it is all the time where Trio does not wait with epoll. In a second task it does nothing."""
    trios = _wait_of_trio()
    if trios is None or _RUNNING.get() is not None:
        await trio.sleep_forever()
    with select.epoll() as epoll:
        epoll.register(trios.descriptor, select.EPOLLIN)
        sockets = _ReadySockets(epoll, trios)
        trio.lowlevel.add_instrument(sockets)
        _RUNNING.set(sockets)
        try:
            await trio.sleep_forever()
        finally:
            _RUNNING.set(None)
            trio.lowlevel.remove_instrument(sockets)
            sockets.leave_all()


async def read_while(descriptor: int, on_ready: Callable[[], bool]) -> None:
    """Call ``on_ready`` whenever the socket or pipe can be read or has ended, until it returns
    False.

    Args:
      on_ready: it does not wait, and may leave some of what has come for the next call. It runs in
        no task, and may be called once more after the scope of this one was cancelled.

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
    """Note that a socket of this descriptor is about to be closed: its reader gets the error, if it
    reads here; Trio is to be told as well."""
    sockets = _RUNNING.get()
    if sockets is not None:
        sockets.closing(descriptor)


@attrs.frozen
class _Wait:
    """Trio's own.

    Args:
      descriptor: of its epoll.
      scheduled: the tasks that it is about to run.
      end: it waits no longer, or not at all if it begins just now.
    """

    descriptor: int
    scheduled: Sized
    end: Callable[[], None]


@attrs.define(eq=False)
class _Watched:
    """One descriptor, and the task that sleeps meanwhile."""

    on_ready: Callable[[], bool]
    context: contextvars.Context
    """The context of the task."""
    wakes: trio.Event = attrs.field(factory=trio.Event, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    """Its last call said so, or failed."""
    error: Exception | None = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class _ReadySockets(trio.abc.Instrument):
    """See the module docstring.

    Args:
      epoll: of what is watched, and of that with which Trio waits.
    """

    _epoll: select.epoll
    _trios: _Wait
    _watched: dict[int, _Watched] = attrs.field(factory=dict, init=False)
    """The watched sockets by their descriptors."""
    _looked_s: float = attrs.field(default=-math.inf, init=False)
    _has_called: bool = attrs.field(default=False, init=False)
    """Something came at the last look."""
    _left: list[tuple[int, _Watched]] = attrs.field(factory=list, init=False)
    """Those that were ready when a turn was over: they come first in the next. Asked anew, the
    system would name the first ones again."""

    def __repr__(self) -> str:
        return f"<ReadySockets: {len(self._watched)} watched>"

    async def read_while(self, descriptor: int, on_ready: Callable[[], bool]) -> bool:
        """Watch as the function of this name does; return False if it is not over, and nothing is
        watched here any more."""
        assert descriptor not in self._watched, "one task reads a socket"
        self._epoll.register(descriptor, select.EPOLLIN)
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

    def leave_all(self) -> None:
        """Watch nothing here from now on."""
        for descriptor, watched in tuple(self._watched.items()):
            self._forget(descriptor, watched)
            watched.wakes.set()

    def closing(self, descriptor: int) -> None:
        """Stop watching as the function of this name does."""
        watched = self._watched.get(descriptor)
        if watched is not None:
            self._end(descriptor, watched, trio.ClosedResourceError("the socket was closed"))

    def before_io_wait(self, timeout: float) -> None:
        """Wait as long as Trio would, and let it wait no longer."""
        if self._left:
            self._take_left()
        elif not self._watched:
            return
        elif timeout <= 0:
            if time.monotonic() > self._looked_s + BUSY_S:
                self._look(0)
        elif self._wait(timeout):
            return
        if timeout > 0:  # else tasks are scheduled, and Trio only looks at what is ready
            self._trios.end()  # the one that begins now

    def _wait(self, timeout: float) -> bool:
        """Return whether something of Trio's own is ready. Else its time has passed, or it is to
        have a turn: a call scheduled a task, may have set a deadline, or took long."""
        until_s = time.monotonic() + timeout
        while timeout > 0 and not (len(self._trios.scheduled) or self._left):
            if self._look(timeout):
                return True
            if self._has_called:
                until_s = min(until_s, self._looked_s + LOOK_S)
            timeout = until_s - self._looked_s
        return False

    def _look(self, timeout: float) -> bool:
        """Take what comes in this time; whether something of Trio's own is ready."""
        is_trio_ready = False
        for descriptor, _ in self._epoll.poll(timeout, MOST_AT_ONCE):
            if descriptor == self._trios.descriptor:
                is_trio_ready = True
            elif (watched := self._watched.get(descriptor)) is not None:
                self._left.append((descriptor, watched))
        self._has_called = bool(self._left)
        if self._has_called:
            self._take_left()
        self._looked_s = time.monotonic()
        return is_trio_ready

    def _take_left(self) -> None:
        """Call for each of them, until the turn is over."""
        ready, self._left = self._left, []
        turn_ends_s = time.monotonic() + TURN_S
        for place, (descriptor, watched) in enumerate(ready):
            if self._watched.get(descriptor) is not watched:
                continue  # closed or cancelled meanwhile
            if time.monotonic() > turn_ends_s:
                self._left = ready[place:]
                return
            try:
                if not watched.context.run(watched.on_ready):
                    self._end(descriptor, watched)
            except Exception as error:  # noqa: BLE001  # raised in the task whose socket it is
                self._end(descriptor, watched, error)

    def _end(self, descriptor: int, watched: _Watched, error: Exception | None = None) -> None:
        watched.is_over, watched.error = True, error
        self._forget(descriptor, watched)
        watched.wakes.set()

    def _forget(self, descriptor: int, watched: _Watched) -> None:
        """Forget a watched descriptor. Safe to repeat, also when the descriptor is another socket's
        by now."""
        if self._watched.get(descriptor) is watched:
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)


def _wait_of_trio() -> _Wait | None:
    """Return None if Trio does not wait with epoll. It has no public names for these."""
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    epoll = getattr(runner.io_manager, "_epoll", None)
    end = getattr(runner.io_manager, "force_wakeup", None)
    scheduled = getattr(runner, "runq", None)
    if not isinstance(epoll, select.epoll) or not isinstance(scheduled, Sized) or end is None:
        return None
    return _Wait(epoll.fileno(), scheduled, end)

"""The predecessor's side: a task that waits for a successor and passes on what it asks for.

Until the successor is ready everything can go back: if it fails, dies or takes too long, the state
is this process's again, and it goes on as before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.balancer.hot_restart.handover_channel import HandoverChannel, close_all, listen_at
from paddler_trio.balancer.hot_restart.handover_messages import (
    PROTOCOL,
    GiveState,
    HandoverMessage,
    Left,
    Ready,
    Refused,
    ServeAgents,
    ServeAll,
    Service,
    Sockets,
    State,
    TakeOver,
)
from paddler_trio.errors import HandoverError
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("handover")

FIRST_S: Final = 10.0
CONFIGURE_S: Final = 30.0
RELEASE_S: Final = 15.0
"""For changes that run to end."""
READY_S: Final = 30.0
SHOW_S: Final = 1.0


class OwnedState(Protocol):
    """Hold what one balancer alone may have and write."""

    async def release(self) -> None:
        """Write the last, and nothing from then on."""
        ...

    def resume(self) -> None:
        """It is this process's again; also after a release that was broken off."""
        ...


@attrs.frozen(eq=False)
class BoundPort:
    """The address as it was configured, and its sockets."""

    address: str
    sockets: Sequence[socket.socket]


@attrs.define(eq=False, repr=False)
class Bequest:
    """See the module docstring.

    Args:
      path: of the socket; None: nobody can take over.
      ports: by the name of the service.
      locks: of the state, by name: their descriptors.
      on_given: called with the successor's process when the state is its.
      num_left: how many requests have not ended.
    """

    path: Path | None
    ports: Mapping[str, BoundPort]
    locks: Mapping[str, int]
    on_given: Callable[[int], None]
    num_left: Callable[[], int]
    given: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The state is the successor's; from here on nothing can go back."""
    agents_may_come: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set by the tree: this process accepts nothing on the management port any more."""
    all_may_come: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set by the tree: nor on any other."""
    _is_closed: bool = attrs.field(default=False, init=False)
    _doing: str = attrs.field(default="waits for a successor", init=False)

    def __repr__(self) -> str:
        return f"<Bequest {self.path}: {self._doing}>"

    async def run(self, state: OwnedState) -> None:
        """Wait for successors, one after the other, until one has taken over; then accompany it
        until cancelled."""
        explain_this_task(lambda: repr(self))
        if self.path is None:
            return
        try:
            listener = listen_at(self.path)
        except HandoverError as error:
            log.warning("no balancer can take over from this one", reason=str(error))
            return
        try:
            with listener:
                channel = await self._wait_successor(listener, state)
        finally:
            if not self.given.is_set():  # else another process listens there
                self.path.unlink(missing_ok=True)
        with channel:
            await self._accompany(channel)

    def close(self) -> None:
        """This process is stopping, and hands over to nobody; safe at any moment."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise HandoverError("this balancer is stopping: start again when it has ended")

    async def _wait_successor(
        self, listener: trio.socket.SocketType, state: OwnedState
    ) -> HandoverChannel:
        while True:
            try:
                accepted, _ = await listener.accept()
            except OSError as error:  # no descriptor, or it has left again
                log.warning("a successor was not accepted", reason=error.strerror)
                await trio.sleep(SHOW_S)
                continue
            channel = HandoverChannel(accepted)
            try:
                await self._hand_over(channel, state)
            except (HandoverError, trio.TooSlowError) as error:
                reason = str(error) or "it took too long"
                log.error("not handed over: this balancer goes on", reason=reason)
                await _refuse(channel, reason)
            except BaseException:
                accepted.close()
                raise
            else:
                return channel
            accepted.close()
            self._doing = "waits for a successor"

    async def _hand_over(self, channel: HandoverChannel, state: OwnedState) -> None:
        """Hand over; HandoverError, TooSlowError: everything is as before."""
        channel.check_peer()
        pid = channel.peer_pid
        self._doing = f"hands over to process {pid}"
        with trio.fail_after(FIRST_S):
            first = await _expect(channel, TakeOver)
            assert isinstance(first, TakeOver)
            self._check_open()
            if first.protocol != PROTOCOL:
                raise HandoverError(
                    f"process {pid} speaks version {first.protocol} of this protocol, this one "
                    f"{PROTOCOL}: restart instead"
                )
            log.info("handing over", process=pid, program=first.program[:80])
            await channel.send(self._sockets(), self._descriptors())
        with trio.fail_after(CONFIGURE_S):
            await _expect(channel, GiveState)
        try:
            with trio.fail_after(RELEASE_S):
                await state.release()
            await channel.send(State(tuple(self.locks)), list(self.locks.values()))
            with trio.fail_after(READY_S):
                await _expect(channel, Ready)
            self._check_open()
        except BaseException:
            state.resume()
            raise
        log.info("handed over: the state is its", process=pid)
        self.on_given(pid)
        self.given.set()

    def _sockets(self) -> Sockets:
        return Sockets(
            tuple(
                Service(name, port.address, len(port.sockets)) for name, port in self.ports.items()
            )
        )

    def _descriptors(self) -> list[int]:
        return [each.fileno() for port in self.ports.values() for each in port.sockets]

    async def _accompany(self, channel: HandoverChannel) -> None:
        """Say what is the successor's, and how much is left; the end of this process shows by the
        end of the channel."""
        self._doing = f"process {channel.peer_pid} has taken over"
        try:
            await self.agents_may_come.wait()
            await channel.send(ServeAgents())
            await self.all_may_come.wait()
            await channel.send(ServeAll())
            while True:
                await channel.send(Left(self.num_left()))
                await trio.sleep(SHOW_S)
        except HandoverError as error:
            log.warning("the successor does not listen any more", reason=str(error))
        await trio.sleep_forever()


async def _expect(channel: HandoverChannel, kind: type[HandoverMessage]) -> HandoverMessage:
    message, descriptors = await channel.receive()
    close_all(descriptors)
    if not isinstance(message, kind):
        got = "ended" if message is None else f"sent {type(message).__name__}"
        raise HandoverError(f"process {channel.peer_pid} {got}, and not {kind.__name__}")
    return message


async def _refuse(channel: HandoverChannel, reason: str) -> None:
    """Say why, if anybody still listens."""
    with trio.move_on_after(SHOW_S):
        try:
            await channel.send(Refused(reason))
        except HandoverError:
            log.debug("nobody hears the refusal")

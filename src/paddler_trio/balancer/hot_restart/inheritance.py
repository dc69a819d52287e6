"""The successor's side: what it gets from the balancer that runs, step by step."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio import __version__
from paddler_trio.balancer.hot_restart.handover_channel import HandoverChannel, close_all, connect
from paddler_trio.balancer.hot_restart.handover_messages import (
    PROTOCOL,
    GiveState,
    HandoverMessage,
    Left,
    Ready,
    ServeAgents,
    ServeAll,
    Sockets,
    State,
    TakeOver,
)
from paddler_trio.errors import HandoverError

log = structlog.get_logger("handover")

ANSWER_S: Final = 60.0
"""For each step of the predecessor; the longest is to finish what it is writing."""


@attrs.frozen(eq=False)
class InheritedPort:
    """The address as the predecessor was given it, and its sockets."""

    address: str
    sockets: list[socket.socket]


@attrs.define(eq=False)
class Inheritance:
    """Everything that passes; ``close`` closes what nobody took.

    Args:
      ports: by the name of the service.
    """

    channel: HandoverChannel
    ports: dict[str, InheritedPort]
    locks: dict[str, int] = attrs.field(factory=dict, init=False)
    """Descriptors by the name of what they lock."""
    is_over: bool = attrs.field(default=False, init=False)
    """The predecessor has ended."""

    @classmethod
    async def ask(cls, path: Path) -> Inheritance | None:
        """Ask the balancer that listens at ``path``; None if there is none. HandoverError."""
        channel = await connect(path)
        if channel is None:
            return None
        try:
            await channel.send(TakeOver(PROTOCOL, f"paddler-trio {__version__}"))
            message, descriptors = await _next(channel, Sockets)
            assert isinstance(message, Sockets)
            if len(descriptors) != sum(each.sockets for each in message.services):
                close_all(descriptors)
                raise HandoverError("the running balancer passed not as many sockets as it said")
            sockets = [socket.socket(fileno=each) for each in descriptors]
            for each in sockets:
                each.setblocking(False)
            ports: dict[str, InheritedPort] = {}
            for service in message.services:
                ports[service.name] = InheritedPort(service.address, sockets[: service.sockets])
                del sockets[: service.sockets]
        except BaseException:
            channel.socket.close()
            raise
        log.info("taking over", process=channel.peer_pid, services=sorted(ports))
        return cls(channel, ports)

    def take_port(self, name: str, address: str) -> list[socket.socket] | None:
        """Return the sockets of this service, if they were bound for the same address; the
        caller's."""
        port = self.ports.get(name)
        if port is None or port.address != address:
            return None
        return self.ports.pop(name).sockets

    def take_lock(self, name: str) -> int | None:
        """Return the descriptor that holds this lock; the caller's."""
        return self.locks.pop(name, None)

    async def take_state(self) -> None:
        """Nobody writes the state from here on; its locks are here. HandoverError."""
        await self.channel.send(GiveState())
        message, descriptors = await _next(self.channel, State)
        assert isinstance(message, State)
        self.locks = dict(zip(message.locks, descriptors, strict=False))
        close_all(descriptors[len(self.locks) :])

    async def ready(self) -> None:
        """Say that the state is read; returns when agents may be accepted. HandoverError: the
        predecessor goes on, or is gone, and nothing may be served."""
        await self.channel.send(Ready())
        await _next(self.channel, ServeAgents)

    async def wait_all(self) -> None:
        """Until every port is this process's; at once when the predecessor is gone."""
        try:
            await _next(self.channel, ServeAll)
        except HandoverError as error:
            log.warning("the balancer before this one broke off", reason=str(error))
            self.is_over = True

    async def wait_end(self, show: Callable[[int], None]) -> None:
        """Until the predecessor has ended; ``show`` is told how many requests it still has."""
        while not self.is_over:
            try:
                message, descriptors = await self.channel.receive()
            except HandoverError:
                message, descriptors = None, []
            close_all(descriptors)
            self.is_over = message is None
            if isinstance(message, Left):
                show(message.requests)
        show(0)
        log.info("the balancer before this one has ended")

    def close(self) -> None:
        """Close what was not taken, and the channel."""
        self.channel.socket.close()
        close_all(list(self.locks.values()))
        self.locks.clear()
        for port in self.ports.values():
            for each in port.sockets:
                each.close()
        self.ports.clear()


async def _next(
    channel: HandoverChannel, kind: type[HandoverMessage]
) -> tuple[HandoverMessage, list[int]]:
    """Return the next message, which must be of this kind; HandoverError."""
    with trio.move_on_after(ANSWER_S):
        message, descriptors = await channel.receive()
        if isinstance(message, kind):
            return message, descriptors
        close_all(descriptors)
        got = "ended" if message is None else f"sent {type(message).__name__}"
        raise HandoverError(f"the running balancer {got}, and not {kind.__name__}")
    raise HandoverError(f"the running balancer sent no {kind.__name__} within {ANSWER_S:g} s")

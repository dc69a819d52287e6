"""Put together how a balancer takes over from another one, and lets one take over."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.fleet.state_lock import StateLock, locked
from paddler_trio.balancer.hot_restart.bequest import Bequest, BoundPort
from paddler_trio.balancer.hot_restart.handover_channel import ONLY_LINUX
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.hot_restart.own_successor import OwnSuccessor
from paddler_trio.balancer.hot_restart.restartable import Restartable
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier

log = structlog.get_logger("handover")

SUFFIX: Final = ".handover"
"""Of the socket beside a state file."""


def handover_path(config: BalancerConfig) -> Path | None:
    """Return where a balancer is asked to hand over; None without a state file: what it desires
    would be lost. ConfigurationError for a bad state database URL."""
    state = state_file(config.state_database)
    if state is None:
        return None
    return config.hot_restart_path or state.with_name(state.name + SUFFIX)


def handover_problem(config: BalancerConfig) -> str | None:
    """Return why no balancer can take over from one of this configuration; None if one can."""
    if handover_path(config) is None:
        return "the state is in memory only: give --state-database file:///absolute/path"
    return None if sys.platform == "linux" else ONLY_LINUX


async def inheritance_of(config: BalancerConfig) -> Inheritance | None:
    """Return what the balancer that runs hands over, if that is wanted and one runs.
    HandoverError."""
    path = handover_path(config)
    if not config.takes_over:
        return None
    found = None if path is None else await Inheritance.ask(path)
    if found is None:
        log.info("no balancer to take over from: starting", path=str(path))
    return found


@attrs.frozen(eq=False)
class HotRestart:
    """Let another process take over from a balancer.

    Args:
      addresses: of each service as it was configured.
    """

    config: BalancerConfig
    notifier: SystemdNotifier
    addresses: Mapping[str, str]
    listeners: Mapping[str, Sequence[socket.socket]]
    locks: Mapping[str, StateLock]

    def serving(self, core: BalancerCore, predecessor: Inheritance | None) -> Restartable:
        """Put hot restart around the tree of this balancer."""
        bequest, drain_s = self._bequest(core.dispatcher), self.config.hot_restart_drain_s
        return Restartable(bequest, predecessor, core.moving, core.moved, drain_s)

    def services(self, serving: Restartable) -> dict[str, Run]:
        """Return what runs beside everything else, by the names of the tasks."""
        return {"successor on SIGUSR2": self._own_successor(serving.bequest.given).run}

    def _bequest(self, dispatcher: Dispatcher) -> Bequest:
        return Bequest(
            handover_path(self.config),
            {
                name: BoundPort(self.addresses[name], sockets)
                for name, sockets in self.listeners.items()
            },
            {
                name: lock.descriptor
                for name, lock in self.locks.items()
                if lock.descriptor is not None
            },
            self._given,
            lambda: len(dispatcher.requests),
        )

    def _own_successor(self, given: trio.Event) -> OwnSuccessor:
        """Do what SIGUSR2 asks for; ``given`` is the bequest's."""
        return OwnSuccessor(self.notifier.variables(), given, handover_problem(self.config))

    def _given(self, pid: int) -> None:
        for lock in self.locks.values():
            lock.give_up()
        if self.notifier.is_listening:
            self.notifier.main_process(pid)


@contextmanager
def state_locks(
    config: BalancerConfig, inheritance: Inheritance | None
) -> Iterator[Mapping[str, StateLock]]:
    """Hold the locks of everything that one balancer alone may write; StateDatabaseError."""

    def passed(name: str) -> int | None:
        return None if inheritance is None else inheritance.take_lock(name)

    with (
        locked(state_file(config.state_database), inherited=passed("state")) as state,
        locked(config.agents_file, flag="--agents-file", inherited=passed("agents")) as agents,
    ):
        yield {"state": state, "agents": agents}

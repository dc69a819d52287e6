"""Hot restart, around the tree of a balancer: what it does more in each step of its serving.

At the begin it waits for the process that it takes over from, port by port. At the end it lets a
process that takes over have its agents, then its clients, and finishes what it has. Until the state
has passed nothing of this happens; from then on nothing goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.balancer.hot_restart.bequest import Bequest
from paddler_trio.balancer.hot_restart.departure import Departure
from paddler_trio.net.server.server import HttpServer, wait_all_closed
from paddler_trio.nursery_tree.balancer_tree import BalancerTree, Serving
from paddler_trio.nursery_tree.ports import MANAGEMENT
from paddler_trio.system.synchronization import wait_any
from paddler_trio.system.systemd_notify import SystemdNotifier

log = structlog.get_logger("balancer")

SETTLE_S: Final = 0.5
"""How long clients are given to make new connections, which another process accepts next."""
FRESH_S: Final = 2.0
"""How long clients of connections that were accepted here have for their first request."""


class Predecessor(Protocol):
    """The process that this one takes over from; see ``balancer/hot_restart/inheritance.py``."""

    async def ready(self) -> None:
        """Returns when the management port is this process's."""
        ...

    async def wait_all(self) -> None: ...

    async def wait_end(self, show: Callable[[int], None]) -> None: ...


@attrs.frozen(eq=False)
class Restartable(Serving):
    """A balancer that may take over from another process, and from which one may take over.

    Args:
      bequest: waits for a process that takes over.
      predecessor: the process that this one takes over from; None if there was none.
      moving: set when another process has the management port.
      moved: set when it has all ports: sockets of clients end as soon as they are idle.
      drain_s: how long requests may take then.
    """

    bequest: Bequest
    predecessor: Predecessor | None
    moving: trio.Event
    moved: trio.Event
    drain_s: float

    async def prepare(self) -> None:
        """Until this returns nothing was served, and all can go back to the predecessor."""
        if self.predecessor is not None:
            await self.predecessor.ready()

    async def begin(self, tree: BalancerTree) -> None:
        """Accept on each port when it is this process's."""
        await tree.ports.open_management()
        if self.predecessor is not None:
            await self.predecessor.wait_all()
        await tree.ports.open_others()

    async def until_end(self, tree: BalancerTree) -> None:
        """Return when another process has taken over, or this one is asked to stop."""
        if self.predecessor is not None:
            show = partial(_show_predecessor, tree.notifier, tree.status)
            tree.requests.start_soon(self.predecessor.wait_end, show, name="predecessor")
        tree.services.start_soon(self.bequest.run, tree.parts.owner, name="handover")
        await wait_any(tree.stop, self.bequest.given)
        if self.bequest.given.is_set():
            await self._hand_over(tree)
        else:
            self.bequest.close()

    def drain(self, tree: BalancerTree) -> None:
        """Finish what was begun, in the time that a process that was taken over from has."""
        if not self.bequest.given.is_set():
            super().drain(tree)
            return
        tree.requests.cancel_scope.deadline = trio.current_time() + self.drain_s
        hasten = partial(hasten_end, tree.stop, tree.requests, tree.parts.drain_timeout_s)
        tree.services.start_soon(hasten, name="stop watch")
        # a call may ask for more while its connection is open
        tree.requests.start_soon(finish_connections, tree.parts.servers, name="connections")

    async def _hand_over(self, tree: BalancerTree) -> None:
        """The state is another process's. Let it have the agents, then the clients; requests that
        this one has begun go on."""
        log.info("handing over: agents first")
        servers, departure = tree.parts.servers, Departure(tree.parts.dispatcher)
        await departure.dial_tunnels()
        tree.ports.close_management()
        self.bequest.agents_may_come.set()
        self.moving.set()
        await tree.agents.start(departure.run, name="departure")
        for server in servers:
            server.close_after_next()
        async with trio.open_nursery() as both:
            both.start_soon(trio.sleep, SETTLE_S)
            both.start_soon(departure.wait_followed)
        tree.ports.listeners.cancel_scope.cancel(reason="another process accepts")
        self.bequest.all_may_come.set()
        self.moved.set()
        for server in servers:
            server.close_quiet(fresh=False)
        departure.let_go(lambda: sum(each.num_fresh for each in servers if each.name != MANAGEMENT))
        log.info("handed over: finishing what runs", requests=len(tree.parts.dispatcher.requests))


def _show_predecessor(notifier: SystemdNotifier, status: str, num_left: int) -> None:
    plural = "" if num_left == 1 else "s"
    left = f"; the process before has {num_left} request{plural} left" if num_left else ""
    notifier.status(f"{status}{left}")


async def finish_connections(servers: Sequence[HttpServer]) -> None:
    """Wait for the last responses; one that nothing has asked for soon is not waited for."""
    with trio.move_on_after(FRESH_S):
        await wait_all_closed(servers)
    for server in servers:
        server.close_quiet(fresh=True)
    await wait_all_closed(servers)


async def hasten_end(stop: trio.Event, requests: trio.Nursery, drain_timeout_s: float) -> None:
    """A signal to stop leaves a balancer that was taken over from as much time as any other."""
    await stop.wait()
    scope = requests.cancel_scope
    scope.deadline = min(scope.deadline, trio.current_time() + drain_timeout_s)

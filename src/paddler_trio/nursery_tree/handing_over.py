"""How a balancer lets another process have its agents, then its clients, and finishes what it has.

Until the state has passed nothing of this happens; from then on nothing goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio

from paddler_trio.nursery_tree.departure import Departure
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.ports import MANAGEMENT, Ports, Server, wait_all_closed
from paddler_trio.nursery_tree.state_owner import StateOwner

log = structlog.get_logger("balancer")

SETTLE_S: Final = 0.5
"""How long clients are given to make new connections, which another process accepts next."""
FRESH_S: Final = 2.0
"""How long clients of connections that were accepted here have for their first request."""


class Bequest(Protocol):
    """Waits for a process that takes over; see ``balancer/hot_restart/bequest.py``."""

    given: trio.Event
    agents_may_come: trio.Event
    all_may_come: trio.Event

    async def run(self, state: StateOwner) -> None: ...

    def close(self) -> None:
        """Hand over to nobody from now on."""
        ...


class Predecessor(Protocol):
    """The process that this one takes over from; see ``balancer/hot_restart/inheritance.py``."""

    async def ready(self) -> None:
        """Returns when the management port is this process's."""
        ...

    async def wait_all(self) -> None: ...

    async def wait_end(self, show: Callable[[int], None]) -> None: ...


async def hand_over(
    bequest: Bequest,
    dispatcher: Dispatcher,
    ports: Ports,
    agents: trio.Nursery,
    *,
    moving: trio.Event,
    moved: trio.Event,
) -> None:
    """The state is another process's. Let it have the agents, then the clients; requests that this
    one has begun go on."""
    log.info("handing over: agents first")
    departure = Departure(dispatcher)
    await departure.dial_tunnels()
    ports.close_management()
    bequest.agents_may_come.set()
    moving.set()
    await agents.start(departure.run, name="departure")
    for server, _ in ports.ports:
        server.close_after_next()
    async with trio.open_nursery() as both:
        both.start_soon(trio.sleep, SETTLE_S)
        both.start_soon(departure.wait_followed)
    ports.listeners.cancel_scope.cancel(reason="another process accepts")
    bequest.all_may_come.set()
    moved.set()
    servers = [server for server, _ in ports.ports]
    for server in servers:
        server.close_quiet(fresh=False)
    departure.let_go(lambda: sum(each.num_fresh for each in servers if each.name != MANAGEMENT))
    log.info("handed over: finishing what runs", requests=len(dispatcher.requests))


async def finish_connections(servers: Sequence[Server]) -> None:
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

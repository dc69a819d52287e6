"""One instance of an agent, from its start to its last frame: a model, a link, requests.

    model                    follows the desired state
    ├─ preparation           child processes: templates, tokens, grammars, images
    └─ engine                the child process; both started again under a restart budget
    model cache              fetches, lists, hashes and removes for operators; ended at the stop
    links                    to the balancer, redialled for ever; closed second
    └─ requests              one task each; drained first

An instance in front of a server has no model, preparation, engine and cache, but:

    upstream monitor         looks at the server
    upstream status          shows the balancer what was seen
    upstream connections     closes those that are idle, cuts those whose server is silent
    forwarded streams        sends what was held for as long as it may be
    links                    as above
    └─ requests              one task for each tunnel

One that is asked to stop offers no slots from that moment, finishes what it has, and only then
leaves: its link lives until the last result is out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs
import trio

from paddler_trio.system.synchronization import wait_any


class BalancerLink(Protocol):
    """The connection to the balancer, redialled for ever."""

    registered: trio.Event

    def describe(self) -> str:
        """Return one line for the service manager's status."""
        ...

    async def run(self) -> None: ...

    async def leave(self) -> None:
        """Say goodbye, when nothing is left to answer."""
        ...


@attrs.frozen(eq=False)
class InstanceParts:
    """All that the tree gives tasks to.

    Args:
      name: in logs.
      services: what runs until the last request has ended, by the names of the tasks.
      open_requests: gives requests the nursery of their tasks.
      offer_nothing: no slots from now on, and no commands.
    """

    name: str
    services: Mapping[str, Callable[[], Awaitable[None]]]
    link: BalancerLink
    open_requests: Callable[[trio.Nursery], None]
    offer_nothing: Callable[[], None]
    drain_timeout_s: float


async def run_instance(
    parts: InstanceParts,
    stop: trio.Event,
    *,
    on_registered: Callable[[], None] = lambda: None,
    on_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until ``stop``, then drain: requests, link, engine.

    Args:
      on_registered: called once, at the first registration with the balancer or at the stop.
      on_stopping: called once, at the stop.

    Cancellation: everything ends at once; the engine process is gone when this returns.
    """
    async with trio.open_nursery() as services:
        for name, run in parts.services.items():
            services.start_soon(run, name=name)
        async with trio.open_nursery() as links:
            links.start_soon(parts.link.run, name="balancer link")
            async with trio.open_nursery() as requests:
                parts.open_requests(requests)
                await wait_any(parts.link.registered, stop)
                on_registered()
                await stop.wait()
                on_stopping()
                parts.offer_nothing()
                requests.cancel_scope.deadline = trio.current_time() + parts.drain_timeout_s
            await parts.link.leave()
            links.cancel_scope.cancel(reason="stopping: said goodbye")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")

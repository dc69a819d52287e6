"""An agent, from its start to its last frame.

    services                     outlive everything
    ├─ systemd status, systemd watchdog
    ├─ event loop lag            measured ten times a second
    ├─ ready sockets             reads engine and server, and passes on what came
    ├─ heap trim                 gives free memory back
    ├─ drain status              once it is asked to stop
    ├─ metrics                   with --metrics-addr: a port of its own
    ├─ machine                   looks at CPU, memory and GPUs
    ├─ instances                 the deployments beside the first link's; drained with it
    │  └─ instance coder, …      as below, each
    ├─ model, model cache        of the first link
    └─ links
       ├─ balancer link
       └─ requests

What an instance is, and in which order it ends, is in ``instance_tree.py``. The agent ends when the
last one has left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.instance_tree import InstanceParts, run_instance
from paddler_trio.system.heap_trim import run_heap_trim
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.system.ready_sockets import run_ready_sockets
from paddler_trio.system.systemd_notify import SystemdNotifier, show_drain, show_status

log = structlog.get_logger("agent")


@attrs.frozen(eq=False)
class AgentParts:
    """All that the tree gives tasks to.

    Args:
      first: of the first link; the agent is down when it is.
      run_instances: owns the others until the event, and until they have drained.
      services: what runs beside everything else until cancelled, by the names of their tasks.
      lag: measures how late the event loop is.
      num_running: how many requests run, of all instances.
    """

    first: InstanceParts
    run_instances: Callable[[trio.Event], Awaitable[None]]
    services: Mapping[str, Callable[[], Awaitable[None]]] = attrs.field(factory=dict)
    lag: LoopLag = attrs.field(factory=LoopLag)
    num_running: Callable[[], int] = lambda: 0


async def run_agent(
    assemble: Callable[[], AgentParts],
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop``, then drain.

    Started means: registered with the balancer for the first time. To the service manager it is
    ready before that: an agent that waits for its balancer is as it should be.

    Cancellation: everything ends at once; all engine processes are gone when this returns.
    """
    parts = assemble()
    first = parts.first
    async with trio.open_nursery() as services:

        def stopping() -> None:
            notifier.stopping()
            services.start_soon(show_drain, notifier, parts.num_running, name="drain status")

        notifier.ready(first.link.describe())
        services.start_soon(show_status, notifier, first.link.describe, name="systemd status")
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        services.start_soon(parts.lag.run, name="event loop lag")
        services.start_soon(run_ready_sockets, name="ready sockets")
        services.start_soon(run_heap_trim, name="heap trim")
        for name, run in parts.services.items():
            services.start_soon(run, name=name)
        async with trio.open_nursery() as instances:
            instances.start_soon(parts.run_instances, stop, name="instances")
            await run_instance(first, stop, on_registered=task_status.started, on_stopping=stopping)
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("agent down", name=first.name)

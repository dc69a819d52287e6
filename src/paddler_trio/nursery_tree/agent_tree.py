"""An agent, from its start to its last frame.

    services                     outlive everything
    ├─ systemd watchdog
    ├─ model                     follows the desired state
    │  └─ engine                 the child process, started again under a restart budget
    └─ links                     to the balancer, redialled for ever; closed third
       └─ requests               one task each; drained first

An agent that is asked to stop offers no slots from that moment, finishes what it has, and only
then leaves: its link lives until the last result is out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from paddler_trio.agent.balancer_link import BalancerLink
from paddler_trio.agent.llama_log import route_llama_log
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.requests import AgentRequests
from paddler_trio.agent.status import AgentStatus
from paddler_trio.config import AgentConfig
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.errors import EngineError
from paddler_trio.nursery_tree.restart_budget import RestartBudget
from paddler_trio.nursery_tree.supervise import Child, supervise

log = structlog.get_logger("agent")

ENGINE_RESTARTS = 12
ENGINE_PERIOD_S = 60.0


async def run_agent(
    config: AgentConfig,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop``, then drain: requests, link, engine.

    Started means registered with the balancer for the first time.

    Cancellation: everything ends at once; the engine process is gone when this returns.
    """
    route_llama_log()
    status = AgentStatus(config.slots)
    requests = AgentRequests(status)
    models = ModelServer(
        status,
        threads=config.threads,
        drain_s=config.drain_timeout_s,
        supervise=keep_engine,
        on_step=requests.on_step,
        on_engine_gone=requests.on_engine_gone,
    )
    link = BalancerLink(
        config.management_host, config.management_port, config.name, status, models, requests
    )

    async with trio.open_nursery() as services:
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        services.start_soon(models.run, name="model")
        async with trio.open_nursery() as links:
            links.start_soon(link.run, name="balancer link")
            async with trio.open_nursery() as running:
                requests.open(running, models)
                async with trio.open_nursery() as beginning:
                    beginning.start_soon(_cancel_when, stop, beginning.cancel_scope)
                    await link.registered.wait()
                    beginning.cancel_scope.cancel(reason="registered")
                task_status.started()
                notifier.ready(f"agent {config.name or link.id} registered")
                await stop.wait()
                notifier.stopping()
                status.set(is_leaving=True)
                running.cancel_scope.deadline = trio.current_time() + config.drain_timeout_s
            await link.leave()
            links.cancel_scope.cancel(reason="stopping: said goodbye")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("agent down", name=config.name)


async def keep_engine(
    run: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
) -> None:
    """Run the engine again after each crash; too many in a minute mean a pause, not the end."""
    budget = RestartBudget(max_restarts=ENGINE_RESTARTS, period_s=ENGINE_PERIOD_S)
    await supervise(
        Child(
            "engine",
            run,
            restart_on=(EngineError,),
            budget=budget,
            wait_for_refill=True,
            on_crash=on_crash,
        )
    )


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="asked to stop")

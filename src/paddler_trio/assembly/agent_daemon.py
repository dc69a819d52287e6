"""An agent: its parts made from its configuration and wired together, its tree run."""

from __future__ import annotations

from functools import partial

import trio

from paddler_trio.agent.balancer_link import BalancerLink
from paddler_trio.agent.model_fit import ModelFit
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.requests import AgentRequests
from paddler_trio.agent.status import AgentStatus
from paddler_trio.config import AgentConfig
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.models.hub_settings import HubSettings
from paddler_trio.models.memory_prediction import open_memory_questions
from paddler_trio.nursery_tree.agent_tree import (
    AgentParts,
    keep_engine,
    keep_preparation,
    run_agent,
)


async def serve_agent(
    config: AgentConfig,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Assemble an agent and run its tree; see :func:`run_agent`."""
    await run_agent(partial(agent_parts, config), stop, notifier=notifier, task_status=task_status)


def agent_parts(config: AgentConfig) -> AgentParts:
    """Call it inside the trio run."""
    status = AgentStatus(config.slots)
    requests = AgentRequests(status)
    hub = HubSettings.from_environment(token_file=config.hf_token_file)
    models = ModelServer(
        status,
        threads=config.threads,
        settings=config.engine,
        drain_s=config.drain_timeout_s,
        supervise=keep_engine,
        supervise_preparation=keep_preparation,
        on_step=requests.on_step,
        on_engine_gone=requests.on_engine_gone,
        trusts_messages=config.trusts_messages,
        hub=hub,
        fit=ModelFit(open_memory_questions, hub, config.memory),
        checks_fit=config.checks_fit,
    )
    link = BalancerLink(
        config.management_host,
        config.management_port,
        config.name,
        status,
        models,
        requests,
        token_file=config.token_file,
    )

    def offer_nothing() -> None:
        status.set(is_leaving=True)
        requests.cache.leave()

    return AgentParts(
        name=config.name or link.id,
        model=models,
        link=link,
        run_cache=partial(requests.cache.run, models),
        open_requests=partial(requests.open, models=models),
        offer_nothing=offer_nothing,
        drain_timeout_s=config.drain_timeout_s,
    )

"""The parts of an agent, made from its configuration and wired together; nothing runs yet."""

from __future__ import annotations

import attrs

from paddler_trio.agent.balancer_link import BalancerLink
from paddler_trio.agent.engine_keeper import SuperviseEngine
from paddler_trio.agent.llama_log import route_llama_log
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.requests import AgentRequests
from paddler_trio.agent.status import AgentStatus
from paddler_trio.config import AgentConfig


@attrs.frozen(eq=False)
class AgentParts:
    """What the tree gives tasks to."""

    status: AgentStatus
    requests: AgentRequests
    models: ModelServer
    link: BalancerLink

    @classmethod
    def assemble(cls, config: AgentConfig, supervise_engine: SuperviseEngine) -> AgentParts:
        """Call it inside the trio run."""
        route_llama_log()
        status = AgentStatus(config.slots)
        requests = AgentRequests(status)
        models = ModelServer(
            status,
            threads=config.threads,
            settings=config.engine,
            drain_s=config.drain_timeout_s,
            supervise=supervise_engine,
            on_step=requests.on_step,
            on_engine_gone=requests.on_engine_gone,
            trusts_messages=config.trusts_messages,
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
        return cls(status, requests, models, link)

"""An agent: its parts made from its configuration and wired together, its tree run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Protocol, TypeAlias

import attrs
import trio

from paddler_trio.agent.assembly.instances import Instances
from paddler_trio.agent.assembly.machine_watch import MachineWatch
from paddler_trio.agent.assembly.upstream_agent import upstream_agent_parts
from paddler_trio.agent.link.agent_folder import in_use
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink, new_agent_id
from paddler_trio.agent.link.credential_rotation import CredentialRotation
from paddler_trio.agent.model.disk_space import DiskSpace
from paddler_trio.agent.model.memory_in_use import MemoryInUse
from paddler_trio.agent.model.model_fit import ModelFit
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.requests.instance_measures import InstanceMeasures
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.errors import ConfigurationError, EngineError, PreparationError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.memory.memory_correction import KnownNeeds
from paddler_trio.models.memory.memory_prediction import open_memory_questions
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.nursery_tree.agent_tree import AgentParts, run_agent
from paddler_trio.nursery_tree.instance_tree import InstanceParts
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.system.logs.log_ring import keep_lines
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.system.machine import available_memory_bytes
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.supervise import keep
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.telemetry.otlp_exporter import open_exporter
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT, InstanceWanted, Placement


class MetricsPort(Protocol):
    """Shows the metrics until cancelled."""

    async def run(self) -> None: ...


OpenMetrics: TypeAlias = Callable[[InstanceMeasures, DiskSpace], MetricsPort]


async def serve_agent(
    config: AgentConfig,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Assemble an agent and run its tree; see :func:`run_agent`.

    Raises:
      ConfigurationError: before anything runs; the port for metrics cannot be had.
    """
    open_metrics = None
    keep_lines()
    if config.metrics_addr is not None:
        # an HTTP server, which takes 7 MiB and a third of a second: most agents do without
        from paddler_trio.agent.assembly.agent_metrics_port import (
            AgentMetricsPort,
            bind_metrics,
            tls_of,
        )

        tls = tls_of(config)
        open_metrics = partial(AgentMetricsPort, bind_metrics(config.metrics_addr), tls=tls)
    elif config.metrics_tls_cert or config.metrics_tls_key or config.metrics_tls_client_ca:
        raise ConfigurationError("--metrics-tls-* needs the port: give --metrics-addr HOST:PORT")
    lock = nullcontext() if config.credential_file is None else in_use(config.credential_file)
    with lock:
        if config.upstream is None:
            parts = partial(agent_parts, config, open_metrics)
        else:
            parts = partial(upstream_agent_parts, config, config.upstream)
        await run_agent(parts, stop, notifier=notifier, task_status=task_status)


def agent_parts(config: AgentConfig, open_metrics: OpenMetrics | None = None) -> AgentParts:
    """Call it inside the trio run; ``open_metrics`` makes the port for metrics, if there is one."""
    host = _Host(config)
    instances = Instances(host.instance_parts)

    def first_placement() -> Placement | None:
        if not (config.labels or instances.deployments):
            return None
        return Placement(
            host=host.id,
            deployment=DEFAULT_DEPLOYMENT,
            labels=config.labels,
            instances=instances.deployments,
        )

    first = host.parts(
        AgentStatus(config.slots),
        link_id=host.id,
        name=config.name,
        deployment=DEFAULT_DEPLOYMENT,
        placement=first_placement,
        instances=instances,
    )
    return AgentParts(
        first,
        instances.run,
        host.services(open_metrics, instances),
        host.lag,
        lambda: sum(each.requests_running for each in host.statuses.values()),
    )


@attrs.define(eq=False)
class _Host:
    """The things that all instances of one agent share.

    Args:
      id: of its first link.
    """

    config: AgentConfig
    id: str = attrs.field(factory=new_agent_id, init=False)
    spans: SpanExport | None = attrs.field(default=None, init=False)
    """Takes the spans of the requests of all instances."""
    statuses: dict[str, AgentStatus] = attrs.field(factory=dict, init=False)
    """The status of the newest instance of each deployment."""
    _hub: HubSettings = attrs.field(init=False)
    _fit: ModelFit = attrs.field(init=False)
    """One dry run at a time."""
    lag: LoopLag = attrs.field(factory=LoopLag, init=False)
    _disk: DiskSpace = attrs.field(init=False)
    _measures: InstanceMeasures = attrs.field(init=False)
    _memory: MemoryInUse = attrs.field(factory=MemoryInUse, init=False)
    _machine: MachineWatch = attrs.field(factory=MachineWatch, init=False)

    def __attrs_post_init__(self) -> None:
        """Raise ConfigurationError for a bad endpoint of traces, or without OpenTelemetry."""
        if (endpoint := self.config.otlp_endpoint) is not None:
            instance = self.config.name or self.id
            self.spans = SpanExport(
                open_exporter(endpoint, service="paddler-trio-agent", instance=instance)
            )
        self._hub = HubSettings.from_environment(token_file=self.config.hf_token_file)
        self._disk = disk = DiskSpace(self._hub.cache)
        self._measures = InstanceMeasures(self.lag, lambda: disk.free_bytes)
        ask = partial(open_memory_questions, known=KnownNeeds(available_memory_bytes))
        self._fit = ModelFit(ask, self._hub, self.config.memory)

    def services(
        self, open_metrics: OpenMetrics | None, instances: Instances[InstanceWanted]
    ) -> dict[str, Run]:
        """Return what runs beside the instances, by the names of the tasks."""
        services: dict[str, Run] = {"machine": self._machine.keep_looking}
        if self.spans is not None:
            services["span export"] = self.spans.run
        if open_metrics is not None:
            self._measures.deployments = lambda: (DEFAULT_DEPLOYMENT, *instances.deployments)
            services["metrics"] = open_metrics(self._measures, self._disk).run
        return services

    def _rotation(self) -> CredentialRotation | None:
        file = self.config.credential_file
        return None if file is None else CredentialRotation(file)

    def instance_parts(self, wanted: InstanceWanted) -> InstanceParts:
        """Return the parts of a deployment beside the first link's."""
        name = f"{self.config.name or self.id}.{wanted.deployment}"
        placement = Placement(host=self.id, deployment=wanted.deployment, labels=self.config.labels)
        return self.parts(
            AgentStatus(wanted.slots or self.config.slots),
            link_id=f"{self.id}.{wanted.deployment}",
            name=name,
            deployment=wanted.deployment,
            placement=lambda: placement,
            instances=None,
        )

    def parts(
        self,
        status: AgentStatus,
        *,
        link_id: str,
        name: str | None,
        deployment: str,
        placement: Callable[[], Placement | None],
        instances: Instances[InstanceWanted] | None,
    ) -> InstanceParts:
        """Return the parts of one instance; only the first link hears which ``instances`` there
        shall be."""
        config = self.config
        requests = AgentRequests(status, name or link_id, self.spans)
        models = self._models(status, requests)
        link = BalancerLink(
            BalancerAddress(config.management_host, config.management_port, config.has_tls),
            name,
            status,
            models,
            requests,
            token_file=config.secret_file,
            tls=ClientTls(
                config.tls_ca,
                config.tls_fingerprint,
                config.tls_client_cert,
                config.tls_client_key,
            ),
            id=link_id,
            placement=placement,
            machine=lambda: None if instances is None else self._machine.facts,
            on_instances=None if instances is None else instances.want,
            rotation=None if instances is None else self._rotation(),
        )

        self._measures.add(deployment, status, link)
        self.statuses[deployment] = status

        def offer_nothing() -> None:
            status.set(is_leaving=True)
            requests.cache.leave()

        return InstanceParts(
            name=name or link_id,
            services={"model": models.run, "model cache": partial(requests.cache.run, models)},
            link=link,
            open_requests=partial(requests.open, models=models),
            offer_nothing=offer_nothing,
            drain_timeout_s=config.drain_timeout_s,
        )

    def _models(self, status: AgentStatus, requests: AgentRequests) -> ModelServer:
        config = self.config
        return ModelServer(
            status,
            threads=config.threads,
            settings=config.engine,
            drain_s=config.drain_timeout_s,
            supervise=partial(keep, "engine", EngineError),
            supervise_preparation=partial(keep, "preparation", PreparationError),
            on_step=requests.on_step,
            on_engine_gone=requests.on_engine_gone,
            trusts_messages=config.trusts_messages,
            hub=self._hub,
            fit=self._fit,
            checks_fit=config.checks_fit,
            loads_beside=config.loads_beside,
            memory=self._memory,
        )

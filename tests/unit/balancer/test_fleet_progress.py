"""What is shown of a deployment follows from what its agents report."""

from __future__ import annotations

import attrs
import pytest
import trio

from paddler_trio.balancer.assembly.balancer_core import MAX_DESIRED_BYTES, desired_models
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import PADDLER, TRIO, AgentKind
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, LocalToAgent, NoModel
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec
from paddler_trio.wire.trio.replica_range import ReplicaRange
from paddler_trio.wire.trio.trio_link import Report

MODEL = LocalToAgent("/m.gguf")
SPEC = DeploymentSpec(name=DEFAULT, model=MODEL)
CODER = DeploymentSpec(name="coder", model=MODEL, replicas=ReplicaRange(2, 2))
STATUS = SlotAggregatedStatusSnapshot(
    desired_slots_total=1,
    download_current=0,
    download_filename=None,
    download_indeterminate=False,
    download_total=0,
    issues=(),
    model_path=None,
    slots_processing=0,
    slots_total=1,
    state_application_status=AgentStateApplicationStatus.APPLIED,
    uses_chat_template_override=False,
    version=1,
)


@attrs.define
class Fleet:
    """A dispatcher with agents that report what a test says."""

    dispatcher: Dispatcher = attrs.field(
        factory=lambda: Dispatcher(DispatchLimits(max_buffered=1)), init=False
    )

    def __attrs_post_init__(self) -> None:
        self.dispatcher.set_deployments([PoolSettings(name=DEFAULT), PoolSettings(name="coder")])

    def join(
        self,
        host: str,
        deployment: str = DEFAULT,
        *,
        served: str | None = None,
        phase: str = "serving",
        kind: AgentKind = TRIO,
        **labels: str,
    ) -> None:
        sending, _ = trio.open_memory_channel[bytes](100)
        agent = AgentConnection(
            key=AgentKey(len(self.dispatcher.agents) + 1),
            id=host if deployment == DEFAULT else f"{host}.{deployment}",
            name=f"{host} by name",
            kind=kind,
            status=STATUS,
            scope=trio.CancelScope(),
            outgoing=sending,
            health=self.dispatcher.health,
            deployment=deployment,
            host=host,
            labels=labels,
        )
        if kind.reports_state:
            agent.report = Report(
                phase=phase,
                detail=None,
                wanted_state=served,
                served_state=served,
                model=None,
                progress=None,
            )
        self.dispatcher.join(agent)

    def shown(self, spec: DeploymentSpec) -> tuple[object, object, object]:
        (found,) = AgentsProgress(self.dispatcher).progress([spec])
        replicas = found["replicas"]
        assert isinstance(replicas, dict)
        assert found["rollout"] is None
        return found["phase"], replicas["wanted"], replicas["serving"]


async def test_a_deployment_serves_when_as_many_as_are_wanted_do() -> None:
    fleet = Fleet()
    assert fleet.shown(CODER) == ("waiting", 2, 0)
    fleet.join("a")
    fleet.join("a", "coder", phase="loading")
    assert fleet.shown(CODER) == ("loading", 2, 0)
    fleet.join("b", "coder", served=CODER.digest)
    assert fleet.shown(CODER) == ("updating", 2, 1)
    fleet.join("c", "coder", served=CODER.digest)
    fleet.join("d", "coder", served="another one")
    assert fleet.shown(CODER) == ("serving", 2, 2)


async def test_a_failure_shows_where_none_serves() -> None:
    fleet = Fleet()
    fleet.join("a", "coder", phase="failed")
    fleet.join("b", "coder", phase="loading")
    assert fleet.shown(CODER) == ("failed", 2, 0)


async def test_all_means_the_agents_that_it_may_run_on() -> None:
    fleet = Fleet()
    fleet.join("a", served=SPEC.digest, gpu="yes", site="attic")
    fleet.join("b", gpu="yes")
    fleet.join("b", "coder", gpu="yes")
    fleet.join("c", gpu="no")
    fleet.join("p", kind=PADDLER)
    assert fleet.shown(SPEC) == ("updating", 4, 2)
    everywhere = attrs.evolve(CODER, replicas=SPEC.replicas)
    assert fleet.shown(everywhere) == ("loading", 3, 0), "Paddler's agents serve default alone"
    for where, wanted in (
        (("gpu=yes",), 2),
        (("gpu=yes", "site=attic"), 1),
        (("agent=b",), 1),
        (("agent=b by name", "gpu=yes"), 1),
        (("agent=z",), 0),
    ):
        assert fleet.shown(attrs.evolve(SPEC, where=where))[1] == wanted


async def test_nothing_is_wanted_of_no_model_and_of_what_is_loaded_on_demand() -> None:
    fleet = Fleet()
    fleet.join("a")
    assert fleet.shown(attrs.evolve(SPEC, model=NoModel()))[0] == "empty"
    on_demand = attrs.evolve(CODER, replicas=ReplicaRange(0, 2))
    assert fleet.shown(on_demand) == ("unloaded", 0, 0)


@pytest.mark.parametrize("letter", ["x", "\n"])
def test_as_many_models_are_told_to_the_store_as_a_message_holds(letter: str) -> None:
    models = [
        HuggingFaceModel(filename=letter * 10_000, repo_id="org/repo", revision=str(number))
        for number in range(64)
    ]
    told = desired_models([MODEL, *models])
    assert 0 < len(told) < len(models)
    assert sum(map(len, told)) <= MAX_DESIRED_BYTES
    assert len(desired_models(models[:2])) == 2

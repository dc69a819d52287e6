"""Decide what hosts are asked, and when: would a model fit, and would they go on serving while they
load.

Their answers become part of what is known of them (``host_knowledge.py``), and so of the next plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_diff import change_between
from paddler_trio.balancer.fleet.host_knowledge import Bytes, Digest, HostKnowledge
from paddler_trio.balancer.fleet.placed_hosts import PlacedHosts
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_values import Change, Rollout, RolloutPhase
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.fit_messages import FitQuestion
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec

UNDER_WAY: Final = frozenset(
    {
        RolloutPhase.CANARY,
        RolloutPhase.ROLLING,
        RolloutPhase.ROLLING_BACK,
        RolloutPhase.ABORTED,
    }
)
"""Phases of a rollout in which a host may have its turn. Files are on their disks by then, so no
question waits for headers from a slow source."""
LOADED: Final = frozenset({Change.CONTEXT, Change.WEIGHTS})
"""Changes for which an engine is started."""


@attrs.frozen(eq=False)
class HostQuestions:
    """Puts the questions that are due; ``knowledge`` keeps what was asked and answered."""

    hosts: PlacedHosts
    knowledge: HostKnowledge

    def ask_fits(self, wanted: Mapping[Digest, DeploymentSpec]) -> None:
        """Ask hosts that were not asked yet which of these states fit, each one at a time."""
        if not wanted:
            return
        for host in self.hosts.in_order():
            agent = host.first
            if agent is None or not agent.kind.answers_questions:
                continue
            for digest in self.knowledge.fit_questions(host.id, wanted)[:1]:
                spec = wanted[digest]
                others = sum_of(held for name, held in host.held.items() if name != DEFAULT)
                self.knowledge.ask_fit(agent, digest, question_of(spec), others=others)

    def ask_beside(
        self,
        rollouts: Mapping[str, Rollout],
        known: Mapping[tuple[str, str], DeploymentSpec],
    ) -> float | None:
        """Ask hosts that wait for their turn whether they would go on serving in it: one that would
        takes no slots away. Call it when a plan is carried out.

        Returns:
          When to call it again though nothing changed; None for never.
        """
        aims = {
            name: known[name, aim_of(rollout)]
            for name, rollout in rollouts.items()
            if rollout.phase in UNDER_WAY and (name, aim_of(rollout)) in known
        }
        if not aims:
            return None
        again_s: list[float] = []
        loads: dict[tuple[str, str | None], bool] = {}  # hosts are many, states are few
        for host in self.hosts.known.values():
            known_host = self.knowledge.of(host.id)
            for name, placed in host.instances.items():
                aim, agent = aims.get(name), placed.agent
                if aim is None or agent is None or Feature.BESIDE not in agent.features:
                    continue
                if not placed.waits_for(aim.digest, slots=aim.slots):
                    continue
                if (way := (name, agent.revision)) not in loads:
                    served = known.get((name, agent.revision or ""))
                    loads[way] = served is None or change_between(served, aim) in LOADED
                if not loads[way]:
                    continue
                at_s = known_host.asks_beside_s(name, aim.digest)
                if at_s is None:
                    continue
                if at_s <= trio.current_time():
                    self.knowledge.ask_beside(agent, name, aim.digest, question_of(aim))
                else:
                    again_s.append(at_s)
        return min(again_s, default=None)


def question_of(spec: DeploymentSpec) -> FitQuestion:
    """Would it fit?"""
    return FitQuestion(state=desired_state(spec), extras=spec.extras, slots=spec.slots)


def fits_to_ask(specs: Iterable[DeploymentSpec]) -> dict[Digest, DeploymentSpec]:
    """Predictions are asked for where several deployments may meet on a host. An agent that has one
    model judges by itself whether it fits."""
    loaded = [spec for spec in specs if not spec.is_empty]
    if len({spec.name for spec in loaded}) < 2:
        return {}
    return {spec.digest: spec for spec in loaded}


def desired_state(spec: DeploymentSpec) -> BalancerDesiredState:
    """Return a deployment in the shape of Paddler's desired state."""
    template = None if spec.template is None else ChatTemplate(spec.template)
    return BalancerDesiredState(
        chat_template_override=template,
        inference_parameters=spec.parameters,
        model=spec.model,
        multimodal_projection=spec.projection,
        use_chat_template_override=template is not None,
    )


def sum_of(sizes: Iterable[Bytes]) -> Bytes:
    """Device by device."""
    total: Counter[str] = Counter()
    for each in sizes:
        total.update(each)
    return total

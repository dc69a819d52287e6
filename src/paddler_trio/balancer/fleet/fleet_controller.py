"""Makes the desired fleet true: looks at everything, asks the planner, carries out its steps.

The planner decides (``scheduler/fleet``), this task acts: it sends states and lists of instances to
agents, lets them fetch files, opens pools for requests, and keeps rollouts where they survive a
crash. It looks again when an agent, a queue or the desired fleet changed, or when the planner asked
for it. A look costs time that requests pay for, so the pause after it is ten times as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper, RevisionConflictError
from paddler_trio.balancer.fleet.fleet_observation import (
    FleetObservation,
    HostQuestions,
    fetched_models,
)
from paddler_trio.balancer.fleet.host_knowledge import HostKnowledge
from paddler_trio.balancer.fleet.placed_hosts import PlacedHost, PlacedHosts
from paddler_trio.balancer.fleet.placed_instance import NOTHING, State
from paddler_trio.balancer.fleet.rollout_facts import (
    fetches_again_s,
    idle_look_s,
    kept_load_s,
    log_phase,
    phases_of,
    pool_settings,
    restored,
    stored,
    targets_of,
    with_fetches_due,
    with_repaired_resumed,
)
from paddler_trio.balancer.fleet.stored_fleet import ROLLOUT, GoodRevision
from paddler_trio.errors import StateDatabaseError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Hold, PoolSettings
from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    Assign,
    FleetView,
    Plan,
    Prefetch,
    Rollout,
    RolloutPhase,
    Step,
    Unload,
)
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState

log = structlog.get_logger("fleet")

SHARE: Final = 0.1
"""Of the event loop's time, at most, for looks."""
SETTLE_S: Final = 5.0
"""How long after the start agents may be on their way back: nothing that serves is given up."""
KEEP_AGAIN_S: Final = 5.0
"""What could not be stored is stored after this time."""
WENT_BACK: Final = frozenset({RolloutPhase.ROLLED_BACK, RolloutPhase.ABORTED})
"""Phases in which what failed is not to be desired any more."""


@attrs.define(eq=False)
class FleetController:
    """See the module docstring.

    Args:
      changed: notified when what is shown of rollouts may differ.
      last: the newest plan.
    """

    keeper: FleetKeeper
    dispatcher: Dispatcher
    hosts: PlacedHosts = attrs.field(init=False)
    knowledge: HostKnowledge = attrs.field(factory=HostKnowledge, init=False)
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict, init=False)
    last: Plan = attrs.field(factory=Plan, init=False)
    view: FleetView | None = attrs.field(default=None, init=False)
    """What the newest plan was made from; without hosts that change nothing in it."""
    changed: Changes = attrs.field(factory=Changes, init=False)
    _look: Changes = attrs.field(factory=Changes, init=False)
    questions: HostQuestions = attrs.field(init=False)
    observation: FleetObservation = attrs.field(init=False)
    _fetched: frozenset[str] = attrs.field(default=frozenset(), init=False)
    """The digests whose files are wanted."""
    _pools: list[PoolSettings] = attrs.field(factory=list, init=False)
    """As they were opened last."""
    _specs: dict[tuple[str, str], DeploymentSpec] = attrs.field(factory=dict, init=False)
    """By deployment and digest."""
    _kept: Mapping[str, Rollout] = attrs.field(factory=dict, init=False)
    """The rollouts as they were stored last."""
    _logged: Mapping[str, tuple[str, RolloutPhase]] = attrs.field(factory=dict, init=False)
    """The phases of which the log has a line."""
    _went_back: dict[str, DeploymentSpec | None] = attrs.field(factory=dict, init=False)
    """By deployment, what failed and may still be desired."""
    _settled_s: float = attrs.field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.hosts = PlacedHosts(self.dispatcher)
        self.questions = HostQuestions(self.hosts, self.knowledge)
        self.observation = FleetObservation(
            self.keeper, self.dispatcher, self.hosts, self.knowledge, self.questions
        )

    def __repr__(self) -> str:
        return f"<FleetController of {len(self.hosts.known)} hosts, {len(self.rollouts)} rollouts>"

    async def run(self) -> None:
        """Look, act, wait for a change; until cancelled."""
        now_s = trio.current_time()
        self.rollouts = {
            name: self._with_known_others(restored(name, kept, now_s))
            for name, kept in self.keeper.rollouts.items()
            if kept.good is None or self.keeper.spec(name, kept.good) is not None
        }
        self._kept, self._logged = self.rollouts, phases_of(self.rollouts)
        self._settled_s = now_s + SETTLE_S if self.keeper.good else now_s
        async with trio.open_nursery() as tasks:
            self.knowledge.open(tasks)
            self.keeper.on_publish = self._published
            for name, changes in (
                ("revisions", self.keeper.changed),
                ("agents", self.dispatcher.fleet_changed),
                ("queues", self.dispatcher.pools_changed),
                ("answers of hosts", self.knowledge.changed),
            ):
                tasks.start_soon(self._look_after, changes, name=f"watch on {name}")
            while True:
                ordinal, began_s = self._look.ordinal, time.perf_counter()
                again_s = self.look()
                took_s = time.perf_counter() - began_s
                if not await self._keep():
                    keep_s = trio.current_time() + KEEP_AGAIN_S
                    again_s = keep_s if again_s is None else min(again_s, keep_s)
                await trio.sleep(took_s / SHARE)
                with trio.move_on_at(math.inf if again_s is None else again_s):
                    await self._look.wait_beyond(ordinal)

    def _with_known_others(self, rollout: Rollout) -> Rollout:
        """A file that was too full has lost what was superseded first."""
        known = (each for each in rollout.others if self.keeper.spec(rollout.deployment, each))
        return attrs.evolve(rollout, others=tuple(known))

    async def _look_after(self, changes: Changes) -> None:
        ordinal = changes.ordinal
        while True:
            ordinal = await changes.wait_beyond(ordinal)
            self._look.notify()

    # ---------------------------------------------------------------- orders

    def replace_rollout(self, rollout: Rollout) -> None:
        """An operator changed it; carried out, and kept, at the next look."""
        self.rollouts = {**self.rollouts, rollout.deployment: rollout}
        self._look.notify()
        self.changed.notify()

    async def abort_rollout(self, rollout: Rollout) -> None:
        """An operator aborted it. What it goes back to is desired when this returns, so whatever is
        desired after that is newer. StateDatabaseError: it goes back, and that is not stored."""
        failed = self.keeper.current.state.find(rollout.deployment)
        self.replace_rollout(rollout)
        await self._desire_good(rollout.deployment, failed)

    def forget_failed_fetches(self, deployment: str) -> None:
        """Files of what is desired may be fetched once more."""
        spec = self.keeper.current.state.find(deployment)
        if spec is not None:
            self.knowledge.forget_failed_fetches(spec.digest)

    # ----------------------------------------------------------------- a look

    def look(self) -> float | None:
        """Plan once and carry out the steps; synchronous, so nothing changes in between.

        Returns:
          When to look again though nothing changed, in Trio's time; None for not at all.
        """
        hosts = self.observation.follow()
        self._remember_specs()
        self._adopt(hosts)
        now_s = trio.current_time()
        seen = self._seen(now_s)
        if unfetched := with_fetches_due(seen):
            self.rollouts = {**self.rollouts, **unfetched}
            for each in unfetched.values():
                self.knowledge.forget_failed_fetches(each.target)
            seen = self._seen(now_s)
        self.view = view = attrs.evolve(
            seen,
            rollouts=with_repaired_resumed(seen),
            last_served_s=self.last.last_served_s,
            load_s=self.keeper.load_s,
        )
        self.last = made = plan(view)
        self._open_pools(made)
        for step in made.steps:
            self._carry_out(step)
        self._empty_default(hosts)
        phases = phases_of(self.rollouts)
        self.rollouts = made.rollouts
        self._end_fetches(targets_of(made.rollouts))
        if made.steps or phases_of(made.rollouts) != phases:
            self._look.notify()  # one step of each host, and of each rollout, at a time
        self.changed.notify()
        times = [
            made.look_again_s,
            self.hosts.forgets_at_s(),
            idle_look_s(view),
            self._drain(hosts),
            self.questions.ask_beside(made.rollouts, self._specs),
            *fetches_again_s(attrs.evolve(view, rollouts=made.rollouts)).values(),
        ]
        if now_s < self._settled_s:
            times.append(self._settled_s)
        return min((each for each in times if each is not None), default=None)

    def _end_fetches(self, wanted: frozenset[str]) -> None:
        """End the fetches of what was wanted, and is no longer."""
        if not self._fetched <= wanted:
            self.knowledge.end_fetches(but=wanted)
        self._fetched = wanted

    def _seen(self, now_s: float) -> FleetView:
        return self.observation.view(
            self.rollouts, self._specs, is_settling=now_s < self._settled_s
        )

    def _published(self) -> None:
        """Another revision is in force: no request meets an agent before that has heard of it."""
        self.look()
        in_use = {digest for _, digest in self._specs}
        self.knowledge.forget_states(but=in_use | self.keeper.kept_digests)
        self._look.notify()

    def _adopt(self, hosts: Iterable[PlacedHost]) -> None:
        """Adopt what an agent was sent by the balancer before this one: it is on the way to
        that."""
        for host in hosts:
            for placed in host.instances.values():
                wanted = placed.found_state
                spec = None if wanted is None else self.keeper.spec(placed.deployment, wanted)
                if spec is not None:
                    placed.assign(State.of(spec.agent_state, spec.extras, spec.slots))

    def _drain(self, hosts: Iterable[PlacedHost]) -> float | None:
        """See to the drain deadlines; when the next one passes."""
        deadlines = (
            placed.drain_by(spec.rollout.drain_deadline_s)
            for spec in self.keeper.current.state.deployments
            for host in hosts
            for placed in [host.instances.get(spec.name)]
            if placed is not None
        )
        return min((each for each in deadlines if each is not None), default=None)

    def _empty_default(self, hosts: Iterable[PlacedHost]) -> None:
        """Agents are sent that ``default`` has no model, since Paddler's agents want to know."""
        spec = self.keeper.current.state.find(DEFAULT)
        if spec is not None and not spec.is_empty:
            return
        nothing = NOTHING if spec is None else State.of(spec.agent_state, spec.extras)
        for host in hosts:
            placed = host.instances.get(DEFAULT)
            if placed is not None and placed.sent_nothing != nothing.digest:
                host.unload(DEFAULT, nothing)

    def _open_pools(self, made: Plan) -> None:
        specs = self.keeper.current.state.deployments
        settings = pool_settings(specs, made)
        if settings != self._pools:
            self._pools = settings
            self.dispatcher.set_deployments(settings)
        for spec in specs:
            expected = made.expected.get(spec.name)
            hold = None if expected is None else Hold(expected.reason, expected.ready_s)
            self.dispatcher.hold(spec.name, hold)

    def _carry_out(self, step: Step) -> None:
        host = self.hosts.known[step.host]
        log.info(
            "fleet step",
            step=type(step).__name__.lower(),
            agent=host.label,
            deployment=step.deployment,
            digest="" if isinstance(step, Unload) else step.digest[:12],
        )
        match step:
            case Unload(deployment=deployment):
                host.unload(deployment)
            case Assign(deployment=deployment, digest=digest):
                spec = self._specs[deployment, digest]
                host.assign(deployment, State.of(spec.agent_state, spec.extras, spec.slots))
            case Prefetch(deployment=deployment, digest=digest):
                spec = self._specs[deployment, digest]
                self.knowledge.prefetch(host.connections[0], digest, fetched_models(spec))

    def _remember_specs(self) -> None:
        """Remember those that a plan may name: what is desired, and what rollouts come from and go
        to. Many revisions in the middle of a rollout drop the older ones from the history."""
        wanted = {(spec.name, spec.digest): spec for spec in self.keeper.current.state.deployments}
        for name, rollout in self.rollouts.items():
            for digest in (rollout.good, rollout.target, *rollout.others):
                if digest is None or (name, digest) in wanted:
                    continue
                spec = self._specs.get((name, digest)) or self.keeper.spec(name, digest)
                if spec is not None:
                    wanted[name, digest] = spec
        self._specs = wanted

    # ------------------------------------------------------------ what is kept

    async def _keep(self) -> bool:
        """Store what a restart goes on with; a state that failed is not desired any more.

        That comes after the steps: a balancer that dies in between finds agents that serve the
        target, and goes on from there.

        Returns:
          False if it could not be stored: it is to be tried again.
        """
        before, self._kept = self._kept, self.rollouts
        load_s = kept_load_s(self.keeper.load_s, self.view)
        if self._kept == before and load_s == self.keeper.load_s:
            return True
        rollouts, good = dict(self.rollouts), dict(self.keeper.good)
        failed = self.keeper.current.state.by_name
        logged, self._logged = self._logged, phases_of(rollouts)
        for name, phase in self._logged.items():
            rollout = rollouts[name]
            if logged.get(name) != phase:
                log_phase(rollout)
            if phases_of(before).get(name) == phase:
                continue
            if rollout.phase not in WENT_BACK:
                self._went_back.pop(name, None)
            if rollout.phase is RolloutPhase.COMPLETE and rollout.good is not None:
                revision = self.keeper.revision_of(name, rollout.good)
                good[name] = GoodRevision(
                    revision=self.keeper.current.revision if revision is None else revision,
                    spec=self._specs[name, rollout.good],
                )
            elif rollout.phase in WENT_BACK:
                self._went_back.setdefault(name, failed.get(name))
        now_s = trio.current_time()
        try:
            await self.keeper.store_rollouts(
                {name: stored(each, now_s) for name, each in rollouts.items()},
                good=good,
                load_s=load_s,
            )
            for name in tuple(self._went_back):
                await self._desire_good(name, self._went_back[name])
                self._went_back.pop(name, None)
        except StateDatabaseError as error:
            # the fleet is as it is; after a restart it would begin at what is stored
            log.error("the rollout could not be stored", reason=str(error))
            self._kept = before
            return False
        return True

    async def _desire_good(self, name: str, failed: DeploymentSpec | None) -> None:
        """Desire what was gone back to, as a revision of its own, unless something else than
        ``failed`` is desired by then. StateDatabaseError."""
        while True:
            rollout, current = self.rollouts.get(name), self.keeper.current
            if rollout is None or rollout.good is None:
                return  # the deployment is gone meanwhile
            spec, good = current.state.find(name), self._specs.get((name, rollout.good))
            if spec is None or good is None or spec.digest != rollout.target:
                return
            if spec is not failed:  # the same weights, asked for anew: that is another rollout
                settled = attrs.evolve(rollout, is_settled=True)
                self.rollouts = {**self.rollouts, name: settled}
                self._look.notify()
                return
            others = current.state.deployments
            try:
                await self.keeper.apply(
                    FleetState(tuple(good if each is spec else each for each in others)),
                    author=ROLLOUT,
                    note=f"{name} rolled back: {rollout.reason or rollout.phase.value}",
                    expected_revision=current.revision,
                )
            except RevisionConflictError as error:
                if self.keeper.current is not current:
                    continue
                log.error("what was gone back to cannot be desired", reason=str(error))
            return

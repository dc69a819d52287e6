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
from paddler_trio.balancer.fleet.fleet_observation import FleetObservation, fetched_models
from paddler_trio.balancer.fleet.host_knowledge import HostKnowledge
from paddler_trio.balancer.fleet.host_questions import HostQuestions
from paddler_trio.balancer.fleet.placed_hosts import NOTHING, PlacedHost, PlacedHosts, State
from paddler_trio.balancer.fleet.rollout_store import restored, stored
from paddler_trio.balancer.fleet.stored_fleet import MAX_LOAD_MS, PAUSED_BY, ROLLOUT, GoodRevision
from paddler_trio.errors import StateDatabaseError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Hold, PoolSettings
from paddler_trio.scheduler.fleet.admissible import aim_of
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
from paddler_trio.scheduler.fleet.rollout_orders import GOING_ON, resumed
from paddler_trio.scheduler.fleet.rollout_phases import fetch_again_s
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState

log = structlog.get_logger("fleet")

SHARE: Final = 0.1
"""Of the event loop's time, at most, for looks."""
SETTLE_S: Final = 5.0
"""How long after the start agents may be on their way back: nothing that serves is given up."""
"""Begins the reason of a rollout that an operator paused."""
IDLE_LOOKS: Final = 10
"""In the time after which something idle is unloaded."""
LEAST_IDLE_PAUSE_S: Final = 1.0
KEEP_AGAIN_S: Final = 5.0
"""What could not be stored is stored after this time."""
UNCHANGED_PLAN: Final = Plan()
NOTABLE: Final = 0.25
"""A load time that differs by more than this part of it is another one."""
MOVING: Final = frozenset(
    {RolloutPhase.CANARY, RolloutPhase.ROLLING, RolloutPhase.ROLLING_BACK, RolloutPhase.ABORTED}
)
"""Phases in which hosts go over."""
FAILING: Final = frozenset(
    {RolloutPhase.PAUSED, RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK}
)
"""Phases that nobody ordered: somebody is to know of them."""
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
    last: Plan = attrs.field(default=UNCHANGED_PLAN, init=False)
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
        """Of what was wanted, and is no longer."""
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
        kept = {digest for _, digest in self._specs} | self.keeper.kept_digests
        self.knowledge.forget_states(but=kept)
        self._look.notify()

    def _adopt(self, hosts: Iterable[PlacedHost]) -> None:
        """What an agent was sent by the balancer before this one is what it is on the way to."""
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
        settings = [
            PoolSettings(
                name=spec.name,
                aliases=spec.aliases,
                admissible=made.admissible.get(spec.name, frozenset({spec.digest})),
                coming=coming_of(made.rollouts.get(spec.name)),
                empty=spec.is_empty,
            )
            for spec in specs
        ]
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
                spec = self._spec(deployment, digest)
                host.assign(deployment, State.of(spec.agent_state, spec.extras, spec.slots))
            case Prefetch(deployment=deployment, digest=digest):
                spec = self._spec(deployment, digest)
                self.knowledge.prefetch(host.connections[0], digest, fetched_models(spec))

    def _spec(self, deployment: str, digest: str) -> DeploymentSpec:
        return self._specs[deployment, digest]

    def _remember_specs(self) -> None:
        """Those that a plan may name: what is desired, and what rollouts come from and go to. Many
        revisions in the middle of a rollout drop the older ones from the history."""
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
                self._log(rollout)
            if phases_of(before).get(name) == phase:
                continue
            if rollout.phase not in WENT_BACK:
                self._went_back.pop(name, None)
            if rollout.phase is RolloutPhase.COMPLETE and rollout.good is not None:
                revision = self.keeper.revision_of(name, rollout.good)
                good[name] = GoodRevision(
                    revision=self.keeper.current.revision if revision is None else revision,
                    spec=self._spec(name, rollout.good),
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
        """What was gone back to is what is desired now, as a revision of its own, unless something
        else than ``failed`` is desired by then. StateDatabaseError."""
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

    def _log(self, rollout: Rollout) -> None:
        has_failed = rollout.phase in FAILING and not is_ordered(rollout)
        (log.warning if has_failed else log.info)(
            "rollout",
            deployment=rollout.deployment,
            phase=rollout.phase.value,
            target=rollout.target[:12],
            reason=rollout.reason,
        )


def is_ordered(rollout: Rollout) -> bool:
    """An operator paused it."""
    return (rollout.reason or "").startswith(PAUSED_BY)


def kept_load_s(kept: Mapping[str, float], view: FleetView | None) -> Mapping[str, float]:
    """What loads took, by digest, with what hosts measured of goals since. A file is not written
    for a few hundredths: a figure is replaced by one that differs by more than a quarter."""
    if view is None:
        return kept
    measured = dict(kept)
    for goal in view.goals:
        found = [h.load_s[goal.target] for h in view.hosts if goal.target in h.load_s]
        if not found:
            continue
        shortest_s = round(min(*found, MAX_LOAD_MS / 1000), 3)
        before_s = measured.get(goal.target)
        if before_s is None or abs(shortest_s - before_s) > NOTABLE * before_s:
            measured[goal.target] = shortest_s
    return measured


def coming_of(rollout: Rollout | None) -> str | None:
    """The digest that more and more hosts are to serve, while a rollout moves."""
    if rollout is None or rollout.phase not in MOVING:
        return None
    return aim_of(rollout)


def with_repaired_resumed(view: FleetView) -> Mapping[str, Rollout]:
    """A rollout that paused by itself goes on when all agents that failed serve after all: agents
    try again by themselves, so a file that was missing only needs to appear."""
    rollouts = dict(view.rollouts)
    for name, rollout in view.rollouts.items():
        if rollout.phase is not RolloutPhase.PAUSED or is_ordered(rollout):
            continue
        placed = (host.instances.get(name) for host in view.hosts)
        sent = [each for each in placed if each and each.assigned == rollout.target]
        if sent and all(each.serving == rollout.target for each in sent):
            rollouts[name] = resumed(rollout, now_s=view.now_s) or rollout
    return rollouts


def fetches_again_s(view: FleetView) -> Mapping[str, float]:
    """By deployment, when a rollout that paused by itself asks for its files again."""
    goals = {goal.deployment: goal for goal in view.goals}
    times_s = {
        name: fetch_again_s(rollout, goals[name], view.hosts)
        for name, rollout in view.rollouts.items()
        if name in goals and not is_ordered(rollout)
    }
    return {name: time_s for name, time_s in times_s.items() if time_s is not None}


def with_fetches_due(view: FleetView) -> Mapping[str, Rollout]:
    """Those rollouts that ask for their files again now."""
    due = {name for name, time_s in fetches_again_s(view).items() if view.now_s >= time_s}
    again = {name: resumed(view.rollouts[name], now_s=view.now_s) for name in due}
    return {name: rollout for name, rollout in again.items() if rollout is not None}


def targets_of(rollouts: Mapping[str, Rollout]) -> frozenset[str]:
    """The digests whose files are wanted."""
    return frozenset(each.target for each in rollouts.values() if each.phase in GOING_ON)


def phases_of(rollouts: Mapping[str, Rollout]) -> dict[str, tuple[str, RolloutPhase]]:
    """What changes a few times in a rollout, and not with each report of an agent."""
    return {name: (each.target, each.phase) for name, each in rollouts.items()}


def idle_look_s(view: FleetView) -> float | None:
    """When to look whether a deployment that is unloaded when it is idle has become so: requests
    that end are no change of the fleet."""
    ttls_s = {
        goal.deployment: goal.idle_ttl_s for goal in view.goals if goal.idle_ttl_s is not None
    }
    pauses_s = [
        max(LEAST_IDLE_PAUSE_S, ttls_s[name] / IDLE_LOOKS)
        for host in view.hosts
        for name in ttls_s.keys() & host.instances.keys()
    ]
    return view.now_s + min(pauses_s) if pauses_s else None

"""A fleet of small model agents that carry out the steps of plans, in virtual time.

An agent does what ours do: it downloads while the old model serves, loads beside it where the
memory is there, else drains first; it reports a failure and keeps what it serves if the new model
was not even begun. Every delay is drawn by the test; what happens is decided by the digest
(:class:`Model`) and by the events that the test sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    Assign,
    Change,
    FleetView,
    Goal,
    Host,
    Instance,
    Plan,
    Prefetch,
    Queue,
    Rollout,
    Unload,
)


@attrs.frozen(kw_only=True)
class Model:
    """What is behind a digest."""

    gib: int = 1
    fetches: bool = False
    cannot_fetch: bool = False
    cannot_load: bool = False
    crashes: bool = False
    hangs: bool = False
    weights: str = "w"

    @property
    def is_good(self) -> bool:
        return not (self.cannot_fetch or self.cannot_load or self.crashes or self.hangs)


@attrs.define(kw_only=True)
class Engine:
    """One instance: what it was told, what it serves, and what it is about to do at ``due_s``."""

    deployment: str
    slots: int = 4
    assigned: str | None = None
    serving: str | None = None
    phase: str = "waiting"
    problem: str | None = None
    busy: int = 0
    assigned_s: float = 0.0
    served_s: float | None = None
    idle_s: float | None = None
    crashes: int = 0
    is_beside: bool = False
    is_unloading: bool = False
    due_s: float | None = None


@attrs.define(kw_only=True)
class Agent:
    """One host; it stays in the model while it is away."""

    id: str
    labels: dict[str, str] = attrs.field(factory=dict)
    is_ours: bool = True
    is_drained: bool = False
    is_away: bool = False
    gib: int = 4
    on_disk: set[str] = attrs.field(factory=set)
    fetching: dict[str, float] = attrs.field(factory=dict)
    fetch_failed: dict[str, str] = attrs.field(factory=dict)
    engines: dict[str, Engine] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Fleet:
    """The world of one test.

    Args:
      delay_s: drawn for each download, drain and load.
    """

    models: dict[str, Model]
    delay_s: Callable[[], float]
    goals: dict[str, Goal] = attrs.field(factory=dict)
    agents: dict[str, Agent] = attrs.field(factory=dict)
    queues: dict[str, Queue] = attrs.field(factory=dict)
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict)
    now_s: float = 1000.0
    is_settling: bool = False
    load_s: dict[str, float] = attrs.field(factory=dict)
    last: Plan = attrs.field(factory=Plan)

    def view(self) -> FleetView:
        return FleetView(
            now_s=self.now_s,
            goals=tuple(self._goal(goal) for goal in self.goals.values()),
            hosts=tuple(self._host(a) for a in self.agents.values() if not a.is_away),
            queues=self.queues,
            rollouts=self.rollouts,
            last_served_s=self.last.last_served_s,
            is_settling=self.is_settling,
        )

    def _goal(self, goal: Goal) -> Goal:
        model = self.models[goal.target]
        rollout = self.rollouts.get(goal.deployment)
        good = None if rollout is None else rollout.good
        same = good in self.models and self.models[good].weights == model.weights
        return attrs.evolve(
            goal,
            fetches=model.fetches,
            change=Change.IN_PLACE if same and good != goal.target else Change.WEIGHTS,
            needs=self._needs(goal.target),
            good_needs={} if good is None else self._needs(good),
        )

    def _needs(self, digest: str) -> dict[str, dict[str, int] | None]:
        need = {"host": self.models[digest].gib}
        return {a.id: need if a.is_ours else None for a in self.agents.values()}

    def _host(self, agent: Agent) -> Host:
        return Host(
            id=agent.id,
            name=agent.id,
            labels=agent.labels,
            is_ours=agent.is_ours,
            is_drained=agent.is_drained,
            memory={"host": agent.gib} if agent.is_ours else {},
            held={
                e.deployment: {"host": held}
                for e in agent.engines.values()
                if (held := self.gib_of(e)) and agent.is_ours
            },
            on_disk=frozenset(agent.on_disk),
            fetching=frozenset(agent.fetching),
            fetch_failed=dict(agent.fetch_failed),
            load_s=self.load_s,
            instances={e.deployment: self._instance(agent, e) for e in agent.engines.values()},
        )

    def _instance(self, agent: Agent, engine: Engine) -> Instance:
        goal = self.goals.get(engine.deployment)
        can = None
        if goal is not None and agent.is_ours and engine.serving is not None:
            needed = self.models[goal.target].gib
            can = engine.is_beside or self.free_gib(agent) >= needed
        return Instance(
            deployment=engine.deployment,
            assigned=engine.assigned,
            serving=engine.serving,
            phase=engine.phase,
            problem=engine.problem,
            slots=engine.slots,
            busy=engine.busy,
            assigned_s=engine.assigned_s,
            served_s=engine.served_s,
            idle_s=engine.idle_s,
            crashes=engine.crashes,
            can_load_beside=can,
            is_ours=agent.is_ours,
            is_unloading=engine.is_unloading,
        )

    def gib_of(self, engine: Engine) -> int:
        """What its engines take now: two while one loads beside the other."""
        held = 0 if engine.serving is None else self.models[engine.serving].gib
        loads = engine.phase in ("loading", "probing") and engine.assigned is not None
        if loads and engine.assigned != engine.serving:
            held += self.models[engine.assigned or ""].gib
        return held

    def free_gib(self, agent: Agent) -> int:
        return agent.gib - sum(self.gib_of(e) for e in agent.engines.values())

    def join(self, agent: Agent) -> None:
        agent.engines.setdefault(DEFAULT, Engine(deployment=DEFAULT))
        self.agents[agent.id] = agent

    def plan(self) -> Plan:
        """Plan once, and carry it out."""
        before = self.rollouts
        self.last = plan(self.view())
        self.rollouts = self.last.rollouts
        for name, rollout in self.rollouts.items():
            old = before.get(name)
            if old is None or old.target != rollout.target or old.resumed_s != rollout.resumed_s:
                for agent in self.agents.values():
                    agent.fetch_failed.pop(rollout.target, None)
        for step in self.last.steps:
            self.carry_out(step)
        return self.last

    def carry_out(self, step: Prefetch | Assign | Unload) -> None:
        agent = self.agents[step.host]
        match step:
            case Prefetch(_, _, digest):
                agent.fetching[digest] = self.now_s + self.delay_s()
            case Assign(_, deployment, digest):
                engine = agent.engines.setdefault(deployment, Engine(deployment=deployment))
                self._assign(agent, engine, digest)
            case Unload(_, deployment):
                engine = agent.engines[deployment]
                engine.is_unloading = True
                engine.assigned = None
                engine.is_beside = False
                engine.phase = "draining"
                engine.due_s = self.now_s + (self.delay_s() if engine.busy else 0.0)

    def _assign(self, agent: Agent, engine: Engine, digest: str) -> None:
        engine.assigned, engine.assigned_s, engine.crashes = digest, self.now_s, 0
        engine.problem, engine.is_beside = None, False
        model, served = self.models[digest], self.models.get(engine.serving or "")
        if engine.serving == digest:
            engine.phase, engine.due_s = "serving", None
        elif served is not None and served.weights == model.weights:
            self._serve(engine)
        elif model.fetches and digest not in agent.on_disk and agent.is_ours:
            engine.phase, engine.due_s = "downloading", self.now_s + self.delay_s()
        else:
            self._begin_load(agent, engine)

    def _begin_load(self, agent: Agent, engine: Engine) -> None:
        assert engine.assigned is not None
        model = self.models[engine.assigned]
        free = self.free_gib(agent)
        if engine.serving is not None and agent.is_ours and free >= model.gib:
            engine.is_beside = True
            engine.phase, engine.due_s = "loading", self._loaded_at(model)
        elif engine.serving is not None:
            engine.phase, engine.due_s = "draining", self.now_s + self.delay_s()
        else:
            engine.phase, engine.due_s = "loading", self._loaded_at(model)

    def _loaded_at(self, model: Model) -> float | None:
        return None if model.hangs else self.now_s + self.delay_s()

    def _serve(self, engine: Engine) -> None:
        engine.serving, engine.phase, engine.due_s = engine.assigned, "serving", None
        engine.served_s = self.now_s
        engine.idle_s = None if engine.busy else self.now_s
        engine.is_beside = False

    def advance(self, seconds: float) -> None:
        """Let time pass; whatever is due by then happens in order."""
        end_s = self.now_s + seconds
        while (due := self.next_due_s()) is not None and due <= end_s:
            self.now_s = max(self.now_s, due)
            self._happen()
        self.now_s = end_s

    def next_due_s(self) -> float | None:
        times = [
            e.due_s for a in self.agents.values() for e in a.engines.values() if e.due_s is not None
        ]
        times += [at for a in self.agents.values() for at in a.fetching.values()]
        return min(times, default=None)

    def _happen(self) -> None:
        for agent in self.agents.values():
            for digest, at in list(agent.fetching.items()):
                if at <= self.now_s:
                    del agent.fetching[digest]
                    self._fetched(agent, digest)
            for engine in list(agent.engines.values()):
                if engine.due_s is not None and engine.due_s <= self.now_s:
                    engine.due_s = None
                    self._due(agent, engine)

    def _fetched(self, agent: Agent, digest: str) -> bool:
        if self.models[digest].cannot_fetch:
            agent.fetch_failed[digest] = "404 of the source"
            return False
        agent.on_disk.add(digest)
        return True

    def _due(self, agent: Agent, engine: Engine) -> None:
        if engine.is_unloading:
            if engine.deployment == DEFAULT:
                agent.engines[DEFAULT] = Engine(deployment=DEFAULT, slots=engine.slots)
            else:
                del agent.engines[engine.deployment]
            return
        assert engine.assigned is not None
        model = self.models[engine.assigned]
        if engine.phase == "downloading":
            if self._fetched(agent, engine.assigned):
                self._begin_load(agent, engine)
            else:
                self._fail(engine, "404 of the source")
        elif engine.phase == "draining":
            engine.serving, engine.busy = None, 0
            engine.phase, engine.due_s = "loading", self._loaded_at(model)
        elif model.cannot_load:
            self._fail(engine, "out of memory")
        elif engine.phase == "loading":
            self._serve(engine)
            if model.crashes:
                engine.phase, engine.due_s = "serving", self.now_s + 1.0
        elif model.crashes:
            engine.crashes += 1

    def _fail(self, engine: Engine, problem: str) -> None:
        engine.phase, engine.problem, engine.is_beside = "failed", problem, False

    def lose(self, agent: Agent, *, with_engines: bool) -> None:
        """The connection ends; the engines too, if the process was killed."""
        agent.is_away = True
        agent.fetching.clear()
        for name, engine in list(agent.engines.items()):
            if with_engines or engine.serving is None or engine.is_unloading:
                if name == DEFAULT:
                    agent.engines[name] = Engine(deployment=name, slots=engine.slots)
                else:
                    del agent.engines[name]
            else:
                self._forget(engine)

    def _forget(self, engine: Engine) -> None:
        """A new connection: nothing was assigned on it; what was begun is given up."""
        engine.assigned, engine.phase, engine.due_s = None, "serving", None
        engine.is_beside, engine.problem, engine.crashes = False, None, 0

    def restart_balancer(self) -> None:
        """All links are new; the rollouts come from the state file."""
        for agent in self.agents.values():
            if not agent.is_away:
                self.lose(agent, with_engines=False)
                agent.is_away = False

    def set_busy(self, agent: Agent, deployment: str, busy: int) -> None:
        engine = agent.engines[deployment]
        engine.busy = busy
        engine.idle_s = None if busy else self.now_s

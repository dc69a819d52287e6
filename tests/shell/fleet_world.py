"""A balancer's fleet with everything around it but sockets and engines, on a mock clock.

Dispatcher, pools, connections, keeper, controller and planner are the real ones. Hosts are played:
they read the frames that a real agent would read, take their time to fetch, drain, load and probe,
and answer requests with tokens that name the state that produced them, so a mixture shows.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from dispatch_world import WORK, status_of

from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import FleetDatabase, MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO, Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.fleet.fleet_values import Host, RolloutPhase
from paddler_trio.wire.codec import loads, unstructure
from paddler_trio.wire.paddler.desired_state import InferenceParameters, LocalToAgent, UrlModel
from paddler_trio.wire.paddler.messages import SetState, StopRespondingTo, parse_agent_message
from paddler_trio.wire.trio.cache_commands import CacheProgress, Pull
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.fit_messages import (
    AskFit,
    DeviceFit,
    DeviceMemory,
    DeviceRoom,
    FitReport,
    MemoryInForce,
)
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState, RolloutSpec
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
    TAG,
    Answer,
    Cache,
    Instances,
    Report,
    Start,
    Want,
    parse_extension,
)

TOKEN_S = 0.5
LIMITS = DispatchLimits(max_buffered=1000, buffered_timeout_s=10, item_timeout_s=30)
SLOTS = 4


def spec(
    model: str = "a",
    *,
    name: str = DEFAULT_DEPLOYMENT,
    context: int = 1024,
    temperature: float = 0.5,
    rollout: RolloutSpec | None = None,
    **fields: object,
) -> DeploymentSpec:
    """A deployment; a ``model`` with ``:`` in it is fetched, any other a path."""
    return DeploymentSpec(
        name=name,
        model=UrlModel(model) if ":" in model else LocalToAgent(model),
        parameters=InferenceParameters(context_size=context, temperature=temperature),
        rollout=RolloutSpec(min_ready_s=5) if rollout is None else rollout,
        **fields,  # type: ignore[arg-type]  # whatever a test wants
    )


@attrs.define
class Manners:
    """How a host behaves; by model, ``""`` for all others.

    ``outcomes``: ``serves``, ``missing`` (there is no such file), ``fails`` (in loading),
    ``hangs`` (for ever in loading), ``dies`` (at the first decode), or ``crashes`` (its engine dies
    a moment after it served).
    """

    load_s: float = 3.0
    probe_s: float = 0.0
    fetch_s: float = 2.0
    slots: int = SLOTS
    outcomes: Mapping[str, str] = attrs.field(factory=dict)
    broken_templates: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    """Models that it cannot fetch."""
    is_busy: bool = False
    """Too much to fetch anything now."""
    loads_beside: bool = False
    memory_bytes: int = 100
    model_bytes: int = 30


@attrs.define(eq=False)
class PlayedInstance:
    """One deployment on a played host: its connection and what it serves."""

    host: PlayedHost
    deployment: str
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connection: AgentConnection | None = None
    dispatcher: Dispatcher = attrs.field(init=False)
    """Of the balancer that it is connected to."""
    wanted: Want | None = None
    served: str | None = None
    model: str | None = None
    phase: str = "waiting"
    detail: str | None = None
    _effort: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _answers: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    _answered: dict[str, trio.Event] = attrs.field(factory=dict)
    """Those that the model in force works on."""
    loads: int = 0
    questions: int = 0
    """Whether a model would fit."""

    @property
    def wanted_digest(self) -> str | None:
        return None if self.wanted is None else _digest(self.wanted)

    async def run(self) -> None:
        """Dial, and read what the balancer sends, until the host ends it."""
        with self.scope:
            while True:
                await self.host.world.is_up.wait()
                connection, frames = self.host.world.connect(self)
                self.connection, self.dispatcher = connection, self.host.world.dispatcher
                self.report()
                with connection.scope:
                    async for frame in frames:
                        self.take(frame)
                self.hang_up()
                await trio.sleep(1.0)
        self.hang_up()

    def hang_up(self, *, goodbye: bool = False) -> None:
        """The connection is gone; what was answered over it is stopped."""
        connection, self.connection = self.connection, None
        for scope in self._answers.values():
            scope.cancel()
        self._answers.clear()
        if connection is not None:
            connection.said_goodbye = goodbye
            self.dispatcher.leave(connection)
            connection.close()

    def take(self, frame: bytes) -> None:
        message: object
        if frame.startswith(b'{"Trio":'):
            body = loads(frame)
            assert isinstance(body, dict)
            message = parse_extension(body[TAG])
        else:
            message = parse_agent_message(frame)
        nursery = self.host.nursery
        match message:
            case SetState(state):
                self.follow(Want(state, NO_EXTRAS))
            case Want() as want:
                self.follow(want)
            case Start() as start:
                name = None if self.served is None else self.model
                if name is None:  # it came when the model was being drained
                    self.hand_back(start.id, "no model is loaded")
                elif start.bound not in (None, name, self.served):
                    self.hand_back(start.id, "another model is in force by now")
                else:  # what comes before a newer state is answered before it
                    self._answered[start.id] = trio.Event()
                    nursery.start_soon(self.answer, start.id, list(start.tokens), name)
            case StopRespondingTo(wire_id):
                if wire_id in self._answers:
                    self._answers.pop(wire_id).cancel()
                    self.deliver(wire_id, [], done=True)
            case Instances(instances=instances):
                self.host.reconcile([each.deployment for each in instances])
            case Cache(wire_id, Pull(models=models)):
                nursery.start_soon(self.fetch, wire_id, models)
            case AskFit(id=wire_id, slots=slots, beside=asks_beside):
                slots = slots or self.host.manners.slots
                self.questions += 1
                beside = asks_beside and self.served is not None
                fit = self.host.fit(slots, beside=beside)
                self.reply(Answer(wire_id, fit, None, 200))

    def follow(self, want: Want) -> None:
        if self.wanted_digest == _digest(want):
            return
        self.wanted = want
        self._effort.cancel()
        self._effort = trio.CancelScope()
        self.host.nursery.start_soon(self.load, want, self._effort)

    async def load(self, want: Want, effort: trio.CancelScope) -> None:
        """From a desired state to serving it."""
        manners, digest = self.host.manners, _digest(want)
        with effort:
            name = _name(want)
            if name == "nothing":
                await self.drain()
                self.model = None
                self.report("waiting", served=digest)
                return
            self.report("resolving", served=self.served)
            outcome = manners.outcomes.get(name, manners.outcomes.get("", "serves"))
            template = want.desired_state.chat_template_override
            if template is not None and template.content in manners.broken_templates:
                problem = "the chat template does not compile"
                self.report("failed", served=self.served, detail=problem)
                return
            if name == self.model and self.served is not None:
                self.report("serving", served=digest)  # in place
                return
            if outcome == "missing":
                self.report("failed", served=self.served, detail=f"there is no file {name}")
                return
            if isinstance(want.desired_state.model, UrlModel) and name not in self.host.disk:
                self.report("downloading", served=self.served)
                await trio.sleep(manners.fetch_s)
                if name in manners.lacks:
                    self.report("failed", served=self.served, detail=f"no {name} to fetch")
                    return
                self.host.disk.add(name)
            if not manners.loads_beside:
                await self.drain()
            self.report("loading", served=self.served)
            await trio.sleep(manners.load_s)
            if outcome == "hangs":
                await trio.sleep_forever()
            if outcome == "fails":
                self.report("failed", served=self.served, detail=f"{name} cannot be loaded")
                return
            if manners.probe_s:
                self.report("probing", served=self.served)
                await trio.sleep(manners.probe_s)
            if outcome == "dies":
                died = f"the engine of {name} died at its first decode"
                self.report("failed", served=self.served, detail=died)
                return
            self.loads += 1
            self.model = name
            self.report("serving", served=digest)
            if outcome == "crashes":
                await trio.sleep(0.5)
                self.crash(name)

    def try_again(self) -> None:
        """As an agent does by itself when its file changes, or after a while."""
        assert self.wanted is not None
        self._effort = trio.CancelScope()
        self.host.nursery.start_soon(self.load, self.wanted, self._effort)

    def crash(self, name: str) -> None:
        """Its engine dies; what it worked on goes back to the balancer."""
        self.model = None
        self.report("failed", served=None, detail=f"the engine of {name} crashed")
        for wire_id, scope in list(self._answers.items()):
            scope.cancel()
            self.hand_back(wire_id, "engine died")
        self._answers.clear()

    async def drain(self) -> None:
        self.report("draining", served=None)
        for answered in list(self._answered.values()):
            await answered.wait()

    async def fetch(self, wire_id: str, models: tuple[object, ...]) -> None:
        if self.connection is not None:
            self.connection.questions.progressed(
                CacheProgress(id=wire_id, phase="downloading", source="host", filename="file")
            )
        if self.host.manners.is_busy:
            self.reply(Answer(wire_id, None, "this agent fetches 4 models already", 503))
            return
        await trio.sleep(self.host.manners.fetch_s)
        names = {model.url for model in models if isinstance(model, UrlModel)}
        if names & self.host.manners.lacks:
            self.reply(Answer(wire_id, None, f"no {min(names)} to fetch", 404))
            return
        self.host.disk |= names
        self.reply(Answer(wire_id, {"files": []}, None, 200))

    async def answer(self, wire_id: str, tokens: list[int], name: str) -> None:
        """One token after the other, each of which names the model."""
        scope = self._answers[wire_id] = trio.CancelScope()
        lease = None if self.connection is None else self.connection.lease(wire_id)
        if lease is not None:
            lease.bind(name)
        try:
            with scope:
                for _ in range(len(tokens), self.host.world.tokens):
                    await trio.sleep(TOKEN_S)
                    self.deliver(wire_id, [name])
                del self._answers[wire_id]
                self.deliver(wire_id, [], done=True)
        finally:
            answered = self._answered.pop(wire_id, None)
            if answered is not None:
                answered.set()

    def hand_back(self, wire_id: str, reason: str) -> None:
        lease = None if self.connection is None else self.connection.lease(wire_id)
        if lease is not None:
            self.dispatcher.hand_back(lease, reason, suspects=0)

    def deliver(self, wire_id: str, texts: list[str], *, done: bool = False) -> None:
        lease = None if self.connection is None else self.connection.lease(wire_id)
        if lease is not None:
            results: list[object] = [{"ContentToken": text} for text in texts]
            if done:
                results.append({"Done": {"usage": {}}})
            lease.deliver("GeneratedToken", results, ends=done, tokens=[1] * len(texts))  # type: ignore[arg-type]  # as parsed

    def reply(self, answer: Answer) -> None:
        if self.connection is not None:
            self.connection.questions.answer(answer.id, answer)

    def report(
        self, phase: str | None = None, *, served: str | None = None, detail: str | None = None
    ) -> None:
        """Report, and remember it for the next connection."""
        if phase is not None:
            self.phase, self.served, self.detail = phase, served, detail
        connection = self.connection
        if connection is None:
            return
        serves = self.served is not None and self.model is not None
        connection.status = status_of(self.host.manners.slots if serves else 0)
        size, most = self.host.manners.model_bytes, self.host.manners.memory_bytes
        memory = MemoryInForce(
            context_size=1024,
            n_gpu_layers=0,
            chosen=(),
            devices=(DeviceMemory(device="host", predicted=size, actual=size),),
        )
        connection.report = Report(
            self.phase,
            self.wanted_digest,
            self.served,
            self.model,
            None,
            self.detail,
            memory=memory if serves else None,
            load_s=self.host.manners.load_s if serves else None,
            room=(DeviceRoom(device="host", most=most),),
        )
        connection.refresh_readiness()
        self.dispatcher.update(connection)


@attrs.define(eq=False)
class PlayedHost:
    """An agent's process."""

    world: FleetWorld
    id: str
    labels: Mapping[str, str]
    manners: Manners
    nursery: trio.Nursery
    disk: set[str] = attrs.field(factory=set)
    instances: dict[str, PlayedInstance] = attrs.field(factory=dict)

    def fit(self, slots: int, *, beside: bool) -> object:
        """The answer to whether a model fits: all take the same; with ``beside``, whether it would
        be loaded beside another one."""
        manners = self.manners
        device = DeviceFit(
            device="host",
            weights=manners.model_bytes,
            kv=0,
            compute=0,
            projection=0,
            draft=0,
            other=0,
            needed=manners.model_bytes,
            total=manners.memory_bytes,
            free_now=None,
            free_after=None,
            reserve=0,
            limit=None,
            available=manners.memory_bytes - manners.model_bytes * (len(self.instances) - 1),
        )
        report = FitReport(
            fits=True,
            problem=None,
            architecture="llama",
            file_bytes=manners.model_bytes,
            context_size=1024,
            n_ctx_train=1024,
            slots=slots,
            n_gpu_layers=0,
            n_layers=1,
            k_cache_dtype="F16",
            v_cache_dtype="F16",
            chosen=(),
            devices=(device,),
            options=(),
            beside=manners.loads_beside if beside else None,
        )
        return unstructure(report)

    def reconcile(self, deployments: list[str]) -> None:
        """Run these beside ``default``, and no others."""
        for name in [*self.instances]:
            if name not in (DEFAULT_DEPLOYMENT, *deployments):
                self.nursery.start_soon(self.end, self.instances.pop(name))
        for name in deployments:
            self.begin(name)

    def begin(self, deployment: str) -> None:
        if deployment not in self.instances:
            self.instances[deployment] = instance = PlayedInstance(self, deployment)
            self.nursery.start_soon(instance.run)

    async def end(self, instance: PlayedInstance) -> None:
        await instance.drain()
        instance.hang_up(goodbye=True)
        instance.scope.cancel()

    def kill(self) -> None:
        """The process is gone, with all of its connections at once."""
        for instance in self.instances.values():
            instance.hang_up()
        self.nursery.cancel_scope.cancel()
        del self.world.hosts[self.id]

    def cut(self) -> None:
        """All connections break; the process goes on and dials again."""
        for instance in self.instances.values():
            if instance.connection is not None:
                instance.connection.scope.cancel()


@attrs.define(eq=False, repr=False)
class CheckedController(FleetController):
    """After each look, whatever it left out is as it was when it was read."""

    def look(self) -> float | None:
        again_s = super().look()
        for host in self.hosts.known.values():
            if host.id not in self.hosts.unsettled:
                now, then = self.observation.read(host), self.observation.seen[host.id]
                assert without_use(now) == without_use(then), "a change was missed"
        return again_s


def without_use(host: Host) -> Host:
    """Requests that begin and end are no change of a fleet at rest."""
    return attrs.evolve(
        host,
        instances={
            name: attrs.evolve(each, busy=0, idle_s=None) for name, each in host.instances.items()
        },
    )


@attrs.define(eq=False)
class FleetWorld:
    """Everything; see the module docstring."""

    nursery: trio.Nursery
    database: FleetDatabase = attrs.field(factory=MemoryDatabase)
    tokens: int = 10
    hosts: dict[str, PlayedHost] = attrs.field(factory=dict)
    names: dict[str, str] = attrs.field(factory=dict)
    """By host, where that is not its id."""
    dispatcher: Dispatcher = attrs.field(init=False)
    keeper: FleetKeeper = attrs.field(init=False)
    controller: FleetController = attrs.field(init=False)
    is_up: trio.Event = attrs.field(factory=trio.Event)
    _balancer: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _keys: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1))

    async def start_balancer(self) -> None:
        """Again after :meth:`kill_balancer`, from what is stored."""
        self.dispatcher = Dispatcher(LIMITS)
        self.keeper = FleetKeeper(self.database, self.dispatcher)
        await self.keeper.load()
        self.controller = CheckedController(self.keeper, self.dispatcher)
        self._balancer = trio.CancelScope()
        await self.nursery.start(self._run_balancer)
        self.is_up.set()

    async def _run_balancer(self, task_status: trio.TaskStatus[None]) -> None:
        with self._balancer:
            async with trio.open_nursery() as tasks:
                self.dispatcher.open(agents=tasks, requests=tasks)
                tasks.start_soon(self.controller.run)
                task_status.started()
                await trio.sleep_forever()

    def kill_balancer(self) -> None:
        """All connections break."""
        self.is_up = trio.Event()
        self._balancer.cancel()
        for host in self.hosts.values():
            host.cut()

    async def host(
        self,
        name: str,
        *,
        manners: Manners | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> PlayedHost:
        """Start a host; it dials at once."""
        started: PlayedHost = await self.nursery.start(
            partial(self._run_host, name, manners or Manners(), labels or {})
        )
        return started

    async def _run_host(
        self,
        name: str,
        manners: Manners,
        labels: Mapping[str, str],
        task_status: trio.TaskStatus[PlayedHost],
    ) -> None:
        async with trio.open_nursery() as nursery:
            host = self.hosts[name] = PlayedHost(self, name, labels, manners, nursery)
            host.begin(DEFAULT_DEPLOYMENT)
            task_status.started(host)
            await trio.sleep_forever()

    def connect(
        self, instance: PlayedInstance
    ) -> tuple[AgentConnection, trio.MemoryReceiveChannel[bytes]]:
        """Register one connection."""
        outgoing, frames = trio.open_memory_channel[bytes](1000)
        host, name = instance.host, instance.deployment
        is_first = name == DEFAULT_DEPLOYMENT
        connection = AgentConnection(
            key=AgentKey(next(self._keys)),
            id=host.id if is_first else f"{host.id}.{name}",
            name=self.names.get(host.id, host.id) if is_first else f"{host.id}.{name}",
            kind=TRIO,
            status=status_of(0),
            scope=trio.CancelScope(),
            outgoing=outgoing,
            health=self.dispatcher.health,
            deployment=name,
            host=host.id,
            labels=host.labels,
            features=frozenset({Feature.BOUNDS, Feature.BESIDE}),
            instances=tuple(each for each in host.instances if each != DEFAULT_DEPLOYMENT),
        )
        self.dispatcher.join(connection)
        return connection, frames

    async def apply(self, *specs: DeploymentSpec) -> None:
        await self.keeper.apply(FleetState(specs), author="test")

    async def request(
        self, deployment: str = DEFAULT_DEPLOYMENT
    ) -> tuple[list[str], Failure | None]:
        """Ask, and hear the answer: the models that produced its tokens, and how it failed."""
        request: Request = self.dispatcher.submit("r", WORK, deployment=deployment)
        models: list[str] = []
        async for step in request.outbox:
            for result in step.results:
                assert isinstance(result, dict)
                if "ContentToken" in result:
                    models.append(str(result["ContentToken"]))
        return models, request.failure

    def served(self, deployment: str = DEFAULT_DEPLOYMENT) -> dict[str, str | None]:
        """By host: the model that serves the deployment there."""
        return {
            name: instance.model if instance.served else None
            for name, host in self.hosts.items()
            for instance in [host.instances.get(deployment)]
            if instance is not None
        }

    def free_slots(self, deployment: str = DEFAULT_DEPLOYMENT) -> int:
        """Slots that requests may get, taken or not."""
        return sum(
            agent.usable_slots
            for agent in self.dispatcher.agents.values()
            if agent.deployment == deployment and agent.is_accepting
        )


@asynccontextmanager
async def fleet_world(
    *specs: DeploymentSpec, hosts: int = 0, manners: Manners | None = None
) -> AsyncIterator[FleetWorld]:
    """A balancer with these deployments, and hosts ``h1``, ``h2`` and so on."""
    async with trio.open_nursery() as nursery:
        world = FleetWorld(nursery)
        await world.start_balancer()
        if specs:
            await world.apply(*specs)
        for number in range(1, hosts + 1):
            await world.host(f"h{number}", manners=manners or Manners())
        yield world
        nursery.cancel_scope.cancel()


def _digest(want: Want) -> str:
    extras: Extras = want.extras
    return extended_digest(want.desired_state, extras)


def _name(want: Want) -> str:
    """What tells models apart in answers: the weights and the context."""
    match want.desired_state.model:
        case LocalToAgent(path):
            name = path
        case UrlModel(url):
            name = url
        case _:
            return "nothing"
    return name


async def until(world: FleetWorld, is_so: Callable[[], bool], within_s: float = 600) -> None:
    """TooSlowError if it never is."""
    with trio.fail_after(within_s):
        while not is_so():
            changed = world.controller.changed
            await changed.wait_beyond(changed.ordinal)


async def until_served(world: FleetWorld, model: str | None, deployment: str = DEFAULT) -> None:
    """All instances of the deployment serve this; TooSlowError if they never do."""
    await until(world, lambda: set(world.served(deployment).values()) == {model})


def phase(world: FleetWorld, deployment: str = DEFAULT) -> RolloutPhase | None:
    rollout = world.controller.rollouts.get(deployment)
    return None if rollout is None else rollout.phase

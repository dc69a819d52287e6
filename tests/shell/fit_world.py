"""An agent's model server on a machine whose memory a test decides; dry runs are doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import attrs
import trio

from dry_run_double import DryRunDouble
from hub_server import HubServer
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.children.engine_keeper import EngineKeeper
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import Preparation, PreparationKeeper
from paddler_trio.agent.children.preparation_server import PreparationServer
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.memory_in_use import MemoryInUse
from paddler_trio.agent.model.model_fit import ModelFit
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.processes.preparation.preparation_messages import LanguageFacts, LanguageRefused
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.agent_issue import ModelCannotBeLoaded
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    InferenceParameters,
    KvCacheDtype,
    LocalToAgent,
    NoModel,
)


@attrs.define
class Engines:
    """Notes what is loaded; no engine ever comes up, and none ends by itself."""

    loads: list[LoadModel] = attrs.field(factory=list)
    changes: Changes = attrs.field(factory=Changes)

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        keeper = live.__self__  # type: ignore[attr-defined]
        assert isinstance(keeper, EngineKeeper)
        self.loads.append(keeper.load)
        self.changes.notify()
        await trio.sleep_forever()


READY = Ready(cells=256, n_batch=8, n_ctx_train=256, n_vocab=9)


@attrs.define
class LivingEngines(Engines):
    """Engines that come up when ``may_come_up``, or fail as ``failures`` have it for a file; each
    lives until it is ended. The newest is in ``alive``."""

    may_come_up: trio.Event = attrs.field(factory=trio.Event)
    failures: dict[str, LoadFailedError] = attrs.field(factory=dict)
    alive: list[EngineProcess] = attrs.field(factory=list)
    most_alive: int = 0
    ends: Changes = attrs.field(factory=Changes)

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        keeper = live.__self__  # type: ignore[attr-defined]
        assert isinstance(keeper, EngineKeeper)
        engine = EngineProcess(
            keeper.load, keeper.on_progress, lambda ready: None, keeper.on_step, keeper.on_stats
        )
        is_up = False
        self.alive.append(engine)
        self.most_alive = max(self.most_alive, len(self.alive))
        self.loads.append(keeper.load)
        self.changes.notify()
        keeper.on_begin(engine)
        try:
            await self.may_come_up.wait()
            keeper.on_loaded()
            failure = self.failures.get(Path(keeper.load.model_path).name)
            if failure is not None:
                keeper.first_start.set(failure)
                return
            engine.ready, keeper.load_s, is_up = READY, 0.5, True
            keeper.on_up(engine, READY)
            keeper.first_start.set(READY)
            await trio.sleep_forever()
        finally:
            self.alive.remove(engine)
            keeper.on_end(engine)
            if is_up:
                keeper.on_down(engine, "the engine was stopped", None)
            self.ends.notify()


@attrs.define
class Languages:
    """Processes that prepare: they are up at once, or refuse a template in ``refused``."""

    refused: set[str] = attrs.field(factory=set)

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        keeper = live.__self__  # type: ignore[attr-defined]
        assert isinstance(keeper, PreparationKeeper)
        override = keeper.source.desired.chat_template_override
        if override is not None and override.content in self.refused:
            issue = ModelCannotBeLoaded(keeper.source.paths[0])
            keeper.first_start.set(LanguageRefused(issue, "a syntax error"))
            return
        facts = LanguageFacts(
            keeper.source.desired.inference_parameters, {}, keeper.source.paths[0], ()
        )
        keeper.current = Preparation(cast("PreparationServer", None), facts)
        keeper.on_up(keeper.current)
        keeper.first_start.set(keeper.current)
        try:
            await trio.sleep_forever()
        finally:
            current, keeper.current = keeper.current, None
            keeper.on_down(current)


async def _never_prepared(*_: object) -> None:
    await trio.sleep_forever()


@attrs.define(eq=False)
class Agent:
    """A model server on a machine whose memory a test decides."""

    root: Path
    dry_runs: DryRunDouble = attrs.field(factory=DryRunDouble)
    engines: Engines = attrs.field(factory=Engines)
    limits: MemoryLimits = attrs.field(factory=lambda: MemoryLimits(host_reserve_bytes=0))
    hub: HubServer | None = None
    settings: EngineSettings = attrs.field(factory=EngineSettings)
    checks_fit: bool = True
    languages: Languages | None = None
    loads_beside: bool = True
    drain_s: float = 1
    memory: MemoryInUse = attrs.field(factory=MemoryInUse)
    lost: list[EngineProcess] = attrs.field(factory=list)
    """Engines that are gone, once they were up."""
    server: ModelServer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        hub_url = "http://127.0.0.1:9" if self.hub is None else self.hub.hub_url
        hub = HubSettings(
            endpoint=hub_url,
            cache=self.root / "hub",
            url_cache=self.root / "urls",
            token_path=self.root / "token",
            timeouts=Timeouts(silence_s=5),
        )
        self.server = ModelServer(
            AgentStatus(2),
            threads=1,
            settings=self.settings,
            drain_s=self.drain_s,
            supervise=self.engines.supervise,
            supervise_preparation=_never_prepared
            if self.languages is None
            else self.languages.supervise,
            on_step=lambda step: None,
            on_engine_gone=lambda engine, reason, suspects: self.lost.append(engine),
            hub=hub,
            fit=ModelFit(self.dry_runs.open, hub, self.limits),
            checks_fit=self.checks_fit,
            loads_beside=self.loads_beside,
            memory=self.memory,
        )
        assert self.server.gate is not None
        self.server.gate.free_memory = lambda: self.dry_runs.free or None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.run)
            yield
            nursery.cancel_scope.cancel()

    @property
    def status(self) -> AgentStatus:
        return self.server.status

    def file(self, name: str) -> LocalToAgent:
        path = self.root / name
        if not path.exists():  # written again it would be another one
            path.write_bytes(name.encode())
        return LocalToAgent(str(path))

    async def reach(self, is_there: Callable[[AgentStatus], bool]) -> None:
        ordinal = self.status.changes.ordinal
        with trio.fail_after(50):
            while not is_there(self.status):
                ordinal = await self.status.changes.wait_beyond(ordinal)

    async def loaded(self, count: int) -> LoadModel:
        """The newest load, when there were so many."""
        with trio.fail_after(50):
            await self.engines.changes.wait_beyond(count - 1)
        assert len(self.engines.loads) == count
        return self.engines.loads[-1]

    async def refused(self) -> str:
        await self.reach(lambda status: status.phase == "failed")
        assert self.status.detail is not None
        return self.status.detail


def state(
    model: DesiredModel,
    context_size: int = 8192,
    *,
    projection: DesiredModel | None = None,
    **parameters: object,
) -> AgentDesiredState:
    base = InferenceParameters(
        context_size=context_size,
        k_cache_dtype=KvCacheDtype.F16,
        v_cache_dtype=KvCacheDtype.F16,
    )
    return AgentDesiredState(
        chat_template_override=None,
        inference_parameters=attrs.evolve(base, **parameters),  # type: ignore[arg-type]
        model=model,
        multimodal_projection=projection or NoModel(),
    )

"""An agent's model server on a machine whose memory a test decides; dry runs are doubled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import trio

from dry_run_double import DryRunDouble
from hub_server import HubServer
from paddler_trio.agent.engine_keeper import EngineKeeper
from paddler_trio.agent.model_fit import ModelFit
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.status import AgentStatus
from paddler_trio.models.hub_settings import HubSettings, Timeouts
from paddler_trio.nursery_tree.synchronization import Changes
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
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
            drain_s=1,
            supervise=self.engines.supervise,
            supervise_preparation=_never_prepared,
            on_step=lambda step: None,
            on_engine_gone=lambda engine, reason, suspects: None,
            hub=hub,
            fit=ModelFit(self.dry_runs.open, hub, self.limits),
            checks_fit=self.checks_fit,
        )
        assert self.server.gate is not None
        self.server.gate.free_memory = lambda: self.dry_runs.free or None

    @property
    def status(self) -> AgentStatus:
        return self.server.status

    def file(self, name: str) -> LocalToAgent:
        path = self.root / name
        path.write_bytes(name.encode())
        return LocalToAgent(str(path))

    async def reach(self, is_there: Callable[[AgentStatus], bool]) -> None:
        ordinal = self.status.changes.ordinal
        with trio.fail_after(10):
            while not is_there(self.status):
                ordinal = await self.status.changes.wait_beyond(ordinal)

    async def loaded(self, count: int) -> LoadModel:
        """The newest load, when there were so many."""
        with trio.fail_after(10):
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

"""Keeps one engine alive: the same model, started again whenever it crashes.

The nursery tree supervises: how often, and how long to wait. Here is what a start means: the engine
is *up* from its Ready until it dies, and gets no messages between two lives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import structlog
import trio

from paddler_trio.agent.engine_crash import Suspects
from paddler_trio.agent.engine_process import EngineProcess, LoadFailedError
from paddler_trio.errors import EngineError
from paddler_trio.nursery_tree.synchronization import Future
from paddler_trio.wire.engine.engine_pipe import EmbeddingStep, EngineStats, LoadModel, Ready, Step

log = structlog.get_logger("engine")

SuperviseEngine: TypeAlias = Callable[
    [Callable[[], Awaitable[None]], Callable[[BaseException], None]], Awaitable[None]
]
"""``(run, on_crash)``: run again after each EngineError; returns when ``run`` does."""


@attrs.define(eq=False)
class EngineKeeper:
    """All lives of the engine of one model.

    Args:
      load: what every life loads.
      supervise: see :data:`SuperviseEngine`.
      on_up, on_down: called at the start and the end of each life, with the reason of the end and
        whom it may be due to, None if it was no crash; synchronous. ``on_down`` only follows an
        ``on_up``.
      on_progress, on_step, on_figures: see :class:`EngineProcess`.
    """

    load: LoadModel
    supervise: SuperviseEngine
    on_up: Callable[[EngineProcess, Ready], None]
    on_down: Callable[[str, Suspects | None], None]
    on_crash: Callable[[BaseException], None]
    on_progress: Callable[[float], None]
    on_step: Callable[[Step | EmbeddingStep], None]
    on_stats: Callable[[EngineStats], None]
    first_start: Future[Ready | LoadFailedError] = attrs.field(factory=Future, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    current: EngineProcess | None = attrs.field(default=None, init=False)
    """The life that it has now, up or not yet."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Live until stopped, or until the model cannot be loaded any more."""
        try:
            with self._scope:
                await self.supervise(self._live, self.on_crash)
        finally:
            self.ended.set()

    async def stop(self) -> None:
        """End the engine and wait until its memory is free."""
        self._scope.cancel(reason="another model is wanted")
        await self.ended.wait()

    async def _live(self) -> None:
        """One life; EngineError if it ends by itself."""
        is_up = False
        reason, suspects = "the engine was stopped", None

        def up(ready: Ready) -> None:
            nonlocal is_up
            is_up = True
            self.on_up(engine, ready)
            self.first_start.set(ready)

        engine = EngineProcess(self.load, self.on_progress, up, self.on_step, self.on_stats)
        self.current = engine
        try:
            await engine.run()
        except LoadFailedError as failure:
            reason = str(failure)
            if not self.first_start.set(failure):
                log.error("the model cannot be loaded again", reason=reason)
        except EngineError as crash:
            reason, suspects = str(crash), engine.suspects
            raise
        finally:
            self.current = None
            if is_up:
                self.on_down(reason, suspects)

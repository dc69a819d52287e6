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

from paddler_trio.agent.children.engine_crash import LoadFailedError, Suspects
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.errors import EngineError
from paddler_trio.system.synchronization import Future
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
      on_crash: called with each crash after which it is started again. A crash before it was up
        for the first time is a load that failed.
      on_loaded, on_progress, on_step, on_stats: see :class:`EngineProcess`.
      on_begin, on_end: called around each life, whether it came up or not.
      is_beside: another engine answers until this one is up for the first time.
    """

    load: LoadModel
    supervise: SuperviseEngine
    on_up: Callable[[EngineProcess, Ready], None]
    on_down: Callable[[EngineProcess, str, Suspects | None], None]
    on_crash: Callable[[BaseException], None]
    on_progress: Callable[[float], None]
    on_step: Callable[[Step | EmbeddingStep], None]
    on_stats: Callable[[EngineStats], None]
    on_loaded: Callable[[], None] = lambda: None
    on_begin: Callable[[EngineProcess], None] = lambda engine: None
    on_end: Callable[[EngineProcess], None] = lambda engine: None
    is_beside: bool = False
    first_start: Future[Ready | LoadFailedError] = attrs.field(factory=Future, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    current: EngineProcess | None = attrs.field(default=None, init=False)
    """The life that it has now, up or not yet."""
    load_s: float | None = attrs.field(default=None, init=False)
    """The time from the start of the newest life that came up until it was proved."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _life: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Of the life that it has now."""

    async def run(self) -> None:
        """Run until stopped, or until the model cannot be loaded any more."""
        try:
            with self._scope:
                await self.supervise(self._live, self.on_crash)
        finally:
            self.ended.set()

    async def stop(self) -> None:
        """End the engine and wait until its memory is free."""
        self._scope.cancel(reason="another model is wanted")
        await self.ended.wait()

    def restart(self) -> bool:
        """End the life that it has now; another one begins at once. False if it has none."""
        if self.current is None or self._scope.cancel_called:
            return False
        self._life.cancel(reason="an operator asked for another")
        return True

    async def _live(self) -> None:
        """Run one life, and another one for each :meth:`restart`; EngineError if one ends by
        itself."""
        while True:
            with trio.CancelScope() as self._life:
                await self._live_once()
            if not self._life.cancelled_caught:
                return
            log.info("the engine was restarted by an operator")

    async def _live_once(self) -> None:
        is_up = False
        reason, suspects = "the engine was stopped", None
        began_s = trio.current_time()

        def up(ready: Ready) -> None:
            nonlocal is_up
            is_up = True
            self.load_s = trio.current_time() - began_s
            self.on_up(engine, ready)
            self.first_start.set(ready)

        engine = EngineProcess(
            self.load,
            self.on_progress,
            up,
            self.on_step,
            self.on_stats,
            self.on_loaded,
            gives_way=self.is_beside and self.first_start.value is None,
        )
        self.current = engine
        self.on_begin(engine)
        try:
            await engine.run()
        except LoadFailedError as failure:
            reason = str(failure)
            if not self.first_start.set(failure):
                log.error("the model cannot be loaded again", reason=reason)
        except EngineError as crash:
            reason, suspects = str(crash), engine.suspects
            if not self.first_start.set(LoadFailedError("crash", reason)):
                raise
            log.error("the model cannot be loaded", reason=reason)
        finally:
            self.current = None
            self.on_end(engine)
            if is_up:
                self.on_down(engine, reason, suspects)

"""Keeps the preparation processes of one language alive, as ``engine_keeper`` does the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs
import trio

from paddler_trio.agent.children.preparation import Preparation
from paddler_trio.agent.children.preparation_server import LanguageRefusedError, PreparationServer
from paddler_trio.errors import PreparationError, leaves
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import LanguageFacts, LanguageRefused
from paddler_trio.system.synchronization import Future

SupervisePreparation: TypeAlias = Callable[
    [Callable[[], Awaitable[None]], Callable[[BaseException], None]], Awaitable[None]
]
"""``(run, on_crash)``: run again after each PreparationError; returns when ``run`` does."""


@attrs.define(eq=False)
class PreparationKeeper:
    """All lives of the preparation processes of one language.

    Args:
      on_up, on_down: called at the start and the end of each life; synchronous.
      is_beside: another model or language answers until this one is up for the first time.
    """

    source: LanguageSource
    supervise: SupervisePreparation
    on_up: Callable[[Preparation], None]
    on_down: Callable[[Preparation], None]
    on_crash: Callable[[BaseException], None]
    is_beside: bool = False
    first_start: Future[Preparation | LanguageRefused] = attrs.field(factory=Future, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    current: Preparation | None = attrs.field(default=None, init=False)
    """The life that is up now."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Run until stopped, or until the language cannot be read any more."""
        try:
            with self._scope:
                await self.supervise(self._live, self.on_crash)
        finally:
            self.ended.set()

    async def stop(self) -> None:
        """End the processes, once those that are at work have finished."""
        if self.current is not None:
            await self.current.wait_idle()
        self._scope.cancel(reason="another language is wanted")
        await self.ended.wait()

    async def _live(self) -> None:
        """Run one life; PreparationError if it ends by itself."""

        def up(server: PreparationServer, facts: LanguageFacts) -> None:
            self.current = Preparation(server, facts)
            self.on_up(self.current)
            self.first_start.set(self.current)

        server = PreparationServer(
            self.source, up, gives_way=self.is_beside and self.first_start.value is None
        )
        try:
            await server.run()
        except* LanguageRefusedError as group:
            refused = next(e for e in leaves(group) if isinstance(e, LanguageRefusedError)).refused
            if not self.first_start.set(refused):
                raise PreparationError(
                    f"the language cannot be read again: {refused.reason}"
                ) from None
        finally:
            current, self.current = self.current, None
            if current is not None:
                current.close()
                self.on_down(current)

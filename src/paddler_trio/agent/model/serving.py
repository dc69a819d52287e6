"""A model that answers, as its requests see it, and how many of them use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import Preparation
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.trio.request_frame import RequestFrame

OTHER_MODEL: Final = "another model is in force by now"


@attrs.define(eq=False)
class Uses:
    """The number of requests that are bound to one engine: from before they are prepared for it
    until nothing of them is left there."""

    count: int = attrs.field(default=0, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one use, for the length of the block."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            self._changes.notify()

    async def wait_none(self) -> None:
        """Return when there is none."""
        ordinal = self._changes.ordinal
        while self.count:
            ordinal = await self._changes.wait_beyond(ordinal)


@attrs.frozen
class InForce:
    """The state that a language was read for.

    Args:
      digest: of the state with its extras.
      fingerprint: of the weights and the template: only the same one can go on with an answer.
    """

    desired: AgentDesiredState
    digest: str
    fingerprint: str


@attrs.frozen(eq=False)
class Serving:
    """The preparation of requests and the living engine. A request keeps the one it began with,
    whatever is put in force meanwhile."""

    preparation: Preparation
    engine: EngineProcess
    in_force: InForce
    uses: Uses = attrs.field(factory=Uses)

    def may_answer(self, frame: RequestFrame) -> bool:
        """Return False for what is bound to another model, which was in force when it was sent."""
        return frame.bound in ("", self.in_force.digest, self.in_force.fingerprint)

"""Nothing is loaded that cannot fit: asked before the model in force is let go.

A model that does not fit is refused with the numbers and with what would fit, and is looked at
again while memory is freed. Where it cannot be known (no dry run on this machine, a hub that does
not answer), loading goes on and shows it: a check never keeps a model from being served that would
have been without it. Engines that crashed are started again without a check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.agent.model_errors import DoesNotFitError, ModelNotServableError
from paddler_trio.agent.model_fit import UNLOADABLE, Held, Judged, ModelFit
from paddler_trio.agent.model_source import describe
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.scheduler.fit.fit_suggestions import Change
from paddler_trio.scheduler.fit.fit_values import HOST
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ModelCannotBeLoaded,
    SlotCannotStart,
)
from paddler_trio.wire.paddler.desired_state import DesiredModel, NoModel
from paddler_trio.wire.trio.desired_state_extras import Automatic

log = structlog.get_logger("fit")

FIRST_LOOK_S: Final = 1.0
LONGEST_LOOK_S: Final = 60.0
GPU_LOOK_S: Final = 30.0
MAX_SLOT_ISSUES: Final = 256
"""All slots fail alike, and every status carries every issue."""


@attrs.define(eq=False)
class FitGate:
    """See the module docstring.

    Args:
      held: what the model in force holds now.
      free_memory: of the host, in bytes; None where it is unknown.
    """

    fit: ModelFit
    held: Callable[[], Awaitable[Held]]
    free_memory: Callable[[], int | None]

    async def check(
        self,
        load: LoadModel,
        model: DesiredModel,
        projection: DesiredModel,
        auto: Automatic,
        *,
        serves: bool,
    ) -> Judged | None:
        """The verdict on a model that fits; None where it cannot be known.

        Args:
          serves: another model is in force, and kept if this one cannot be loaded.

        Errors:
          DoesNotFitError: it does not fit.
          ModelNotServableError: llama.cpp would not load it, however much memory there is; only
            if ``serves``, since loading it shows that as well.
        """
        name = describe(model)
        try:
            judged = await self._judge(load, model, projection, auto)
        except MemoryUnknownError as error:
            if serves and error.kind in UNLOADABLE:
                is_context = error.kind == "context_refused"
                raise ModelNotServableError(
                    _slot_issues(load, str(error)) if is_context else [ModelCannotBeLoaded(name)],
                    str(error),
                    is_permanent=True,
                ) from error
            log.warning("it is not known whether the model fits", reason=str(error), model=name)
            return None
        if judged.verdict.fits:
            log.info("the model fits", model=name, takes=dict(judged.verdict.need.bytes_by_device))
            return judged
        raise DoesNotFitError(
            _issues(judged, name), f"the model does not fit: {judged.words}", judged
        )

    async def wait_room(self, error: DoesNotFitError) -> None:
        """Return when what was refused may fit.

        The memory of the host is looked at after a second, and then ever more rarely, up to a
        minute. What is free on GPUs only a new dry run shows, so half a minute is a reason for one.
        """
        if {short.device for short in error.judged.verdict.shortages} != {HOST}:
            await trio.sleep(GPU_LOOK_S)
            return
        pause_s = FIRST_LOOK_S
        while True:
            await trio.sleep(pause_s)
            if await self._host_has_room(error.judged):
                return
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)

    async def _host_has_room(self, judged: Judged) -> bool:
        free = await trio.to_thread.run_sync(self.free_memory)
        held = (await self.held()).on(HOST)
        room = attrs.evolve(
            judged.rooms[HOST],
            free_bytes=None if held is None else free,
            held_bytes=held or 0,
        )
        available = room.available_bytes
        return available is None or judged.verdict.need.bytes_by_device[HOST] <= available

    async def _judge(
        self, load: LoadModel, model: DesiredModel, projection: DesiredModel, auto: Automatic
    ) -> Judged:
        """MemoryUnknownError."""
        held = await self.held()
        try:
            return await self.fit.judge(load, model, projection, held=held, auto=auto)
        except MemoryUnknownError as error:
            if isinstance(projection, NoModel) or error.kind not in {*UNLOADABLE, "missing"}:
                raise
            log.warning("judged without the projection", reason=str(error))
            return await self.fit.judge(load, model, NoModel(), held=held, auto=auto)


def _issues(judged: Judged, name: str) -> list[AgentIssue]:
    """Paddler has no word for it. Slots that cannot start carry the reason; if no context is small
    enough, it is the model that cannot be loaded."""
    changes = {change for each in judged.suggestions for change in each.changes}
    if changes <= {Change.GPU_LAYERS}:
        return [ModelCannotBeLoaded(name)]
    return _slot_issues(judged.load, judged.words)


def _slot_issues(load: LoadModel, reason: str) -> list[AgentIssue]:
    return [SlotCannotStart(reason, slot) for slot in range(min(load.slots, MAX_SLOT_ISSUES))]

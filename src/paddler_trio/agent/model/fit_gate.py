"""Load nothing that cannot fit: it is asked before the model in force is let go.

A model that does not fit is refused with the numbers and with what would fit, and is looked at
again while memory is freed. Where it cannot be known (no dry run on this machine, a hub that does
not answer), loading goes on and shows it: a check never keeps a model from being served that would
have been without it. Engines that crashed are started again without a check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.model.memory_promises import MemoryPromises
from paddler_trio.agent.model.model_errors import (
    DoesNotFitError,
    ModelNotServableError,
    slot_issues,
)
from paddler_trio.agent.model.model_file import describe
from paddler_trio.agent.model.model_fit import (
    NOT_LOADING,
    UNLOADABLE,
    Held,
    Judged,
    ModelFit,
    rooms_of,
)
from paddler_trio.agent.model.model_load import LoadRules
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.download.download_progress import PERMANENT_RETRY_S
from paddler_trio.scheduler.fit.fit_suggestions import Change
from paddler_trio.scheduler.fit.fit_values import HOST, Room, shortages
from paddler_trio.system.machine import available_memory_bytes
from paddler_trio.system.synchronization import wait_first
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.paddler.agent_issue import AgentIssue, ModelCannotBeLoaded
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.trio.desired_state_extras import NOTHING_AUTOMATIC, Automatic, Extras

log = structlog.get_logger("fit")

FIRST_LOOK_S: Final = 1.0
LONGEST_LOOK_S: Final = 60.0
GPU_LOOK_S: Final = 30.0
MAY_BE_A_PAGE: Final = frozenset({"not_gguf", "truncated"})
"""Kinds of errors for which an address may lead to a page now, and to the model soon."""


class HeldMemory(Protocol):
    """A function that returns what a model in the file ``path`` finds held; with ``keeps_own``, the
    model in force stays beside it."""

    async def __call__(self, path: str, *, keeps_own: bool = False) -> Held: ...


@attrs.define(eq=False)
class FitGate:
    """See the module docstring.

    Args:
      held: what the model in force and others of this agent hold now.
      promises: what this agent and others of this machine are loading.
      refuses: what does not fit; else it only chooses and answers.
      on_judged: gets every verdict on what is to be loaded.
      free_memory: of the host, in bytes; None where it is unknown.
    """

    fit: ModelFit
    rules: LoadRules
    held: HeldMemory = attrs.field(kw_only=True)
    promises: MemoryPromises = attrs.field(kw_only=True)
    refuses: bool = attrs.field(default=True, kw_only=True)
    on_judged: Callable[[Judged], Awaitable[None]] = attrs.field(kw_only=True)
    free_memory: Callable[[], int | None] = attrs.field(
        default=available_memory_bytes, kw_only=True
    )
    _gpu_pause_s: float = attrs.field(default=0.0, init=False)
    _waited_for: LoadModel | None = attrs.field(default=None, init=False)
    """The load that did not fit a GPU when it was waited for last, for ``_gpu_pause_s``."""

    def judges(self, auto: Automatic) -> bool:
        """Return whether there is a verdict on what is loaded."""
        return self.refuses or auto != NOTHING_AUTOMATIC

    async def judge(
        self, desired: AgentDesiredState, extras: Extras, *, slots: int | None = None
    ) -> Judged:
        """Judge whether this state would fit when the model in force is gone; nothing is changed.

        Args:
          slots: None for as many as this agent has.

        Errors:
          MemoryUnknownError: it cannot be said, and why.
        """
        load = self._load_anywhere(desired, extras)
        return await self.fit.judge(
            load if slots is None else attrs.evolve(load, slots=slots),
            desired.model,
            desired.multimodal_projection,
            adapters=extras.sources,
            held=await self.held(load.model_path),
            auto=extras.automatic,
        )

    async def check_source(
        self, desired: AgentDesiredState, extras: Extras, *, serves: bool
    ) -> None:
        """Refuse what cannot fit before it is fetched: its headers are enough. See :meth:`check`,
        for errors too."""
        await self.check(
            self._load_anywhere(desired, extras),
            desired.model,
            desired.multimodal_projection,
            extras.automatic,
            adapters=extras.sources,
            serves=serves,
            loads_now=False,
        )

    def _load_anywhere(self, desired: AgentDesiredState, extras: Extras) -> LoadModel:
        """Return a load of files that need not be here: dry runs find them, or their headers."""
        name = describe(desired.model)
        return self.rules.load(desired, extras, model_path=name, projection_path=None)

    async def check(
        self,
        load: LoadModel,
        model: DesiredModel,
        projection: DesiredModel,
        auto: Automatic,
        *,
        adapters: Sequence[DesiredModel] = (),
        serves: bool,
        loads_now: bool,
    ) -> Judged | None:
        """Return the verdict on a model that fits, or is loaded anyway; None where there is none.

        Args:
          serves: another model is in force, and kept if this one cannot be loaded.
          loads_now: its memory is promised to it, until :meth:`loaded`.

        Errors:
          DoesNotFitError: it does not fit.
          ModelNotServableError: llama.cpp would not load it, however much memory there is; only
            if ``serves``, since loading it shows that as well.
        """
        if not self.judges(auto):
            return None
        name = describe(model)
        try:
            judged = await self._judge(load, model, projection, adapters, auto)
        except MemoryUnknownError as error:
            if self.refuses and serves and error.kind in UNLOADABLE:
                leads_elsewhere = isinstance(model, UrlModel) and error.kind in MAY_BE_A_PAGE
                is_context = error.kind == "context_refused"
                raise ModelNotServableError(
                    slot_issues(load, str(error)) if is_context else [ModelCannotBeLoaded(name)],
                    str(error),
                    is_permanent=not leads_elsewhere,
                ) from error
            log.warning("it is not known whether the model fits", reason=str(error), model=name)
            return None
        await self.on_judged(judged)
        if judged.verdict.fits:
            log.info("the model fits", model=name, takes=dict(judged.verdict.need.bytes_by_device))
            if loads_now:
                await self._promise(judged)
            return judged
        if not self.refuses:
            log.warning("the model does not fit, and is loaded", model=name, reason=judged.words)
            return judged
        raise DoesNotFitError(
            _issues(judged, name), f"the model does not fit: {judged.words}", judged
        )

    async def beside(self, judged: Judged) -> Judged | None:
        """Return the judgement with the rooms that are there while the model in force stays; None
        if it does not fit beside that one, or if it is not known whether it does.

        Before a load call it after :meth:`check`, which has promised the memory to it.
        """
        held = await self.held(judged.load.model_path, keeps_own=True)
        others = await trio.to_thread.run_sync(self.promises.of_others)
        rooms = _without(rooms_of(judged.need, self.fit.limits, held), others)
        need = judged.verdict.need
        for device, needed in need.bytes_by_device.items():
            if needed and (device not in rooms or rooms[device].free_bytes is None):
                return None
        if short := shortages(need, rooms):
            log.info(
                "no room beside the model in force: it ends first",
                missing={each.device: each.missing_bytes for each in short},
            )
            return None
        return attrs.evolve(judged, rooms=rooms)

    def loaded(self) -> None:
        """Note that the engine has its memory, or never will: what was promised to it is taken, or
        free."""
        self.promises.drop()

    async def _promise(self, judged: Judged) -> None:
        """Promise memory to a load; DoesNotFitError if another agent of this machine is loading
        into the same memory."""
        need, before = judged.verdict.need, judged.rooms

        def fits(others: Mapping[str, int]) -> bool:
            return not shortages(need, _without(before, others))

        if not await trio.to_thread.run_sync(self.promises.promise, need.bytes_by_device, fits):
            others = await trio.to_thread.run_sync(self.promises.of_others)
            judged = attrs.evolve(
                judged,
                verdict=attrs.evolve(
                    judged.verdict, shortages=shortages(need, _without(before, others))
                ),
            )
            words = f"{judged.words}; another agent of this machine is loading a model"
            raise DoesNotFitError(
                slot_issues(judged.load, words), f"the model does not fit now: {words}", judged
            )

    async def wait_room(
        self, error: DoesNotFitError, file_changes: Callable[[], Awaitable[None]]
    ) -> None:
        """Return when what was refused may fit, when ``file_changes`` returns, or when it is time
        to look at everything anew."""
        with trio.move_on_after(PERMANENT_RETRY_S):
            await wait_first(partial(self._wait_room, error), file_changes)

    async def _wait_room(self, error: DoesNotFitError) -> None:
        """Wait for room. The memory of the host is looked at after a second, and then ever more
        rarely, up to a minute. What is free on GPUs only a new dry run shows: the first after half
        a minute, of the same load ever more rarely."""
        if {short.device for short in error.judged.verdict.shortages} != {HOST}:
            is_again = self._waited_for == error.judged.load
            self._gpu_pause_s = 2 * self._gpu_pause_s if is_again else GPU_LOOK_S
            self._waited_for = error.judged.load
            await trio.sleep(self._gpu_pause_s)
            return
        pause_s = FIRST_LOOK_S
        while True:
            await trio.sleep(pause_s)
            if await self._host_has_room(error.judged):
                return
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)

    async def _host_has_room(self, judged: Judged) -> bool:
        free = await trio.to_thread.run_sync(self.free_memory)
        others = await trio.to_thread.run_sync(self.promises.of_others)
        found = await self.held(judged.load.model_path)
        held = found.on(HOST)
        room = attrs.evolve(
            judged.rooms[HOST],
            free_bytes=None if held is None or free is None else free - found.in_use.get(HOST, 0),
            held_bytes=held or 0,
        )
        available = _without({HOST: room}, others)[HOST].available_bytes
        return available is None or judged.verdict.need.bytes_by_device[HOST] <= available

    async def _judge(
        self,
        load: LoadModel,
        model: DesiredModel,
        projection: DesiredModel,
        adapters: Sequence[DesiredModel],
        auto: Automatic,
    ) -> Judged:
        """Judge a load; MemoryUnknownError."""
        held = await self.held(load.model_path)
        judge = partial(self.fit.judge, load, model, adapters=adapters, held=held, auto=auto)
        try:
            return await judge(projection)
        except MemoryUnknownError as error:
            if isinstance(projection, NoModel) or error.kind not in NOT_LOADING:
                raise
            log.warning("judged without the projection", reason=str(error))
            return await judge(NoModel())


def has_other_source(desired: AgentDesiredState, before: AgentDesiredState | None) -> bool:
    """Return whether the model may have to be fetched: it is not of this machine, nor that of the
    state ``before``, whose files are here."""
    if isinstance(desired.model, LocalToAgent | NoModel):
        return False
    source = (desired.model, desired.multimodal_projection)
    return before is None or source != (before.model, before.multimodal_projection)


def _without(rooms: Mapping[str, Room], taken: Mapping[str, int]) -> dict[str, Room]:
    """Return the rooms with less free memory."""
    return {
        device: room
        if room.free_bytes is None
        else attrs.evolve(room, free_bytes=room.free_bytes - taken.get(device, 0))
        for device, room in rooms.items()
    }


def _issues(judged: Judged, name: str) -> list[AgentIssue]:
    """Return the issues of a state that does not fit. Paddler has no word for it. Slots that cannot
    start carry the reason; if no context is small enough, it is the model that cannot be loaded."""
    changes = {change for each in judged.suggestions for change in each.changes}
    if changes <= {Change.GPU_LAYERS}:
        return [ModelCannotBeLoaded(name)]
    return slot_issues(judged.load, judged.words)

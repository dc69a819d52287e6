"""Decide whether a model fits this machine: dry runs are made, and the pure judgement decides.

    dry run of what is asked -> rooms of the devices -> verdict (more dry runs, where context or
    layers are to be chosen) -> what would fit instead, if it does not

What is compared with the room of the host is what the engine must have: caches for prefixes and
images take what is left over, so they count for nothing here and are cut to what there is. Weights
count in full, also where they are mapped from their file and could be evicted: a model that reads
its weights from the disk for every token is not served.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs
import structlog
import trio

from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.scheduler.fit.fit_judgement import Verdict, judge_fit
from paddler_trio.scheduler.fit.fit_suggestions import (
    Suggestion,
    combined_ways,
    context_to_fit,
    ways_to_fit,
)
from paddler_trio.scheduler.fit.fit_values import (
    ALL_LAYERS,
    CELLS_STEP,
    HOST,
    LoadShape,
    Need,
    Room,
)
from paddler_trio.scheduler.fit.fit_words import refusal_words, suggestion_words
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import DeviceNeed, MemoryNeed
from paddler_trio.wire.paddler.desired_state import DesiredModel, LocalToAgent
from paddler_trio.wire.trio.desired_state_extras import NOTHING_AUTOMATIC, Automatic

log = structlog.get_logger("fit")

SUGGESTING_S: Final = 20.0
"""What would fit is worth this much time, and the old model serves meanwhile."""
REFUSING_KINDS: Final = frozenset({"context_refused", "model_refused"})
"""llama.cpp refuses these parameters; others may do."""
UNLOADABLE: Final = frozenset({"not_gguf", "truncated", "unknown_architecture", *REFUSING_KINDS})
"""Kinds of MemoryUnknownError that loading the model would end with, too."""
NOT_LOADING: Final = frozenset({*UNLOADABLE, "missing"})
"""Those, and a file that is not there: an operator is told that it does not load."""
OF_HOST: Final = frozenset({"cpu", "igpu", "accel"})
"""Kinds of devices whose memory is the host's."""

T = TypeVar("T")


class Questions(Protocol):
    """About the memory that one model takes; one at a time."""

    async def need(self, load: LoadModel) -> MemoryNeed:
        """Return what ``load`` would take; its paths are not read. MemoryUnknownError."""
        ...


OpenQuestions: TypeAlias = Callable[
    [DesiredModel, DesiredModel, HubSettings, Sequence[DesiredModel]],
    AbstractAsyncContextManager[Questions],
]
"""About a model, its projection and its adapters, wherever they are; MemoryUnknownError."""


@attrs.frozen
class Held:
    """The memory that the model in force holds, by device, and on all ``others``; None where it is
    unknown.

    Args:
      beside: what models hold that stay, by device.
      in_use: how much of that the system counts as free: weights that they map.
    """

    bytes_by_device: Mapping[str, int | None] = attrs.field(factory=dict)
    others: int | None = 0
    beside: Mapping[str, int] = attrs.field(factory=dict)
    in_use: Mapping[str, int] = attrs.field(factory=dict)

    def on(self, device: str) -> int | None:
        return self.bytes_by_device.get(device, self.others)


@attrs.frozen(kw_only=True)
class Judged:
    """The findings about one load.

    Args:
      load: with what was chosen.
      need: what it takes.
      rooms: of the devices, when it was judged.
      chosen: names of what was chosen.
    """

    load: LoadModel
    verdict: Verdict
    need: MemoryNeed
    rooms: Mapping[str, Room]
    chosen: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def words(self) -> str:
        """The reason why it does not fit, and what would, in words."""
        return refusal_words(
            self.verdict.shortages, self.suggestions, n_layers=self.verdict.need.n_layers
        )

    def with_caches_cut(self) -> LoadModel:
        """Return the load, with caches no larger than what it leaves free on the host."""
        room, settings = self.rooms.get(HOST), self.load.settings
        available = None if room is None else room.available_bytes
        if available is None:
            return self.load
        spare = max(0, available - self.verdict.need.bytes_by_device.get(HOST, 0))
        images = min(self.need.host.images, spare)  # none without a projection
        prefixes = min(settings.prefix_store_bytes, spare - images)
        if prefixes < settings.prefix_store_bytes or images < self.need.host.images:
            log.info("caches are cut to what is left", prefixes=prefixes, images=images)
        return attrs.evolve(
            self.load,
            settings=attrs.evolve(
                settings,
                image_cache_bytes=images if self.need.host.images else settings.image_cache_bytes,
                prefix_store_bytes=prefixes,
            ),
        )


@attrs.define(eq=False)
class ModelFit:
    """Judges one model at a time.

    Args:
      open_questions: :func:`~paddler_trio.models.memory.memory_prediction.open_memory_questions`.
      hub: where headers come from, unless the model ``store`` has them.
      suggesting_s: how long to look for what would fit.
    """

    open_questions: OpenQuestions
    hub: HubSettings
    limits: MemoryLimits = attrs.field(factory=MemoryLimits)
    suggesting_s: float = SUGGESTING_S
    store: StoreAddress | None = attrs.field(default=None, init=False)
    """The balancer's."""
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def judge(
        self,
        load: LoadModel,
        model: DesiredModel,
        projection: DesiredModel,
        *,
        adapters: Sequence[DesiredModel] = (),
        held: Held,
        auto: Automatic = NOTHING_AUTOMATIC,
    ) -> Judged:
        """Judge whether ``load`` fits, with the context and the layers that ``auto`` leaves to us.

        Errors:
          MemoryUnknownError: it cannot be said, and why.
        """
        async with self._turn:
            if self.store is not None and not isinstance(model, LocalToAgent):
                through = self.hub.through_store(
                    self.store.url, self.store.key_file, self.store.tls
                )
                try:
                    return await self._asked(
                        load, (model, projection, through, adapters), held, auto
                    )
                except MemoryUnknownError as error:
                    if error.kind != "unreachable":
                        raise
                    log.info("headers come from the source", reason=str(error))
            return await self._asked(load, (model, projection, self.hub, adapters), held, auto)

    async def _asked(
        self,
        load: LoadModel,
        asked: tuple[DesiredModel, DesiredModel, HubSettings, Sequence[DesiredModel]],
        held: Held,
        auto: Automatic,
    ) -> Judged:
        """Judge a load that was asked for; MemoryUnknownError."""
        failure: MemoryUnknownError
        try:
            async with self.open_questions(*asked) as questions:
                try:
                    return await self._judged(_DryRuns(load, questions), held, auto)
                except MemoryUnknownError as error:
                    failure = error  # raised outside of the nursery that the questions have
        except OSError as error:  # no room for headers, no further process
            reason = f"no dry run can be made: {error.strerror or error}"
            raise MemoryUnknownError("system", reason) from error
        raise failure

    async def _judged(self, runs: _DryRuns, held: Held, auto: Automatic) -> Judged:
        """Judge a load; MemoryUnknownError."""
        asked = shape_of(runs.load)
        try:
            first = await runs.measured(_with_all(asked, auto))
        except MemoryUnknownError as error:
            if error.kind == "context_refused":
                raise await self._with_suggestion(error, runs, held) from error
            raise
        rooms = rooms_of(first, self.limits, held)
        verdict = await runs.drive(
            judge_fit(
                asked,
                rooms,
                chooses_context=auto.context_size,
                chooses_layers=auto.n_gpu_layers,
            )
        )
        if verdict is None:
            raise MemoryUnknownError("context_refused", "llama.cpp refuses it without these layers")
        suggestions: list[Suggestion] = []
        if not verdict.fits:
            with trio.move_on_after(self.suggesting_s):
                await _suggest(runs, verdict, rooms, suggestions)
        chosen = _chosen(verdict)
        return Judged(
            load=attrs.evolve(runs.load, **chosen),
            verdict=verdict,
            need=runs.behind(verdict.need),
            rooms=rooms,
            chosen=tuple(chosen),
            suggestions=tuple(suggestions),
        )

    async def _with_suggestion(
        self, refused: MemoryUnknownError, runs: _DryRuns, held: Held
    ) -> MemoryUnknownError:
        """Return the same error with a context that fits, if one does."""
        asked = shape_of(runs.load)
        try:
            with trio.move_on_after(self.suggesting_s):
                least = attrs.evolve(asked, context_size=CELLS_STEP * asked.slots)
                need = await runs.measured(least)
                rooms = rooms_of(need, self.limits, held)
                found = await runs.drive(context_to_fit(asked, need.n_ctx_train, rooms))
                if found is not None:
                    words = suggestion_words([found], n_layers=found.need.n_layers)
                    return MemoryUnknownError(refused.kind, f"{refused}; {words}")
        except MemoryUnknownError as error:
            log.debug("nothing smaller was found", reason=str(error))
        return refused


@attrs.define(eq=False)
class _DryRuns:
    """The dry runs of one load in many shapes, each made once."""

    load: LoadModel
    questions: Questions
    _known: dict[LoadShape, tuple[Need, MemoryNeed] | None] = attrs.field(factory=dict, init=False)
    """None where llama.cpp refuses it."""

    async def measured(self, shape: LoadShape) -> MemoryNeed:
        """Return what a dry run measured; MemoryUnknownError, also if llama.cpp refuses it."""
        need = await self.questions.need(load_with(self.load, shape))
        self._known[shape] = required(need), need
        return need

    def behind(self, need: Need) -> MemoryNeed:
        """The dry run of which ``need`` is a part."""
        return next(known[1] for known in self._known.values() if known and known[0] is need)

    async def drive(self, judging: Generator[LoadShape, Need | None, T]) -> T:
        """Return what the generator returns, given what it asks for; MemoryUnknownError."""
        try:
            shape = next(judging)
            while True:
                shape = judging.send(await self._answer(shape))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _answer(self, shape: LoadShape) -> Need | None:
        if shape not in self._known:
            try:
                await self.measured(shape)
            except MemoryUnknownError as error:
                if error.kind not in REFUSING_KINDS:
                    raise
                self._known[shape] = None
        known = self._known[shape]
        return None if known is None else known[0]


async def _suggest(
    runs: _DryRuns, refused: Verdict, rooms: Mapping[str, Room], found: list[Suggestion]
) -> None:
    """Add what would fit to ``found``, as it is found."""
    try:
        for way in ways_to_fit(refused, rooms):
            found.extend(filter(None, [await runs.drive(way)]))
        for way in combined_ways(refused, rooms) if not found else ():
            found.extend(filter(None, [await runs.drive(way)]))
    except MemoryUnknownError as error:
        log.warning("no more is found out about what would fit", reason=str(error))


def shape_of(load: LoadModel) -> LoadShape:
    """Return the part of a load that the judgement may change."""
    return LoadShape(
        context_size=load.context_size,
        slots=load.slots,
        n_gpu_layers=load.n_gpu_layers,
        k_cache_dtype=load.k_cache_dtype,
        v_cache_dtype=load.v_cache_dtype,
    )


def load_with(load: LoadModel, shape: LoadShape) -> LoadModel:
    """Return the load in this shape."""
    return attrs.evolve(load, **attrs.asdict(shape))


def required(need: MemoryNeed) -> Need:
    """Return what must be there, by device: all but caches, which take what is left over."""
    host = need.host_needed - need.host.prefixes - need.host.images
    host += sum(device.needed for device in need.devices if _shares_host(device))
    devices = {device.name: device.needed for device in need.devices if device.kind not in OF_HOST}
    return Need(
        bytes_by_device={HOST: max(0, host), **devices},
        n_layers=need.n_layers + 1,
        n_ctx_train=need.n_ctx_train,
    )


def rooms_of(need: MemoryNeed, limits: MemoryLimits, held: Held) -> dict[str, Room]:
    """Return the rooms of all devices that a dry run saw, when it looked."""
    rooms = {}
    for device in need.devices:
        if device.kind != "cpu" and device.kind in OF_HOST:
            continue
        name = HOST if device.kind == "cpu" else device.name
        room = limits.room(
            name,
            total_bytes=device.total,
            free_bytes=max(0, device.free - held.in_use.get(name, 0)) if device.total else None,
            held_bytes=held.on(name),
        )
        if room.limit_bytes is not None:  # it is for all models together
            left = max(0, room.limit_bytes - held.beside.get(name, 0))
            room = attrs.evolve(room, limit_bytes=left)
        rooms[name] = room
    return rooms


def _shares_host(device: DeviceNeed) -> bool:
    return device.kind != "cpu" and device.kind in OF_HOST


def _with_all(asked: LoadShape, auto: Automatic) -> LoadShape:
    """Return the shape that the judgement asks for first."""
    return attrs.evolve(
        asked,
        context_size=0 if auto.context_size else asked.context_size,
        n_gpu_layers=ALL_LAYERS if auto.n_gpu_layers else asked.n_gpu_layers,
    )


def _chosen(verdict: Verdict) -> dict[str, Any]:
    """Return what was chosen, by name."""
    chosen: dict[str, Any] = {}
    if verdict.context_is_chosen:
        chosen["context_size"] = verdict.shape.context_size
    if verdict.layers_are_chosen:
        chosen["n_gpu_layers"] = verdict.shape.n_gpu_layers
    return chosen

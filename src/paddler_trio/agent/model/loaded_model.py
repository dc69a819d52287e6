"""One model of an agent: its engine and its language, from the start of both to the end of both.

    loaded model
    ├─ engine          all lives of the child process
    └─ preparation     all lives of the processes that read its language; when only template or
                       parameters change, others take their place

It answers while both are up. What becomes of it, and what is shown of it, is decided elsewhere
(``model_server.py``, ``model_shown.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.children.engine_crash import LoadFailedError, Suspects
from paddler_trio.agent.children.engine_keeper import EngineKeeper, SuperviseEngine
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import (
    Preparation,
    PreparationKeeper,
    SupervisePreparation,
)
from paddler_trio.agent.model.memory_in_use import MemoryInUse
from paddler_trio.agent.model.memory_status import memory_in_force
from paddler_trio.agent.model.model_errors import ModelNotServableError
from paddler_trio.agent.model.model_file import ModelFile, ModelSourceError
from paddler_trio.agent.model.model_fit import Judged
from paddler_trio.agent.model.serving import InForce, Serving, Uses
from paddler_trio.errors import EngineError, leaves
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import LanguageFacts, LanguageRefused
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    EngineStats,
    LoadModel,
    Ready,
    Step,
)
from paddler_trio.wire.trio.desired_state_extras import Automatic
from paddler_trio.wire.trio.fit_messages import MemoryInForce

log = structlog.get_logger("model")


class EngineGone(Protocol):
    """Called when everything on the engine is lost, with the reason; ``suspects`` are the possible
    causes of a crash, None if there was none."""

    def __call__(self, engine: EngineProcess, reason: str, suspects: Suspects | None) -> None: ...


@attrs.frozen(eq=False)
class Children:
    """Callables and settings that every model of an agent is given.

    Args:
      supervise, supervise_preparation: run a child again when it crashes; the nursery tree's.
      on_step: gets every pass of a running engine.
      on_engine_gone: see :class:`EngineGone`.
      memory: of all engines of the agent.
    """

    supervise: SuperviseEngine
    supervise_preparation: SupervisePreparation
    on_step: Callable[[Step | EmbeddingStep], None]
    on_engine_gone: EngineGone
    memory: MemoryInUse


class ModelOwner(Protocol):
    """Hears what happens to its models; synchronous."""

    def model_changed(self, model: LoadedModel) -> None:
        """Note that a model answers now, or does not any more."""

    def model_progressed(self, model: LoadedModel, progress: float | None) -> None:
        """Note that this part of a model is in memory, 0..1; None while the engine is proved."""

    def model_crashed(self, model: LoadedModel, reason: str, kind: str) -> None:
        """Note that a model's engine died and will be started again."""

    def language_crashed(self, model: LoadedModel, reason: str) -> None:
        """Note that the language could not be read, and will be tried again."""

    def engine_counted(self, model: LoadedModel, stats: EngineStats) -> None: ...


@attrs.frozen
class WantedLoad:
    """The load that an engine is asked for, before anything is chosen: the same again is not loaded
    again.

    ``files``: of the model, of its projection, and of its adapters.
    """

    load: LoadModel
    automatic: Automatic
    files: tuple[ModelFile | None, ...]


@attrs.define(eq=False)
class LoadedModel:
    """See the module docstring.

    Args:
      load: what the engine loads, with what was chosen.
      judged: the verdict on it; None if there is none.
      is_beside: another model answers until this one does.
    """

    wanted: WantedLoad
    load: LoadModel
    judged: Judged | None
    children: Children
    owner: ModelOwner
    is_beside: bool = False
    keeper: EngineKeeper = attrs.field(init=False)
    uses: Uses = attrs.field(factory=Uses, init=False)
    serving: Serving | None = attrs.field(default=None, init=False)
    """None while it cannot answer."""
    in_force: InForce | None = attrs.field(default=None, init=False)
    """The state that its language was read for."""
    projection_error: ModelSourceError | None = attrs.field(default=None, init=False)
    """Why there is no file of a projection that should be there."""
    is_remembered: bool = attrs.field(default=False, init=False)
    """What its engine took was kept for predictions."""
    _engine: EngineProcess | None = attrs.field(default=None, init=False)
    _preparation: Preparation | None = attrs.field(default=None, init=False)
    _language: PreparationKeeper | None = attrs.field(default=None, init=False)
    _next_language: PreparationKeeper | None = attrs.field(default=None, init=False)
    """That of another state, until it has been read."""
    _is_stopping: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.keeper = EngineKeeper(
            self.load,
            self.children.supervise,
            on_up=self._up,
            on_down=self._down,
            on_crash=lambda crash: self.owner.model_crashed(
                self, flat(crash), kind_of_death(crash)
            ),
            on_progress=lambda progress: self.owner.model_progressed(self, progress),
            on_step=self.children.on_step,
            on_stats=lambda stats: self.owner.engine_counted(self, stats),
            on_loaded=lambda: self.owner.model_progressed(self, None),
            on_begin=lambda engine: self.children.memory.begins(engine, self.owner),
            on_end=self.children.memory.ends,
            is_beside=self.is_beside,
        )

    def __repr__(self) -> str:
        state = "answers" if self.serving is not None else "does not answer"
        return f"<LoadedModel {self.load.model_path}: {state}, {self.uses.count} uses>"

    @property
    def has_engine(self) -> bool:
        """Return whether the engine is up."""
        return self._engine is not None

    @property
    def memory(self) -> MemoryInForce | None:
        """The memory that its engine takes; None while there is none."""
        ready = None if self._engine is None else self._engine.ready
        return None if ready is None else memory_in_force(self.load, self.judged, ready.memory)

    @property
    def projection_problem(self) -> str:
        """The reason why a model that should see images does not; empty if it does, or shall
        not."""
        if self.projection_error is not None:
            return str(self.projection_error)
        outcome = self.keeper.first_start.value
        if self.load.projection_path is None or not isinstance(outcome, Ready):
            return ""
        return outcome.projection_problem

    def is_the(self, wanted: WantedLoad) -> bool:
        """Return whether the model was asked for this, and has not ended."""
        return self.wanted == wanted and not (self._is_stopping or self.keeper.ended.is_set())

    async def run(self) -> None:
        """Run all lives of the engine; return when it was stopped or cannot be loaded any more."""
        await self.keeper.run()

    async def loaded(self) -> LoadFailedError | None:
        """Wait for the engine's first start; why it failed, if it did."""
        outcome = await self.keeper.first_start.wait()
        return outcome if isinstance(outcome, LoadFailedError) else None

    async def stop(self) -> None:
        """End its processes, and wait until their memory is free. Cancellation: they end."""
        self._is_stopping = True
        await self.keeper.stop()
        for language in (self._next_language, self._language):
            if language is not None:
                await language.stop()

    # ------------------------------------------------------------- language

    def start_language(self, source: LanguageSource, nursery: trio.Nursery) -> PreparationKeeper:
        """Return the processes that read ``source``, started in ``nursery`` unless they run
        already. Those of another state that was not put in force end."""
        waiting, current = self._next_language, self._language
        if waiting is not None and not _reads(waiting, source):
            self._next_language = None
            nursery.start_soon(waiting.stop, name="preparation that is not wanted any more")
            waiting = None
        if current is not None and _reads(current, source):
            return current
        if waiting is None:
            waiting = self._next_language = PreparationKeeper(
                source,
                self.children.supervise_preparation,
                on_up=self._prepared,
                on_down=self._unprepared,
                on_crash=self._preparation_crashed,
                is_beside=self.is_beside or current is not None,
            )
            nursery.start_soon(waiting.run, name="preparation")
        return waiting

    async def read_language(
        self, source: LanguageSource, nursery: trio.Nursery
    ) -> tuple[PreparationKeeper, LanguageFacts]:
        """Return the same processes, when they have read the language, and what they found. Those
        in force prepare requests until :meth:`take_language`.

        Cancellation: the next call uses what was started, or ends it.

        Raises:
          ModelNotServableError: it cannot be read; the language in force stays.
        """
        language = self.start_language(source, nursery)
        outcome = await language.first_start.wait()
        if isinstance(outcome, LanguageRefused):
            self._next_language = None
            raise ModelNotServableError([outcome.issue], outcome.reason)
        return language, outcome.facts

    def take_language(
        self, language: PreparationKeeper, in_force: InForce, nursery: trio.Nursery
    ) -> None:
        """Prepare requests with this language from now on. What is being prepared by the one
        before may end there."""
        before = self._language
        if language is not before:
            self._language, self._next_language = language, None
            if before is not None:
                nursery.start_soon(before.stop, name="preparation of the language before")
        self._preparation, self.in_force = language.current, in_force
        self._refresh()

    def _prepared(self, preparation: Preparation) -> None:
        """Note that the processes are up again after a crash; the first start is awaited in
        :meth:`read_language`."""
        language = self._language
        if language is not None and language.current is preparation:
            self._preparation = preparation
            self._refresh()

    def _unprepared(self, preparation: Preparation) -> None:
        if self._preparation is preparation:
            self._preparation = None
            self._refresh()

    def _preparation_crashed(self, crash: BaseException) -> None:
        """Note that the processes will be started again; those that never came up are an issue."""
        reason = flat(crash)
        log.error("preparation crashed", reason=reason)
        language = self._next_language
        if language is not None and language.first_start.value is None:
            self.owner.language_crashed(self, reason)

    # --------------------------------------------------------------- engine

    def _up(self, engine: EngineProcess, ready: Ready) -> None:
        log.info("engine up", cells=ready.cells, n_batch=ready.n_batch)
        self._engine = engine
        self._refresh()

    def _down(self, engine: EngineProcess, reason: str, suspects: Suspects | None) -> None:
        self._engine = None
        self._refresh()
        self.children.on_engine_gone(engine, reason, suspects)

    def _refresh(self) -> None:
        """Offer the model while there are a living engine and preparation processes."""
        engine, preparation, in_force = self._engine, self._preparation, self.in_force
        self.serving = (
            None
            if engine is None or preparation is None or in_force is None
            else Serving(preparation, engine, in_force, self.uses)
        )
        self.owner.model_changed(self)


def _reads(language: PreparationKeeper, source: LanguageSource) -> bool:
    return language.source == source and not language.ended.is_set()


def kind_of_death(crash: BaseException) -> str:
    """Return the kind of an engine's death, as :class:`~paddler_trio.errors.EngineError` has it."""
    return next((each.kind for each in leaves(crash) if isinstance(each, EngineError)), "crash")


def flat(crash: BaseException) -> str:
    """Return the words of all errors in it."""
    return "; ".join(map(str, leaves(crash)))

r"""The model an agent serves: follows the desired state, one engine at a time.

    waiting -> resolving -> downloading -> (does it fit?) -> draining -> loading -> serving
                   \___________\________________\____________________\-> failed -> (a change,
                                                                            or time) -> again

A newer desired state interrupts the one that is being applied. Changes that need neither other
weights nor another context (sampling, template) happen in place; an identical state changes nothing
(W32). The old model serves while the new one is downloaded, and as long as the new one does not fit
(``fit_gate.py``). No desired state ends the agent: a state that cannot be applied becomes an issue.
Issues stay while the same state is tried again, until it is served or fails for another reason.
While models are swapped the agent offers no slots; running answers finish on the old model, bounded
by a deadline (W16). After an engine crash its requests are handed back and it starts again; a model
that cannot be loaded stays an issue until its file or the desired state changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.cache_answers import CacheView
from paddler_trio.agent.engine_crash import Suspects
from paddler_trio.agent.engine_keeper import EngineKeeper, SuperviseEngine
from paddler_trio.agent.engine_process import EngineProcess, LoadFailedError
from paddler_trio.agent.file_watch import returns_before, wait_file_changes
from paddler_trio.agent.fit_gate import FitGate, has_other_source
from paddler_trio.agent.held_memory import held_memory
from paddler_trio.agent.memory_promises import MemoryPromises
from paddler_trio.agent.memory_status import memory_in_force
from paddler_trio.agent.model_errors import DoesNotFitError, ModelNotServableError, load_issues
from paddler_trio.agent.model_fetch import ModelFetch, ModelFetchError
from paddler_trio.agent.model_fit import Held, Judged, ModelFit
from paddler_trio.agent.model_load import LoadRules
from paddler_trio.agent.model_source import ModelFile, ModelSourceError, describe, file_at
from paddler_trio.agent.preparation import Preparation
from paddler_trio.agent.preparation_keeper import PreparationKeeper, SupervisePreparation
from paddler_trio.agent.status import AgentStatus
from paddler_trio.agent.store_first import StoreAddress
from paddler_trio.errors import leaves
from paddler_trio.language.model_language import LanguageSource
from paddler_trio.models.download_progress import DownloadProgress
from paddler_trio.models.hub_settings import HubSettings
from paddler_trio.models.memory_prediction import remember_load
from paddler_trio.models.retry_delay import PERMANENT_RETRY_S
from paddler_trio.nursery_tree.synchronization import Changes
from paddler_trio.preparation.messages import LanguageFacts, LanguageRefused
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    EngineStats,
    LoadModel,
    Ready,
    Step,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ModelCannotBeLoaded,
    MultimodalProjectionCannotBeLoaded,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus
from paddler_trio.wire.trio.desired_state_extras import (
    NO_EXTRAS,
    NOTHING_AUTOMATIC,
    Automatic,
    Extras,
    extended_digest,
)

log = structlog.get_logger("model")

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@attrs.frozen(eq=False)
class Serving:
    """A model that answers: the preparation of its requests and its living engine."""

    preparation: Preparation
    engine: EngineProcess


class EngineGone(Protocol):
    """Called when everything on the engine is lost, with the reason; ``suspects`` are the possible
    causes of a crash, None if there was none."""

    def __call__(self, reason: str, suspects: Suspects | None) -> None: ...


@attrs.define(eq=False)
class ModelServer:
    """See the module docstring.

    Args:
      status: shows every change.
      threads: of the engine.
      settings: of the engine, whatever it loads; the desired state's extras win over them.
      drain_s: how long running answers may take when the model is swapped.
      supervise, supervise_preparation: run a child again when it crashes; the nursery tree's.
      on_step: gets every pass of the running engine.
      on_engine_gone: see :class:`EngineGone`.
      trusts_messages: control tokens that messages spell become control tokens.
      hub: where models are fetched from, and their cache.
      fit: judges whether models fit; None if nobody shall ask.
      checks_fit: refuse what does not fit.
    """

    status: AgentStatus
    threads: int
    settings: EngineSettings
    drain_s: float
    supervise: SuperviseEngine
    supervise_preparation: SupervisePreparation
    on_step: Callable[[Step | EmbeddingStep], None]
    on_engine_gone: EngineGone
    trusts_messages: bool = attrs.field(default=False, kw_only=True)
    hub: HubSettings = attrs.field(factory=HubSettings.from_environment, kw_only=True)
    fit: ModelFit | None = attrs.field(default=None, kw_only=True)
    checks_fit: bool = attrs.field(default=True, kw_only=True)
    _rules: LoadRules = attrs.field(init=False)
    _fetch: ModelFetch = attrs.field(init=False)
    gate: FitGate | None = attrs.field(default=None, init=False)
    serving: Serving | None = attrs.field(default=None, init=False)
    metadata: dict[str, str] | None = attrs.field(default=None, init=False)
    desired: AgentDesiredState | None = attrs.field(default=None, init=False)
    _extras: Extras = attrs.field(default=NO_EXTRAS, init=False)
    """The extras of ``desired``; both change together."""
    _desired_changes: Changes = attrs.field(factory=Changes, init=False)
    _keeper: EngineKeeper | None = attrs.field(default=None, init=False)
    _engine: EngineProcess | None = attrs.field(default=None, init=False)
    _languages: PreparationKeeper | None = attrs.field(default=None, init=False)
    _preparation: Preparation | None = attrs.field(default=None, init=False)
    _language_state: str | None = attrs.field(default=None, init=False)
    """The digest of the state that the language was read for; it is served, or will be."""
    _in_force: AgentDesiredState | None = attrs.field(default=None, init=False)
    """That state."""
    _wanted_load: tuple[LoadModel | None, Automatic] = attrs.field(
        default=(None, NOTHING_AUTOMATIC), init=False
    )
    """What the engine that runs was asked for, before anything was chosen."""
    _judged: Judged | None = attrs.field(default=None, init=False)
    """The verdict on what the engine loaded; None if there is none."""
    _files: tuple[ModelFile | None, ...] = attrs.field(default=(), init=False)
    """Of the model and of its projection."""
    _projection_error: ModelSourceError | None = attrs.field(default=None, init=False)
    """Why there is no file of a projection that should be there."""
    _projection_problem: str = attrs.field(default="", init=False)
    """Why a model that should see images does not; empty if it does, or shall not."""

    def __attrs_post_init__(self) -> None:
        self._fetch = ModelFetch(self.hub, self._show_download)
        self._rules = LoadRules(
            slots=self.status.slots, threads=self.threads, settings=self.settings
        )
        if self.fit is not None:
            self.gate = FitGate(
                self.fit,
                self._rules,
                held=self._held_memory,
                promises=MemoryPromises(self.hub.url_cache.parent / "loading"),
                refuses=self.checks_fit,
            )

    def __repr__(self) -> str:
        return f"<ModelServer {self.status.phase}: {self.serving or 'no model'}>"

    def set_desired(self, desired: AgentDesiredState, extras: Extras = NO_EXTRAS) -> None:
        """Serve this state from now on. The same state again changes nothing."""
        digest = extended_digest(desired, extras)
        if digest == self.status.wanted_state:
            return
        self.desired, self._extras = desired, extras
        self.status.wanted_state = digest
        self.status.set(
            served_state=self._kept_state,
            application=AgentStateApplicationStatus.FRESH,
            phase="resolving",
            detail=None,
            progress=None,
        )
        self._desired_changes.notify()

    @property
    def store(self) -> StoreAddress | None:
        """Where models are asked for first."""
        return self._fetch.store

    def cache_view(self) -> CacheView:
        """What of the caches it serves and wants to serve, as it is now."""
        desired = self.desired
        wanted = () if desired is None else (desired.model, desired.multimodal_projection)
        loaded = () if self._keeper is None else self._files
        return CacheView(self.hub, wanted, tuple(f.path for f in loaded if f is not None))

    async def touch_uses(self) -> None:
        """What is served is in use still."""
        await self._fetch.uses.touch()

    def set_store(self, store: StoreAddress | None) -> None:
        """Where models are asked for first, from the next download on; None for their sources."""
        self._fetch.store = store
        if self.fit is not None:
            self.fit.store = store

    async def wait_serving(self) -> Serving:
        """The model in force, as soon as there is one."""
        ordinal = 0
        while self.serving is None:
            ordinal = await self.status.changes.wait_beyond(ordinal)
        return self.serving

    async def run(self) -> None:
        """Follow the desired state until cancelled; engines are children of this task."""
        async with trio.open_nursery() as engines:
            ordinal = 0
            while True:
                ordinal = await self._desired_changes.wait_beyond(ordinal)
                async with trio.open_nursery() as effort:
                    effort.start_soon(
                        self._watch_newer, ordinal, effort.cancel_scope, name="newer state watch"
                    )
                    await self._follow(engines)

    async def _watch_newer(self, ordinal: int, effort: trio.CancelScope) -> None:
        """Cancel ``effort`` when there is a newer state (W33)."""
        await self._desired_changes.wait_beyond(ordinal)
        effort.cancel(reason="a newer desired state")

    async def _follow(self, engines: trio.Nursery) -> None:
        """Make the desired state true, and again when that may help, until interrupted."""
        retry_s = FIRST_RETRY_S
        while True:
            desired, extras = self.desired, self._extras
            assert desired is not None
            name = describe(desired.model)
            found = file_at(name)
            projection = describe(desired.multimodal_projection)
            projection_found = file_at(projection)
            try:
                await self._apply(desired, extras, engines)
                if self._keeper is None:
                    await trio.sleep_forever()
                ended = self._keeper.ended
                if not self._projection_problem:
                    await ended.wait()  # it serves, until it cannot be loaded again
                elif isinstance(self._projection_error, ModelFetchError):
                    if await returns_before(ended, self._fetch.wait_retry, self._projection_error):
                        continue  # it served text only; now it may see as well
                elif await returns_before(ended, wait_file_changes, projection, projection_found):
                    continue
                self._keeper = None
            except ModelFetchError as error:
                self._fail(error, desired)
                await self._fetch.wait_retry(error)
                continue
            except DoesNotFitError as error:
                assert self.gate is not None, "nothing else refuses what does not fit"
                self._fail(error, desired)
                await self.gate.wait_room(error, partial(wait_file_changes, name, found))
                continue
            except (ModelSourceError, ModelNotServableError) as error:
                if isinstance(error, ModelNotServableError) and error.is_permanent:
                    retry_s = PERMANENT_RETRY_S
                refused = error.refused if isinstance(error, ModelNotServableError) else None
                if refused is not None and not isinstance(desired.model, LocalToAgent):
                    if not await self._fetch.is_refused_as_announced(refused):
                        continue  # the next one is fetched anew
                    retry_s = PERMANENT_RETRY_S
                self._fail(error, desired)
            except Exception as error:
                # an unforeseen state, or a bug: the next state must be applied anyway
                log.exception("the desired state cannot be applied", model=name)
                reason = f"{type(error).__name__}: {error}"
                self._fail(ModelNotServableError([ModelCannotBeLoaded(name)], reason), desired)
            with trio.move_on_after(retry_s) as timeout:
                await wait_file_changes(name, found)
            retry_s = (
                min(retry_s * 2, LONGEST_RETRY_S) if timeout.cancelled_caught else FIRST_RETRY_S
            )

    async def _apply(
        self, desired: AgentDesiredState, extras: Extras, engines: trio.Nursery
    ) -> None:
        """From the desired state to a serving engine; ModelSourceError, ModelNotServableError.

        Cancellation: leaves no slots offered and an engine that the next attempt reuses or ends.
        """
        stays_refused = self._keeps_model and self.status.phase == "failed"
        if not stays_refused:
            self.status.set(phase="resolving", progress=None)
        if self.gate is not None and has_other_source(desired, self._in_force):
            if not stays_refused:  # the model in force gets work as long as headers are fetched
                self.status.set(phase="downloading")
            await self.gate.check_source(desired, extras, serves=self.serving is not None)
            self.status.set(phase="resolving")
        file = await self._fetch.model(desired)
        projection, missing = await self._fetch.projection(desired)
        self._projection_error = missing
        load = None
        if file is not None:
            load = self._rules.load(
                desired,
                extras,
                model_path=file.path,
                projection_path=None if projection is None else projection.path,
            )
        files = (file, projection)
        same = (
            self._keeper is not None
            and self._wanted_load == (load, extras.automatic)
            and self._files == files
        )
        if not same:
            try:
                await self._replace_engine(load, desired, extras, files, engines)
            finally:
                if self.gate is not None:
                    self.gate.loaded()
        if file is None:
            self._serve_nothing(desired, extras)
            return
        if projection is None:
            self._projection_problem = "" if missing is None else str(missing)
        issues: frozenset[AgentIssue] = frozenset()
        if self._projection_problem:
            log.warning("the model sees no images", reason=self._projection_problem)
            name = describe(desired.multimodal_projection)
            issues = frozenset(
                {MultimodalProjectionCannotBeLoaded(name) if missing is None else missing.issue}
            )
        paths = [file.path]
        if projection is not None and not self._projection_problem:
            paths.append(projection.path)
        facts = await self._prepare(
            LanguageSource(
                paths=tuple(paths),
                desired=desired,
                markers=extras.markers,
                trusts_messages=self.trusts_messages,
            ),
            engines,
        )
        assert self._languages is not None
        self._preparation = self._languages.current
        self._language_state, self._in_force = extended_digest(desired, extras), desired
        self.metadata = dict(facts.metadata)
        self.status.model_fingerprint = facts.fingerprint
        self.status.set(
            issues=issues,
            application=AgentStateApplicationStatus.APPLIED,
            model_path=file.path,
            uses_chat_template_override=desired.chat_template_override is not None,
        )
        self._update_serving()
        log.info("model in force", model=file.path)

    async def _replace_engine(
        self,
        wanted: LoadModel | None,
        desired: AgentDesiredState,
        extras: Extras,
        files: tuple[ModelFile | None, ...],
        engines: trio.Nursery,
    ) -> None:
        """Let the engine in force go, and start the one that is wanted unless it does not fit."""
        load, judged = wanted, None
        if wanted is not None and self.gate is not None:
            judged = await self.gate.check(
                wanted,
                desired.model,
                NoModel() if files[1] is None else desired.multimodal_projection,
                extras.automatic,
                serves=self.serving is not None,
                loads_now=True,
            )
            load = wanted if judged is None else judged.with_caches_cut()
        await self._drain_and_stop()
        await self._fetch.uses.keep(each.path for each in files if each is not None)
        self._wanted_load, self._judged = (wanted, extras.automatic), judged
        if load is None:
            return
        await self._start_engine(load, files, engines)
        ready = None if self._engine is None else self._engine.ready
        if judged is not None and ready is not None and ready.memory is not None:
            engines.start_soon(
                remember_load,
                judged.load,
                judged.need,
                ready.memory,
                self.hub,
                name="memory history",
            )

    async def _held_memory(self) -> Held:
        """What the engine in force holds, also one that is not up yet."""
        return await held_memory(None if self._keeper is None else self._keeper.current)

    def _count(self, stats: EngineStats) -> None:
        self.status.stats = stats

    async def _drain_and_stop(self) -> None:
        """Offer no slots, let running answers finish for a while, then end the engine."""
        self.serving = None
        self._preparation = self._language_state = self._in_force = None
        self.status.set(is_serving=False, served_state=None, phase="draining", memory=None)
        if self._keeper is None:
            return
        with trio.move_on_after(self.drain_s) as timeout:
            ordinal = self.status.load_changes.ordinal
            while self.status.requests_running:
                ordinal = await self.status.load_changes.wait_beyond(ordinal)
        if timeout.cancelled_caught:
            log.warning("drain deadline: stopping answers", left=self.status.requests_running)
        await self._keeper.stop()
        self._keeper = None
        if self._languages is not None:
            await self._languages.stop()
            self._languages = None

    async def _prepare(self, source: LanguageSource, engines: trio.Nursery) -> LanguageFacts:
        """The processes that read this language, started unless they run; ModelNotServableError.

        Cancellation: the next attempt uses what was started, or replaces it.
        """
        before = self._languages
        if before is None or before.source != source or before.ended.is_set():
            keeper = PreparationKeeper(
                source,
                self.supervise_preparation,
                on_up=self._prepared,
                on_down=self._unprepared,
                on_crash=self._preparation_crashed,
            )
            self._languages = keeper
            engines.start_soon(keeper.run, name="preparation")
            if before is not None:  # what is being prepared there may end there
                engines.start_soon(before.stop, name="preparation of the language before")
        assert self._languages is not None
        outcome = await self._languages.first_start.wait()
        if isinstance(outcome, LanguageRefused):
            self._languages = None
            raise ModelNotServableError([outcome.issue], outcome.reason)
        return outcome.facts

    def _prepared(self, preparation: Preparation) -> None:
        """Up again after a crash; the first start is awaited in :meth:`_prepare`."""
        keeper = self._languages
        if keeper is not None and keeper.current is preparation and keeper.first_start.value:
            self._preparation = preparation
            self._update_serving()

    def _preparation_crashed(self, crash: BaseException) -> None:
        """The processes will be started again; those that never came up are an issue."""
        reason = _flat(crash)
        log.error("preparation crashed", reason=reason)
        keeper = self._languages
        if keeper is not None and keeper.first_start.value is None:
            self.status.set(
                detail=reason,
                issues=frozenset({ModelCannotBeLoaded(keeper.source.paths[0])}),
                application=AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
            )

    def _unprepared(self, preparation: Preparation) -> None:
        if self._preparation is preparation:
            self._preparation = None
            self._update_serving()

    async def _start_engine(
        self, load: LoadModel, files: tuple[ModelFile | None, ...], engines: trio.Nursery
    ) -> None:
        self.status.set(phase="loading", progress=0.0, model_path=None)
        if self.status.application is AgentStateApplicationStatus.FRESH:
            self.status.set(issues=frozenset())  # they were another state's
        keeper = EngineKeeper(
            load,
            self.supervise,
            on_up=self._up,
            on_down=self._down,
            on_crash=self._crashed,
            on_progress=lambda progress: self.status.set(progress=progress),
            on_step=self.on_step,
            on_stats=self._count,
        )
        self._keeper, self._files = keeper, files
        engines.start_soon(keeper.run, name="engine")
        outcome = await keeper.first_start.wait()
        if isinstance(outcome, LoadFailedError):
            await keeper.ended.wait()
            self._keeper = None
            desired = self.desired
            has_override = desired is not None and desired.chat_template_override is not None
            raise ModelNotServableError(
                load_issues(outcome, load, has_override=has_override),
                str(outcome),
                refused=None if outcome.stage == "context" else load.model_path,
            )

    def _serve_nothing(self, desired: AgentDesiredState, extras: Extras) -> None:
        self.status.set(
            phase="waiting",
            detail=None,
            issues=frozenset(),
            application=AgentStateApplicationStatus.APPLIED,
            served_state=extended_digest(desired, extras),
            model_path=None,
            uses_chat_template_override=desired.chat_template_override is not None,
        )

    def _fail(
        self, error: ModelSourceError | ModelNotServableError, desired: AgentDesiredState
    ) -> None:
        if desired is not self.desired:
            return  # this effort is being cancelled
        issues = (
            error.issues if isinstance(error, ModelNotServableError) else frozenset({error.issue})
        )
        again = self.status.application in (
            AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
            AgentStateApplicationStatus.STUCK,
        )
        log.error("the model is not served", reason=str(error))
        self.status.set(
            phase="failed",
            model_path=self.status.model_path if self._engine is not None else None,
            detail=str(error),
            progress=None,
            issues=issues,
            application=AgentStateApplicationStatus.STUCK
            if again
            else AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
        )

    def _show_download(self, download: DownloadProgress | None) -> None:
        if download is not None:
            self.status.set(download=download, phase="downloading")
        elif self.status.download is not None:
            self.status.set(download=None, phase="resolving")

    @property
    def _keeps_model(self) -> bool:
        """A model is in force that is not the desired one, and answers the same kind of
        requests: it gets work until the desired one is loaded."""
        before, desired = self._in_force, self.desired
        return (
            before is not None
            and desired is not None
            and self._language_state != self.status.wanted_state
            and not isinstance(desired.model, NoModel)
            and before.inference_parameters.enable_embeddings
            == desired.inference_parameters.enable_embeddings
        )

    @property
    def _kept_state(self) -> str | None:
        """The digest of what that model serves now."""
        return self._language_state if self._keeps_model and self.serving is not None else None

    # ------------------------------------------------- callbacks of the engine

    def _up(self, engine: EngineProcess, ready: Ready) -> None:
        log.info("engine up", cells=ready.cells, n_batch=ready.n_batch)
        self._engine = engine
        if engine.load.projection_path is not None:
            self._projection_problem = ready.projection_problem
        self.status.set(
            progress=None, memory=memory_in_force(engine.load, self._judged, ready.memory)
        )
        self._update_serving()

    def _down(self, reason: str, suspects: Suspects | None) -> None:
        self._engine = None
        self._update_serving()
        self.on_engine_gone(reason, suspects)

    def _crashed(self, crash: BaseException) -> None:
        """The engine died and will be started again; one that never came up is an issue."""
        keeper = self._keeper
        assert keeper is not None
        if self._keeps_model:
            return  # the phase is about the next one
        self.status.set(phase="loading", detail=_flat(crash), progress=0.0)
        if keeper.first_start.value is None:
            self.status.set(
                issues=frozenset({ModelCannotBeLoaded(keeper.load.model_path)}),
                application=AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
            )

    def _update_serving(self) -> None:
        """The model is served while there are a living engine and preparation processes."""
        engine, preparation = self._engine, self._preparation
        if engine is None or preparation is None:
            self.serving = None
            self.status.set(is_serving=False, served_state=None)
            return
        self.serving = Serving(preparation, engine)
        if self._language_state != self.status.wanted_state:
            self.status.set(is_serving=True, served_state=self._kept_state)
            return
        self.status.set(
            is_serving=True,
            phase="serving",
            progress=None,
            detail=self._projection_problem or None,
            served_state=self._language_state,
        )


def _flat(crash: BaseException) -> str:
    return "; ".join(map(str, leaves(crash)))

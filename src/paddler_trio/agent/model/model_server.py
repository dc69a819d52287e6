r"""The model an agent serves: follows the desired state.

    waiting -> resolving -> downloading -> (does it fit?) -+-------------> loading -> probing
                   \___________\________________\_________  \-> draining _/    \         \
                                                          \                     \         serving
                                                           -> failed -> (a change, or time) -> again

A newer desired state interrupts the one that is being applied. Changes that need neither other
weights nor another context (sampling, template) happen in place; an identical state changes
nothing. The old model serves while the new one is downloaded, and as long as the new one does not
fit (``fit_gate.py``). No desired state ends the agent: a state that cannot be applied becomes an
issue. Issues stay while the same state is tried again, until it is served or fails for another
reason.

Where the memory holds both, the new model is loaded and proved *beside* the old one: that one gets
all requests until the new one serves, and ends with its last request. Elsewhere the agent offers no
slots while models are swapped; running answers finish on the old model first. Both are bounded by a
deadline. After an engine crash its requests are handed back and it starts again; a model
that cannot be loaded stays an issue until its file or the desired state changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.agent.children.engine_keeper import SuperviseEngine
from paddler_trio.agent.children.preparation import SupervisePreparation
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.cache_answers import CacheView
from paddler_trio.agent.model.fit_gate import FitGate
from paddler_trio.agent.model.loaded_model import Children, EngineGone, LoadedModel
from paddler_trio.agent.model.memory_in_use import MemoryInUse
from paddler_trio.agent.model.memory_promises import MemoryPromises
from paddler_trio.agent.model.model_application import ModelApplication
from paddler_trio.agent.model.model_errors import DoesNotFitError, ModelNotServableError
from paddler_trio.agent.model.model_fetch import ModelFetch, ModelFetchError
from paddler_trio.agent.model.model_file import (
    ModelSourceError,
    describe,
    file_at,
    wait_file_changes,
)
from paddler_trio.agent.model.model_fit import Held, Judged, ModelFit
from paddler_trio.agent.model.model_load import LoadRules
from paddler_trio.agent.model.model_places import ModelPlaces
from paddler_trio.agent.model.model_shown import ModelShown
from paddler_trio.agent.model.serving import Serving
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.models.download.download_progress import PERMANENT_RETRY_S
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.processes.preparation.preparation_messages import LanguageFacts
from paddler_trio.system.synchronization import Changes, returns_before
from paddler_trio.wire.engine.engine_pipe import EmbeddingStep, EngineStats, Step
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.agent_issue import ModelCannotBeLoaded
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, LocalToAgent, NoModel
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest

log = structlog.get_logger("model")

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@attrs.define(eq=False)
class ModelServer:
    """See the module docstring.

    Args:
      status: shows every change.
      threads: of the engine.
      settings: of the engine, whatever it loads; the desired state's extras win over them.
      drain_s: how long running answers may take when the model is swapped.
      supervise, supervise_preparation, on_step, on_engine_gone: see :class:`Children`.
      trusts_messages: control tokens that messages spell become control tokens.
      hub: where models are fetched from, and their cache.
      fit: judges whether models fit; None if nobody shall ask.
      checks_fit: refuse what does not fit.
      loads_beside: a new model is loaded beside the old one where both fit.
      memory: of all engines of this agent, those of its other model servers too.
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
    loads_beside: bool = attrs.field(default=True, kw_only=True)
    memory: MemoryInUse = attrs.field(factory=MemoryInUse, kw_only=True)
    gate: FitGate | None = attrs.field(default=None, init=False)
    serving: Serving | None = attrs.field(default=None, init=False)
    """The model to which new requests go."""
    metadata: dict[str, str] | None = attrs.field(default=None, init=False)
    desired: AgentDesiredState | None = attrs.field(default=None, init=False)
    unloaded_since: str | None = attrs.field(default=None, init=False)
    """When an operator unloaded it, RFC 3339; None while it follows what is desired."""
    _extras: Extras = attrs.field(default=NO_EXTRAS, init=False)
    """The extras of ``desired``; both change together."""
    _desired_changes: Changes = attrs.field(factory=Changes, init=False)
    _rules: LoadRules = attrs.field(init=False)
    _fetch: ModelFetch = attrs.field(init=False)
    _shown: ModelShown = attrs.field(init=False)
    _places: ModelPlaces = attrs.field(init=False)
    _application: ModelApplication = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._shown = ModelShown(self.status)
        self.memory.show_room_in(self.status)
        self._fetch = ModelFetch(self.hub, self._shown.download)
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
                on_judged=partial(self.memory.note_room, self.fit.limits),
            )
        children = Children(
            self.supervise,
            self.supervise_preparation,
            self.on_step,
            self.on_engine_gone,
            self.memory,
        )
        self._places = ModelPlaces(
            self,
            children,
            self._shown,
            self._fetch.uses,
            self.gate,
            drain_s=self.drain_s,
            loads_beside=self.loads_beside,
        )
        self._application = ModelApplication(
            self.status,
            self._rules,
            self._fetch,
            self.gate,
            self._shown,
            self._places,
            self.trusts_messages,
            self._take_facts,
        )

    def __repr__(self) -> str:
        return f"<ModelServer {self.status.phase}: {self._places.offered or 'no model'}>"

    def set_desired(self, desired: AgentDesiredState, extras: Extras = NO_EXTRAS) -> None:
        """Serve this state from now on. The same state again changes nothing."""
        digest = extended_digest(desired, extras)
        if digest == self.status.wanted_state:
            return
        self.desired, self._extras = desired, extras
        self.status.wanted_state = digest  # what is kept depends on it
        self._shown.wanted(kept=self._kept_state)
        if self.unloaded_since is not None:
            self.status.set(phase="unloading")
        self._desired_changes.notify()

    def set_unloaded(self, since: str | None) -> None:
        """Free the memory and load nothing, or with None follow what is desired again."""
        self.unloaded_since = since
        self.status.set(phase="resolving" if since is None else "unloading", detail=None)
        self._desired_changes.notify()

    def restart_engine(self) -> None:
        """End the engine that began last and start it anew, or try at once what failed."""
        newest = self._places.newest
        if newest is not None and newest.keeper.restart():
            self._shown.restarting()
        else:
            self._desired_changes.notify()

    @property
    def judges_beside(self) -> bool:
        """Return whether it can be asked whether it would load a model beside the one in force: it
        does so where it knows that both fit."""
        return self.loads_beside and self.checks_fit and self.fit is not None

    @property
    def store(self) -> StoreAddress | None:
        """The store where models are asked for first."""
        return self._fetch.store

    def cache_view(self) -> CacheView:
        """Return what of the caches it serves and wants to serve, as it is now."""
        desired = self.desired
        wanted = () if desired is None else (desired.model, desired.multimodal_projection)
        return CacheView(self.hub, (*wanted, *self._extras.sources), self._places.paths)

    async def touch_uses(self) -> None:
        """Note that what is served is in use still."""
        await self._fetch.uses.touch()

    async def would_load_beside(
        self, judged: Judged, desired: AgentDesiredState, extras: Extras
    ) -> bool | None:
        """Return whether the model in force would go on serving while ``judged``, of this state, is
        loaded, as the memory is now; None if nothing is in force."""
        gate = self.gate
        if self.serving is None or gate is None:
            return None
        if not gate.judges(extras.automatic) or not self._places.may_stay(judged.load, desired):
            return False
        return await gate.beside(judged) is not None

    def set_store(self, store: StoreAddress | None) -> None:
        """Set the store where models are asked for first, from the next download on; None for their
        sources."""
        self._fetch.store = store
        if self.fit is not None:
            self.fit.store = store

    async def wait_serving(self) -> Serving:
        """Return the model in force, as soon as there is one."""
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
                    if self.unloaded_since is None:
                        await self._follow(engines)
                    else:
                        await self._places.clear()
                        self._shown.unloaded(self.unloaded_since)
                        await trio.sleep_forever()  # until the watch ends this effort

    async def _watch_newer(self, ordinal: int, effort: trio.CancelScope) -> None:
        """Cancel ``effort`` when there is a newer state."""
        await self._desired_changes.wait_beyond(ordinal)
        effort.cancel(reason="a newer desired state")

    async def _follow(self, engines: trio.Nursery) -> None:
        """Make the desired state true, and again when that may help, until interrupted."""
        retry_s = FIRST_RETRY_S
        while True:
            desired, extras = self.desired, self._extras
            assert desired is not None, "orders are refused before"
            name = describe(desired.model)
            found = file_at(name)
            projection = describe(desired.multimodal_projection)
            projection_found = file_at(projection)
            try:
                model = await self._application.apply(
                    desired,
                    extras,
                    engines,
                    keeps_model=self._keeps_model,
                    serves=self.serving is not None,
                )
                if model is None:
                    await trio.sleep_forever()
                retry_s = FIRST_RETRY_S
                ended = model.keeper.ended
                if not model.projection_problem:
                    await ended.wait()  # it serves, until it cannot be loaded again
                elif isinstance(model.projection_error, ModelFetchError):
                    if await returns_before(ended, self._fetch.wait_retry, model.projection_error):
                        continue  # it served text only; now it may see as well
                elif await returns_before(ended, wait_file_changes, projection, projection_found):
                    continue
                await self._places.drop(model)
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

    def _take_facts(self, facts: LanguageFacts) -> None:
        self.metadata = dict(facts.metadata)

    def _fail(
        self, error: ModelSourceError | ModelNotServableError, desired: AgentDesiredState
    ) -> None:
        if desired is not self.desired:
            return  # this effort is being cancelled
        current = self._places.current
        self._shown.failed(error, has_engine=current is not None and current.has_engine)

    async def _held_memory(self, path: str, *, keeps_own: bool = False) -> Held:
        return await self.memory.held(self, path, keeps_own=keeps_own)

    @property
    def _keeps_model(self) -> bool:
        """A model is in force that is not the desired one, and answers the same kind of
        requests: it gets work until the desired one is loaded."""
        before, desired = self._places.in_force, self.desired
        return (
            before is not None
            and desired is not None
            and before.digest != self.status.wanted_state
            and not isinstance(desired.model, NoModel)
            and before.desired.inference_parameters.enable_embeddings
            == desired.inference_parameters.enable_embeddings
        )

    @property
    def _kept_state(self) -> str | None:
        """The digest of what that model serves now."""
        before = self._places.in_force
        keeps = self._keeps_model and self.serving is not None
        return before.digest if keeps and before is not None else None

    # ------------------------------------------------------- what happens to models

    def offer_changed(self) -> None:
        model, in_force = self._places.offered, self._places.in_force
        self.serving = None if model is None else model.serving
        self._shown.serving(
            model,
            is_wanted=in_force is not None and in_force.digest == self.status.wanted_state,
            kept=self._kept_state,
        )

    def model_changed(self, model: LoadedModel) -> None:
        if model is self._places.offered:
            self.offer_changed()

    def model_progressed(self, model: LoadedModel, progress: float | None) -> None:
        if not self._is_shown(model):
            return
        if progress is None:
            self.status.set(phase="probing", progress=None)
        else:
            self.status.set(progress=progress)

    def model_crashed(self, model: LoadedModel, reason: str, kind: str) -> None:
        self.status.restart_kinds[kind] += 1
        self.status.set(engine_restarts=self.status.engine_restarts + 1)
        if self._is_shown(model):
            self._shown.crashed(reason)

    def language_crashed(self, model: LoadedModel, reason: str) -> None:
        self._shown.language_crashed(model, reason)

    def engine_counted(self, model: LoadedModel, stats: EngineStats) -> None:
        if model is self._places.newest or model is self._places.offered:
            self.status.stats = stats

    def _is_shown(self, model: LoadedModel) -> bool:
        """Return whether the phase is about this model: not about one that another is to take the
        place of."""
        is_kept = model is self._places.offered and self._keeps_model
        return model is self._places.newest and not is_kept and self.status.phase != "draining"

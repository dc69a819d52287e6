"""The models that an agent has at a time, and how one takes the place of another.

    coming    loaded beside the current one, where both fit
    current   in force, or on its way alone
    leaving   was in force; ends with its last request, or at the drain deadline

Two at most hold memory: nothing is begun before the one that leaves has gone. What is *offered* is
the current one from when it is in force until it is drained; requests go there.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.model.fit_gate import FitGate
from paddler_trio.agent.model.loaded_model import Children, LoadedModel, ModelOwner, WantedLoad
from paddler_trio.agent.model.model_errors import ModelNotServableError, load_issues
from paddler_trio.agent.model.model_shown import ModelShown
from paddler_trio.agent.model.model_uses import ModelUses
from paddler_trio.agent.model.serving import InForce
from paddler_trio.models.memory.memory_prediction import remember_load
from paddler_trio.system.synchronization import Changes, wait_first
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.paddler.agent_issue import ModelCannotBeLoaded
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, LocalToAgent, NoModel

log = structlog.get_logger("model")


class PlacesOwner(ModelOwner, Protocol):
    """Hears what becomes of what is offered, too."""

    def offer_changed(self) -> None:
        """Note that another model is offered, or none."""


@attrs.frozen(eq=False)
class _Departure:
    """``draining`` is cancelled when the model is offered again: if it leaves once more, its
    requests have a whole deadline."""

    model: LoadedModel
    draining: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class ModelPlaces:
    """See the module docstring.

    Args:
      uses: marks on the files of the models that are here.
      gate: judges what fits; None if nobody does, and then nothing is loaded beside another.
      drain_s: how long requests may take on a model that another one takes the place of.
      loads_beside: False ends the current one before the next one begins, always.
    """

    owner: PlacesOwner
    children: Children
    shown: ModelShown
    uses: ModelUses
    gate: FitGate | None
    drain_s: float = attrs.field(kw_only=True)
    loads_beside: bool = attrs.field(kw_only=True)
    current: LoadedModel | None = attrs.field(default=None, init=False)
    offered: LoadedModel | None = attrs.field(default=None, init=False)
    _coming: LoadedModel | None = attrs.field(default=None, init=False)
    _leaving: LoadedModel | None = attrs.field(default=None, init=False)
    _has_left: Changes = attrs.field(factory=Changes, init=False)
    _departure: _Departure | None = attrs.field(default=None, init=False)
    """The departure of the one that leaves, also while it is wanted again and not offered yet."""
    _promised: LoadedModel | None = attrs.field(default=None, init=False)
    """The one that takes the memory which was promised to it."""

    @property
    def in_force(self) -> InForce | None:
        """The desired state of the model that requests go to, and what was read for it."""
        return None if self.offered is None else self.offered.in_force

    @property
    def newest(self) -> LoadedModel | None:
        """The model that began last."""
        return self._coming or self.current

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files of all models that are here."""
        models = (self.current, self._coming, self._leaving)
        return tuple(
            file.path
            for model in models
            if model is not None
            for file in model.wanted.files
            if file is not None
        )

    async def begun(
        self, wanted: WantedLoad, desired: AgentDesiredState, engines: trio.Nursery
    ) -> LoadedModel:
        """Return a model that is here, or one that begins in ``engines``. One that leaves comes
        back if it is wanted again.

        Cancellation: the next call uses what was begun, or ends it.

        Raises:
          ModelNotServableError: it does not fit, or cannot be loaded.
        """
        here = (self._coming, self.current, self._leaving)
        model = next((each for each in here if each is not None and each.is_the(wanted)), None)
        if model is not self._coming:
            await self.abandon_coming()
        if model is None:
            return await self._begin(wanted, desired, engines)
        if model is self._leaving:
            self._coming = self._leaving
            self._has_gone()
        return model

    async def proved(
        self, model: LoadedModel, desired: AgentDesiredState, engines: trio.Nursery
    ) -> None:
        """Return when its engine has decoded once; ModelNotServableError if it never will, and then
        it is gone. One beside it stays."""
        failure = await model.loaded()
        if failure is not None:
            await self.drop(model)
            has_override = desired.chat_template_override is not None
            raise ModelNotServableError(
                load_issues(failure, model.load, has_override=has_override),
                str(failure),
                refused=model.load.model_path if failure.stage in ("model", "encoder") else None,
            )
        ready, judged = model.keeper.first_start.value, model.judged
        assert isinstance(ready, Ready), "it has not failed"
        if judged is not None and ready.memory is not None and not model.is_remembered:
            model.is_remembered = True
            engines.start_soon(
                remember_load,
                judged.load,
                judged.need,
                ready.memory,
                self.uses.hub,
                name="memory history",
            )

    def offer(self, model: LoadedModel, engines: trio.Nursery) -> None:
        """Let requests go to this one from now on; the one before ends with its last request.
        ModelNotServableError if it came and died."""
        if model is self._coming:
            if not model.has_engine:
                raise ModelNotServableError(
                    [ModelCannotBeLoaded(model.load.model_path)],
                    "the engine of the new model died before it could take over",
                )
            before, self._coming, self.current = self.current, None, model
            if self._departure is not None and self._departure.model is model:
                self._departure.draining.cancel(reason="the model is offered again")
            if before is not None:
                self._leaving, self._departure = before, _Departure(before)
                engines.start_soon(self._let_go, self._departure, name="model before")
        self.offered = model

    async def clear(self) -> None:
        """Note that no model is wanted: running answers may finish for a while, then all is
        ended."""
        await self.abandon_coming()
        await self._drain_and_stop()

    async def abandon_coming(self) -> None:
        """Abandon what is loaded beside the current model. One that was called back goes on
        leaving: requests still run on it."""
        coming = self._coming
        if coming is None:
            return
        if self._departure is not None and self._departure.model is coming:
            self._coming, self._leaving = None, coming
        else:
            await self.drop(coming)

    async def drop(self, model: LoadedModel) -> None:
        """End it at once. Cancellation: it ends all the same, and its place is kept until the next
        call."""
        await model.stop()
        if model is self._coming:
            self._coming = None
        elif model is self.current:
            self.current = None
            if model is self.offered:
                self.offered = None
                self.owner.offer_changed()

    async def _begin(
        self, wanted: WantedLoad, desired: AgentDesiredState, engines: trio.Nursery
    ) -> LoadedModel:
        """Start the engine, beside the current one or after its end; DoesNotFitError."""
        await self._until_left()
        load, judged, beside = wanted.load, None, None
        if self.gate is not None:
            judged = await self.gate.check(
                wanted.load,
                desired.model,
                NoModel() if wanted.files[1] is None else desired.multimodal_projection,
                wanted.automatic,
                adapters=[LocalToAgent(path) for path in wanted.load.adapters],
                serves=self.offered is not None and self.offered.serving is not None,
                loads_now=True,
            )
            self._promised = None  # nothing takes it yet
            if judged is not None and self.may_stay(load, desired):
                beside = await self.gate.beside(judged)
        is_beside = beside is not None and self.may_stay(load, desired)
        if is_beside:
            judged = beside
        else:
            await self._drain_and_stop()
        if judged is not None:
            load = judged.with_caches_cut()
        coming = [file.path for file in wanted.files if file is not None]
        await self.uses.keep((*self.paths, *coming))
        model = LoadedModel(wanted, load, judged, self.children, self.owner, is_beside)
        if is_beside:
            self._coming = model
            log.info("loading beside the model in force", model=load.model_path)
        else:
            self.current = model
        self.shown.loading(beside=is_beside)
        engines.start_soon(model.run, name="engine")
        self._promised = model
        engines.start_soon(self._until_taken, model, name="memory promise")
        return model

    def end_promise(self) -> None:
        """Note that an effort has ended. What an engine takes at this moment stays promised to it:
        it goes on loading though the effort was broken off."""
        if self.gate is not None and self._promised is None:
            self.gate.loaded()

    async def _until_taken(self, model: LoadedModel) -> None:
        """Wait until a model's engine has its memory, or never will."""
        try:
            await wait_first(model.loaded, model.keeper.ended.wait)
        finally:
            if self._promised is model:
                self._promised = None
                self.end_promise()

    def may_stay(self, load: LoadModel, desired: AgentDesiredState) -> bool:
        """Return whether the current model may stay while ``load`` is done, if both fit. One that
        answers another kind of requests is of no use to those that come now, and a server of
        llama.cpp's RPC talks to one engine at a time."""
        current = self.offered
        return (
            self.loads_beside
            and current is not None
            and current.serving is not None
            and current.in_force is not None
            and current.in_force.desired.inference_parameters.enable_embeddings
            == desired.inference_parameters.enable_embeddings
            and not load.settings.rpc
            and not current.load.settings.rpc
        )

    async def _let_go(self, departure: _Departure) -> None:
        """Let requests that began on a model finish there, for a while; then end it."""
        model = departure.model
        with departure.draining:
            await self._drain(model)
        if self._departure is departure:
            self._departure = None
        if departure.draining.cancel_called or model is not self._leaving:
            return  # it came back, or may yet
        await model.stop()
        if model is self._leaving:
            self._has_gone()
        await self.uses.keep(self.paths)

    def _has_gone(self) -> None:
        self._leaving = None
        self._has_left.notify()

    async def _until_left(self) -> None:
        """Wait until a model has left: two at most are in memory."""
        ordinal = self._has_left.ordinal
        while self._leaving is not None:
            ordinal = await self._has_left.wait_beyond(ordinal)

    async def _drain_and_stop(self) -> None:
        """Offer no slots, let running answers finish for a while, then end the engine."""
        self.offered = None
        self.owner.offer_changed()
        self.shown.draining()
        if self.current is not None:
            await self._drain(self.current)
            await self.drop(self.current)

    async def _drain(self, model: LoadedModel) -> None:
        with trio.move_on_after(self.drain_s) as timeout:
            await model.uses.wait_none()
        if timeout.cancelled_caught:
            log.warning("drain deadline: stopping answers", left=model.uses.count)

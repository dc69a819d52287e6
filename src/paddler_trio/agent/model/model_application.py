"""Bring a desired state into force: its files, its engine, its language, then requests."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import structlog
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.fit_gate import FitGate, has_other_source
from paddler_trio.agent.model.loaded_model import (
    LoadedModel,
    WantedLoad,
)
from paddler_trio.agent.model.model_errors import ModelNotServableError
from paddler_trio.agent.model.model_fetch import ModelFetch
from paddler_trio.agent.model.model_file import (
    describe,
)
from paddler_trio.agent.model.model_load import LoadRules
from paddler_trio.agent.model.model_places import ModelPlaces
from paddler_trio.agent.model.model_shown import ModelShown
from paddler_trio.agent.model.serving import InForce
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import LanguageFacts
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    MultimodalProjectionCannotBeLoaded,
)
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.trio.desired_state_extras import Extras, extended_digest

log = structlog.get_logger("model")


@attrs.define(eq=False)
class ModelApplication:
    """Parts of an agent with which one desired state after the other is applied.

    Args:
      trusts_messages: control tokens that messages spell become control tokens.
      on_language: called with what was read of a model's language, when requests go to it.
    """

    status: AgentStatus
    rules: LoadRules
    fetch: ModelFetch
    gate: FitGate | None
    shown: ModelShown
    places: ModelPlaces
    trusts_messages: bool
    on_language: Callable[[LanguageFacts], None]

    async def apply(
        self,
        desired: AgentDesiredState,
        extras: Extras,
        engines: trio.Nursery,
        *,
        keeps_model: bool,
        serves: bool,
    ) -> LoadedModel | None:
        """Bring the desired state into force; return the model, or None if the state has none.

        Cancellation: the next attempt reuses what was started, or ends it.

        Args:
          keeps_model: the model in force gets work until the desired one is loaded.
          serves: a model answers requests now.

        Raises:
          ModelSourceError, ModelNotServableError: it cannot be.
        """
        stays_refused = keeps_model and self.status.phase == "failed"
        if not stays_refused:
            self.status.set(phase="resolving", progress=None)
        in_force = self.places.in_force
        before = None if in_force is None else in_force.desired
        if self.gate is not None and has_other_source(desired, before):
            if not stays_refused:  # the model in force gets work as long as headers are fetched
                self.status.set(phase="downloading")
            await self.gate.check_source(desired, extras, serves=serves)
            self.status.set(phase="resolving")
        file = await self.fetch.model(desired)
        projection, missing = await self.fetch.projection(desired)
        if file is None:
            await self.places.clear()
            self.shown.nothing(desired, extended_digest(desired, extras))
            return None
        adapters = await self.fetch.adapters(extras)
        load = self.rules.load(
            desired,
            extras,
            model_path=file.path,
            projection_path=None if projection is None else projection.path,
            adapters=[adapter.path for adapter in adapters],
        )
        wanted = WantedLoad(load, extras.automatic, (file, projection, *adapters))
        try:
            model = await self.places.begun(wanted, desired, engines)
            model.projection_error = missing
            if projection is None:  # else the engine finds out first whether it can be used
                source = self._language_of(model, desired, extras, sees=False)
                model.start_language(source, engines)
            await self.places.proved(model, desired, engines)
        finally:
            self.places.end_promise()
        try:
            await self._put_in_force(model, desired, extras, engines)
        except ModelNotServableError:
            await self.places.abandon_coming()  # the one in force goes on
            raise
        return model

    async def _put_in_force(
        self,
        model: LoadedModel,
        desired: AgentDesiredState,
        extras: Extras,
        engines: trio.Nursery,
    ) -> None:
        """Read its language, and let requests go to it from then on; ModelNotServableError."""
        problem, missing = model.projection_problem, model.projection_error
        issues: frozenset[AgentIssue] = frozenset()
        if problem:
            log.warning("the model sees no images", reason=problem)
            name = describe(desired.multimodal_projection)
            issues = frozenset(
                {MultimodalProjectionCannotBeLoaded(name) if missing is None else missing.issue}
            )
        source = self._language_of(model, desired, extras, sees=not problem)
        language, facts = await model.read_language(source, engines)
        # no await from here on: there is no moment without a model to answer
        self.places.offer(model, engines)
        self.on_language(facts)
        adapters = tuple(adapter.name for adapter in extras.adapters)
        self.shown.in_force(model, desired, issues, facts.fingerprint, adapters)
        digest = extended_digest(desired, extras)
        model.take_language(language, InForce(desired, digest, facts.fingerprint), engines)

    def _language_of(
        self, model: LoadedModel, desired: AgentDesiredState, extras: Extras, *, sees: bool
    ) -> LanguageSource:
        file, projection, *adapters = model.wanted.files
        used = (file, projection if sees else None, *adapters)
        return LanguageSource(
            paths=tuple(each.path for each in used if each is not None),
            desired=desired,
            markers=extras.markers,
            adapters=extras.adapters,
            trusts_messages=self.trusts_messages,
        )

"""The deployments by the names that requests may use, and which of them a request goes to.

Which deployments there are, with or without an agent, follows from the dispatcher's pools; what
each of them serves, from the desired state. One that was desired a moment ago has no pool yet: the
first request opens it, so that none goes to another deployment meanwhile.

``default`` is Paddler's: also the names of its model's file are its names, and so is any name that
is none, unless names are taken strictly, or it has no model and others have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

import attrs

from paddler_trio.balancer.fleet.deployment import (
    LATEST,
    ChosenPreset,
    Deployment,
    names_of,
)
from paddler_trio.errors import PaddlerError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool, PoolSettings
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
)
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

MAX_NAME_CHARS: Final = 512
"""Of a model's name in a request."""
_BUSY_PHASES: Final = frozenset({"resolving", "downloading", "draining", "loading", "probing"})


class Specification(Protocol):
    """A deployment as it is desired."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def presets(self) -> tuple[Preset, ...]: ...
    @property
    def is_empty(self) -> bool: ...
    @property
    def agent_state(self) -> AgentDesiredState: ...
    @property
    def extras(self) -> Extras: ...
    @property
    def digest(self) -> str: ...


class DefaultState(Protocol):
    """Say what ``default`` serves."""

    @property
    def applicable(self) -> AgentDesiredState | None: ...
    @property
    def extras(self) -> Extras: ...
    @property
    def digest(self) -> str: ...


class StandIn(Protocol):
    """A deployment as it was desired before."""

    @property
    def model(self) -> DesiredModel: ...
    @property
    def digest(self) -> str: ...


class NoSuchModelError(PaddlerError):
    """A request names a model that is not served, or that its key has no access to."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        super().__init__(
            f"the model {name[:200]!r} is not served; served is: {', '.join(known) or 'none'}"
        )
        self.name = name


def _no_specification(name: str) -> Specification | None:
    return None


def _nothing_earlier(deployment: str, digest: str) -> None:
    return None


def _none_desired() -> Sequence[Specification]:
    return ()


@attrs.frozen(eq=False)
class Deployments:
    """See the module docstring.

    Args:
      is_strict: a name that is none is refused.
      specification: of the deployment of this name, which is not ``default``.
      desired: all deployments that are desired now.
      default_aliases: of ``default``, before those that the fleet's state has for it.
    """

    dispatcher: Dispatcher
    states: DefaultState
    is_strict: bool = False
    specification: Callable[[str], Specification | None] = _no_specification
    desired: Callable[[], Sequence[Specification]] = _none_desired
    default_aliases: tuple[str, ...] = ()
    presets: Callable[[], Mapping[str, tuple[Specification, Preset]]] = dict
    """All that are desired, by their names."""
    earlier: Callable[[str, str], StandIn | None] = _nothing_earlier
    """The deployment as it was when agents were sent this digest."""

    @property
    def default(self) -> Deployment:
        """Return the one that Paddler's requests go to."""
        pool = self.dispatcher.pools.find(DEFAULT_DEPLOYMENT)
        assert pool is not None, "there always is a default"
        return self._of(pool)

    def visible(self, allowed: frozenset[str] | None = None) -> list[Deployment]:
        """Return those with a model or a server and their presets, of those that a key is allowed
        to use; None: it may use all."""
        return [
            each
            for deployment in self._all()
            if deployment.is_served
            for each in (deployment, *self._presets_of(deployment))
            if each.is_allowed(allowed)
        ]

    def find_preset(
        self, model: object, allowed: frozenset[str] | None = None
    ) -> ChosenPreset | None:
        """Return the preset that a request's model names, with ``:latest`` or without; None if it
        names none that a key may use. It only reads, from any thread."""
        for name in _spellings(model) if isinstance(model, str) else ():
            if self.dispatcher.pools.find(name) is not None:
                return None
            if (found := self.presets().get(name)) is not None:
                chosen = ChosenPreset(found[0].name, found[1])
                names = (chosen.deployment, name)
                return chosen if allowed is None or not allowed.isdisjoint(names) else None
        return None

    def of_preset(self, chosen: ChosenPreset) -> Deployment:
        """Return the deployment that answers under a preset; NoSuchModelError if it is gone, or has
        no model."""
        for pool in self._pools():
            if pool.name == chosen.deployment and not (found := self._of(pool)).is_empty:
                return found.under(chosen.preset)
        raise NoSuchModelError(chosen.preset.name, ())

    def route(self, asked: str | None, allowed: frozenset[str] | None = None) -> Deployment:
        """Return where a request goes that names ``asked`` as its model.

        Errors:
          NoSuchModelError: there is none of this name, or the key may not use it.
        """
        chosen = self.find_preset(asked, allowed)
        if chosen is not None:
            return self.of_preset(chosen)
        found = None
        for name in _spellings(asked or ""):
            found = found or self._called(name)
        if found is None and (asked is None or not self.is_strict):
            found = self.default
        if found is not None and found.is_empty and self.visible(allowed):
            found = None  # it would wait for a model, while there are others to choose from
        if found is None or not found.is_allowed(allowed):
            raise self.unknown(asked or DEFAULT_DEPLOYMENT, allowed)
        return found

    def answering(self, deployment: Deployment, revision: str | None) -> Deployment:
        """Return a deployment under the names of the revision that answers a request; the
        deployment itself while that is not known."""
        if revision is None or revision == (deployment.answers_with or deployment.digest):
            return deployment
        if deployment.name != DEFAULT_DEPLOYMENT or deployment.preset is not None:
            return attrs.evolve(deployment, answers_with=revision)
        pool = self.dispatcher.pools.find(deployment.name)
        assert pool is not None, "there always is a default"
        is_desired = revision == self.states.digest
        answers = None if is_desired else self.earlier(pool.name, revision)
        if answers is None and not is_desired:
            return deployment
        found = self._default(pool, answers, self._earlier(pool))
        also = found.other_names.union((deployment.id, *deployment.aliases))
        return attrs.evolve(found, other_names=also.difference((found.id, *found.aliases)))

    def named(self, name: str, allowed: frozenset[str] | None = None) -> Deployment:
        """Return the one of exactly this name or alias, with ``:latest`` or without;
        NoSuchModelError."""
        for spelling in _spellings(name):
            for deployment in self.visible(allowed):
                if deployment.is_called(spelling):
                    return deployment
        raise self.unknown(name, allowed)

    def unknown(self, name: str, allowed: frozenset[str] | None) -> NoSuchModelError:
        known = [own for each in self.visible(allowed) for own in (each.id, *each.aliases)]
        return NoSuchModelError(name, known)

    def status(self, deployment: Deployment) -> tuple[str, bool]:
        """``loaded``, ``loading`` or ``unloaded``, as llama-server has it, and whether it is not
        loaded because that failed. It is not loaded where only the model before it answers."""
        pool = self.dispatcher.pools.find(deployment.name)
        if pool is None:
            return "unloaded", False
        if any(_serves(agent, deployment) for agent in pool.agents.values()):
            return "loaded", False
        phases = {agent.report.phase for agent in pool.agents.values() if agent.report is not None}
        is_coming = pool.held is not None or pool.settings.coming == deployment.digest
        if phases & _BUSY_PHASES or (is_coming and "failed" not in phases):
            return "loading", False
        return "unloaded", "failed" in phases

    def is_answered(self, deployment: Deployment) -> bool:
        """Return whether an agent answers now, with its model or with the one before."""
        pool = self.dispatcher.pools.find(deployment.name)
        return pool is not None and pool.serves

    # ------------------------------------------------------------- private

    def _presets_of(self, deployment: Deployment) -> list[Deployment]:
        specification = self.specification(deployment.name)
        presets = () if specification is None else specification.presets
        return [deployment.under(preset) for preset in presets]

    def _called(self, name: str) -> Deployment | None:
        """Return the one that has this name, before any that has it as an alias; the names of a
        file come last."""
        pools = self._pools()
        for pool in pools:
            if pool.name == name:
                return self._of(pool)
        for pool in pools:
            if name in pool.settings.aliases:
                return self._of(pool)
        default = self.default
        return default if not default.is_empty and default.is_called(name) else None

    def _all(self) -> Iterator[Deployment]:
        """Without those of servers of which none is there: nothing is known to answer for them."""
        for pool in self._pools():
            if pool.agents or not pool.is_upstream:
                yield self._of(pool)

    def _pools(self) -> list[Pool]:
        """Return the pools of all deployments that there are."""
        for each in self.desired():
            if self.dispatcher.pools.find(each.name) is None:
                settings = PoolSettings(
                    name=each.name,
                    aliases=each.aliases,
                    admissible=frozenset({each.digest}),
                    empty=each.is_empty,
                )
                self.dispatcher.add_deployment(settings)
        return self.dispatcher.pools.known()

    def _of(self, pool: Pool) -> Deployment:
        """Return one as a request sees it of which it is not known yet who answers."""
        if pool.name == DEFAULT_DEPLOYMENT:
            before = self._earlier(pool)
            is_replaced = bool(before) and not _answers(pool, self.states.digest)
            return self._default(pool, before[0] if is_replaced else None, before)
        specification = self.specification(pool.name)
        deployment = Deployment(name=pool.name, id=pool.name, aliases=pool.settings.aliases)
        if specification is None:
            return deployment
        return attrs.evolve(
            deployment,
            state=specification.agent_state,
            extras=specification.extras,
            digest=specification.digest,
        )

    def _default(
        self, pool: Pool, answers: StandIn | None, before: Sequence[StandIn]
    ) -> Deployment:
        """Return ``default`` under the names of one of its models.

        Args:
          answers: the one; None for what is desired.
          before: those that answer, and are not what is desired.
        """
        state = self.states.applicable
        desired = (pool.name, ()) if state is None else names_of(state.model)
        own, others = desired if answers is None else names_of(answers.model)
        aliases = (*self.default_aliases, *pool.settings.aliases)
        shown_as = next(iter(aliases), own)
        names = dict.fromkeys((*others, own, *aliases))
        also = [desired, *(names_of(each.model) for each in before)]
        known = {name for first, rest in also for name in (first, *rest)}
        return Deployment(
            name=pool.name,
            id=shown_as,
            aliases=tuple(name for name in names if name != shown_as),
            state=state,
            extras=self.states.extras,
            digest=self.states.digest,
            other_names=frozenset(known - {shown_as, *names}),
            answers_with="" if answers is None else answers.digest,
        )

    def _earlier(self, pool: Pool) -> list[StandIn]:
        """Return what answers and is not what is desired, of which that is known."""
        served = {
            agent.revision
            for agent in pool.agents.values()
            if agent.is_accepting and agent.kind.reports_state
        }
        found = (self.earlier(pool.name, e) for e in served if e and e != self.states.digest)
        return [each for each in found if each is not None]


def _spellings(name: str) -> tuple[str, ...]:
    """Return a name as it is given and, as Ollama's programs have it, without ``:latest``."""
    return tuple(dict.fromkeys((name, name.removesuffix(LATEST))))


def _answers(pool: Pool, digest: str) -> bool:
    """Return whether an agent answers with this, or one does of which that is not known."""
    return any(
        not agent.kind.reports_state or agent.revision == digest
        for agent in pool.agents.values()
        if agent.is_accepting
    )


def _serves(agent: AgentConnection, deployment: Deployment) -> bool:
    """It answers with what is desired; of servers that is not known."""
    is_desired = deployment.digest in ("", agent.revision)
    return is_desired and agent.is_accepting and agent.usable_slots > 0

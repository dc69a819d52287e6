"""The state that the fleet is to serve: deployments, each a model with its settings and rules; and
revisions.

The deployment ``default`` is Paddler's desired state. JSON and TOML have the same names:
``projection`` is Paddler's ``multimodal_projection``, ``template`` its chat template override,
``parameters`` its inference parameters, of which any may be left out here.

Every refusal names the deployment, the field, the value and the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Final, TypeAlias

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    InferenceParameters,
    NoModel,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.scalars import Float32, IntRange, float32
from paddler_trio.wire.shape import (
    OMITTED,
    Reader,
    ShapeError,
    Writer,
    describe,
    reader_of,
    record_reader,
    record_writer,
    register,
)
from paddler_trio.wire.trio.adapters import places_of
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.placement_rules import check_deployment, check_labels
from paddler_trio.wire.trio.presets import MAX_PRESETS, NAME, Preset
from paddler_trio.wire.trio.replica_range import (
    ALL_REPLICAS,
    MAX_REPLICAS,
    ReplicaRange,
)
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT, MAX_INSTANCE_SLOTS

DEFAULT: Final = DEFAULT_DEPLOYMENT
MAX_DEPLOYMENTS: Final = 64
"""The deployments beside ``default``, which Paddler's clients may desire at any time."""
MAX_ALIASES: Final = 16
"""The aliases of one deployment."""
MAX_CONDITIONS: Final = 16
"""The conditions in one ``where``."""
MAX_NOTE_CHARS: Final = 1024
AGENT_KEY: Final = "agent"
"""The key of a condition that names an agent, and so of no label."""

_AGENT_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")

Slots: TypeAlias = Annotated[int, IntRange(1, MAX_INSTANCE_SLOTS)]
Priority: TypeAlias = Annotated[int, IntRange(-1000, 1000)]
Percent: TypeAlias = Annotated[int, IntRange(1, 100)]
PositiveCount: TypeAlias = Annotated[int, IntRange(1, MAX_REPLICAS)]
Count: TypeAlias = Annotated[int, IntRange(0, MAX_REPLICAS)]
Capacity: TypeAlias = Annotated[int, IntRange(0, 1_000_000)]
RevisionNumber: TypeAlias = Annotated[int, IntRange(0, 2**53 - 1)]


class OnFailure(StrEnum):
    """The outcomes of a rollout that fails: back to the last good state, or an operator decides."""

    ROLLBACK = "rollback"
    PAUSE = "pause"


class Mixed(StrEnum):
    """Rules for whether agents with the old and agents with the new state may answer at the same
    time."""

    ALLOW = "allow"
    HOLD = "hold"


_SECONDS: Final[Mapping[str, tuple[float, float]]] = {
    "min_ready_s": (0, 86_400),
    "drain_deadline_s": (0, 86_400),
    "progress_deadline_s": (1, 604_800),
    "idle_ttl": (0, 31_536_000),
}


def _check_seconds(name: str, value_s: float) -> None:
    least_s, most_s = _SECONDS[name]
    if not least_s <= value_s <= most_s:
        raise ShapeError(f"{name} is {value_s:g} s, must be {least_s:g} to {most_s:g} s", name)


@attrs.frozen(kw_only=True)
class RolloutSpec:
    """Rules by which a change of a deployment goes from agent to agent.

    Args:
      max_unavailable: agents that may be without this deployment at the same time.
      max_unavailable_percent: the same in hundredths of its agents, at least one; it takes the
        place of ``max_unavailable``.
      min_capacity: slots that stay in service; a step that leaves fewer waits.
      canary: agents that go first, and serve ``min_ready_s`` without an error before the others.
      min_ready_s: seconds that an agent serves before the next step.
      drain_deadline_s: seconds that running answers may take on an agent whose turn it is.
      progress_deadline_s: seconds without a step forward after which the rollout has failed.
      prefetch: fetch the files on all agents first.
    """

    max_unavailable: PositiveCount = 1
    max_unavailable_percent: Percent | None = None
    min_capacity: Capacity = 0
    canary: Count = 1
    min_ready_s: Float32 = attrs.field(default=10.0, converter=float32)
    drain_deadline_s: Float32 = attrs.field(default=60.0, converter=float32)
    progress_deadline_s: Float32 = attrs.field(default=600.0, converter=float32)
    on_failure: OnFailure = OnFailure.ROLLBACK
    mixed: Mixed = Mixed.ALLOW
    prefetch: bool = True

    def __attrs_post_init__(self) -> None:
        for name in ("min_ready_s", "drain_deadline_s", "progress_deadline_s"):
            _check_seconds(name, getattr(self, name))


PartialParameters: TypeAlias = Annotated[InferenceParameters, "what is absent has its default"]


def _parameters_reader(_: object) -> Reader:
    defaults = unstructure(InferenceParameters())
    assert isinstance(defaults, dict)
    read_all = reader_of(InferenceParameters)

    def read(value: object, _: object) -> object:
        if type(value) is not dict:
            raise ShapeError(f"expected an object, got {describe(value)}")
        return read_all({**defaults, **value}, InferenceParameters)

    return read


def _parameters_writer(_: object) -> Writer:
    return record_writer(InferenceParameters)


register(PartialParameters, _parameters_reader, _parameters_writer)


@attrs.frozen(kw_only=True)
class DeploymentSpec:
    """One deployment.

    Args:
      name: what requests name as their model.
      template: of conversations, in the place of the model's own.
      aliases: other names for it.
      presets: models of their own names over its weights.
      slots: of each of its agents; None for as many as the agent has.
      where: conditions ``label=value`` or ``agent=NAME``, all of which an agent must meet.
      idle_ttl: seconds without a request after which an agent beyond the least number of
        replicas may unload it; None for never.
      priority: of two that do not fit together, the one with the larger number is loaded.

    Raises:
      ShapeError: a value beyond its limit, with the name of its field.
    """

    name: str
    model: DesiredModel
    projection: DesiredModel = attrs.field(factory=NoModel)
    parameters: PartialParameters = attrs.field(factory=InferenceParameters)
    extras: Extras = NO_EXTRAS
    template: str | None = None
    aliases: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = attrs.field(default=(), metadata=OMITTED)
    slots: Slots | None = None
    replicas: ReplicaRange = ALL_REPLICAS
    where: tuple[str, ...] = ()
    idle_ttl: Float32 | None = attrs.field(
        default=None, converter=attrs.converters.optional(float32)
    )
    priority: Priority = 0
    rollout: RolloutSpec = attrs.field(factory=RolloutSpec)

    def __attrs_post_init__(self) -> None:
        check_deployment(self.name, "name")
        if isinstance(self.model, NoModel) and self.name != DEFAULT:
            raise ShapeError(f"no model: only {DEFAULT} may have none, leave this one out", "model")
        if self.idle_ttl is not None:
            _check_seconds("idle_ttl", self.idle_ttl)
        _check_count("aliases", len(self.aliases), MAX_ALIASES)
        for place, alias in enumerate(self.aliases):
            if NAME.fullmatch(alias) is None or alias == DEFAULT:
                raise ShapeError(
                    f"{alias[:160]!r} cannot be an alias: 1 to 128 letters, digits and ._:/@+-, "
                    f"the first one a letter or digit, and not {DEFAULT!r}",
                    place,
                    "aliases",
                )
        _check_count("presets", len(self.presets), MAX_PRESETS)
        for place, preset in enumerate(self.presets):
            try:
                places_of(preset.lora, self.extras.adapters)
            except ShapeError as error:
                error.path += ["lora", place, "presets"]
                raise
        _check_count("where", len(self.where), MAX_CONDITIONS)
        for place, condition in enumerate(self.where):
            _check_condition(condition, place)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no model."""
        return isinstance(self.model, NoModel)

    @property
    def sources(self) -> tuple[DesiredModel, ...]:
        """All that its agents fetch: the model, its projection, its adapters."""
        every = (self.model, self.projection, *self.extras.sources)
        return tuple(each for each in every if not isinstance(each, NoModel))

    @property
    def agent_state(self) -> AgentDesiredState:
        """The state that the deployment's agents are sent."""
        return AgentDesiredState(
            chat_template_override=None if self.template is None else ChatTemplate(self.template),
            inference_parameters=self.parameters,
            model=self.model,
            multimodal_projection=self.projection,
        )

    @cached_property
    def digest(self) -> str:
        """Names the state and the extras that its agents are sent; agents report it."""
        return extended_digest(self.agent_state, self.extras)

    @cached_property
    def json(self) -> bytes:
        """The deployment as it is written."""
        return dumps(unstructure(self))

    def __repr__(self) -> str:
        return f"<DeploymentSpec {self.name} {self.digest[:12]}>"


@attrs.frozen
class FleetState:
    """All deployments; without ``default``, agents that serve nothing else have no model.

    Raises:
      ShapeError: too many, or two that answer to one name.
    """

    deployments: tuple[DeploymentSpec, ...] = ()

    def __attrs_post_init__(self) -> None:
        beside = sum(spec.name != DEFAULT for spec in self.deployments)
        if beside > MAX_DEPLOYMENTS:
            raise ShapeError(
                f"{beside} deployments beside {DEFAULT}, the limit is {MAX_DEPLOYMENTS}",
                "deployments",
            )
        taken: dict[str, str] = {}
        for spec in self.deployments:
            if spec.name in taken:
                raise ShapeError(f"two deployments are named {spec.name!r}", "deployments")
            taken[spec.name] = spec.name
        for place, spec in enumerate(self.deployments):
            aliases = (("alias", each, (at, "aliases")) for at, each in enumerate(spec.aliases))
            presets = (
                ("preset", each.name, ("name", at, "presets"))
                for at, each in enumerate(spec.presets)
            )
            others = chain[tuple[str, str, tuple[str | int, ...]]](aliases, presets)
            for kind, name, where in others:
                if name in taken:
                    raise ShapeError(
                        f"deployment {spec.name!r}: the {kind} {name!r} is a name of "
                        f"{taken[name]!r} already",
                        *where,
                        place,
                        "deployments",
                    )
                taken[name] = spec.name

    def find(self, name: str) -> DeploymentSpec | None:
        """Return the deployment of this name; None if there is none."""
        return next((spec for spec in self.deployments if spec.name == name), None)

    @cached_property
    def presets(self) -> dict[str, tuple[DeploymentSpec, Preset]]:
        """All presets by their names, each with its deployment."""
        return {each.name: (spec, each) for spec in self.deployments for each in spec.presets}

    @property
    def by_name(self) -> dict[str, DeploymentSpec]:
        return {spec.name: spec for spec in self.deployments}

    def serves_the_same(self, other: FleetState) -> bool:
        """Return whether both have equal deployments, in whatever order."""
        return self.by_name == other.by_name

    def __repr__(self) -> str:
        return f"<FleetState {' '.join(spec.name for spec in self.deployments) or 'empty'}>"


@attrs.frozen(kw_only=True)
class FleetRevision:
    """A fleet state as it was accepted.

    Args:
      revision: counts up; 0 before anything was ever stored.
      author: the name of the management key that stored it, or what did it.
      time: RFC 3339, in UTC.
      failed: deployments whose rollout to what they are here has failed.
    """

    revision: RevisionNumber
    author: str
    time: str
    note: str
    failed: tuple[str, ...] = ()
    state: FleetState

    @property
    def json(self) -> bytes:
        """The state as it is written, put together from its deployments."""
        head = {
            "revision": self.revision,
            "author": self.author,
            "time": self.time,
            "note": self.note,
            "failed": list(self.failed),
        }
        deployments = b",".join(spec.json for spec in self.state.deployments)
        return b'%b,"state":{"deployments":[%b]}}' % (dumps(head)[:-1], deployments)

    def __repr__(self) -> str:
        return f"<FleetRevision {self.revision} by {self.author}: {self.state!r}>"


def _check_condition(condition: str, place: int) -> None:
    key, equals, value = condition.partition("=")
    if not equals:
        raise ShapeError(
            f"{condition[:80]!r} is no condition: write label=value or agent=NAME", place, "where"
        )
    if key == AGENT_KEY:
        if _AGENT_NAME.fullmatch(value) is None:
            raise ShapeError(
                f"{condition[:160]!r}: the name of an agent has 1 to 128 characters", place, "where"
            )
        return
    check_labels({key: value}, place, "where")


def _check_count(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise ShapeError(f"{count} {name}, the limit is {limit}", name)


def _spec_reader(_: object) -> Reader:
    """Return a reader as any record has, with the deployment's name in front of whatever is
    wrong. ``adapters`` may stand beside ``extras``, too."""
    read_record = record_reader(DeploymentSpec)

    def read(value: object, shape: object) -> Any:
        try:
            return read_record(_with_adapters_in_extras(value), shape)
        except WireError as error:
            name = value.get("name") if isinstance(value, dict) else None
            if isinstance(error, ShapeError) and isinstance(name, str):
                error.text = f"deployment {name[:80]!r}: {error.text}"
            raise

    return read


def _with_adapters_in_extras(value: Any) -> Any:
    extras = value.get("extras", {}) if type(value) is dict else None
    if type(extras) is not dict or "adapters" not in value:
        return value  # it has none, or another field is refused
    if "adapters" in extras:
        raise ShapeError("adapters stand beside extras and in them: leave one out", "adapters")
    others = {name: each for name, each in value.items() if name != "adapters"}
    return {**others, "extras": {**extras, "adapters": value["adapters"]}}


register(DeploymentSpec, _spec_reader, lambda _: record_writer(DeploymentSpec))

"""The state that every agent is to run.

The balancer stores a ``BalancerDesiredState``; agents get the ``AgentDesiredState`` derived from
it. On the wire every inference parameter must be given: the defaults below are what a balancer
that never heard of one starts with, not what an absent field means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, TypeAlias

import attrs

from paddler_trio.wire.codec import canonical, unstructure
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.scalars import Float32, Int32, Uint32, Uint64, float32
from paddler_trio.wire.shape import REQUIRED
from paddler_trio.wire.tags import external_tag, newtype, struct, unit

MAX_PATH_BYTES: Final = 4095
"""Linux takes no longer path."""
MAX_NAME_BYTES: Final = 16 * 1024
"""The limit for a URL, and for each part of a Hugging Face name: signed URLs are long."""
MAX_TOKENS: Final = 2**31 - 1
"""llama.cpp counts the tokens of contexts and batches in 32 bits, with a sign."""


@attrs.frozen
class NoModel:
    """Load nothing."""


@attrs.frozen
class LocalToAgent:
    """A file on the agent's own disk."""

    path: str


@attrs.frozen
class UrlModel:
    """A file to download."""

    url: str


@attrs.frozen
class HuggingFaceModel:
    """A file of a Hugging Face repository, at a revision."""

    filename: str
    repo_id: str
    revision: str


DesiredModel: TypeAlias = NoModel | LocalToAgent | UrlModel | HuggingFaceModel
external_tag(
    DesiredModel,
    unit(NoModel, "None"),
    newtype(LocalToAgent),
    struct(UrlModel, "Url"),
    struct(HuggingFaceModel, "HuggingFace"),
)


class KvCacheDtype(StrEnum):
    """The types in which llama.cpp stores keys or values; quantised ones save memory and cost some
    quality."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    IQ4_NL = "IQ4_NL"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"


@attrs.frozen(kw_only=True)
class InferenceParameters:
    """Parameters by which every agent loads its model and samples from it.

    ``n_batch``, ``context_size``: tokens. ``embedding_batch_size``: documents in one sub-batch.
    ``image_resize_to_fit``: pixels. ``n_gpu_layers``: -1 for all. ``penalty_last_n``: tokens
    looked back at, -1 for the whole context.
    """

    n_batch: Uint64 = attrs.field(default=2048, metadata=REQUIRED)
    context_size: Uint32 = attrs.field(default=8192, metadata=REQUIRED)
    embedding_batch_size: Uint64 = attrs.field(default=256, metadata=REQUIRED)
    enable_embeddings: bool = attrs.field(default=False, metadata=REQUIRED)
    image_resize_to_fit: Uint32 = attrs.field(default=1024, metadata=REQUIRED)
    k_cache_dtype: KvCacheDtype = attrs.field(default=KvCacheDtype.Q8_0, metadata=REQUIRED)
    v_cache_dtype: KvCacheDtype = attrs.field(default=KvCacheDtype.Q8_0, metadata=REQUIRED)
    min_p: Float32 = attrs.field(default=0.05, converter=float32, metadata=REQUIRED)
    n_gpu_layers: Int32 = attrs.field(default=0, metadata=REQUIRED)
    penalty_frequency: Float32 = attrs.field(default=0.0, converter=float32, metadata=REQUIRED)
    penalty_last_n: Int32 = attrs.field(default=-1, metadata=REQUIRED)
    penalty_presence: Float32 = attrs.field(default=0.8, converter=float32, metadata=REQUIRED)
    penalty_repeat: Float32 = attrs.field(default=1.1, converter=float32, metadata=REQUIRED)
    pooling_type: PoolingType = attrs.field(default=PoolingType.LAST, metadata=REQUIRED)
    temperature: Float32 = attrs.field(default=0.8, converter=float32, metadata=REQUIRED)
    top_k: Int32 = attrs.field(default=80, metadata=REQUIRED)
    top_p: Float32 = attrs.field(default=0.8, converter=float32, metadata=REQUIRED)


@attrs.frozen(kw_only=True)
class AgentDesiredState:
    """The state that an agent runs. An absent template means the model's own."""

    chat_template_override: ChatTemplate | None
    inference_parameters: InferenceParameters
    model: DesiredModel
    multimodal_projection: DesiredModel


@attrs.frozen(kw_only=True)
class BalancerDesiredState:
    """The state that the operator stored; the template may be kept here without being in use."""

    chat_template_override: ChatTemplate | None
    inference_parameters: InferenceParameters
    model: DesiredModel
    multimodal_projection: DesiredModel
    use_chat_template_override: bool

    @classmethod
    def default(cls) -> BalancerDesiredState:
        """Return the state of a new balancer: no model."""
        return cls(
            chat_template_override=None,
            inference_parameters=InferenceParameters(),
            model=NoModel(),
            multimodal_projection=NoModel(),
            use_chat_template_override=False,
        )


def applicable_state(state: BalancerDesiredState) -> AgentDesiredState:
    """Return what agents have to run for ``state`` to be true; drops a template not in use."""
    override = state.chat_template_override if state.use_chat_template_override else None
    return AgentDesiredState(
        chat_template_override=override,
        inference_parameters=state.inference_parameters,
        model=state.model,
        multimodal_projection=state.multimodal_projection,
    )


def state_digest(state: AgentDesiredState) -> str:
    """Return the SHA-256, in hex, of the state's canonical JSON: equal states, equal digests."""
    return hashlib.sha256(canonical(unstructure(state))).hexdigest()


@attrs.frozen
class StateFault:
    """The reason why a well-formed state must be refused, in the words of peers, and the path of
    the field."""

    text: str
    field: str


def desired_state_fault(state: BalancerDesiredState) -> StateFault | None:
    """Return what is wrong with a well-formed state; ``None`` if it is fine."""
    parameters = state.inference_parameters
    for name in ("image_resize_to_fit", "embedding_batch_size"):
        if getattr(parameters, name) == 0:
            return StateFault(f"{name} must be greater than zero", f"inference_parameters.{name}")
    for name in ("context_size", "n_batch"):
        tokens = getattr(parameters, name)
        if tokens > MAX_TOKENS:
            text = f"{name} is {tokens} tokens, the limit is {MAX_TOKENS}"
            return StateFault(text, f"inference_parameters.{name}")
    for place in ("model", "multimodal_projection"):
        fault = source_fault(place, getattr(state, place))
        if fault is not None:
            return fault
    return None


def desired_state_problem(state: BalancerDesiredState) -> str | None:
    """Return why a well-formed state must be refused, in the words of peers; ``None`` if it is
    fine."""
    fault = desired_state_fault(state)
    return None if fault is None else fault.text


def source_fault(place: str, model: DesiredModel) -> StateFault | None:
    """Return why no operating system and no server can be asked for a model; ``place`` is its
    field."""
    for field, name, limit in _names(place, model):
        problem = _name_problem(name, limit)
        if problem is not None:
            return StateFault(f"{field} {problem}", field)
    return None


def _names(place: str, model: DesiredModel) -> Iterator[tuple[str, str, int]]:
    """Yield what operating systems and servers are asked for: field, text and limit in bytes."""
    match model:
        case LocalToAgent(path):
            yield f"{place}.LocalToAgent", path, MAX_PATH_BYTES
        case UrlModel(url):
            yield f"{place}.Url.url", url, MAX_NAME_BYTES
        case HuggingFaceModel():
            for part, name in attrs.asdict(model).items():
                yield f"{place}.HuggingFace.{part}", name, MAX_NAME_BYTES


def _name_problem(text: str, limit_bytes: int) -> str | None:
    if "\0" in text:
        return f"has a NUL at character {text.index(chr(0))}: no file and no server has such a name"
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        return f"is no Unicode: half a surrogate pair at character {error.start}"
    if length > limit_bytes:
        return f"has {length} bytes, the limit is {limit_bytes}"
    return None

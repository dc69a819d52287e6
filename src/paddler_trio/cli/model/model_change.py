"""The changes of a new desired state, in words, and whether agents must load their model anew."""

from __future__ import annotations

import hashlib
from typing import Final

import attrs

from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, InferenceParameters

RELOADING: Final = frozenset(
    {
        "context_size",
        "enable_embeddings",
        "k_cache_dtype",
        "model",
        "multimodal_projection",
        "n_batch",
        "n_gpu_layers",
        "pooling_type",
        "v_cache_dtype",
    }
)
"""What the engine is started with; everything else an agent applies to the running one."""


@attrs.frozen
class Change:
    """One field, before and after, as people write it."""

    field: str
    old: str
    new: str
    reloads_engine: bool = attrs.field(default=False, eq=False, repr=False)
    """True for what is no field of the desired state and yet loads the model anew."""

    @property
    def needs_reload(self) -> bool:
        return self.reloads_engine or self.field in RELOADING


def changes(old: BalancerDesiredState, new: BalancerDesiredState) -> list[Change]:
    """All differences, the model's first; empty when the states are the same."""
    before, after = described(old), described(new)
    return [
        Change(field, before[field], after[field])
        for field in before
        if before[field] != after[field]
    ]


def described(state: BalancerDesiredState) -> dict[str, str]:
    """Every setting by name, as people write it."""
    parameters = {
        field.name: shown(getattr(state.inference_parameters, field.name))
        for field in attrs.fields(InferenceParameters)
    }
    return {
        "model": text_of(state.model),
        "multimodal_projection": text_of(state.multimodal_projection),
        "chat_template": _template(state),
        **parameters,
    }


def _template(state: BalancerDesiredState) -> str:
    """Return which template is in use; a stored one is told by a digest, not by its whole text."""
    override = state.chat_template_override
    if override is None:
        return "the model's own"
    content = override.content
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    stored = f"{len(content)} characters, SHA-256 {digest}..."
    if state.use_chat_template_override:
        return f"an override ({stored})"
    return f"the model's own (an override is kept: {stored})"


def shown(value: object) -> str:
    """One value as people write it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)

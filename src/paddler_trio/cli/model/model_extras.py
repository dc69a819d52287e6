"""The extras of the desired state on the command line: read from a file, and shown in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import typer

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.model.given_file import bytes_of
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, InferenceParameters
from paddler_trio.wire.trio.desired_state_extras import Extras

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


HINT = "--extras"
LOADING = ("engine.", "auto.", "adapters.")
"""Sections of which a change loads the model anew."""
UNSET = "not set"


def extras_in(file: Path) -> Extras:
    """The extras object of a JSON file, ``-`` for standard input; typer.BadParameter names what is
    wrong with it."""
    try:
        return structure(loads(bytes_of(file, HINT, may_be_stdin=True)), Extras)
    except WireError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint=HINT) from error


def extras_of(raw: Mapping[str, object]) -> Extras:
    """Read the extras that a balancer stores; BalancerRefusedError if it is of another version."""
    try:
        return structure(raw, Extras)
    except WireError as error:
        raise BalancerRefusedError(
            200, f"the balancer's extras are of another version: {error}"
        ) from error


def described_extras(extras: Extras) -> dict[str, str]:
    """Every wish by the name of its field; empty if there is none."""
    words: dict[str, str] = {}
    for adapter in extras.adapters:
        words[f"adapters.{adapter.name}"] = f"{text_of(adapter.source)} at {adapter.scale:g}"
    for section, wishes in plain_extras(extras).items():
        if isinstance(wishes, dict):
            words |= {f"{section}.{name}": _shown(value) for name, value in wishes.items()}
    return words


def extras_changes(old: Extras, new: Extras) -> list[Change]:
    """All differences; those of the engine load it anew."""
    before, after = described_extras(old), described_extras(new)
    return [
        Change(
            name,
            before.get(name, UNSET),
            after.get(name, UNSET),
            reloads_engine=name.startswith(LOADING),
        )
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def plain_extras(extras: Extras) -> dict[str, object]:
    """Return extras as JSON."""
    plain = unstructure(extras)
    assert isinstance(plain, dict)
    return plain


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(shown(entry) for entry in value) or "none"
    return repr(value) if isinstance(value, str) else shown(value)

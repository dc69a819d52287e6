"""The extras of the desired state on the command line: read from a file, and shown in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.model.given_file import bytes_of
from paddler_trio.cli.model.model_change import Change, shown
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import loads, structure, unstructure
from paddler_trio.wire.trio.desired_state_extras import Extras

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

"""Inference parameters from flags and from a file, checked and laid over those in force.

What is given nowhere keeps the value that the desired state has now. Two of them may be ``auto``:
then each agent chooses, and the number in the desired state stays for those that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import typer

from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.errors import WireError
from paddler_trio.wire import toml_text
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.desired_state_extras import NOTHING_AUTOMATIC, Extras

AUTO: Final = "auto"
AUTOMATIC: Final = ("context_size", "n_gpu_layers")
"""What agents can choose by themselves."""


def given_parameters(flags: Mapping[str, object], file: Path | None) -> Mapping[str, object]:
    """The parameters of the file with those of the flags over them, checked.

    Args:
      flags: by field name; None where a flag was not given.

    Returns:
      By field name; ``AUTO`` where agents shall choose.

    Raises:
      typer.BadParameter: a file that cannot be read, a key that is no parameter, or a value
        outside its range.
    """
    in_file = {} if file is None else parameters_of_file(file)
    in_flags = {
        name: _number(name, value) if name in AUTOMATIC else value
        for name, value in flags.items()
        if value is not None
    }
    # judged one by one, before anything is asked of a balancer: a refusal names the culprit
    for name, value in in_file.items():
        _judge(name, value, hint="--file", label=f"{file}: {name}: ")
    for name, value in in_flags.items():
        _judge(name, value, hint=f"--{name.replace('_', '-')}")
    return in_file | in_flags


def changed_parameters(
    current: InferenceParameters, given: Mapping[str, object]
) -> InferenceParameters:
    """``current`` with what was given and judged; what is automatic keeps its number."""
    fields = unstructure(current)
    assert isinstance(fields, dict)
    numbers = {name: value for name, value in given.items() if not _is_auto(name, value)}
    return structure({**fields, **numbers}, InferenceParameters)


def changed_extras(current: Extras, given: Mapping[str, object]) -> Extras:
    """``current`` with what was given as ``auto``; a number takes that back."""
    asked = {name: given[name] == AUTO for name in AUTOMATIC if name in given}
    automatic = attrs.evolve(current.automatic, **asked)
    return attrs.evolve(current, auto=None if automatic == NOTHING_AUTOMATIC else automatic)


def _is_auto(name: str, value: object) -> bool:
    return name in AUTOMATIC and value == AUTO


def _number(name: str, text: object) -> object:
    """Return what stands behind a flag that takes a number or ``auto``."""
    if text == AUTO or not isinstance(text, str):
        return text
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor auto",
            param_hint=f"--{name.replace('_', '-')}",
        ) from error


def _judge(name: str, value: object, *, hint: str, label: str = "") -> None:
    if _is_auto(name, value):
        return
    try:
        changed_parameters(InferenceParameters(), {name: value})
    except WireError as error:
        problem = str(error).removesuffix(f" @ $.{name}")
        raise typer.BadParameter(f"{label}{problem}", param_hint=hint) from error


def parameters_of_file(file: Path) -> dict[str, object]:
    """Read a ``.toml`` or ``.json`` file; typer.BadParameter names what is wrong with it."""
    hint = "--file"
    text = text_of_file(file, hint)
    try:
        if file.suffix == ".toml":
            given: object = toml_text.loads(text)
        elif file.suffix == ".json":
            given = json.loads(text)
        else:
            raise typer.BadParameter(f"{file} is neither .toml nor .json", param_hint=hint)
    except RecursionError as error:
        raise typer.BadParameter(f"{file} is nested too deeply", param_hint=hint) from error
    except ValueError as error:  # of both parsers
        raise typer.BadParameter(f"{file}: {error}", param_hint=hint) from error
    if not isinstance(given, dict):
        raise typer.BadParameter(f"{file} holds no parameters by name", param_hint=hint)
    known = parameter_names()
    for key in given:
        if key not in known:
            raise typer.BadParameter(
                f"{file}: {key!r} is no parameter; there are {', '.join(sorted(known))}",
                param_hint=hint,
            )
    return given


def parameter_names() -> list[str]:
    """The fields of the inference parameters."""
    return [field.name for field in attrs.fields(InferenceParameters)]

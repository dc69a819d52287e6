"""A fleet's TOML file, read on this machine: repositories are resolved, templates are read in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

from paddler_trio.cli.terminal import printable, stderr
from paddler_trio.errors import PaddlerError, WireError
from paddler_trio.models.model_reference import HubRepository, UnknownSourceError, reference_of
from paddler_trio.wire.paddler.desired_state import DesiredModel, LocalToAgent
from paddler_trio.wire.trio.fleet_toml import MAX_TOML_BYTES, FleetFile, fleet_of_toml

HINT: Final = "FILE"
MAX_TEMPLATE_BYTES: Final = 1024 * 1024
STANDARD_INPUT: Final = "-"


def read_fleet_file(file: Path) -> FleetFile:
    """Return what the file asks for; ``-`` is standard input.

    Which file a repository means is decided here, once: all agents load the same one.

    Raises:
      typer.BadParameter: what is wrong with it, with the deployment and the field.
    """
    is_stdin = str(file) == STANDARD_INPUT
    folder = Path() if is_stdin else file.parent
    name = "standard input" if is_stdin else str(file)
    try:
        data = sys.stdin.buffer.read(MAX_TOML_BYTES + 1) if is_stdin else _head(file)
        return fleet_of_toml(
            data.decode(),
            read_source=_model_of,
            read_file=lambda path: _text_in(folder / path),
        )
    except OSError as error:
        raise typer.BadParameter(f"{name}: {error.strerror}", param_hint=HINT) from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name}: it is not UTF-8: {error}", param_hint=HINT) from error
    except WireError as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint=HINT) from error


def _head(file: Path) -> bytes:
    """Read as much as a fleet's file may have, and a byte more of one that is too large."""
    with file.open("rb") as data:
        return data.read(MAX_TOML_BYTES + 1)


def _model_of(text: str) -> tuple[DesiredModel, DesiredModel | None]:
    try:
        reference = reference_of(text)
    except UnknownSourceError as error:
        raise WireError(str(error)) from error
    if isinstance(reference, LocalToAgent) and not Path(reference.path).is_absolute():
        raise WireError(
            f"{text!r} is a relative path, and an agent would look for it in a directory of its "
            "own: write the absolute path that the file has on the agents, or push it with "
            "`paddler-trio model push`"
        )
    if not isinstance(reference, HubRepository):
        return reference, None
    from paddler_trio.cli.model.hub_resolution import chosen_files

    stderr().print(f"choosing a file of {printable(text)}", markup=False)
    try:
        return chosen_files(reference)
    except typer.BadParameter as error:
        raise WireError(error.message) from error
    except WireError:
        raise
    except PaddlerError as error:
        raise WireError(f"{text}: {error}") from error


def _text_in(path: Path) -> str:
    try:
        with path.open("rb") as data:
            text = data.read(MAX_TEMPLATE_BYTES + 1)
    except OSError as error:
        raise WireError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise WireError(f"{str(path)!r} is no path: {error}") from error
    if len(text) > MAX_TEMPLATE_BYTES:
        raise WireError(f"{path} is too large, the limit is {MAX_TEMPLATE_BYTES} bytes")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"{path}: it is not UTF-8") from error

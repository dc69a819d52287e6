"""SOURCE on the command line: where a model is to come from."""

from __future__ import annotations

from pathlib import Path

import typer

from paddler_trio.models.model_reference import HubRepository, UnknownSourceError, reference_of
from paddler_trio.wire.paddler.desired_state import DesiredModel, LocalToAgent

FORMS = "a path on the agents, https://..., hf:org/repo[:QUANT], hf:org/repo/file@revision, or none"


def model_of(source: str) -> DesiredModel | HubRepository:
    """Return the model that ``source`` names; typer.BadParameter says what is wrong with it.

    A path is one on the agents: an absolute one as it is, a relative one only if it exists here,
    because an agent runs in a directory of its own.
    """
    try:
        model = reference_of(source)
    except UnknownSourceError as error:
        hint = "" if source else f": write {FORMS}"
        raise typer.BadParameter(f"{error}{hint}") from error
    if not isinstance(model, LocalToAgent):
        return model
    path = Path(model.path)
    if path.is_absolute():
        return model
    if not path.exists():
        raise typer.BadParameter(
            f"{source!r} is not here, and an agent would look for it in a directory of its own: "
            "write the absolute path that the file has on the agents"
        )
    if path.is_dir():
        raise typer.BadParameter(f"{source!r} is a folder: name the .gguf file in it")
    return LocalToAgent(str(path.resolve()))

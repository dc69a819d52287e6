"""SOURCE on the command line: where a model is to come from, and how one is shown again."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import typer

from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

FORMS = "a path on the agents, https://..., hf:org/repo/file@revision, or none"
NONE = "none"
HUGGING_FACE = "hf:"
DEFAULT_REVISION = "main"


def model_of(source: str) -> DesiredModel:
    """The model that ``source`` names; typer.BadParameter says what is wrong with it.

    ``none`` is no model, ``http(s)://`` a download, ``hf:org/repo/file@revision`` a file of a
    Hugging Face repository (the file may have slashes, the revision defaults to ``main``).
    Everything else is a path on the agents: an absolute one as it is, a relative one only if it
    exists here, because an agent runs in a directory of its own.
    """
    if source == NONE:
        return NoModel()
    if source.startswith(HUGGING_FACE):
        return _hugging_face(source)
    if source.startswith(("http://", "https://")):
        if not urlsplit(source).netloc:
            raise typer.BadParameter(f"{source!r} names no host")
        return UrlModel(source)
    if "://" in source:
        raise typer.BadParameter(f"{source!r}: {source.partition('://')[0]} is no way to get files")
    if not source:
        raise typer.BadParameter(f"it is empty: write {FORMS}")
    path = Path(source)
    if path.is_absolute():
        return LocalToAgent(source)
    if not path.exists():
        raise typer.BadParameter(
            f"{source!r} is not here, and an agent would look for it in a directory of its own: "
            "write the absolute path that the file has on the agents"
        )
    return LocalToAgent(str(path.resolve()))


def source_of(model: DesiredModel) -> str:
    """The SOURCE that names ``model``."""
    match model:
        case NoModel():
            return NONE
        case LocalToAgent(path):
            return path
        case UrlModel(url):
            return url
        case HuggingFaceModel():
            return f"{HUGGING_FACE}{model.repo_id}/{model.filename}@{model.revision}"


def _hugging_face(source: str) -> HuggingFaceModel:
    place, at, revision = source.removeprefix(HUGGING_FACE).rpartition("@")
    if not at:
        place, revision = revision, DEFAULT_REVISION
    organisation, _, rest = place.partition("/")
    repository, _, filename = rest.partition("/")
    if not organisation or not repository or not filename or not revision:
        raise typer.BadParameter(f"{source!r} is not hf:org/repo/file or hf:org/repo/file@revision")
    return HuggingFaceModel(
        filename=filename, repo_id=f"{organisation}/{repository}", revision=revision
    )

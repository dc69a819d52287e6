"""From a desired model to a file on this machine, or to the issue that prevents it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import attrs

from paddler_trio.errors import PaddlerError
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    DownloadServerRejectedRequest,
    HuggingFaceModelDoesNotExist,
    ModelFileDoesNotExist,
    MultimodalProjectionCannotBeLoaded,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)


@attrs.frozen
class ModelFile:
    """A file and what identifies its content: another size or time means another model."""

    path: str
    size_bytes: int
    modified_ns: int


class ModelSourceError(PaddlerError):
    """The desired model is not to be had; ``issue`` is what operators see."""

    def __init__(self, issue: AgentIssue, message: str) -> None:
        super().__init__(message)
        self.issue = issue


def resolve_model(state: AgentDesiredState) -> ModelFile | None:
    """The model's file, or None when no model is wanted. Blocking; ModelSourceError."""
    return _resolve(state.model, missing=ModelFileDoesNotExist)


def resolve_projection(state: AgentDesiredState) -> ModelFile | None:
    """The file of what lets the model see images, or None when it shall see none. Blocking;
    ModelSourceError."""
    return _resolve(state.multimodal_projection, missing=MultimodalProjectionCannotBeLoaded)


def _resolve(model: DesiredModel, *, missing: Callable[[str], AgentIssue]) -> ModelFile | None:
    """``missing`` is the issue of a path where there is no file."""
    match model:
        case NoModel():
            return None
        case LocalToAgent(path):
            file = file_at(path)
            if file is None:
                raise ModelSourceError(missing(path), f"there is no file at {path} on this agent")
            return file
        case UrlModel(url):
            raise ModelSourceError(
                DownloadServerRejectedRequest(url),
                f"this agent does not download yet: fetch {url} and give its path",
            )
        case HuggingFaceModel():
            name = describe(model)
            raise ModelSourceError(
                HuggingFaceModelDoesNotExist(name),
                f"this agent does not download yet: fetch {name} and give its path",
            )


def file_at(path: str) -> ModelFile | None:
    """The file as it is now; None if there is none, or can be none of such a name (one with a NUL,
    say)."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return ModelFile(path, status.st_size, status.st_mtime_ns)


def describe(model: DesiredModel) -> str:
    """How issues name a model: its path, its URL, or ``repo/revision/filename``."""
    match model:
        case NoModel():
            return "None"
        case LocalToAgent(path):
            return path
        case UrlModel(url):
            return url
        case HuggingFaceModel():
            return f"{model.repo_id}/{model.revision}/{model.filename}"

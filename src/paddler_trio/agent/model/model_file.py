"""Files of models on this machine: how issues name them, and when one has changed."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.wire.paddler.agent_issue import AgentIssue
from paddler_trio.wire.paddler.desired_state import (
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


def local_file(path: str, missing: Callable[[str], AgentIssue]) -> ModelFile:
    """Return the file at ``path``; ModelSourceError with the issue ``missing`` if there is none."""
    file = file_at(path)
    if file is None:
        raise ModelSourceError(missing(path), f"there is no file at {path} on this agent")
    return file


def file_at(path: str) -> ModelFile | None:
    """Return the file as it is now; None if there is none, or can be none of such a name (one with
    a NUL, say)."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return ModelFile(path, status.st_size, status.st_mtime_ns)


def describe(model: DesiredModel) -> str:
    """Return the name of a model in issues: its path, its URL, or ``repo/revision/filename``."""
    match model:
        case NoModel():
            return "None"
        case LocalToAgent(path):
            return path
        case UrlModel(url):
            return url
        case HuggingFaceModel():
            return f"{model.repo_id}/{model.revision}/{model.filename}"


FILE_WATCH_S = 1.0


async def wait_file_changes(path: str, known: ModelFile | None) -> None:
    """Return when the file at ``path`` is not what it was."""
    while await trio.to_thread.run_sync(file_at, path) == known:  # noqa: ASYNC110
        await trio.sleep(FILE_WATCH_S)  # the file system sends no event

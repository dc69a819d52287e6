"""Issues that keep an agent from running its desired state.

``model_path`` is a path on the agent, a URL, or ``<repo_id>/<revision>/<filename>``, depending on
where the model comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import attrs

from paddler_trio.wire.scalars import Uint32
from paddler_trio.wire.tags import external_tag, structs


@attrs.frozen
class ModelPath:
    """The model that an issue is about."""

    model_path: str


@attrs.frozen
class CacheCannotAcquireLock(ModelPath):
    """Another process holds the lock of the model cache."""


@attrs.frozen
class CacheDirectoryIsNotWritable(ModelPath):
    """The model cache cannot be written to."""


@attrs.frozen
class CacheStorageIsFull(ModelPath):
    """The disk of the model cache is full."""


@attrs.frozen
class DownloadInterrupted(ModelPath):
    """The download broke off."""


@attrs.frozen
class DownloadServerDeniedAccess(ModelPath):
    """The server wants credentials, or refuses those it got."""


@attrs.frozen
class DownloadServerErrored(ModelPath):
    """The server failed to answer (5xx)."""


@attrs.frozen
class DownloadServerIsUnreachable(ModelPath):
    """No connection to the server."""


@attrs.frozen
class DownloadServerRejectedRequest(ModelPath):
    """The server refused the request (4xx)."""


@attrs.frozen
class DownloadUrlIsMalformed(ModelPath):
    """The URL is no URL."""


@attrs.frozen
class HuggingFaceModelDoesNotExist(ModelPath):
    """Hugging Face has no such file, repository or revision."""


@attrs.frozen
class HuggingFacePermissions(ModelPath):
    """Hugging Face refuses access to the repository."""


@attrs.frozen
class ModelCacheIsCorrupted(ModelPath):
    """The model cache holds something else than what was downloaded."""


@attrs.frozen
class ModelCannotBeLoaded(ModelPath):
    """llama.cpp refused the model file."""


@attrs.frozen
class ModelDoesNotExistAtUrl(ModelPath):
    """The server has nothing at this URL."""


@attrs.frozen
class ModelFileDoesNotExist(ModelPath):
    """There is no such file on the agent."""


@attrs.frozen
class MultimodalProjectionCannotBeLoaded(ModelPath):
    """llama.cpp refused the projection file."""


@attrs.frozen
class UnableToFindChatTemplate(ModelPath):
    """The model has no chat template, and no override is set."""


@attrs.frozen
class ChatTemplateDoesNotCompile:
    """The template is no valid Jinja."""

    error: str
    model_path: ModelPath
    template_content: str


@attrs.frozen
class HuggingFaceCannotAcquireLock:
    """Another process is downloading the same file."""

    lock_path: str
    model_path: ModelPath


@attrs.frozen
class SlotCannotStart:
    """One of the agent's slots failed to start."""

    error: str
    slot_index: Uint32


AgentIssue: TypeAlias = (
    CacheCannotAcquireLock
    | CacheDirectoryIsNotWritable
    | CacheStorageIsFull
    | ChatTemplateDoesNotCompile
    | DownloadInterrupted
    | DownloadServerDeniedAccess
    | DownloadServerErrored
    | DownloadServerIsUnreachable
    | DownloadServerRejectedRequest
    | DownloadUrlIsMalformed
    | HuggingFaceCannotAcquireLock
    | HuggingFaceModelDoesNotExist
    | HuggingFacePermissions
    | ModelCacheIsCorrupted
    | ModelCannotBeLoaded
    | ModelDoesNotExistAtUrl
    | ModelFileDoesNotExist
    | MultimodalProjectionCannotBeLoaded
    | SlotCannotStart
    | UnableToFindChatTemplate
)
external_tag(AgentIssue, *structs(AgentIssue))


def sorted_issues(issues: Iterable[AgentIssue]) -> tuple[AgentIssue, ...]:
    """Return the set of ``issues``, by variant name and then by field, in the order of the
    fields."""
    return tuple(sorted(set(issues), key=_order))


def _order(issue: AgentIssue) -> tuple[object, ...]:
    # Issues of one class have fields of the same types, so mixed types never meet.
    return (type(issue).__name__, *attrs.astuple(issue))

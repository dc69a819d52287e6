"""Errors that can occur between a model source and a verified file.

Every error names the source and has a cause for humans. ``issue`` is the variant that Paddler's
clients know. A *permanent* error happens again until the token, the desired state or the server's
content changes; all others are retried with back-off.

The header in which a balancer's model store says what it could not provide, and why.

An agent that asks a store must raise the error that it would have met at the source, with its
cause: so the store names the kind of error in ``X-Paddler-Store``, and the cause behind it,
percent-encoded. Statuses alone would not do: a 404 may also be a balancer without a store, a 401
the agent's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, cast
from urllib.parse import quote, unquote

import attrs

from paddler_trio.errors import PaddlerError
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    CacheCannotAcquireLock,
    CacheDirectoryIsNotWritable,
    CacheStorageIsFull,
    DownloadInterrupted,
    DownloadServerDeniedAccess,
    DownloadServerErrored,
    DownloadServerIsUnreachable,
    DownloadServerRejectedRequest,
    DownloadUrlIsMalformed,
    HuggingFaceCannotAcquireLock,
    HuggingFaceModelDoesNotExist,
    HuggingFacePermissions,
    ModelCacheIsCorrupted,
    ModelDoesNotExistAtUrl,
    ModelPath,
)


@attrs.frozen
class Subject:
    """The download that an error is about.

    Args:
      model_path: as issues name it: a URL, or ``repo/revision/filename``.
      is_hub: whether a hub serves it; some issues differ.
    """

    model_path: str
    is_hub: bool


class DownloadError(PaddlerError):
    """A download failed. ``cause`` is a sentence without full stop."""

    is_permanent: ClassVar[bool] = False
    variant: ClassVar[type[ModelPath]]
    """The issue that it is: one of :data:`AgentIssue`."""
    hub_variant: ClassVar[type[ModelPath] | None] = None
    """The issue where a hub serves the file, if that is another one."""

    def __init__(self, subject: Subject, cause: str) -> None:
        super().__init__(cause)
        self.subject = subject
        self.cause = cause
        self.is_from_store = False
        """A balancer's model store met it at the source, or in its own folder."""

    @property
    def issue(self) -> AgentIssue:
        """The error as an agent reports it."""
        of_hub = self.hub_variant if self.subject.is_hub else None
        return cast("AgentIssue", (of_hub or self.variant)(self.subject.model_path))


class SourceMalformedError(DownloadError):
    """The name of the source cannot be asked for."""

    is_permanent = True
    variant: ClassVar[type[ModelPath]] = DownloadUrlIsMalformed
    hub_variant: ClassVar[type[ModelPath] | None] = HuggingFaceModelDoesNotExist


class AccessDeniedError(DownloadError):
    """401 or 403: no token, a wrong one, or a gated repository."""

    is_permanent = True
    variant: ClassVar[type[ModelPath]] = DownloadServerDeniedAccess
    hub_variant: ClassVar[type[ModelPath] | None] = HuggingFacePermissions


class SourceNotFoundError(DownloadError):
    """404: no such repository, revision or file."""

    is_permanent = True
    variant: ClassVar[type[ModelPath]] = ModelDoesNotExistAtUrl
    hub_variant: ClassVar[type[ModelPath] | None] = HuggingFaceModelDoesNotExist


class NotAModelError(DownloadError):
    """A URL leads to something that is no GGUF file, such as the page of a login. The address may
    lead to another file soon.
    """

    variant: ClassVar[type[ModelPath]] = ModelDoesNotExistAtUrl


class PushedModelMissingError(DownloadError):
    """The model store does not have a pushed model, or there is no store; it may be pushed again
    at any moment."""

    variant: ClassVar[type[ModelPath]] = ModelDoesNotExistAtUrl


class RequestRejectedError(DownloadError):
    """Another 4xx."""

    is_permanent = True
    variant: ClassVar[type[ModelPath]] = DownloadServerRejectedRequest


class ServerFailedError(DownloadError):
    """5xx, 408, 429, or an answer that breaks HTTP's or the hub's rules.

    Args:
      retry_after_s: what the server asked for; None if it did not.
    """

    variant: ClassVar[type[ModelPath]] = DownloadServerErrored

    def __init__(self, subject: Subject, cause: str, retry_after_s: float | None = None) -> None:
        super().__init__(subject, cause)
        self.retry_after_s = retry_after_s


class ServerUnreachableError(DownloadError):
    """No connection, or no answer to the request."""

    variant: ClassVar[type[ModelPath]] = DownloadServerIsUnreachable


class TransferInterruptedError(DownloadError):
    """The body broke off or fell silent."""

    variant: ClassVar[type[ModelPath]] = DownloadInterrupted


class RemoteFileChangedError(DownloadError):
    """The file on the server is another one than when the download began."""

    variant: ClassVar[type[ModelPath]] = DownloadInterrupted


class ContentMismatchError(DownloadError):
    """The bytes are not those that the source announced."""

    variant: ClassVar[type[ModelPath]] = ModelCacheIsCorrupted


class CacheNotWritableError(DownloadError):
    """The cache's file system is read-only or denies access."""

    variant: ClassVar[type[ModelPath]] = CacheDirectoryIsNotWritable


class CacheFullError(DownloadError):
    """There is no room for the file, or there was none left while it was written."""

    variant: ClassVar[type[ModelPath]] = CacheStorageIsFull


class CacheBrokenError(DownloadError):
    """Any other error of the cache's file system."""

    variant: ClassVar[type[ModelPath]] = ModelCacheIsCorrupted


class LockHeldError(DownloadError):
    """Another process holds the lock of this file and makes no progress."""

    def __init__(self, subject: Subject, cause: str, lock_path: str) -> None:
        super().__init__(subject, cause)
        self.lock_path = lock_path

    @property
    def issue(self) -> AgentIssue:
        if self.subject.is_hub:
            return HuggingFaceCannotAcquireLock(self.lock_path, ModelPath(self.subject.model_path))
        return CacheCannotAcquireLock(self.subject.model_path)


STORE_HEADER: Final = "X-Paddler-Store"
MAX_CAUSE_CHARS: Final = 500


class StoreCannotError(ServerFailedError):
    """The store has no room for the file, or its own disk failed: the source may serve it."""


_KINDS: Final[dict[str, tuple[type[DownloadError], int]]] = {
    "malformed": (SourceMalformedError, 400),
    "denied": (AccessDeniedError, 403),
    "missing": (SourceNotFoundError, 404),
    "not_a_model": (NotAModelError, 400),
    "rejected": (RequestRejectedError, 400),
    "full": (StoreCannotError, 507),
    "unreachable": (ServerUnreachableError, 504),
    "interrupted": (TransferInterruptedError, 502),
    "failed": (ServerFailedError, 502),
}
"""By kind: what the agent raises, and the status beside it."""


def kind_of(error: DownloadError) -> str:
    """Return the name that the store gives to an error that it met."""
    for kind, (cls, _) in _KINDS.items():
        if isinstance(error, cls):
            return kind
    return "full"  # of its own cache, whatever it is: only the source is left


def status_of(kind: str) -> int:
    """The status of an answer with an error of this kind."""
    return _KINDS[kind][1]


def store_header(kind: str, cause: str) -> tuple[str, str]:
    """The header that an answer of the store has."""
    return STORE_HEADER, f"{kind}; {quote(cause[:MAX_CAUSE_CHARS], safe=' ')}"


def stores_error(
    headers: Mapping[str, str], subject: Subject, retry_after_s: float | None = None
) -> DownloadError | None:
    """The error that an answer of a store names; None if it names none.

    Args:
      headers: names are in lower case.
      retry_after_s: what it asks for; None if it does not.
    """
    kind, _, cause = headers.get(STORE_HEADER.lower(), "").partition("; ")
    if kind not in _KINDS:
        return None
    cls, _ = _KINDS[kind]
    error = cls(subject, f"{unquote(cause)[:MAX_CAUSE_CHARS]} (through the balancer's model store)")
    error.is_from_store = True
    if isinstance(error, ServerFailedError):
        error.retry_after_s = retry_after_s
    return error

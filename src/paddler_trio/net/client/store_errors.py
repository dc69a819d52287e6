"""The header in which a balancer's model store says what it could not provide, and why.

An agent that asks a store must raise the error that it would have met at the source, with its
cause: so the store names the kind of error in ``X-Paddler-Store``, and the cause behind it,
percent-encoded. Statuses alone would not do: a 404 may also be a balancer without a store, a 401
the agent's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    NotAModelError,
    RequestRejectedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    SourceNotFoundError,
    Subject,
    TransferInterruptedError,
)

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

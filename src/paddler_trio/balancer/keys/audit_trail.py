"""What operators did, as those who carry it out report it: one record an action.

A handler records what it has done, with what only it can name: the target, digests, a revision. A
request that may change something and of which no handler recorded anything gets a record of its
method and path from :func:`audited`, so that no route is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from paddler_trio.net.server.asgi import App, Message, Receive, Scope, Send

DONE: Final = "done"
NOT_FOUND: Final = 404
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TRAIL: Final = "paddler_trio.audit_trail"
_RECORDED: Final = "paddler_trio.audit_recorded"
"""The members of a scope that have its trail, and the actions recorded for its request."""


class AuditTrail(Protocol):
    """Takes records; never waits and never fails."""

    def record(
        self,
        scope: Scope,
        action: str,
        target: str = "",
        *,
        outcome: str = DONE,
        who: str | None = None,
        **fields: object,
    ) -> None:
        """The request of ``scope`` did this.

        Args:
          action: a few words that do not vary, such as ``key revoked``.
          target: what was changed.
          outcome: ``done``, or ``refused`` or ``failed`` and why.
          who: the name of the key; by default that of the request.
          fields: ``before`` and ``after`` (digests), ``revision``, and others; never a secret.
        """
        ...


class NoAuditTrail:
    """Keeps nothing."""

    def record(
        self,
        scope: Scope,
        action: str,
        target: str = "",
        *,
        outcome: str = DONE,
        who: str | None = None,
        **fields: object,
    ) -> None: ...


_NONE: Final = NoAuditTrail()


def audit_of(scope: Scope) -> AuditTrail:
    """What takes the records of this request."""
    trail: AuditTrail = scope.get(_TRAIL, _NONE)
    return trail


def note_recorded(scope: Scope, action: str) -> None:
    """The request of ``scope`` has its record."""
    recorded = scope.get(_RECORDED)
    if recorded is not None:
        recorded.append(action)


def audited(
    app: App,
    trail: AuditTrail,
    *,
    changes: Callable[[Scope], bool] = lambda scope: True,
) -> App:
    """``app``, of whose requests each that may change something leaves a record.

    Args:
      changes: whether a request with another method than to read may change something; others have
        the records of their handlers only.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_TRAIL] = trail
        if scope["type"] != "http" or scope["method"] in READS or not changes(scope):
            await app(scope, receive, send)
            return
        recorded = scope[_RECORDED] = list[str]()
        status: int | None = None

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched_send)
        finally:
            if not recorded and status != NOT_FOUND:  # what is not there was not changed
                action = f"{scope['method']} {scope['path']}"
                trail.record(scope, action, outcome=outcome_of(status))

    return answer


def outcome_of(status: int | None) -> str:
    """The outcome that a record has for a request that was answered with ``status``; None for one
    that was not."""
    if status is None:
        return "cut off"
    if status < 400:
        return DONE
    return f"{'refused' if status < 500 else 'failed'}: {status}"

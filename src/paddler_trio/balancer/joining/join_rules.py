"""Say who may join with a join token, and under which name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from paddler_trio.balancer.joining.stored_agents import (
    MAX_CREDENTIALS,
    MAX_TOKENS,
    StoredAgents,
    StoredToken,
)
from paddler_trio.errors import PaddlerError
from paddler_trio.net.joining.join_token import matches, new_id


class JoinRefusedError(PaddlerError):
    """The token opens nothing; ``reason`` is for the log, and those who tried do not hear it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class JoinConflictError(PaddlerError):
    """The token is good, and what was asked with it cannot be; the text says why."""


def usable_token(stored: StoredAgents, token_id: str, secret: str, now: datetime) -> StoredToken:
    """Return the token that is meant, which may be used up; JoinRefusedError."""
    token = stored.tokens.get(token_id)
    is_right = matches(secret, None if token is None else token.digest)
    if token is None:
        raise JoinRefusedError("there is none: it was revoked, has expired, or never was")
    if not is_right:
        raise JoinRefusedError("its secret is wrong")
    if token.expires <= now:
        raise JoinRefusedError("it has expired")
    return token


def name_of(token: StoredToken, name: str | None, host: str | None) -> str:
    """Return the name under which an agent joins; JoinConflictError."""
    bound = token.name or name or host
    if bound is None:
        raise JoinConflictError("the agent has no name: give --name")
    if name not in (None, bound):
        raise JoinConflictError(
            f"this join token is for the agent {bound!r}, not for {name!r}: leave --name out"
        )
    return bound


def check_tokens(count: int) -> None:
    """Raise JoinConflictError if there are as many tokens as there may be."""
    if count >= MAX_TOKENS:
        raise JoinConflictError(
            f"there are {count} join tokens, the limit is {MAX_TOKENS}: revoke some, or wait until "
            "they expire"
        )


def check_credentials(count: int) -> None:
    """Raise JoinConflictError if there are as many credentials as there may be."""
    if count >= MAX_CREDENTIALS:
        raise JoinConflictError(
            f"there are {count} agents' credentials, the limit is {MAX_CREDENTIALS}: revoke some "
            "with `paddler-trio agents revoke`"
        )


def unused_id(taken: Mapping[str, object]) -> str:
    """Return a public id that is not among these."""
    while (found := new_id()) in taken:
        pass
    return found

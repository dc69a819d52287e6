"""Find which user of a client a request is for, where it says so: a client's turns go round its
users.

    any route          X-Paddler-User
    OpenAI's           safety_identifier, else user
    Anthropic's        metadata.user_id

The header goes before the body: a proxy in front may set it. Names of users may be personal data,
so a name is hashed at once, with a key that ends with the process. Nothing else of it is kept,
unless usage is to be counted by users, and but for requests of a client without a name: operators
are shown whose they are, in memory only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Final

import attrs

from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.client_identity import SOURCE
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.wire.visible_text import visible

USER_HEADER: Final = b"x-paddler-user"
MAX_USER_CHARS: Final = 512
_IN_BODIES: Final = ("safety_identifier", "user")
_HASH_KEY: Final = secrets.token_bytes(16)
MAX_NAMES: Final = 10_000
"""That are known at a time; who comes beyond them has the name of nobody."""
SHOWN_CHARS: Final = 128


@attrs.define(eq=False)
class UserNames:
    """The names of users by what stands for them, as long as usage is counted by users."""

    is_kept: bool = False
    _names: dict[str, str] = attrs.field(factory=dict)

    def note(self, digest: str, name: str) -> None:
        """This stands for a user of this name."""
        if self.is_kept:
            self._names.pop(digest, None)
            self._names[digest] = visible(name[:SHOWN_CHARS])
            if len(self._names) > MAX_NAMES:
                del self._names[next(iter(self._names))]

    def name_of(self, digest: str) -> str:
        """Return who that is; empty if nobody is named, or names are not kept."""
        return self._names.get(digest, "") if self._names else ""


USER_NAMES: Final = UserNames()
"""Those of this process."""


def user_of(exchange: Exchange) -> str:
    """Return what stands for the user in the header; empty without one. HttpProblem 400 if it is
    too long."""
    name = (exchange.header(USER_HEADER) or b"").decode("latin-1").strip()
    return _digest(name, "X-Paddler-User")


def user_in(body: Mapping[str, object]) -> str:
    """Return what stands for the user in a body of one of the APIs, in which it may be anything."""
    for field in _IN_BODIES:
        name = body.get(field)
        if isinstance(name, str) and name:
            return _digest(name, field)
    metadata = body.get("metadata")
    name = metadata.get("user_id") if isinstance(metadata, dict) else None
    return _digest(name, "metadata.user_id") if isinstance(name, str) else ""


def _digest(name: str, what: str) -> str:
    if len(name) > MAX_USER_CHARS:
        raise HttpProblem(400, f"{what} has {len(name)} characters, the limit is {MAX_USER_CHARS}")
    if not name:
        return ""
    if (source := SOURCE.get()) is not None and not source.user:
        source.user = name  # shown of clients without a name only, in records of requests
    raw = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2s(raw, key=_HASH_KEY, digest_size=8).hexdigest()
    USER_NAMES.note(digest, name)
    return digest

"""Sessions of people who signed in with a management key: what a browser holds instead of the key.

A session is known by a token of 32 random bytes, which only the browser has. Here lies its SHA-256,
so a copy of this memory signs nobody in, and a lookup compares nothing that a sender can choose bit
by bit. The token that unsafe requests must bring in a header (against cross-site request forgery)
is derived from it: it needs no memory either.

A session ends when it is signed out, an hour after its last use, twelve hours after its beginning,
and when its key expires or is no longer in force. Its requests in progress are cancelled then,
streams too.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.balancer.keys.api_keys import StoredKey

SESSION_COOKIE: Final = "paddler_panel"
"""What the name of a cookie with a token begins with; the port of the page may follow."""
MAX_SESSIONS: Final = 1000
"""The most sessions: the key that has most gives up the one used least recently for another."""
MAX_AGE_S: Final = 12 * 3600.0
MAX_IDLE_S: Final = 3600.0
TOKEN_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 128
"""No token is as long; a longer one is not hashed."""


@attrs.define(eq=False)
class Session:
    """One person in one browser. Times are of trio's clock."""

    key: StoredKey
    began_s: float
    used_s: float
    last_s: float
    """When it is over at the latest: it is twelve hours old, or its key expires."""
    _digest: bytes = attrs.field(repr=False)
    _requests: dict[trio.CancelScope, trio.lowlevel.Task] = attrs.field(factory=dict, repr=False)

    @property
    def ends_s(self) -> float:
        """Return when it is over unless it is used: never while a request of it is in progress."""
        return self.last_s if self._requests else min(self.last_s, self.used_s + MAX_IDLE_S)

    @contextmanager
    def in_use(self) -> Iterator[trio.CancelScope]:
        """Around a request: cancelled when the session ends, unless this task itself ends it."""
        with trio.CancelScope(deadline=self.last_s) as scope:
            self._requests[scope] = trio.lowlevel.current_task()
            try:
                yield scope
            finally:
                del self._requests[scope]
                self.used_s = trio.current_time()


@attrs.define(eq=False)
class Sessions:
    """All sessions of a balancer; synchronous, so that no two tasks see one half changed."""

    _by_digest: dict[bytes, Session] = attrs.field(factory=dict, repr=False)
    """In the order of their last use."""

    def __len__(self) -> int:
        return len(self._by_digest)

    def open(self, key: StoredKey, *, valid_s: float = math.inf) -> str:
        """Begin a session; the token that a cookie shall carry.

        Args:
          valid_s: for how long the key is valid from now on.
        """
        now_s = trio.current_time()
        for session in [each for each in self._by_digest.values() if each.ends_s <= now_s]:
            self.end(session)
        if len(self._by_digest) >= MAX_SESSIONS:
            self.end(self._one_too_many(key))
        token = secrets.token_urlsafe(TOKEN_BYTES)
        digest = _digest(token.encode())
        self._by_digest[digest] = Session(
            key, now_s, now_s, now_s + min(MAX_AGE_S, valid_s), digest
        )
        return token

    def _one_too_many(self, key: StoredKey) -> Session:
        """Return the session that makes room for one of ``key``: its own, unless another key has
        more. So whoever signs in all the time signs out nobody else."""
        counts = Counter(each.key.name for each in self._by_digest.values())
        counts[key.name] += 1
        most = max(counts.values())
        name = key.name if counts[key.name] == most else counts.most_common(1)[0][0]
        return next(each for each in self._by_digest.values() if each.key.name == name)

    def find(self, token: bytes) -> Session | None:
        """Return the session of a token, now used; None if there is none, or none any more."""
        if not 0 < len(token) <= MAX_TOKEN_BYTES:
            return None
        digest = _digest(token)
        session = self._by_digest.get(digest)
        if session is None:
            return None
        now_s = trio.current_time()
        if session.ends_s <= now_s:
            self.end(session)
            return None
        session.used_s = now_s
        self._by_digest[digest] = self._by_digest.pop(digest)
        return session

    def end(self, session: Session) -> None:
        """Sign out: requests of the session are cancelled, save the one that does this."""
        self._by_digest.pop(session._digest, None)
        task = trio.lowlevel.current_task()
        for scope, its_task in list(session._requests.items()):
            if its_task is not task:
                scope.cancel(reason="the session has ended")

    def end_all(self, is_over: Callable[[StoredKey], bool]) -> int:
        """End those whose key ``is_over``; how many."""
        ended = [each for each in self._by_digest.values() if is_over(each.key)]
        for session in ended:
            self.end(session)
        return len(ended)


def csrf_token(token: bytes) -> str:
    """Return what unsafe requests of the session with this token bring in a header."""
    return hmac.new(token, b"paddler-trio csrf", hashlib.sha256).hexdigest()


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()

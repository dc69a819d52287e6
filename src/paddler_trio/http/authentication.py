"""Who may come in: an application behind a key, whichever of its surfaces answers.

A key comes as ``Authorization: Bearer`` or as ``x-api-key``. Without a valid one the answer is 401,
with one that is for something else 403, each in the words of the surface that was asked; a
WebSocket is refused before it is accepted. From here on the request is known by the *name* of its
key: in the log, in metrics, and as the client the queue is fair to. The key itself goes no
further.

Probes stay open, since supervisors have no keys, and so does a preflight, which has none by its
nature; it is answered outside of this, by ``Cors``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import attrs
import structlog

from paddler_trio.http.api_keys import KeyScope, StoredKey
from paddler_trio.http.asgi import App, HttpProblem, Receive, Scope, Send, header, send_text
from paddler_trio.http.client_identity import KEY_NAME
from paddler_trio.http.key_ring import KeyRing
from paddler_trio.http.router import refuse_upgrade

log = structlog.get_logger("keys")

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/v1/health", "/models"})
"""``/models`` is how clients of llama-server, which asks no key for it either, probe a server."""

MAX_LOGGED_CHARS = 200
"""Of a path: who is refused does not decide how fast the log grows."""

_REALM = 'Bearer realm="paddler-trio"'

Refuse: TypeAlias = Callable[[Scope, Receive, Send, HttpProblem], Awaitable[None]]
"""Answers an HTTP request with a refusal."""


async def refuse_in_plain_text(
    scope: Scope, receive: Receive, send: Send, problem: HttpProblem
) -> None:
    """As Paddler's routes answer."""
    await send_text(send, problem.status, problem.text, headers=problem.headers)


@attrs.frozen(eq=False)
class Authentication:
    """Wraps applications so that what they serve takes a key of ``scope``.

    Args:
      is_waived: the operator wants no key asked for here, whatever the file says.
    """

    keys: KeyRing
    scope: KeyScope
    is_waived: bool = False

    @property
    def asks_for_key(self) -> bool:
        """Whether requests need a key, as things are; probes never do."""
        return not self.is_waived and self.scope in self.keys.guarded

    def __call__(self, app: App, *, refuse: Refuse = refuse_in_plain_text) -> App:
        """Return ``app`` behind a key."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] not in ("http", "websocket") or self.keys.path is None:
                await app(scope, receive, send)
                return
            key, problem = self._judge(scope)
            if problem is not None:
                self.keys.refusals += 1
                log.warning(
                    "refused: no key for this",
                    status=problem.status,
                    path=scope["path"][:MAX_LOGGED_CHARS],
                    address=(scope.get("client") or ("unknown",))[0],
                    key=None if key is None else key.name,
                )
                if scope["type"] == "websocket":
                    await refuse_upgrade(send, problem)
                else:
                    await refuse(scope, receive, send, problem)
            elif key is None:
                await app(scope, receive, send)
            else:
                self.keys.requests[key.name] += 1
                scope[KEY_NAME] = key.name
                with structlog.contextvars.bound_contextvars(key=key.name):
                    await app(scope, receive, send)

        return answer

    def _judge(self, scope: Scope) -> tuple[StoredKey | None, HttpProblem | None]:
        """The key that came, if it is one of ours, and why it does not do."""
        key, came = None, False
        for secret in _secrets(scope):
            came = True
            key = key or self.keys.find(secret)
        is_open = scope["type"] == "http" and scope["path"] in OPEN_PATHS
        if is_open or not self.asks_for_key:
            return key, None
        if key is None:
            what = "this API key is not known here" if came else "an API key is required"
            advice = "send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            challenge = _REALM + (', error="invalid_token"' if came else "")
            return None, HttpProblem(
                401, f"{what}: {advice}", [(b"www-authenticate", challenge.encode())]
            )
        if self.scope not in key.scopes:
            return key, HttpProblem(
                403,
                f"the API key {key.name!r} is for {' and '.join(sorted(key.scopes))}, this needs "
                f"one for {self.scope}",
            )
        return key, None


def _secrets(scope: Scope) -> Iterator[bytes]:
    """The keys the request carries, two at most: clients that speak to several services send both.

    Of several headers of one name the first counts, so that no request asks for more hashing.
    """
    scheme, _, secret = (header(scope, b"authorization") or b"").strip().partition(b" ")
    bearer = secret.strip() if scheme.lower() == b"bearer" else b""
    other = (header(scope, b"x-api-key") or b"").strip()
    yield from dict.fromkeys(secret for secret in (bearer, other) if secret)

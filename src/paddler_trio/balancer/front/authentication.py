"""Authentication by API key, in front of any application.

A key comes as ``Authorization: Bearer`` or as ``x-api-key``. Without a valid one the answer is 401,
with one of another scope 403, each in the format of the API; a WebSocket is refused before it is
accepted. From here on the request is identified by the *name* of its key: in the log, in metrics,
and as the client to which the queue is fair. The key itself goes no further. A key that is limited
to deployments passes here; the routes compare, since only they read which one a request names.

Probes stay open, since supervisors have no keys, and so does a preflight, which cannot carry one;
``Cors`` answers it before a request comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import structlog

from paddler_trio.balancer.keys.api_keys import KeyScope, StoredKey
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.net.server.router import refuse_upgrade

log = structlog.get_logger("keys")

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/v1/health", "/models"})
"""Clients of llama-server probe a server with ``/models``, which needs no key there either."""

MAX_LOGGED_CHARS = 200
"""Of a path: a client that is refused cannot make the log grow fast."""

_REALM = 'Bearer realm="paddler-trio"'


@attrs.frozen(eq=False)
class Authentication:
    """Wraps applications so that they require a key of ``scope``.

    Args:
      is_waived: the operator requires no key here, whatever the key file has.
    """

    keys: KeyRing
    scope: KeyScope
    is_waived: bool = False

    @property
    def requires_key(self) -> bool:
        """Return whether requests need a key now; probes never do."""
        return not self.is_waived and self.scope in self.keys.guarded

    def __call__(
        self,
        app: App,
        *,
        refuse: Refuse = refuse_in_plain_text,
        on_refused: Callable[[Exchange, HttpProblem], None] = lambda exchange, problem: None,
    ) -> App:
        """Return ``app`` behind a key; ``on_refused`` hears of who has none."""

        async def answer(exchange: Exchange) -> None:
            if self.keys.path is None:
                await app(exchange)
                return
            key, problem = self._check(exchange)
            if problem is not None:
                self.keys.refusals += 1
                on_refused(exchange, problem)
                log.warning(
                    "refused: no key for this",
                    status=problem.status,
                    path=exchange.path[:MAX_LOGGED_CHARS],
                    address=exchange.client[0],
                    key=None if key is None else key.name,
                )
                if exchange.is_websocket:
                    await refuse_upgrade(exchange.send, problem)
                else:
                    await refuse(exchange, problem)
            elif key is None:
                await app(exchange)
            else:
                self.keys.requests[key.name] += 1
                exchange.identity.key_name = exchange.identity.account = key.name
                exchange.identity.may_manage = KeyScope.MANAGEMENT in key.scopes
                if key.deployments:
                    exchange.identity.deployments = key.deployments
                with structlog.contextvars.bound_contextvars(key=key.name):
                    await app(exchange)

        return answer

    def _check(self, exchange: Exchange) -> tuple[StoredKey | None, HttpProblem | None]:
        """Return the key of the request, if it is known, and the refusal, if there is one."""
        key, expired, is_sent = None, None, False
        for secret in _secrets(exchange):
            is_sent = True
            found = self.keys.find(secret)
            if found is not None and (problem := self.keys.problem_of(found)) is not None:
                expired = expired or problem
            else:
                key = key or found
        if is_probe(exchange) or not self.requires_key:
            return key, None
        if key is None:
            what = "this API key is not known here" if is_sent else "an API key is required"
            advice = "send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            if expired is not None:
                what, advice = expired, "ask who gave it to you for a new one"
            challenge = _REALM + (', error="invalid_token"' if is_sent else "")
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


def is_probe(exchange: Exchange) -> bool:
    """It needs no key. What would change something, or stay open, is none."""
    return (
        exchange.is_http
        and exchange.path in OPEN_PATHS
        and exchange.method in {"GET", "HEAD"}
        and exchange.upgrade is None
    )


def _secrets(exchange: Exchange) -> Iterator[bytes]:
    """Return the keys of the request, two at most: clients of several services send both headers.

    Of several headers of one name the first counts, which bounds the hashing for one request.
    """
    scheme, _, secret = (exchange.header(b"authorization") or b"").strip().partition(b" ")
    bearer = secret.strip() if scheme.lower() == b"bearer" else b""
    other = (exchange.header(b"x-api-key") or b"").strip()
    yield from dict.fromkeys(secret for secret in (bearer, other) if secret)

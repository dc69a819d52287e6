"""``session``: sign in with a management key, ask who is signed in, sign out.

    GET     {"required", "signed_in", "name", "csrf"}
    POST    {"key": "pt-…"}: the same, and the cookie of a session; 401, 429 with Retry-After
    DELETE  204; the session has ended

``required`` is false where no key asks for anything: on the loopback without a management key.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.login_limit import LoginLimit
from paddler_trio.balancer.front.sessions import MAX_AGE_S, Session, csrf_token
from paddler_trio.balancer.keys.api_keys import KeyScope, StoredKey
from paddler_trio.balancer.panel.panel_access import PanelAccess, cookie_name, forged
from paddler_trio.net.server.asgi import (
    Header,
    HttpProblem,
    send_empty,
    send_json,
)
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import Router

log = structlog.get_logger("panel")

MAX_BODY_BYTES: Final = 4096
NEVER_STORED: Final[Header] = (b"cache-control", b"no-store")


@attrs.frozen(eq=False)
class SessionRoutes:
    """The handlers of ``/session``.

    Args:
      manage: whether a key is required, and who has one.
    """

    access: PanelAccess
    manage: Authentication
    _limit: LoginLimit = attrs.field(factory=LoginLimit, init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/session", self._show)
        routes.http("POST", "/session", self._sign_in)
        routes.http("DELETE", "/session", self._sign_out)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        found = self.access.find(exchange)
        await send_json(exchange.send, 200, self._document(found), headers=[NEVER_STORED])

    async def _sign_in(self, exchange: Exchange, params: Params) -> None:
        address = exchange.client[0]
        secret = await json_body(exchange, _key, limit_bytes=MAX_BODY_BYTES)
        key = self.access.keys.find(secret.encode())
        expired = None if key is None else self.access.keys.problem_of(key)
        if key is None or expired or KeyScope.MANAGEMENT not in key.scopes:
            self._count_failure(address)
            who = "" if key is None else key.name
            exchange.audit.record(exchange, "sign-in", outcome="refused: 401", who=who)
            raise self._refusal(key, expired, address)
        before = self.access.find(exchange)
        if before is not None:
            self.access.sessions.end(before[1])
        token = self.access.sessions.open(key, valid_s=self.access.keys.valid_s(key))
        found = self.access.sessions.find(token.encode())
        assert found is not None
        log.info("signed in", key=key.name, address=address)
        exchange.audit.record(exchange, "sign-in", who=key.name)
        cookie = _cookie(exchange, token, max_age_s=int(MAX_AGE_S))
        body = self._document((token.encode(), found))
        await send_json(exchange.send, 200, body, headers=[NEVER_STORED, cookie])

    async def _sign_out(self, exchange: Exchange, params: Params) -> None:
        found = self.access.find(exchange)
        if found is not None:
            token, session = found
            problem = forged(exchange, token)
            if problem is not None:
                raise problem
            self.access.sessions.end(session)
            log.info("signed out", key=session.key.name)
            exchange.audit.record(exchange, "sign-out", who=session.key.name)
        headers = [NEVER_STORED, _cookie(exchange, "", max_age_s=0)]
        await send_empty(exchange.send, 204, headers=headers)

    # ------------------------------------------------------------- private

    def _document(self, found: tuple[bytes, Session] | None) -> dict[str, object]:
        required = self.manage.requires_key
        if found is None:
            return {"required": required, "signed_in": False, "name": None, "csrf": None}
        token, session = found
        return {
            "required": required,
            "signed_in": True,
            "name": session.key.name,
            "csrf": csrf_token(token),
        }

    def _count_failure(self, address: str) -> None:
        """Raise HttpProblem 429, of which nothing is logged, if there were too many before."""
        now_s = trio.current_time()
        wait_s = self._limit.wait_s(address, now_s)
        if wait_s > 0:
            after = max(1, math.ceil(wait_s))
            raise HttpProblem(
                429,
                f"this key is wrong, as too many were: try another one in {after} s",
                [(b"retry-after", b"%d" % after), NEVER_STORED],
            )
        self._limit.failed(address, now_s)

    def _refusal(self, key: StoredKey | None, expired: str | None, address: str) -> HttpProblem:
        log.warning("sign-in failed", address=address, key=None if key is None else key.name)
        if self.access.keys.path is None:
            text = "this balancer has no keys: it runs without --api-key-file, and asks for none"
        elif expired is not None:
            text = f"{expired}: sign in with another one"
        elif key is not None:
            text = f"the key {key.name!r} is not for management: sign in with one that is"
        else:
            text = "this key is not known here: make one with `paddler-trio key new NAME --scope "
            text += "management`"
        return HttpProblem(401, text, [NEVER_STORED])


def _key(value: object) -> str:
    """Return the member ``key`` of a body, which no error repeats."""
    if not isinstance(value, dict) or set(value) != {"key"}:
        raise HttpProblem(400, 'the body must be {"key": "…"} and nothing else')
    key = value["key"]
    if not isinstance(key, str) or not key:
        raise HttpProblem(400, "key must be a text that is not empty @ $.key")
    return key


def _cookie(exchange: Exchange, token: str, *, max_age_s: int) -> Header:
    """Without a Path a browser takes that of the request, which is the base as it sees it."""
    parts = [
        f"{cookie_name(exchange)}={token}",
        "HttpOnly",
        "SameSite=Strict",
        f"Max-Age={max_age_s}",
    ]
    if is_secure(exchange):
        parts.append("Secure")
    return b"set-cookie", "; ".join(parts).encode("latin-1")


def is_secure(exchange: Exchange) -> bool:
    """Return whether the browser came over TLS, here or at a proxy in front."""
    proto = (exchange.header(b"x-forwarded-proto") or b"").split(b",")[0].strip().lower()
    return exchange.scope.get("scheme") in ("https", "wss") or proto == b"https"

"""``/api/v2/keys`` on the management port: list, make and revoke API keys of a running balancer.

    GET     {"file": true, "keys": [{"name", "scopes", "deployments", "created", "requests",
            "expires", "expired", LIMITS, "used"}]}
    POST    {"name", "scopes", "deployments", "expires" or "ttl_s", LIMITS}
            -> 201 {"name", "key", "expires", LIMITS}: the key is shown this once
    DELETE  /api/v2/keys/{name} -> 204

LIMITS are ``requests_per_minute``, ``max_concurrent``, ``tokens_per_day`` and ``tokens_per_month``:
whole numbers, null or absent for none; ``expires`` is RFC 3339, null for never. ``used`` is what
counts now: ``{"requests_last_minute", "concurrent", "tokens_today", "tokens_this_month"}``.

What is changed is the file, under the lock that ``paddler-trio key`` takes too; then the balancer
reads it again, as on SIGHUP. 409: there is no file, the name is taken, or the change would lock the
operators out: the last key of the scope management cannot be revoked here, nor the first one made,
since from then on agents need it to dial in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import structlog
import trio

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    changing,
    check_deployments,
    check_name,
    new_secret,
    read_key_file,
    write_key_file,
)
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_terms import TERMS, KeyTerms, after
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import HttpProblem, send_empty, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import Router

log = structlog.get_logger("keys")

MAX_BODY_BYTES: Final = 65_536
LOCK_PATIENCE_S: Final = 5.0
"""How long somebody else may hold the file before a change is refused."""
FIELDS: Final = frozenset({"name", "scopes", "deployments", "ttl_s", *TERMS})

NOTHING_USED: Final = {
    "requests_last_minute": 0,
    "concurrent": 0,
    "tokens_today": 0,
    "tokens_this_month": 0,
}

T = TypeVar("T")


@attrs.frozen
class KeyOrder:
    """The body of a POST."""

    name: str
    scopes: frozenset[KeyScope]
    deployments: frozenset[str]
    terms: KeyTerms


@attrs.frozen(eq=False)
class KeyRoutes:
    """The handlers of these routes.

    Args:
      used: what a key has used, by its name.
    """

    keys: KeyRing
    used: Callable[[str], Mapping[str, int]] = lambda name: NOTHING_USED
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """One change at a time holds a thread."""

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/keys", self._list)
        routes.http("POST", "/api/v2/keys", self._make)
        routes.http("DELETE", "/api/v2/keys/{name}", self._revoke)

    async def _list(self, exchange: Exchange, params: Params) -> None:
        keys = [
            {
                "name": key.name,
                "scopes": sorted(key.scopes),
                "deployments": sorted(key.deployments),
                "created": key.created,
                "requests": self.keys.requests[key.name],
                **key.terms.all_fields(),
                "expired": key.terms.has_expired(self.keys.now()),
                "used": self.used(key.name),
            }
            for key in self.keys.keys
        ]
        await send_json(exchange.send, 200, {"file": self.keys.path is not None, "keys": keys})

    async def _make(self, exchange: Exchange, params: Params) -> None:
        path = self._path(exchange)
        now = self.keys.now()
        order = await json_body(exchange, partial(_order, now=now), limit_bytes=MAX_BODY_BYTES)
        if KeyScope.MANAGEMENT in order.scopes and KeyScope.MANAGEMENT not in self.keys.guarded:
            raise HttpProblem(
                409,
                "this would be the first key of the scope management, and from then on agents "
                "could not dial in without one: make it with `paddler-trio key new`, give the "
                "agents a --token-file, then reload the balancer",
            )
        secret = new_secret()
        stored = StoredKey.of(
            secret,
            name=order.name,
            scopes=order.scopes,
            created=now.date().isoformat(),
            deployments=order.deployments,
            terms=order.terms,
        )
        await self._change(path, partial(_with, key=stored))
        log.info("key made", made=order.name, scopes=sorted(order.scopes), by=_author(exchange))
        exchange.audit.record(
            exchange,
            "key made",
            order.name,
            scopes=", ".join(sorted(order.scopes)),
            deployments=", ".join(sorted(order.deployments)) or "all",
            terms=", ".join(f"{name} {value}" for name, value in order.terms.fields().items()),
        )
        answer = {"name": order.name, "key": secret, **order.terms.all_fields()}
        await send_json(exchange.send, 201, answer, headers=[(b"cache-control", b"no-store")])

    async def _revoke(self, exchange: Exchange, params: Params) -> None:
        path = self._path(exchange)
        await self._change(path, partial(_without, name=params["name"], now=self.keys.now()))
        exchange.audit.record(exchange, "key revoked", params["name"])
        log.info("key revoked", revoked=params["name"], by=_author(exchange))
        await send_empty(exchange.send, 204)

    # ------------------------------------------------------------- private

    def _path(self, exchange: Exchange) -> Path:
        """Return the file; HttpProblem if there is none, or this client may not change it."""
        if self.keys.path is None:
            raise HttpProblem(
                409,
                "this balancer runs without --api-key-file: make a file with `paddler-trio key "
                "new NAME --scope management --file keys.json`, and start it with "
                "--api-key-file keys.json",
            )
        author = self.keys.named(exchange.identity.key_name)
        is_manager = author is not None and KeyScope.MANAGEMENT in author.scopes
        if KeyScope.MANAGEMENT in self.keys.guarded and not is_manager:
            raise HttpProblem(
                403,
                "keys are changed with a key of the scope management, also where "
                "--insecure-management asks for none",
            )
        return self.keys.path

    async def _change(self, path: Path, change: Callable[[KeyFile], KeyFile]) -> None:
        """Change the file and read it again.

        Cancellation: not once the file is being changed, or a key could be in force that is told
        to nobody; that is over when the lock's patience is.
        """
        async with self._turn:
            with trio.CancelScope(shield=True):
                try:
                    await trio.to_thread.run_sync(_rewrite, path, change)
                except ConfigurationError as error:
                    raise HttpProblem(500, f"the keys were not changed: {error}") from error
                await self.keys.reload()


def _rewrite(path: Path, change: Callable[[KeyFile], KeyFile]) -> None:
    with changing(path, patience_s=LOCK_PATIENCE_S):
        write_key_file(path, change(read_key_file(path)))


def _with(content: KeyFile, *, key: StoredKey) -> KeyFile:
    try:
        return content.having(key)
    except ConfigurationError as error:
        raise HttpProblem(409, str(error)) from error


def _without(content: KeyFile, *, name: str, now: datetime) -> KeyFile:
    key = next((each for each in content.keys if each.name == name), None)
    if key is None:
        raise HttpProblem(404, f"there is no key named {name[:80]!r}")
    managing = [
        each
        for each in content.keys
        if KeyScope.MANAGEMENT in each.scopes and not each.terms.has_expired(now)
    ]
    if managing == [key]:
        raise HttpProblem(
            409,
            f"{name!r} is the last key of the scope management: without it no operator and no "
            "agent could sign in; make another one first",
        )
    return content.without(name)


def _order(value: object, *, now: datetime) -> KeyOrder:
    if not isinstance(value, dict) or not set(value) <= FIELDS or "name" not in value:
        more = ", ".join(sorted(FIELDS - {"name"}))
        raise HttpProblem(400, f'the body must be {{"name": "…"}}, and may have {more} @ $')
    name = value["name"]
    if not isinstance(name, str):
        raise HttpProblem(400, "name must be a text @ $.name")
    _checked(lambda: check_name(name), "name")
    scopes = _scopes(value.get("scopes", [KeyScope.INFERENCE]))
    listed = value.get("deployments") or None
    deployments = _checked(lambda: check_deployments(listed, "deployments"), "deployments")
    if deployments and KeyScope.INFERENCE not in scopes:
        raise HttpProblem(
            400, "deployments limit requests: they need the scope inference @ $.deployments"
        )
    return KeyOrder(name, scopes, deployments, _terms(value, scopes, now))


def _terms(value: Mapping[str, object], scopes: frozenset[KeyScope], now: datetime) -> KeyTerms:
    terms = _with_path(lambda: KeyTerms.read(value, ""))
    if (ttl_s := value.get("ttl_s")) is not None:
        if terms.expires is not None:
            raise HttpProblem(400, "give expires or ttl_s, not both @ $.ttl_s")
        expires = _with_path(lambda: after(ttl_s, "ttl_s", now))
        terms = attrs.evolve(terms, expires=expires)
    if terms.has_expired(now):
        raise HttpProblem(400, f"expires is {terms.expires_text}, which is over @ $.expires")
    if terms.limits and KeyScope.INFERENCE not in scopes:
        name = next(name for name, most in terms.limits.as_json().items() if most is not None)
        raise HttpProblem(400, f"{name} limits requests: it needs the scope inference @ $.{name}")
    return terms


def _scopes(value: object) -> frozenset[KeyScope]:
    known = ", ".join(KeyScope)
    if not isinstance(value, list) or not 0 < len(value) <= len(KeyScope):
        raise HttpProblem(400, f"scopes must be a list of one or more of {known} @ $.scopes")
    scopes = frozenset(KeyScope(each) for each in value if each in list(KeyScope))
    if len(scopes) != len(value):
        raise HttpProblem(400, f"scopes may have each of {known} once @ $.scopes")
    return scopes


def _checked(check: Callable[[], T], field: str) -> T:
    try:
        return check()
    except ConfigurationError as error:
        raise HttpProblem(400, f"{error} @ $.{field}") from error


def _with_path(check: Callable[[], T]) -> T:
    """Check as ``_checked`` does; the sentence begins with the name of the field."""
    try:
        return check()
    except ConfigurationError as error:
        text = str(error)
        raise HttpProblem(400, f"{text} @ $.{text.partition(' ')[0]}") from error


def _author(exchange: Exchange) -> str:
    return exchange.identity.key_name or "anonymous"

"""Join tokens and agents' credentials on the management port.

    POST    /api/v2/join-tokens  {"ttl_s", "uses", "labels", "name", "address"}, all optional
                                 -> 201 {"id", "token", "command", "expires", "address"}
    GET     /api/v2/join-tokens  {"tokens": [{"id", "created", "expires", "uses_left", "labels",
                                 "name", "by"}], "problem": why none can be made, or null}
    DELETE  /api/v2/join-tokens/{id} -> 204
    GET     /api/v2/agent-credentials  {"credentials": [{"name", "id", "created", "rotated",
                                 "last_seen", "address", "connected", "suspicious", "labels",
                                 "token", "expires"}]}
    DELETE  /api/v2/agent-credentials/{name} -> 204; its links end at once

The secret of a token is shown once, in the answer that makes it. 409: nothing can be made, and the
text says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from datetime import timedelta
from typing import Any, Final

import attrs
import structlog
import trio

from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.join_rules import JoinConflictError
from paddler_trio.balancer.joining.stored_agents import StoredCredential, StoredToken
from paddler_trio.balancer.keys.api_keys import KeyScope
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import check_agent_name
from paddler_trio.net.joining.join_token import TLS_SCHEME, JoinToken, check_address
from paddler_trio.net.server.asgi import HttpProblem, send_empty, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import Router
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.scalars import rfc3339
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import check_labels

log = structlog.get_logger("joining")

MAX_BODY_BYTES: Final = 16_384
DEFAULT_TTL_S: Final = 3600
MAX_TTL_S: Final = 30 * 86_400
MAX_USES: Final = 10_000
FIELDS: Final = frozenset({"ttl_s", "uses", "labels", "name", "address"})
NEVER_STORED: Final = (b"cache-control", b"no-store")


@attrs.frozen
class TokenOrder:
    """The body of a POST; ``address``: None for what follows from the request."""

    ttl: timedelta
    uses: int
    labels: Mapping[str, str]
    name: str | None
    address: str | None


@attrs.frozen(eq=False)
class JoinTokenRoutes:
    """The handlers of these routes.

    Args:
      address_for: where new machines reach the management service, ``https://`` before it if there
        is TLS, as far as it shows from a request.
      certificate_hash: of what the ports show; None without TLS.
    """

    registry: AgentRegistry
    keys: KeyRing
    address_for: Callable[[Exchange], str]
    certificate_hash: Callable[[], str | None]

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/join-tokens", self._list_tokens)
        routes.http("POST", "/api/v2/join-tokens", self._make_token)
        routes.http("DELETE", "/api/v2/join-tokens/{id}", self._revoke_token)
        routes.http("GET", "/api/v2/agent-credentials", self._list_credentials)
        routes.http("DELETE", "/api/v2/agent-credentials/{name}", self._revoke_credential)

    async def _list_tokens(self, exchange: Exchange, params: Params) -> None:
        tokens = [_token_view(each) for each in self.registry.tokens()]
        await send_json(exchange.send, 200, {"tokens": tokens, "problem": self.problem()})

    async def _make_token(self, exchange: Exchange, params: Params) -> None:
        if (problem := self.problem()) is not None:
            raise HttpProblem(409, problem)
        self.check_author(exchange)
        order = await json_body(exchange, _order, limit_bytes=MAX_BODY_BYTES)
        address = order.address or self.address_for(exchange)
        has_tls = address.startswith(TLS_SCHEME)
        author = exchange.identity.key_name
        try:
            check_address(address)
            token, secret = await self.registry.make_token(
                ttl=order.ttl, uses=order.uses, labels=order.labels, name=order.name, by=author
            )
            text = JoinToken(
                token.id, secret, self.certificate_hash() if has_tls else None, address
            ).render()
        except JoinConflictError as error:
            raise HttpProblem(409, str(error)) from error
        except ConfigurationError as error:
            raise HttpProblem(500, f"no join token was made: {error}") from error
        log.info(
            "join token made",
            token=token.id,
            uses=token.uses,
            expires=rfc3339(token.expires),
            labels=dict(token.labels),
            by=author,
        )
        exchange.audit.record(
            exchange, "join token made", token.id, uses=token.uses, expires=rfc3339(token.expires)
        )
        answer = {
            "id": token.id,
            "token": text,
            "command": f"paddler-trio join --slots 4 <<< '{text}'",
            "expires": rfc3339(token.expires),
            "address": address,
        }
        await send_json(exchange.send, 201, answer, headers=[NEVER_STORED])

    async def _revoke_token(self, exchange: Exchange, params: Params) -> None:
        self.check_author(exchange)
        token_id = params["id"]
        try:
            was_there = await self.registry.revoke_token(token_id)
        except ConfigurationError as error:
            raise HttpProblem(500, f"the join token was not revoked: {error}") from error
        if not was_there:
            raise HttpProblem(404, f"there is no join token {token_id[:80]!r}")
        log.info("join token revoked", token=token_id, by=exchange.identity.key_name)
        exchange.audit.record(exchange, "join token revoked", token_id)
        await send_empty(exchange.send, 204)

    async def _list_credentials(self, exchange: Exchange, params: Params) -> None:
        found, connected = self.registry.credentials(), self.registry.connected()
        body = await trio.to_thread.run_sync(_rendered, found, connected)
        await send_json(exchange.send, 200, body)

    async def _revoke_credential(self, exchange: Exchange, params: Params) -> None:
        self.check_author(exchange)
        name = params["name"]
        try:
            revoked = await self.registry.revoke(name)
        except ConfigurationError as error:
            raise HttpProblem(500, f"the credential was not revoked: {error}") from error
        if revoked is None:
            raise HttpProblem(404, f"no agent has joined under the name {name[:80]!r}")
        log.info("agent revoked", agent=name, credential=revoked.id, by=exchange.identity.key_name)
        exchange.audit.record(exchange, "agent revoked", name, credential=revoked.id)
        await send_empty(exchange.send, 204)

    # ------------------------------------------------------------- who may decide

    def problem(self) -> str | None:
        """Why no join token can be made; None if one can."""
        if self.registry.path is None:
            return (
                "this balancer has no file for agents' credentials: start it with --agents-file "
                "FILE, or with --state-database file:///absolute/path, beside which they are kept"
            )
        if KeyScope.MANAGEMENT not in self.keys.guarded:
            return (
                "this balancer has no key of the scope management, so everybody who reaches the "
                "management port may make join tokens, and they would keep nobody out: make a key "
                "with `paddler-trio key new NAME --scope management --file keys.json`, and start "
                "the balancer with --api-key-file keys.json"
            )
        return None

    def check_author(self, exchange: Exchange) -> None:
        """Raise HttpProblem unless the request has a management key, where there is one."""
        author = next(
            (key for key in self.keys.keys if key.name == exchange.identity.key_name), None
        )
        is_manager = author is not None and KeyScope.MANAGEMENT in author.scopes
        if KeyScope.MANAGEMENT in self.keys.guarded and not is_manager:
            raise HttpProblem(
                403,
                "who may join is decided with a key of the scope management, also where "
                "--insecure-management asks for none",
            )


def _token_view(token: StoredToken) -> dict[str, object]:
    return {
        "id": token.id,
        "created": rfc3339(token.created),
        "expires": rfc3339(token.expires),
        "uses_left": token.uses_left,
        "labels": dict(token.labels),
        "name": token.name,
        "by": token.by,
    }


def _rendered(credentials: list[StoredCredential], connected: Set[str]) -> bytes:
    """Render them one by one, so that ten thousand do not keep the event loop waiting."""
    views = (
        {
            "name": each.name,
            "id": each.id,
            "created": rfc3339(each.created),
            "rotated": rfc3339(each.rotated),
            "last_seen": None if each.last_seen is None else rfc3339(each.last_seen),
            "address": each.address,
            "connected": each.id in connected,
            "suspicious": each.suspicious,
            "labels": dict(each.labels),
            "token": each.token,
            "expires": rfc3339(each.expires),
        }
        for each in credentials
    )
    return b'{"credentials":[%s]}' % b",".join(map(dumps, views))


def _order(value: object) -> TokenOrder:
    if not isinstance(value, dict) or not set(value) <= FIELDS:
        raise HttpProblem(400, f"the body must be an object of {', '.join(sorted(FIELDS))} @ $")
    fields: Mapping[str, Any] = value
    ttl_s = number_in(fields.get("ttl_s", DEFAULT_TTL_S), "ttl_s", MAX_TTL_S)
    uses = number_in(fields.get("uses", 1), "uses", MAX_USES)
    labels = labels_in(fields.get("labels"))
    name, address = fields.get("name"), fields.get("address")
    for what, text in (("name", name), ("address", address)):
        if not isinstance(text, str | None):
            raise HttpProblem(400, f"{what} must be a text @ $.{what}")
    if name is not None and uses != 1:
        raise HttpProblem(400, f"a token for one agent has one use, not {uses} @ $.uses")
    for what, text, check in (
        ("name", name, check_agent_name),
        ("address", address, check_address),
    ):
        try:
            if text is not None:
                check(text)
        except ConfigurationError as error:
            raise HttpProblem(400, f"{error} @ $.{what}") from error
    return TokenOrder(timedelta(seconds=ttl_s), uses, labels, name, address)


def labels_in(value: object) -> Mapping[str, str]:
    """Return the labels of a body; HttpProblem."""
    labels = value or {}
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise HttpProblem(400, "labels must be an object of texts @ $.labels")
    try:
        check_labels(labels, "labels")
    except ShapeError as error:
        raise HttpProblem(400, str(error)) from error
    return labels


def number_in(value: object, what: str, most: int) -> int:
    """Return a whole number of a body; HttpProblem."""
    if type(value) is not int or not 1 <= value <= most:
        raise HttpProblem(400, f"{what} must be a whole number from 1 to {most} @ $.{what}")
    return value

"""PINs on the management port: made by operators, tried by new machines.

    POST    /api/v2/join-pins  {"ttl_s", "labels"}, both optional
                              -> 201 {"pin", "expires", "tries_left", "labels", "by", "balancer"}
    GET     /api/v2/join-pins  {"pin": the same without its digits, or null, "problem": why none can
                              be made, or null}
    DELETE  /api/v2/join-pins  -> 204

    POST    /api/v2/join/pin          {"message", "name", "balancer"} -> 200 {"exchange", "message"}
    POST    /api/v2/join/pin/confirm  {"exchange", "confirmation"} -> 200 {"token",
                                      "certificate_sha256", "confirmation"}

The last two are open to all; see ``net/joining/pin_exchange.py`` for what they say. What was wrong
is in the log; every refusal of a try is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.front.login_limit import LoginLimit
from paddler_trio.balancer.joining.join_pins import JoinPin, JoinPins
from paddler_trio.balancer.joining.join_routes import JoinTokenRoutes, labels_in, number_in
from paddler_trio.balancer.joining.join_rules import JoinConflictError, JoinRefusedError
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import check_agent_name
from paddler_trio.net.joining.join_token import HASH, ID
from paddler_trio.net.joining.pin_exchange import MESSAGE, MISSING, can_exchange
from paddler_trio.net.server.asgi import HttpProblem, send_empty, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.router import Router
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.scalars import Uint32, rfc3339

log = structlog.get_logger("joining")

PIN_PATHS: Final = frozenset({"/api/v2/join/pin", "/api/v2/join/pin/confirm"})
"""Those that are open to all, for POST."""
MAX_BODY_BYTES: Final = 16_384
MAX_TRY_BYTES: Final = 1024
BODY_S: Final = 10.0
DEFAULT_TTL_S: Final = 300
MAX_TTL_S: Final = 900
NEVER_STORED: Final = (b"cache-control", b"no-store")
REFUSAL: Final = (
    "this PIN opens nothing here: it is wrong, was used or has expired, or somebody is between "
    "this machine and the balancer; after three tries it is worthless. `paddler-trio join-pin` "
    "shows another one"
)
MAX_BALANCER_CHARS: Final = 80


@attrs.frozen
class PinBody:
    """The order of an operator."""

    ttl_s: Uint32 = DEFAULT_TTL_S
    labels: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class TryBody:
    """The first message of a new machine."""

    message: str
    name: str
    balancer: str


@attrs.frozen
class ConfirmBody:
    """The second one."""

    exchange: str
    confirmation: str


@attrs.frozen(kw_only=True)
class PinView:
    """The PIN in force; ``pin`` are its digits, in the answer that makes it."""

    expires: str
    tries_left: Uint32
    labels: Mapping[str, str]
    by: str
    balancer: str
    pin: str | None = None


@attrs.frozen(eq=False)
class PinRoutes:
    """The handlers of these routes.

    Args:
      tokens: says who may make PINs: who may make join tokens.
    """

    pins: JoinPins
    tokens: JoinTokenRoutes
    _limit: LoginLimit = attrs.field(factory=LoginLimit, init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/join-pins", self._show)
        routes.http("POST", "/api/v2/join-pins", self._make)
        routes.http("DELETE", "/api/v2/join-pins", self._revoke)
        routes.http("POST", "/api/v2/join/pin", self._begin)
        routes.http("POST", "/api/v2/join/pin/confirm", self._confirm)

    # ------------------------------------------------------------- operators

    async def _show(self, exchange: Exchange, params: Params) -> None:
        pin = self.pins.in_force
        shown = None if pin is None else unstructure(self._view(pin))
        answer = {"pin": shown, "problem": self.problem()}
        await send_json(exchange.send, 200, answer)

    async def _make(self, exchange: Exchange, params: Params) -> None:
        if (problem := self.problem()) is not None:
            raise HttpProblem(409, problem)
        self.tokens.check_author(exchange)
        ttl_s, labels = await json_body(exchange, _pin_order, limit_bytes=MAX_BODY_BYTES)
        author = exchange.identity.key_name
        digits = self.pins.make(ttl=timedelta(seconds=ttl_s), labels=labels, by=author)
        pin = self.pins.in_force
        assert pin is not None, "it lasts a second at least"
        view = attrs.evolve(self._view(pin), pin=digits)
        log.info("PIN made", expires=view.expires, labels=dict(labels), by=author)
        exchange.audit.record(exchange, "join PIN made", "", expires=view.expires)
        await send_json(exchange.send, 201, unstructure(view), headers=[NEVER_STORED])

    async def _revoke(self, exchange: Exchange, params: Params) -> None:
        self.tokens.check_author(exchange)
        if not self.pins.revoke():
            raise HttpProblem(404, "no PIN is in force")
        log.info("PIN revoked", by=exchange.identity.key_name)
        exchange.audit.record(exchange, "join PIN revoked", "")
        await send_empty(exchange.send, 204)

    def problem(self) -> str | None:
        """Why no PIN can be made; None if one can."""
        if (problem := self.tokens.problem()) is not None:
            return problem
        if self.pins.fingerprint() is None:
            return (
                "a PIN stands for a certificate, and this balancer has none: start it with "
                "--tls-cert and --tls-key (`paddler-trio tls new-ca` and `tls new-cert` make them)"
            )
        return None if can_exchange() else MISSING

    def _view(self, pin: JoinPin) -> PinView:
        left = timedelta(seconds=pin.expires_s - trio.current_time())
        return PinView(
            expires=rfc3339(datetime.now(UTC) + left),
            tries_left=pin.tries_left,
            labels=pin.labels,
            by=pin.by,
            balancer=self.pins.name,
        )

    # ------------------------------------------------------------- new machines

    async def _begin(self, exchange: Exchange, params: Params) -> None:
        said = await json_body(
            exchange, _first_message, limit_bytes=MAX_TRY_BYTES, deadline_s=BODY_S
        )
        try:
            number, answer = await self.pins.begin(said.message, said.name, said.balancer)
        except JoinRefusedError as error:
            raise self._refused(exchange, error) from error
        except JoinConflictError as error:
            raise HttpProblem(409, str(error), [NEVER_STORED]) from error
        except ConfigurationError as error:
            raise HttpProblem(503, str(error), [NEVER_STORED]) from error
        pin = self.pins.in_force
        left = 0 if pin is None else pin.tries_left
        log.info("a PIN is tried", agent=said.name, address=exchange.client[0], tries_left=left)
        begun = {"exchange": number, "message": answer}
        await send_json(exchange.send, 200, begun, headers=[NEVER_STORED])

    async def _confirm(self, exchange: Exchange, params: Params) -> None:
        said = await json_body(
            exchange, _confirmation, limit_bytes=MAX_TRY_BYTES, deadline_s=BODY_S
        )
        try:
            token, keys = await self.pins.confirm(said.exchange, said.confirmation)
        except JoinRefusedError as error:
            raise self._refused(exchange, error) from error
        except JoinConflictError as error:
            raise HttpProblem(409, str(error), [NEVER_STORED]) from error
        except ConfigurationError as error:
            raise HttpProblem(500, f"no join token was made: {error}", [NEVER_STORED]) from error
        log.info("a PIN was right", agent=token.name, token=token.id, address=exchange.client[0])
        exchange.audit.record(
            exchange, "join token made", token.id, uses=1, expires=rfc3339(token.expires)
        )
        certificate = self.tokens.certificate_hash() or ""
        confirmed = keys.balancer_confirmation([token.id, certificate])
        end = {"token": token.id, "certificate_sha256": certificate, "confirmation": confirmed}
        await send_json(exchange.send, 200, end, headers=[NEVER_STORED])

    def _refused(self, exchange: Exchange, error: JoinRefusedError) -> HttpProblem:
        """Return the refusal; of addresses that fail more often than people do, it is not
        logged."""
        now_s, address = trio.current_time(), exchange.client[0]
        wait_s = self._limit.wait_s(address, now_s)
        if wait_s > 0:
            after = (b"retry-after", b"%d" % max(1, math.ceil(wait_s)))
            return HttpProblem(429, REFUSAL, [after, NEVER_STORED])
        self._limit.failed(address, now_s)
        pin = self.pins.in_force
        left = 0 if pin is None else pin.tries_left
        log.warning("PIN refused", reason=error.reason, address=address, tries_left=left)
        return HttpProblem(401, REFUSAL, [NEVER_STORED])


def _pin_order(value: object) -> tuple[int, Mapping[str, str]]:
    body = structured(value, PinBody)
    return number_in(body.ttl_s, "ttl_s", MAX_TTL_S), labels_in(body.labels)


def _first_message(value: object) -> TryBody:
    body = structured(value, TryBody)
    if MESSAGE.fullmatch(body.message) is None:
        raise HttpProblem(400, "message must be 66 hexadecimal digits @ $.message")
    try:
        check_agent_name(body.name)
    except ConfigurationError as error:
        raise HttpProblem(400, f"{error} @ $.name") from error
    if len(body.balancer) > MAX_BALANCER_CHARS:
        raise HttpProblem(400, f"balancer is over {MAX_BALANCER_CHARS} characters @ $.balancer")
    return body


def _confirmation(value: object) -> ConfirmBody:
    body = structured(value, ConfirmBody)
    if ID.fullmatch(body.exchange) is None:
        raise HttpProblem(400, "exchange must be 12 hexadecimal digits @ $.exchange")
    if HASH.fullmatch(body.confirmation) is None:
        raise HttpProblem(400, "confirmation must be 64 hexadecimal digits @ $.confirmation")
    return body

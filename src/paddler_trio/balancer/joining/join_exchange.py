"""``/api/v2/join``: a join token is swapped for a credential; the only path that is open to all.

    GET   {"certificates": ["-----BEGIN CERTIFICATE-----…"]}: those that the port shows
    POST  {"id", "secret", "credential_sha256", "name", "host"} -> 201 {"id", "name", "labels"}

``name`` is what the agent shall be called, or null; ``host`` what it is called if neither that nor
the token says it.

The agent makes the secret of its credential itself and sends its hash, so no answer has a secret,
and who has lost an answer sends the same again. What is wrong with a token is in the log, with the
token's id; every answer about it is the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.front.login_limit import LoginLimit
from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.join_rules import JoinConflictError, JoinRefusedError
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import check_agent_name
from paddler_trio.net.joining.join_token import HASH, ID
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import Router

log = structlog.get_logger("joining")

MAX_BODY_BYTES: Final = 4096
BODY_S: Final = 10.0
NEVER_STORED: Final = (b"cache-control", b"no-store")
REFUSAL: Final = (
    "this join token opens nothing here: it has expired, is used up, was revoked, or is another "
    "balancer's; ask for a new one (`paddler-trio join-token new`)"
)
_FIELDS: Final = {"id", "secret", "credential_sha256", "name", "host"}
_SECRET: Final = re.compile(r"[!-~]{1,128}", re.ASCII)


@attrs.frozen
class JoinOrder:
    """The body of a POST; ``digest`` is of the secret that the agent made."""

    id: str
    secret: str = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)
    name: str | None
    host: str | None


@attrs.frozen(eq=False)
class JoinExchange:
    """The handlers of these routes.

    Args:
      certificates: what the ports show, in PEM; none without TLS.
    """

    registry: AgentRegistry
    certificates: Callable[[], Sequence[str]]
    _limit: LoginLimit = attrs.field(factory=LoginLimit, init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/join", self._show)
        routes.http("POST", "/api/v2/join", self._join)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, {"certificates": list(self.certificates())})

    async def _join(self, exchange: Exchange, params: Params) -> None:
        address = exchange.client[0]
        order = await json_body(exchange, _order, limit_bytes=MAX_BODY_BYTES, deadline_s=BODY_S)
        try:
            credential = await self.registry.join(
                order.id,
                order.secret,
                digest=order.digest,
                name=order.name,
                host=order.host,
                address=address,
            )
        except JoinRefusedError as error:
            wait_s = self._failed(address)
            if wait_s > 0:
                raise _too_many(wait_s) from error
            log.warning("join refused", token=order.id, reason=error.reason, address=address)
            raise HttpProblem(401, REFUSAL, [NEVER_STORED]) from error
        except JoinConflictError as error:  # with a right token
            if self._failed(address) == 0:
                log.warning("join refused", token=order.id, reason=str(error), address=address)
            raise HttpProblem(409, str(error), [NEVER_STORED]) from error
        except ConfigurationError as error:
            log.error("join failed", token=order.id, reason=str(error), address=address)
            raise HttpProblem(500, "the balancer could not store the credential") from error
        log.info(
            "a machine has joined",
            agent=credential.name,
            credential=credential.id,
            token=order.id,
            address=address,
        )
        exchange.audit.record(
            exchange,
            "machine joined",
            credential.name,
            who=f"token {order.id}",
            credential=credential.id,
        )
        answer = {
            "id": credential.id,
            "name": credential.name,
            "labels": dict(credential.labels),
        }
        await send_json(exchange.send, 201, answer, headers=[NEVER_STORED])

    def _failed(self, address: str) -> float:
        """Count a failure; returns for how long it is one too many, of which nothing is logged."""
        now_s = trio.current_time()
        wait_s = self._limit.wait_s(address, now_s)
        if wait_s == 0:
            self._limit.failed(address, now_s)
        return wait_s


def _too_many(wait_s: float) -> HttpProblem:
    after = max(1, math.ceil(wait_s))
    return HttpProblem(
        429,
        f"this attempt failed, as too many did: try another join token in {after} s",
        [(b"retry-after", b"%d" % after), NEVER_STORED],
    )


def _order(value: object) -> JoinOrder:
    """Errors repeat nothing of the body but names: the rest is secret."""
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise HttpProblem(400, f"the body must have exactly {', '.join(sorted(_FIELDS))} @ $")
    token_id, secret = value["id"], value["secret"]
    digest = value["credential_sha256"]
    if not isinstance(token_id, str) or ID.fullmatch(token_id) is None:
        raise HttpProblem(400, "id must be 12 hexadecimal digits @ $.id")
    if not isinstance(secret, str) or _SECRET.fullmatch(secret) is None:
        raise HttpProblem(400, "secret must be 1 to 128 printable characters @ $.secret")
    if not isinstance(digest, str) or HASH.fullmatch(digest) is None:
        raise HttpProblem(400, "credential_sha256 must be 64 hexadecimal digits @ $")
    name, host = (_name(value[field], field) for field in ("name", "host"))
    return JoinOrder(token_id, secret, bytes.fromhex(digest), name, host)


def _name(value: object, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise HttpProblem(400, f"{field} must be a text or null @ $.{field}")
    try:
        return check_agent_name(value)
    except ConfigurationError as error:
        raise HttpProblem(400, f"{error} @ $.{field}") from error

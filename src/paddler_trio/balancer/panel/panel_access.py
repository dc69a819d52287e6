"""Decide who may use an API through the panel: a session, or what the API asks of everybody.

A request with a key of its own is judged as on the API's own port. One with the cookie of a session
is the session's key; to change anything it has to bring the session's CSRF token, and a WebSocket
the origin that it comes from, which browsers always name. Any other request is judged as one
without a key: it gets 401 where keys are asked for.

Cookies are told apart by the port in the ``Host``, since browsers send those of one host to all of
its ports, and belong to the path of the page, whatever a proxy has put before it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.origins import READS
from paddler_trio.balancer.front.sessions import SESSION_COOKIE, Session, Sessions, csrf_token
from paddler_trio.balancer.keys.api_keys import KeyScope
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.net.server.asgi import HttpProblem, Message
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.net.server.router import refuse_upgrade

log = structlog.get_logger("panel")

CSRF_HEADER: Final = b"x-csrf-token"
MAX_COOKIES: Final = 4
"""Of our name in one request: pages at several paths of one host have one each."""
INFERENCE_CLIENT: Final = "panel:"
"""Before the name of a key that a session uses for inference."""


@attrs.frozen(eq=False)
class PanelAccess:
    """Wraps applications so that sessions may use them.

    Args:
      keys: from which sessions come; those of keys that are revoked end.
    """

    keys: KeyRing
    sessions: Sessions = attrs.field(factory=Sessions)

    def __attrs_post_init__(self) -> None:
        self.keys.on_reload(self._end_revoked)

    def find(self, exchange: Exchange) -> tuple[bytes, Session] | None:
        """Return the session of a request, and its token."""
        for token in _tokens(exchange):
            session = self.sessions.find(token)
            if session is not None:
                return token, session
        return None

    def __call__(
        self, app: App, *, otherwise: Authentication, refuse: Refuse = refuse_in_plain_text
    ) -> App:
        """Return ``app`` for sessions, and for whom ``otherwise`` lets in."""
        by_key = otherwise(app, refuse=refuse)

        async def answer(exchange: Exchange) -> None:
            found = None if brings_key(exchange) else self.find(exchange)
            if found is None:
                await by_key(exchange)
                return
            token, session = found
            problem = forged(exchange, token)
            if problem is not None:
                log.warning("refused: it may be forged", reason=problem.text, key=session.key.name)
                await _refused(exchange, problem, refuse)
                return
            await self._serve(app, exchange, session, otherwise.scope, refuse)

        return answer

    async def _serve(
        self,
        app: App,
        exchange: Exchange,
        session: Session,
        asked: KeyScope,
        refuse: Refuse,
    ) -> None:
        """Serve one request of a session. When that ends, event streams do so too, in order, since
        each event is whole; any other answer that has begun is cut, which shows that it is not."""
        key = session.key
        self.keys.requests[key.name] += 1
        name = key.name if asked is KeyScope.MANAGEMENT else INFERENCE_CLIENT + key.name
        exchange.identity.key_name, exchange.identity.account = name, key.name
        if key.deployments:
            exchange.identity.deployments = key.deployments
        started: Message | None = None
        send = exchange.send

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message
            await send(message)

        with session.in_use() as use, structlog.contextvars.bound_contextvars(key=name):
            exchange.send = watched_send
            await app(exchange)
        if not use.cancelled_caught:
            return
        if started is None:
            problem = HttpProblem(401, "the session has ended: sign in again")
            exchange.send = send  # not by way of those behind this
            await _refused(exchange, problem, refuse)
        elif _is_event_stream(started):
            await send({"type": "http.response.body", "body": b""})

    def _end_revoked(self) -> None:
        in_force = set(self.keys.keys)
        ended = self.sessions.end_all(lambda key: key not in in_force)
        if ended:
            log.info("sessions ended: their keys are revoked", sessions=ended)


def brings_key(exchange: Exchange) -> bool:
    """Return whether a request has a header for keys."""
    return (
        exchange.header(b"authorization") is not None or exchange.header(b"x-api-key") is not None
    )


def cookie_name(exchange: Exchange) -> str:
    """Return what the cookie is called for a page under the ``Host`` of this request."""
    host = (exchange.header(b"host") or b"").decode("latin-1")
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    has_port = port.isascii() and port.isdigit() and len(port) < 6
    return f"{SESSION_COOKIE}_{port}" if has_port else SESSION_COOKIE


def _tokens(exchange: Exchange) -> Iterator[bytes]:
    """Return the cookies of ours that a request has."""
    name, found = cookie_name(exchange).encode(), 0
    for key, value in exchange.headers:
        if key != b"cookie":
            continue
        for pair in bytes(value).split(b";"):
            its_name, _, token = pair.strip().partition(b"=")
            if its_name == name and found < MAX_COOKIES:
                found += 1
                yield token


def forged(exchange: Exchange, token: bytes) -> HttpProblem | None:
    """Why a request with a session's cookie may be that of another page."""
    if exchange.is_websocket:
        if exchange.header(b"origin") is None:
            return HttpProblem(403, "a WebSocket of a session has to name its Origin")
        return None
    sent = exchange.header(CSRF_HEADER)
    if exchange.method in READS:
        return None
    if sent is None or not hmac.compare_digest(sent, csrf_token(token).encode()):
        what = "is missing" if sent is None else "is not that of the session"
        return HttpProblem(
            403,
            f"X-CSRF-Token {what}: send the `csrf` of GET session with it, or a key of your own",
        )
    return None


def _is_event_stream(start: Message) -> bool:
    """Return whether a response that began so is one of server-sent events."""
    headers = {bytes(name).lower(): bytes(value) for name, value in start.get("headers", ())}
    return headers.get(b"content-type", b"").startswith(b"text/event-stream")


async def _refused(exchange: Exchange, problem: HttpProblem, refuse: Refuse) -> None:
    await trio.lowlevel.checkpoint()
    if exchange.is_websocket:
        await refuse_upgrade(exchange.send, problem)
    else:
        await refuse(exchange, problem)

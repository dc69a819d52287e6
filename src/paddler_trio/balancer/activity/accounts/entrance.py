"""Stand in front of everything that answers clients of inference: name each request and account for
it.

It is outside of all other checks, so a request that they refuse has its line in the access log,
too. From here on every line of the log about a request has its id and its trace, and the response
shows the id. Probes pass without a name: there are many of them, and each is like the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import structlog

from paddler_trio.balancer.activity.accounts.account_keeper import AccountKeeper
from paddler_trio.balancer.activity.accounts.request_account import RequestAccount
from paddler_trio.balancer.front.inference_routes import PROBES
from paddler_trio.net.server.asgi import Header, Message, Send
from paddler_trio.net.server.client_identity import named_client
from paddler_trio.net.server.exchange import REQUEST_ID_HEADER, App, Exchange, TraceEntry
from paddler_trio.nursery_tree.request import MAX_LOG_ID_CHARS
from paddler_trio.telemetry.trace_context import NO_EXPORT, Sampling, enter_trace
from paddler_trio.wire.trace_parent import TraceContext

TRACE_HEADER: Final = b"traceresponse"
MAX_PATH_CHARS: Final = 200
MAX_METHOD_CHARS: Final = 16


@attrs.frozen(eq=False)
class Entrance:
    """Wraps applications.

    Args:
      keeper: accounts for requests; None if nothing asks for accounts.
    """

    sampling: Sampling = NO_EXPORT
    keeper: AccountKeeper | None = None

    def __call__(self, app: App, route_of: Callable[[str], str]) -> App:
        """``app`` with this in front of it; ``route_of`` a path is the template that it matches,
        empty for none."""

        async def answer(exchange: Exchange) -> None:
            if exchange.path in PROBES:
                await app(exchange)
                return
            route = route_of(exchange.path) or None
            socket = _Socket(self.keeper, route) if exchange.is_websocket else None
            entry = enter_trace(exchange, self.sampling, socket)
            name = exchange.request_id
            account = None
            if self.keeper is not None:
                account = _account(exchange, entry.trace, name, route)
                account.method = str(exchange.scope.get("method", "GET"))[:MAX_METHOD_CHARS]
                self.keeper.open(account)
            response = _Response(account, name.encode(), _shown(entry), exchange.send)
            # for the rest of this task, which is this request's
            structlog.contextvars.bind_contextvars(request=name, trace=entry.trace.trace_id)
            try:
                exchange.send = response.send
                await app(exchange)
            finally:
                if self.keeper is not None and account is not None:
                    account.client = named_client(exchange)
                    self.keeper.close(account)

        return answer


@attrs.frozen(eq=False)
class _Socket:
    """Sees the requests on one WebSocket. The exchange has it, so it does not have the exchange."""

    keeper: AccountKeeper | None
    route: str | None

    def began(self, exchange: Exchange, trace: TraceContext) -> None:
        if self.keeper is not None:
            self.keeper.open(self._account(exchange, trace, ""))

    def refused(self, exchange: Exchange, trace: TraceContext, request: str, status: int) -> None:
        if self.keeper is not None:
            account = self._account(exchange, trace, request[:MAX_LOG_ID_CHARS])
            self.keeper.refused(account, status)

    def _account(self, exchange: Exchange, trace: TraceContext, request: str) -> RequestAccount:
        account = _account(exchange, trace, request, self.route)
        account.client, account.is_alone = named_client(exchange), True
        return account


@attrs.frozen(eq=False)
class _Response:
    """Notes the status of one response and names its request in the headers."""

    account: RequestAccount | None
    name: bytes
    trace: bytes | None
    _send: Send

    async def send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self._note(message["status"])
                message = {**message, "headers": self._headers(message.get("headers", ()))}
            case "websocket.accept":
                self._note(101)
                message = {**message, "headers": self._headers(message.get("headers", ()))}
            case "websocket.close":
                self._note(403)  # that is how one is refused that was not accepted
        await self._send(message)

    def _note(self, status: int) -> None:
        if self.account is not None and self.account.status is None:
            self.account.status = status

    def _headers(self, headers: object) -> list[Header]:
        assert isinstance(headers, list | tuple)
        named: list[Header] = list(headers)
        if not any(name == REQUEST_ID_HEADER for name, _ in named):
            named.append((REQUEST_ID_HEADER, self.name))
        if self.trace is not None:
            named.append((TRACE_HEADER, self.trace))
        return named


def _account(
    exchange: Exchange, trace: TraceContext, request: str, route: str | None
) -> RequestAccount:
    host, port = exchange.client
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return RequestAccount(
        trace, request, exchange.path[:MAX_PATH_CHARS], route=route, address=address
    )


def _shown(entry: TraceEntry) -> bytes | None:
    """Return the trace, for clients that can find it: it is exported here, or it is theirs."""
    if entry.caller is None and not entry.trace.is_exported:
        return None
    return entry.trace.traceparent().encode()

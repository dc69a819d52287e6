"""The application of the APIs, and the boundary at which one of their requests may fail.

All routes answer on the inference port, beside the native ones, and those of one API on a port of
its own. An endpoint gets the backend and its exchange. What it raises becomes an
error in the envelope of its API, or silence if the client has left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import attrs
import structlog

from paddler_trio.balancer.agents.retry_advice import retry_later
from paddler_trio.balancer.apis.api_errors import ApiError, from_problem
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.limit_headers import LIMIT_HEADERS
from paddler_trio.balancer.front.cors import CorsRules
from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import REQUEST_ID_HEADER, Exchange
from paddler_trio.net.server.router import RouteTable, cause_of, refuse_websocket

log = structlog.get_logger("apis")

Endpoint: TypeAlias = Callable[[Backend, ApiExchange], Awaitable[None]]
ApiRoutes: TypeAlias = RouteTable[Endpoint]
Envelope: TypeAlias = Callable[[ApiError], dict[str, object]]

TAIL: Final = "tail"
"""The parameter of a route that is the exchange's ``tail``."""

CORS_RULES: Final = CorsRules(
    methods=(b"GET", b"POST", b"DELETE", b"OPTIONS"),
    headers=None,  # official clients that run in a browser send a dozen of their own
    exposed=(
        b"x-request-id",
        b"request-id",
        b"openai-processing-ms",
        b"retry-after",
        b"x-paddler-ignored-fields",
        *LIMIT_HEADERS,
    ),
    has_wildcard=True,
    has_credentials=True,
)


@attrs.frozen
class Dialect:
    """A dialect has what every answer of an API has, whatever the path.

    Args:
      envelope: its errors.
      id_headers: the names under which its clients look for the request's id.
      above: the path above all of its own routes.
      version_header: who sends it speaks this dialect on the paths of others, too.
    """

    envelope: Envelope = ApiError.envelope
    id_headers: Sequence[bytes] = (b"x-request-id",)
    above: str = ""
    version_header: bytes = b""

    def is_of(self, exchange: Exchange) -> bool:
        path = exchange.path
        return (
            path == self.above
            or path.startswith(f"{self.above}/")
            or exchange.header(self.version_header) is not None
        )


OPENAI: Final = Dialect()


@attrs.frozen(eq=False)
class ApiRouter:
    """An application for requests.

    Args:
      dialects: of the APIs that do not speak OpenAI's.
      is_exact: responses have nothing that OpenAI's schema does not have.
    """

    backend: Backend
    routes: ApiRoutes
    dialects: Sequence[Dialect] = ()
    is_exact: bool = False

    def serves(self, path: str) -> bool:
        """Return whether ``path`` is one of an API, if only to answer that nothing is there."""
        return path.startswith("/v1/") or self.routes_http(path)

    def routes_http(self, path: str) -> bool:
        """Return whether an endpoint answers on ``path``."""
        return bool(self.routes.find(path).handlers)

    async def __call__(self, http: Exchange) -> None:
        """Answer one request."""
        if http.is_websocket:
            await refuse_websocket(http.send, answers_http=self.routes_http(http.path))
            return
        method, path = http.method, http.path
        match = self.routes.find(path)
        dialect = self.dialect(http)
        exchange: ApiExchange | None = None
        try:
            exchange = ApiExchange.open(
                http,
                tail=match.params.get(TAIL, ""),
                is_exact=self.is_exact,
                is_strict=self.backend.settings.strict_fields,
                id_headers=dialect.id_headers,
                find_preset=self.backend.deployments.find_preset,
            )
            endpoint = match.handlers.get(method)
            if endpoint is None:
                raise _unknown(method, path, sorted(match.handlers))
            await endpoint(self.backend, exchange)
        except Exception as error:  # noqa: BLE001  # the boundary of a request
            problem = _error_of(error, f"{method} {path}")
            if problem is None or (exchange is not None and exchange.has_started):
                return
            if exchange is None:  # its headers are the problem: answer without them
                bare = http.seen_as(headers=[])
                exchange = ApiExchange.open(bare, id_headers=dialect.id_headers)
            if self.is_exact:
                problem.details = {}
            await self._send(exchange, problem, dialect)
        finally:
            if exchange is not None:
                for name in self.backend.ignored_fields.unlogged(exchange.ignored):
                    log.info("field ignored", field=name, path=path, request=exchange.id)

    async def refuse(self, exchange: Exchange, problem: HttpProblem) -> None:
        """Answer with ``problem`` in the dialect of the sender."""
        # it is not authenticated: of its other headers only the request's own name counts
        dialect = self.dialect(exchange)
        named = [pair for pair in exchange.headers if pair[0] == REQUEST_ID_HEADER]
        bare = exchange.seen_as(headers=named)
        answer = ApiExchange.open(bare, id_headers=dialect.id_headers)
        await self._send(answer, from_problem(problem), dialect)

    def dialect(self, exchange: Exchange) -> Dialect:
        """Return that of the API that the sender means."""
        return next((each for each in self.dialects if each.is_of(exchange)), OPENAI)

    async def _send(self, exchange: ApiExchange, error: ApiError, dialect: Dialect) -> None:
        headers = [*error.headers]
        is_told = any(name == b"retry-after" for name, _ in headers)
        if error.status in (429, 503) and not is_told:
            headers += retry_later(self.backend.dispatcher.pools)
        # the official clients try every 5xx again unless they are told that it is of no use
        if error.status == 501:
            headers.append((b"x-should-retry", b"false"))
        await exchange.send_json(error.status, dialect.envelope(error), headers=headers)


def _unknown(method: str, path: str, allowed: list[str]) -> ApiError:
    if not allowed:
        return ApiError(404, f"unknown path {path}; see /openapi.json", code="unknown_url")
    return ApiError(
        405,
        f"{path} answers {', '.join(allowed)}, not {method}",
        headers=[(b"allow", ", ".join(allowed).encode())],
    )


def _error_of(error: Exception, request: str) -> ApiError | None:
    """Return the error to answer with; None when the client has left."""
    match cause_of(error, request, (ApiError, HttpProblem, WireError)):
        case None:
            return None
        case ApiError() as known:
            return known
        case HttpProblem() as problem:
            return from_problem(problem)
        case WireError() as wire:
            return ApiError(400, str(wire), code="invalid_value")
    return ApiError(500, "internal error; it is in the log of the balancer", code="internal_error")

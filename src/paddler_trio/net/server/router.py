"""The table of paths and handlers, and the one boundary at which a request may fail.

`RouteTable` is the lookup that all of the balancer's routes share; `Router` is an ASGI application
over it. Paths match exactly: no trailing-slash forgiveness, no method fallback. `Router` answers
what is not routed, ``HEAD`` on a ``GET`` route included, with 404 and an empty body, as Paddler
does.

The boundary: a handler that raises ``HttpProblem`` is answered with its text, ``ClientGoneError``
is silence, and any other exception is logged with its traceback and answered 500 if nothing was
sent yet. A response that had begun is cut, which shows the client that it is not whole. Nothing
that a handler raises, save cancellation, goes further up the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar

import attrs

from paddler_trio.errors import forget_frames, leaves
from paddler_trio.net.server.asgi import (
    TEXT_PLAIN,
    ClientGoneError,
    HttpProblem,
    Message,
    Send,
    send_empty,
    send_text,
    without_body,
)
from paddler_trio.net.server.exchange import App, Exchange, Params

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Exchange, Params], Awaitable[None]]
H = TypeVar("H")

WEBSOCKET = "(websocket)"
"""Stands where a method stands in the table; no HTTP method can have a parenthesis."""

INTERNAL_ERROR_CLOSE_CODE = 1011


# ---------------------------------------------------------------------------------- the table


@attrs.frozen
class PathPattern:
    """A path in which at most one whole segment is a parameter of one or more characters.

    ``takes_rest``: the parameter is the last segment and may hold slashes.
    """

    prefix: str
    name: str | None
    suffix: str
    takes_rest: bool = False

    @property
    def text(self) -> str:
        """Return the pattern as it was written."""
        rest = "..." if self.takes_rest else ""
        return (
            self.prefix if self.name is None else f"{self.prefix}{{{self.name}{rest}}}{self.suffix}"
        )

    @classmethod
    def parse(cls, pattern: str) -> PathPattern:
        """Read ``/api/v1/agent/{agent_id}/model_metadata`` or ``/v1/models/{model...}``.

        Errors:
          ValueError: not an absolute path, or braces that are not one whole segment.
        """
        prefix, opening, rest = pattern.partition("{")
        name, closing, suffix = rest.partition("}")
        if not opening and pattern.startswith("/") and "}" not in pattern:
            return cls(pattern, None, "")
        takes_rest = name.endswith("...") and not suffix
        name = name.removesuffix("...") if takes_rest else name
        whole_segment = prefix.endswith("/") and (not suffix or suffix.startswith("/"))
        if not (whole_segment and closing and name.isidentifier()) or {"{", "}"} & set(suffix):
            raise ValueError(f"route {pattern!r}: needs an absolute path with one {{name}} segment")
        return cls(prefix, name, suffix, takes_rest)

    def match(self, path: str) -> Params | None:
        """Return the parameters of ``path`` (percent-decoded), or None if it does not match."""
        if self.name is None:
            return {} if path == self.prefix else None
        if not (path.startswith(self.prefix) and path.endswith(self.suffix)):
            return None
        value = path[len(self.prefix) : len(path) - len(self.suffix)]
        if not value or ("/" in value and not self.takes_rest):
            return None
        return {self.name: value}


@attrs.frozen
class Match(Generic[H]):
    """The handlers of one path by method; none where nothing is routed there.

    ``pattern`` is the route as it was added; empty for none.
    """

    handlers: Mapping[str, H] = attrs.field(factory=dict)
    params: Params = attrs.field(factory=dict)
    pattern: str = ""


class RouteTable(Generic[H]):
    """Handlers by path and method; a path without a parameter goes before all patterns."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, H]] = {}
        self._patterns: dict[PathPattern, dict[str, H]] = {}

    def add(self, method: str, pattern: str, handler: H) -> None:
        """Route ``method`` on ``pattern``; ValueError for a bad pattern or a second handler."""
        parsed = PathPattern.parse(pattern)
        if parsed.name is None:
            handlers = self._exact.setdefault(pattern, {})
        else:
            handlers = self._patterns.setdefault(parsed, {})
        if method in handlers:
            raise ValueError(f"route {method} {pattern} has two handlers")
        handlers[method] = handler

    def __iter__(self) -> Iterator[tuple[str, str, H]]:
        """Every route: method, pattern, handler."""
        for path, handlers in self._exact.items():
            yield from ((method, path, handler) for method, handler in handlers.items())
        for pattern, handlers in self._patterns.items():
            yield from ((method, pattern.text, handler) for method, handler in handlers.items())

    def find(self, path: str) -> Match[H]:
        """Return what is routed on ``path``, whatever the method."""
        handlers = self._exact.get(path)
        if handlers is not None:
            return Match(handlers, pattern=path)
        for pattern, routed in self._patterns.items():
            params = pattern.match(path)
            if params is not None:
                return Match(routed, params, pattern.text)
        return Match()


# ---------------------------------------------------------------------------- the application


class Router:
    """An application: handlers by method and path.

    Args:
      otherwise: answers HTTP requests that no route here is for.
    """

    def __init__(self, *, otherwise: App | None = None) -> None:
        self._table: RouteTable[Handler] = RouteTable()
        self._otherwise = otherwise

    def http(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer ``method`` on ``pattern`` with ``handler``."""
        self._table.add(method, pattern, handler)

    def stream(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer likewise with a response that is written piece by piece."""
        self._table.add(method, pattern, handler)

    def probe(self, pattern: str, handler: Handler) -> None:
        """Answer ``GET`` on ``pattern``, and ``HEAD`` with the head of that: monitors ask so."""

        async def head(exchange: Exchange, params: Params) -> None:
            exchange.send = without_body(exchange.send)
            await handler(exchange, params)

        self.stream("GET", pattern, handler)
        self.stream("HEAD", pattern, head)

    def websocket(self, pattern: str, handler: Handler) -> None:
        """Pass WebSockets that ask for ``pattern`` to ``handler``, which accepts them itself."""
        self._table.add(WEBSOCKET, pattern, handler)

    def routes(self) -> Iterator[tuple[str, str]]:
        """Every method and pattern routed here; ``WEBSOCKET`` in the place of a method."""
        return ((method, pattern) for method, pattern, _ in self._table)

    def pattern_of(self, path: str) -> str:
        """The route that ``path`` matches; empty for none."""
        return self._table.find(path).pattern

    def answers_http(self, path: str) -> bool:
        """Return whether something is routed on ``path``, whatever the method."""
        return bool(self._table.find(path).handlers)

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request or serve one WebSocket to its end."""
        if exchange.is_websocket:
            await self._serve_websocket(exchange)
        elif exchange.is_http:
            await self._answer(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        method, path, send = exchange.method, exchange.path, exchange.send
        match = self._table.find(path)
        handler = match.handlers.get(method)
        if handler is None:
            if method == "GET" and WEBSOCKET in match.handlers:
                await send_text(send, 400, "This path wants a WebSocket upgrade")
            elif self._otherwise is not None:
                await self._otherwise(exchange)
            else:
                await send_empty(send, 404)
            return
        await answer(handler, exchange, match.params)

    async def _serve_websocket(self, exchange: Exchange) -> None:
        send = exchange.send
        match = self._table.find(exchange.path)
        handler = match.handlers.get(WEBSOCKET)
        if handler is None:
            await refuse_websocket(send, answers_http=self.answers_http(exchange.path))
            return
        accepted = closed = False

        async def watched_send(message: Message) -> None:
            nonlocal accepted, closed
            accepted = accepted or message["type"] == "websocket.accept"
            closed = closed or message["type"] in {
                "websocket.close",
                "websocket.http.response.start",
            }
            await send(message)

        try:
            exchange.send = watched_send
            await handler(exchange, match.params)
        except Exception as error:  # noqa: BLE001  # the boundary of a socket
            problem = _problem_of(error, f"WebSocket {exchange.path}")
            if problem is None or closed:
                return
            if accepted:
                await send({"type": "websocket.close", "code": INTERNAL_ERROR_CLOSE_CODE})
            else:
                await refuse_upgrade(send, problem)


def by_path(is_first: Callable[[str], bool], first: App, *, otherwise: App) -> App:
    """One application of two: ``first`` on HTTP paths for which ``is_first`` holds."""

    async def answer(exchange: Exchange) -> None:
        app = first if exchange.is_http and is_first(exchange.path) else otherwise
        await app(exchange)

    return answer


def http_only(is_http: Callable[[str], bool], app: App) -> App:
    """``app``, with WebSockets refused on the paths that are answered over HTTP elsewhere."""

    async def answer(exchange: Exchange) -> None:
        if exchange.is_websocket and is_http(exchange.path):
            await refuse_websocket(exchange.send, answers_http=True)
        else:
            await app(exchange)

    return answer


# ------------------------------------------------------------------------------- the boundary


async def answer(handler: Handler, exchange: Exchange, params: Params) -> None:
    """Answer one request with ``handler``, or with what its error says."""
    send, started = exchange.send, False

    async def watched_send(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        exchange.send = watched_send
        await handler(exchange, params)
    except Exception as error:  # noqa: BLE001  # the boundary of a request
        problem = _problem_of(error, f"{exchange.method} {exchange.path}")
        if problem is not None and not started:
            await send_text(send, problem.status, problem.text, headers=problem.headers)


def cause_of(
    error: Exception, request: str, expected: tuple[type[Exception], ...]
) -> Exception | None:
    """The exception that decides the response to a failed ``request``; None: the client has left.

    That is the only exception in ``error`` if it is an ``expected`` one. Otherwise it is ``error``
    itself, a bug, which is logged with its traceback. Nothing has one afterwards.
    """
    causes = list(leaves(error))
    decides: Exception | None = error
    if all(isinstance(cause, ClientGoneError) for cause in causes):
        logger.debug("%s: client gone", request)
        decides = None
    elif len(causes) == 1 and isinstance(causes[0], expected):
        decides = causes[0]
    else:
        logger.error("%s failed", request, exc_info=error)
    forget_frames(error)
    return decides


def _problem_of(error: Exception, request: str) -> HttpProblem | None:
    cause = cause_of(error, request, (HttpProblem,))
    if cause is None or isinstance(cause, HttpProblem):
        return cause
    return HttpProblem(500, "Internal server error")


async def refuse_websocket(send: Send, *, answers_http: bool = False) -> None:
    """Close a WebSocket that nothing serves, before it is accepted: a plain 403.

    Where HTTP is answered it is 426, after which clients that can do both go on with HTTP.
    """
    if answers_http:
        await refuse_upgrade(send, _WANTS_HTTP)
    else:
        await send({"type": "websocket.close", "code": 1000})


_WANTS_HTTP = HttpProblem(
    426, "This path answers plain HTTP, no WebSockets", [(b"upgrade", b"HTTP/1.1")]
)


async def refuse_upgrade(send: Send, problem: HttpProblem) -> None:
    """Answer a WebSocket that was not accepted yet with an ordinary HTTP response."""
    body = problem.text.encode()
    headers = [
        (b"content-type", TEXT_PLAIN),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *problem.headers,
    ]
    start = {
        "type": "websocket.http.response.start",
        "status": problem.status,
        "headers": headers,
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})

"""Which coroutine answers which path, and the one boundary at which a request may fail.

Paths match exactly: no trailing-slash forgiveness, no method fallback. Whatever is not routed,
``HEAD`` on a ``GET`` route included, is a 404 with an empty body, as Paddler answers.

The boundary: a handler that raises ``HttpProblem`` is answered with its text, ``ClientGoneError``
is silence, and any other exception is logged with its traceback and answered 500 if nothing was
sent yet. A response that had begun is cut instead, which tells the client that it is not whole.
Nothing a handler raises, save cancellation, goes further up the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import attrs

from paddler_trio.errors import leaves
from paddler_trio.http.asgi import (
    TEXT_PLAIN,
    ClientGoneError,
    HttpProblem,
    Message,
    Receive,
    Scope,
    Send,
    send_empty,
    send_text,
)

logger = logging.getLogger(__name__)

Params: TypeAlias = Mapping[str, str]
Handler: TypeAlias = Callable[[Scope, Receive, Send, Params], Awaitable[None]]

WEBSOCKET = "WEBSOCKET"
"""Stands where a method stands in the table; no HTTP method is called so."""

INTERNAL_ERROR_CLOSE_CODE = 1011


@attrs.frozen
class PathPattern:
    """A path in which at most one whole segment is a ``{name}``; it matches one or more chars."""

    prefix: str
    name: str | None
    suffix: str

    @classmethod
    def parse(cls, pattern: str) -> PathPattern:
        """Read ``/api/v1/agent/{agent_id}/model_metadata``.

        Errors:
          ValueError: not an absolute path, or braces that are not one whole segment.
        """
        prefix, opening, rest = pattern.partition("{")
        name, closing, suffix = rest.partition("}")
        whole_segment = prefix.endswith("/") and (not suffix or suffix.startswith("/"))
        if not opening and pattern.startswith("/") and "}" not in pattern:
            return cls(pattern, None, "")
        if not (whole_segment and closing and name.isidentifier()) or {"{", "}"} & set(suffix):
            raise ValueError(f"route {pattern!r}: wants an absolute path with one {{name}} segment")
        return cls(prefix, name, suffix)

    def match(self, path: str) -> Params | None:
        """Return the parameters of ``path`` (percent-decoded), or None if it does not match."""
        if self.name is None:
            return {} if path == self.prefix else None
        if not (path.startswith(self.prefix) and path.endswith(self.suffix)):
            return None
        value = path[len(self.prefix) : len(path) - len(self.suffix)]
        if not value or "/" in value:
            return None
        return {self.name: value}


class Routes:
    """An ASGI application: handlers by method and path."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, PathPattern, Handler]] = []
        self._exact: dict[tuple[str, str], Handler] = {}

    def http(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer ``method`` on ``pattern`` with ``handler``; the first added wins."""
        self._add(method, pattern, handler)

    def websocket(self, pattern: str, handler: Handler) -> None:
        """Give WebSockets that ask for ``pattern`` to ``handler``; it accepts them itself."""
        self._add(WEBSOCKET, pattern, handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or serve one WebSocket to its end."""
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    def _add(self, method: str, pattern: str, handler: Handler) -> None:
        parsed = PathPattern.parse(pattern)
        if parsed.name is None:
            self._exact.setdefault((method, pattern), handler)
        else:
            self._routes.append((method, parsed, handler))

    def _find(self, method: str, path: str) -> tuple[Handler, Params] | None:
        handler = self._exact.get((method, path))
        if handler is not None:
            return handler, {}
        for routed_method, pattern, routed_handler in self._routes:
            if routed_method == method:
                params = pattern.match(path)
                if params is not None:
                    return routed_handler, params
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        found = self._find(method, path)
        if found is None:
            if method == "GET" and self._find(WEBSOCKET, path) is not None:
                await send_text(send, 400, "This path wants a WebSocket upgrade")
            else:
                await send_empty(send, 404)
            return
        handler, params = found
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await handler(scope, receive, watched_send, params)
        except Exception as error:  # noqa: BLE001  # the boundary of a request
            problem = _refusal(error, f"{method} {path}")
            if problem is not None and not started:
                await send_text(send, problem.status, problem.text, headers=problem.headers)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(WEBSOCKET, scope["path"])
        if found is None:
            await send({"type": "websocket.close", "code": 1000})  # before accept: a plain 403
            return
        handler, params = found
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
            await handler(scope, receive, watched_send, params)
        except Exception as error:  # noqa: BLE001  # the boundary of a socket
            problem = _refusal(error, f"WebSocket {scope['path']}")
            if problem is None or closed:
                return
            if accepted:
                await send({"type": "websocket.close", "code": INTERNAL_ERROR_CLOSE_CODE})
            else:
                await refuse_upgrade(send, problem)


def _refusal(error: Exception, request: str) -> HttpProblem | None:
    """Say what the client is told about ``error``; None when there is no client any more."""
    causes = list(leaves(error))
    if all(isinstance(cause, ClientGoneError) for cause in causes):
        logger.debug("%s: client gone", request)
        return None
    match causes:
        case [HttpProblem() as problem]:
            return problem
    logger.error("%s failed", request, exc_info=error)
    return HttpProblem(500, "Internal server error")


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

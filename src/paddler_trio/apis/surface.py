"""The routes of this surface and the boundary at which one of them may fail.

The same surface answers on the inference port, beside the native routes, and on the port of
``--compat-openai-addr``. A handler gets the surface, for what is shared, and its exchange; what it
raises becomes an error in the envelope of its dialect, or silence if nobody listens any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

import attrs
import structlog

from paddler_trio.apis.api_errors import ApiError, from_problem
from paddler_trio.apis.cross_origin import cross_origin
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.ignored_fields import IgnoredFieldsLog
from paddler_trio.apis.limits import SurfaceLimits
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.errors import WireError, leaves
from paddler_trio.http.asgi import (
    App,
    ClientGoneError,
    HttpProblem,
    Receive,
    Scope,
    Send,
)
from paddler_trio.nursery_tree.dispatcher import Dispatcher

logger = logging.getLogger(__name__)
log = structlog.get_logger("surface")

PROBES = frozenset({"/health", "/livez", "/readyz"})

Endpoint: TypeAlias = Callable[["Surface", Exchange], Awaitable[None]]
Envelope: TypeAlias = Callable[[ApiError], dict[str, object]]


@attrs.frozen
class _Route:
    endpoint: Endpoint
    envelope: Envelope


@attrs.frozen(kw_only=True)
class SurfaceSettings:
    """What the operator decided.

    Attributes:
      image_hosts: ``host`` or ``host:port`` from which images may be fetched; none by default.
      strict_model_names: refuse requests for a model that is not served.
      strict_fields: refuse fields that would be ignored.
    """

    image_hosts: frozenset[str] = frozenset()
    strict_model_names: bool = False
    strict_fields: bool = False
    limits: SurfaceLimits = attrs.field(factory=SurfaceLimits)


@attrs.define(eq=False)
class Surface:
    """An ASGI application for ``http`` scopes. Add all routes before the first request."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    settings: SurfaceSettings
    created_s: int = attrs.field(factory=lambda: int(time.time()), init=False)
    """What ``created`` says of the models."""
    _logged: IgnoredFieldsLog = attrs.field(factory=IgnoredFieldsLog, init=False)
    _exact: dict[str, dict[str, _Route]] = attrs.field(factory=dict, init=False)
    _prefixes: dict[str, dict[str, _Route]] = attrs.field(factory=dict, init=False)
    _most_slashes: int = attrs.field(default=0, init=False)
    """In the path of a route: what is longer has none above it that was not looked at."""

    @property
    def limits(self) -> SurfaceLimits:
        return self.settings.limits

    def add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        envelope: Envelope = ApiError.envelope,
    ) -> None:
        """Answer ``method`` on ``path``; one that ends in ``/*`` takes all that begins so, and the
        rest, which may hold slashes, is the exchange's ``tail``."""
        self._most_slashes = max(self._most_slashes, path.count("/"))
        if path.endswith("/*"):
            routes = self._prefixes.setdefault(path.removesuffix("*"), {})
        else:
            routes = self._exact.setdefault(path, {})
        assert method not in routes, f"{method} {path} is answered twice"
        routes[method] = _Route(endpoint, envelope)

    def beside(self, native: App) -> App:
        """One application: this surface on its own paths, ``native`` on all others."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and self.serves(scope["path"]):
                await self(scope, receive, send)
            else:
                await native(scope, receive, send)

        return answer

    def alone(self, probes: App) -> App:
        """One application: this surface, answering exactly as OpenAI's schema says, with ``probes``
        answering what supervisors ask."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] in PROBES:
                await probes(scope, receive, send)
            else:
                await self(scope, receive, send, is_exact=True)

        return answer

    def across_origins(self, app: App, allowed_origins: Iterable[str], *, otherwise: App) -> App:
        """``app`` with answers to browsers on this surface's paths; ``otherwise`` has its own."""
        ours = cross_origin(app, allowed_origins)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            is_ours = scope["type"] == "http" and self.serves(scope["path"])
            await (ours if is_ours else otherwise)(scope, receive, send)

        return answer

    def serves(self, path: str) -> bool:
        """Whether this surface answers for ``path``, if only to say that it is unknown."""
        return path.startswith("/v1/") or bool(self._find(path)[0])

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, is_exact: bool = False
    ) -> None:
        """Answer one request; ``is_exact``: with nothing that OpenAI's schema does not have."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})  # before accept: a plain 403
            return
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        routes, tail = self._find(path)
        route = routes.get(method)
        envelope = self._envelope(path)
        exchange: Exchange | None = None
        try:
            exchange = Exchange.open(
                scope,
                receive,
                send,
                tail=tail,
                is_exact=is_exact,
                is_strict=self.settings.strict_fields,
            )
            if route is None:
                raise _unknown(method, path, sorted(routes))
            await route.endpoint(self, exchange)
        except Exception as error:  # noqa: BLE001  # the boundary of a request
            problem = _refusal(error, f"{method} {path}")
            if problem is None or (exchange is not None and exchange.has_started):
                return
            if exchange is None:  # its headers are the problem: answer without them
                bare = {**scope, "headers": []}
                exchange = Exchange.open(bare, receive, send)
            if is_exact:
                problem.details = {}
            await exchange.send_json(problem.status, envelope(problem), headers=problem.headers)
        finally:
            if exchange is not None:
                for name in self._logged.news(exchange.ignored):
                    log.info("field ignored", field=name, path=path, request=exchange.id)

    async def refuse(
        self, scope: Scope, receive: Receive, send: Send, problem: HttpProblem
    ) -> None:
        """Answer with ``problem`` in the envelope of the dialect that ``path`` belongs to."""
        _, tail = self._find(scope["path"])
        told = from_problem(problem)
        envelope = self._envelope(scope["path"])
        # who asks is nobody: of the headers only the request's own name counts
        named = [(name, value) for name, value in scope["headers"] if name == b"x-request-id"]
        exchange = Exchange.open({**scope, "headers": named}, receive, send, tail=tail)
        await exchange.send_json(told.status, envelope(told), headers=told.headers)

    def _envelope(self, path: str) -> Envelope:
        """That of the routes of ``path``, or of the nearest one above it."""
        for route in self._find(path)[0].values():
            return route.envelope
        segments = path.split("/", self._most_slashes + 1)[:-1]
        while segments:
            for route in self._find("/".join(segments))[0].values():
                return route.envelope
            segments.pop()
        return ApiError.envelope

    def _find(self, path: str) -> tuple[dict[str, _Route], str]:
        if path in self._exact:
            return self._exact[path], ""
        for prefix, routes in self._prefixes.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return routes, path[len(prefix) :]
        return {}, ""


def _unknown(method: str, path: str, allowed: list[str]) -> ApiError:
    if not allowed:
        return ApiError(404, f"unknown path {path}; see /openapi.json", code="unknown_url")
    return ApiError(
        405,
        f"{path} answers {', '.join(allowed)}, not {method}",
        headers=[(b"allow", ", ".join(allowed).encode())],
    )


def _refusal(error: Exception, request: str) -> ApiError | None:
    """What the client is told; None when there is no client any more."""
    causes = list(leaves(error))
    if all(isinstance(cause, ClientGoneError) for cause in causes):
        logger.debug("%s: client gone", request)
        return None
    match causes:
        case [ApiError() as told]:
            return told
        case [HttpProblem() as problem]:
            return from_problem(problem)
        case [WireError() as wire]:
            return ApiError(400, str(wire), code="invalid_value")
    logger.error("%s failed", request, exc_info=error)
    return ApiError(500, "internal error; it is in the log of the balancer", code="internal_error")

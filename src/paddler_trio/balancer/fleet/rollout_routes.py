"""``/api/v2/rollout`` on the management port: how changes go from agent to agent, and orders.

    GET  /api/v2/rollout                       {"rollouts": [...]}
    GET  /api/v2/rollout/stream                the same as server-sent events, at each change
    POST /api/v2/rollout/{deployment}/pause    also resume, abort and undo; answered by the same

404: there is no such rollout. 409: it is not one that this can be done to now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_routes import author_of
from paddler_trio.balancer.fleet.shared_view import SharedView
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.errors import PaddlerError, StateDatabaseError
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import dumps


class RolloutRefusedError(PaddlerError):
    """An order that cannot be carried out; ``status`` is 404 (no such rollout) or 409 (not now)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RolloutControl(Protocol):
    """Carries out rollouts. The orders raise RolloutRefusedError, and StateDatabaseError if they
    could not be stored."""

    @property
    def changes(self) -> Changes:
        """Return what tells when :meth:`view` returns something else."""
        ...

    def view(self) -> Mapping[str, object]:
        """Return the document of ``GET /api/v2/rollout``, as plain JSON."""
        ...

    async def pause(self, deployment: str, *, author: str) -> None:
        """Begin no further step."""
        ...

    async def resume(self, deployment: str, *, author: str) -> None:
        """Go on after a pause."""
        ...

    async def abort(self, deployment: str, *, author: str) -> None:
        """Go back to the state before."""
        ...

    async def undo(self, deployment: str, *, author: str) -> None:
        """Desire what was desired of this deployment before."""
        ...


class Order(Protocol):
    """One of those."""

    async def __call__(self, deployment: str, *, author: str) -> None: ...


@attrs.frozen(eq=False)
class NoRollouts:
    """A :class:`RolloutControl` where changes go to all agents at once."""

    changes: Changes = attrs.field(factory=Changes)

    def view(self) -> Mapping[str, object]:
        return {"rollouts": []}

    async def pause(self, deployment: str, *, author: str) -> None:
        self._refuse(deployment)

    async def resume(self, deployment: str, *, author: str) -> None:
        self._refuse(deployment)

    async def abort(self, deployment: str, *, author: str) -> None:
        self._refuse(deployment)

    async def undo(self, deployment: str, *, author: str) -> None:
        self._refuse(deployment)

    def _refuse(self, deployment: str) -> None:
        raise RolloutRefusedError(404, f"there is no rollout of {deployment[:80]!r}")


@attrs.define(eq=False)
class RolloutRoutes:
    """The handlers of these routes."""

    control: RolloutControl
    goodbye: trio.Event
    _view: SharedView = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._view = SharedView(lambda: dumps(self.control.view()), self.control.changes)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/rollout", self._show)
        stream = event_stream(self._view, goodbye=self.goodbye)
        routes.stream("GET", "/api/v2/rollout/stream", stream)
        control = self.control
        for name, order in (
            ("pause", control.pause),
            ("resume", control.resume),
            ("abort", control.abort),
            ("undo", control.undo),
        ):
            handler = self._carries_out(f"rollout {name}", order)
            routes.http("POST", f"/api/v2/rollout/{{deployment}}/{name}", handler)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, self._view.current())

    def _carries_out(self, action: str, carry_out: Order) -> Handler:
        async def handle(exchange: Exchange, params: Params) -> None:
            try:
                await carry_out(params["deployment"], author=author_of(exchange))
            except RolloutRefusedError as refused:
                raise HttpProblem(refused.status, str(refused)) from refused
            except StateDatabaseError as error:
                raise HttpProblem(500, str(error)) from error
            exchange.audit.record(exchange, action, params["deployment"])
            await send_json(exchange.send, 200, dumps(self.control.view()))

        return handle

"""``/api/v2/fleet`` on the management port: the desired fleet, its revisions, and how far it is.

    GET  /api/v2/fleet                 {"revision": {...}, "deployments": [{"name", "target", ...}]}
    PUT  /api/v2/fleet                 {"state", "note", "expected_revision"}: the next revision
    PUT  /api/v2/fleet?dry_run=true    the same body: {"changes": [...]}; nothing is stored
    GET  /api/v2/fleet/history         {"revisions": [...]}, the newest first
    POST /api/v2/fleet/undo            {"to", "note", "expected_revision"}, or no body

A stored revision is answered as it is kept. What cannot be is 400, with the deployment and, at the
end, the path of the field in the body (``@ $.state.deployments[0].slots``). 409 says which revision
is in force, 413 that its files would be too large.

``/api/v2/rollout`` on the management port: how changes go from agent to agent, and orders.

    GET  /api/v2/rollout                       {"rollouts": [...]}
    GET  /api/v2/rollout/stream                the same as server-sent events, at each change
    POST /api/v2/rollout/{deployment}/pause    also resume, abort and undo; answered by the same

404: there is no such rollout. 409: it is not one that this can be done to now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qs

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_diff import NoEarlierRevisionError, changes_between
from paddler_trio.balancer.fleet.fleet_keeper import (
    ANONYMOUS,
    FleetKeeper,
    RevisionConflictError,
)
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.shared_view import SharedView
from paddler_trio.balancer.fleet.stored_fleet import FleetTooLargeError
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.errors import PaddlerError, StateDatabaseError
from paddler_trio.net.server.asgi import HttpProblem, Send, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.default_deployment import fleet_fault
from paddler_trio.wire.trio.fleet_state import (
    MAX_NOTE_CHARS,
    FleetRevision,
    FleetState,
    RevisionNumber,
)

MAX_HISTORY_BYTES: Final = 8 * 1024 * 1024
"""Of an answer: older revisions than fit are left out. The newest always fits."""

T = TypeVar("T")


def author_of(exchange: Exchange) -> str:
    """Return the name of the key of a request, which is the author of what it stores."""
    return exchange.identity.key_name or ANONYMOUS


def _check_note(note: str) -> None:
    if len(note) > MAX_NOTE_CHARS:
        raise ShapeError(f"{len(note)} characters, the limit is {MAX_NOTE_CHARS}", "note")


@attrs.frozen(kw_only=True)
class FleetOrder:
    """The body of a PUT; ``expected_revision`` must be in force, null for any."""

    state: FleetState
    note: str = ""
    expected_revision: RevisionNumber | None = None

    def __attrs_post_init__(self) -> None:
        _check_note(self.note)


@attrs.frozen(kw_only=True)
class UndoOrder:
    """The body of an undo; ``to``: the revision, null for the one before, past failed ones."""

    to: RevisionNumber | None = None
    note: str = ""
    expected_revision: RevisionNumber | None = None

    def __attrs_post_init__(self) -> None:
        _check_note(self.note)


@attrs.define(eq=False)
class FleetRoutes:
    """The handlers of these routes."""

    states: FleetKeeper
    progress: AgentsProgress
    _texts: _Texts = attrs.field(factory=lambda: _Texts(), init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/fleet", self._show)
        routes.http("PUT", "/api/v2/fleet", self._put)
        routes.http("GET", "/api/v2/fleet/history", self._history)
        routes.http("POST", "/api/v2/fleet/undo", self._undo)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        await self._texts.refresh(self.states.history)
        specs = self._texts.history[0].state.deployments
        deployments = [
            {"name": spec.name, "target": spec.digest, **progress}
            for spec, progress in zip(specs, self.progress.progress(specs), strict=True)
        ]
        text = b'{"revision":%b,"deployments":%b}' % (self._texts.current, dumps(deployments))
        await send_json(exchange.send, 200, text)

    async def _history(self, exchange: Exchange, params: Params) -> None:
        await self._texts.refresh(self.states.history)
        await send_json(exchange.send, 200, self._texts.revisions)

    async def _put(self, exchange: Exchange, params: Params) -> None:
        is_dry = _is_dry_run(exchange)
        order = await json_body(exchange, _read_order)
        if is_dry:
            before = self.states.current.state
            changes = await trio.to_thread.run_sync(changes_between, before, order.state)
            await send_json(
                exchange.send, 200, {"changes": [attrs.asdict(each) for each in changes]}
            )
            return
        stored = partial(
            self.states.apply,
            order.state,
            author=author_of(exchange),
            note=order.note,
            expected_revision=order.expected_revision,
        )
        await self._change(exchange, "fleet applied", stored)

    async def _undo(self, exchange: Exchange, params: Params) -> None:
        order = UndoOrder()
        if exchange.has_body:
            order = await json_body(exchange, lambda value: structured(value, UndoOrder))
        undone = partial(
            self.states.undo,
            author=author_of(exchange),
            to=order.to,
            note=order.note,
            expected_revision=order.expected_revision,
        )
        await self._change(exchange, "fleet undone", undone)

    async def _change(
        self,
        exchange: Exchange,
        action: str,
        change: Callable[[], Awaitable[FleetRevision]],
    ) -> None:
        before = self.states.current.state
        revision = await _answered(change)
        exchange.audit.record(
            exchange,
            action,
            _changed(before, revision.state),
            before=_digest(before),
            after=_digest(revision.state),
            revision=revision.revision,
            note=revision.note,
        )
        await _send_revision(exchange.send, revision)


@attrs.define(eq=False)
class _Texts:
    """The JSON of revisions, rendered once for all readers; in a thread, they may be long."""

    history: tuple[FleetRevision, ...] = attrs.field(default=(), init=False)
    """That the texts are of."""
    current: bytes = attrs.field(default=b"", init=False)
    revisions: bytes = attrs.field(default=b"", init=False)
    _rendering: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def refresh(self, history: tuple[FleetRevision, ...]) -> None:
        async with self._rendering:
            if self.history is not history:
                current, revisions = await trio.to_thread.run_sync(_rendered, history)
                self.history, self.current, self.revisions = history, current, revisions


def _rendered(history: Sequence[FleetRevision]) -> tuple[bytes, bytes]:
    """Return the newest revision, and as many as one answer has room for."""
    texts: list[bytes] = []
    left_bytes = MAX_HISTORY_BYTES
    for revision in history:
        text = revision.json
        left_bytes -= len(text)
        if texts and left_bytes < 0:
            break
        texts.append(text)
    return texts[0], b'{"revisions":[%b]}' % b",".join(texts)


def _changed(before: FleetState, after: FleetState) -> str:
    """Return the names of the deployments that are others now."""
    old = {spec.name: spec.digest for spec in before.deployments}
    new = {spec.name: spec.digest for spec in after.deployments}
    return ", ".join(sorted(name for name in old | new if old.get(name) != new.get(name)))


def _digest(state: FleetState) -> str:
    lines = (f"{spec.name} {spec.digest}" for spec in state.deployments)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _read_order(value: object) -> FleetOrder:
    order = structured(value, FleetOrder)
    fault = fleet_fault(order.state)
    if fault is not None:
        fault.path.append("state")
        raise HttpProblem(400, str(fault))
    return order


def _is_dry_run(exchange: Exchange) -> bool:
    query = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True)
    asked = query.pop("dry_run", ["false"])
    if query:
        raise HttpProblem(400, f"unknown parameter {min(query)[:80]!r}: dry_run is taken")
    if asked not in (["true"], ["false"]):
        raise HttpProblem(400, f"dry_run is {asked[0][:80]!r}, must be true or false, once")
    return asked == ["true"]


async def _send_revision(send: Send, revision: FleetRevision) -> None:
    await send_json(send, 200, await trio.to_thread.run_sync(lambda: revision.json))


async def _answered(change: Callable[[], Awaitable[T]]) -> T:
    """Return what ``change`` returns, and its errors as answers."""
    try:
        return await change()
    except (RevisionConflictError, NoEarlierRevisionError) as error:
        raise HttpProblem(409, str(error)) from error
    except FleetTooLargeError as error:
        raise HttpProblem(413, str(error)) from error
    except StateDatabaseError as error:
        raise HttpProblem(500, str(error)) from error


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

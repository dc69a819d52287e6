"""Orders about rollouts reach who carries them out; refusals and changes come back."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio
from trio.testing import MockClock

from exchanges import exchange_for
from paddler_trio.balancer.fleet.fleet_routes import RolloutRefusedError, RolloutRoutes
from paddler_trio.errors import StateDatabaseError
from paddler_trio.net.server.asgi import Message, Scope
from paddler_trio.net.server.exchange import Identity
from paddler_trio.net.server.router import Router
from paddler_trio.system.synchronization import Changes


@attrs.define(eq=False)
class Control:
    """One rollout, of ``coder``."""

    changes: Changes = attrs.field(factory=Changes)
    phase: str = "rolling"
    orders: list[tuple[str, str]] = attrs.field(factory=list)

    def view(self) -> Mapping[str, object]:
        return {"rollouts": [{"deployment": "coder", "phase": self.phase}]}

    async def pause(self, deployment: str, *, author: str) -> None:
        await trio.lowlevel.checkpoint()
        if deployment != "coder":
            raise RolloutRefusedError(404, f"there is no rollout of {deployment!r}")
        if self.phase == "paused":
            raise RolloutRefusedError(409, "it is paused already")
        self.phase = "paused"
        self.orders.append(("pause", author))
        self.changes.notify()

    async def resume(self, deployment: str, *, author: str) -> None:
        self.orders.append(("resume", author))

    async def abort(self, deployment: str, *, author: str) -> None:
        self.orders.append(("abort", author))

    async def undo(self, deployment: str, *, author: str) -> None:
        raise StateDatabaseError("no space left")


def routes(control: Control) -> Router:
    router = Router()
    RolloutRoutes(control, trio.Event()).add_to(router)
    return router


def scope(method: str, path: str) -> Scope:
    return {"method": method, "path": path}


async def nothing_to_receive() -> Message:
    await trio.sleep_forever()
    raise AssertionError


async def ask(router: Router, asked: Scope, key: str = "") -> tuple[int, bytes]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        messages.append(message)

    await router(exchange_for(asked, nothing_to_receive, send, identity=Identity(key)))
    return messages[0]["status"], b"".join(each.get("body", b"") for each in messages)


async def test_an_order_has_its_author_and_is_answered_with_all_rollouts() -> None:
    control = Control()
    router = routes(control)
    path = "/api/v2/rollout/coder/pause"
    paused = b'{"rollouts":[{"deployment":"coder","phase":"paused"}]}'
    assert await ask(router, scope("POST", path), "ann") == (200, paused)
    assert await ask(router, scope("GET", "/api/v2/rollout")) == (200, paused)
    for order in ("resume", "abort"):
        assert (await ask(router, scope("POST", f"/api/v2/rollout/coder/{order}")))[0] == 200
    assert control.orders == [("pause", "ann"), ("resume", "anonymous"), ("abort", "anonymous")]


async def test_an_order_that_cannot_be_carried_out_says_why() -> None:
    router = routes(Control(phase="paused"))
    for path, status, text in (
        ("coder/pause", 409, b"it is paused already"),
        ("chat/pause", 404, b"there is no rollout of 'chat'"),
        ("coder/undo", 500, b"no space left"),
    ):
        assert await ask(router, scope("POST", f"/api/v2/rollout/{path}")) == (status, text)


async def test_the_stream_has_every_change(autojump_clock: MockClock) -> None:
    control = Control()
    router = routes(control)
    told, seen = trio.open_memory_channel[Message](0)
    async with trio.open_nursery() as nursery:
        asked = scope("GET", "/api/v2/rollout/stream")
        nursery.start_soon(router, exchange_for(asked, nothing_to_receive, told.send))
        assert (await seen.receive())["type"] == "http.response.start"
        assert b'"rolling"' in (await seen.receive())["body"]
        await ask(router, scope("POST", "/api/v2/rollout/coder/pause"))
        body = (await seen.receive())["body"]
        assert body == b'data: {"rollouts":[{"deployment":"coder","phase":"paused"}]}\n\n'
        nursery.cancel_scope.cancel(reason="seen")

"""Changes are refused while another process takes over, and those that run are waited for."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.held_changes import HELD, HeldChanges
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.errors import ConfigurationError, StateDatabaseError
from paddler_trio.net.server.asgi import Message, read_body, send_text
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.state_owner import StateOwner
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState


class Door:
    """An application that answers when it is let."""

    def __init__(self) -> None:
        self.open = trio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await self.open.wait()
        await send_text(exchange.send, 200, "OK")


async def answer(app: object, method: str, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    said: list[Message] = []

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        said.append(message)

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    assert callable(app)
    await app(exchange_for({"method": method, "path": path}, receive, send))
    body = b"".join(each.get("body", b"") for each in said[1:])
    return said[0]["status"], dict(said[0]["headers"]), body


async def test_changes_that_run_are_waited_for_and_new_ones_are_told_when_to_come() -> None:
    held, door = HeldChanges(), Door()
    app = held.before(door, lambda exchange: exchange.path != "/asks")
    statuses: list[int] = []

    async def change() -> None:
        statuses.append((await answer(app, "PUT", "/state"))[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await wait_all_tasks_blocked()
        has_held = trio.Event()

        async def hold() -> None:
            await held.hold()
            has_held.set()

        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        assert not has_held.is_set(), "one runs"
        status, headers, body = await answer(app, "POST", "/state")
        assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
        assert body.decode() == HELD
        door.open.set()
        await has_held.wait()
    assert statuses == [200]
    for method, path in (("GET", "/state"), ("POST", "/asks"), ("POST", "/api/v2/models/pull")):
        assert (await answer(app, method, path))[0] == 200, "nothing is changed by it"
    held.resume()
    assert (await answer(app, "POST", "/state"))[0] == 200


async def test_a_change_that_has_not_come_whole_is_refused_and_not_waited_for() -> None:
    """Its body may take a minute, and the other process does not wait so long."""
    held = HeldChanges()
    written: list[bytes] = []
    goes_on = trio.Event()

    async def stores(exchange: Exchange) -> None:
        body = await read_body(exchange.receive, limit_bytes=1000, deadline_s=60)
        await goes_on.wait()
        written.append(body)
        await send_text(exchange.send, 200, "OK")

    app = held.before(stores, lambda exchange: True)

    async def put(pieces: list[bytes], statuses: list[int], *, is_whole: bool) -> None:
        async def receive() -> Message:
            await trio.lowlevel.checkpoint()
            if not pieces:
                await trio.sleep_forever()
            piece = pieces.pop(0)
            more = bool(pieces) or not is_whole
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            if "status" in message:
                statuses.append(message["status"])

        headers = [(b"content-length", b"100")]
        scope = {"type": "http", "method": "PUT", "path": "/state", "headers": headers}
        await app(exchange_for(scope, receive, send))

    whole, partial = list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(put, [b"a"], partial, is_whole=False))
        nursery.start_soon(functools.partial(put, [b"b", b"c"], whole, is_whole=True))
        await wait_all_tasks_blocked()
        has_held = trio.Event()

        async def hold() -> None:
            await held.hold()
            has_held.set()

        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        assert (partial, whole, has_held.is_set()) == ([503], [], False)
        goes_on.set()
        await has_held.wait()
    assert (partial, whole, written) == ([503], [200], [b"bc"])


async def test_what_is_let_go_is_written_by_nobody_until_it_is_taken_back(tmp_path: Path) -> None:
    dispatcher = Dispatcher(DispatchLimits())
    keeper = FleetKeeper(MemoryDatabase(), dispatcher)
    registry = AgentRegistry(tmp_path / "agents.json")

    async def make_token() -> None:
        await registry.make_token(ttl=timedelta(hours=1), uses=1, labels={}, name=None, by="ann")

    await keeper.load()
    lives: list[str] = []

    async def service() -> None:
        lives.append("begins")
        try:
            await trio.sleep_forever()
        finally:
            lives.append("ends")

    owner = StateOwner({"service": service}, HeldChanges(), (keeper, registry))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run)
        await wait_all_tasks_blocked()
        for _ in range(2):
            await owner.release()
            assert lives.pop() == "ends"
            with pytest.raises(StateDatabaseError, match="another process"):
                await keeper.replace(BalancerDesiredState.default())
            with pytest.raises(ConfigurationError, match="another process"):
                await make_token()
            owner.resume()
            await make_token()
            await keeper.replace(BalancerDesiredState.default())
            await wait_all_tasks_blocked()
            assert lives.pop() == "begins"
        nursery.cancel_scope.cancel()


async def test_a_release_that_is_broken_off_is_taken_back_as_a_whole() -> None:
    """Its service takes longer to end than it is waited for."""
    let_go = trio.Event()

    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await let_go.wait()

    lives = 0

    async def counted() -> None:
        nonlocal lives
        lives += 1
        await slow()

    owner = StateOwner({"slow": counted})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as patience:
            await owner.release()
        assert patience.cancelled_caught
        owner.resume()
        let_go.set()
        await wait_all_tasks_blocked()
        assert lives == 2, "it runs again once it has ended"
        nursery.cancel_scope.cancel()


async def test_a_release_after_one_that_was_broken_off_while_it_waited_for_a_change() -> None:
    """Nothing had ended by then, so there was nothing to take back."""
    running: list[str] = []

    async def service() -> None:
        running.append("service")
        try:
            await trio.sleep_forever()
        finally:
            running.remove("service")

    changes, is_written = HeldChanges(), trio.Event()

    async def slow_disk(exchange: Exchange) -> None:
        await is_written.wait()

    async def receive() -> Message:
        raise AssertionError("it has no body")

    async def send(message: Message) -> None:
        raise AssertionError("it is not answered")

    owner = StateOwner({"service": service}, changes)
    app = changes.before(slow_disk, lambda exchange: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run)
        nursery.start_soon(app, exchange_for({"method": "PUT"}, receive, send))
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as patience:
            await owner.release()
        assert patience.cancelled_caught
        owner.resume()
        is_written.set()
        await owner.release()
        await wait_all_tasks_blocked()
        assert running == [], "the next process runs it"
        owner.resume()
        await wait_all_tasks_blocked()
        assert running == ["service"]
        nursery.cancel_scope.cancel()

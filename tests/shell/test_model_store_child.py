"""The balancer's side of its store, with the real process: passing, limits, ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from http_world import until

from paddler_trio.balancer.fleet.model_store_child import (
    ModelStoreChild,
    NotPassedError,
    OnEnd,
    nobody,
)
from paddler_trio.errors import ModelStoreError
from paddler_trio.processes.model_store.store_messages import PREFIX, PassedRequest, RequestEnded
from paddler_trio.system.synchronization import Changes

pytestmark = pytest.mark.thorough  # starts the store as a process

PATIENCE_S = 60


@asynccontextmanager
async def running(folder: Path, raised: list[BaseException]) -> AsyncIterator[ModelStoreChild]:
    """A store's process, up; what its task raises is kept."""
    child = ModelStoreChild(folder, 10**9, desired=lambda: (), desired_changes=Changes())

    async def run() -> None:
        try:
            await child.run()
        except* ModelStoreError as group:
            raised.append(group)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await until_up(child, raised)
            yield child
            nursery.cancel_scope.cancel()


async def until_up(child: ModelStoreChild, raised: list[BaseException]) -> None:
    while not (child.is_up or raised):  # noqa: ASYNC110  # a process of its own
        await trio.sleep(0.01)


def stop(child: ModelStoreChild) -> None:
    """From now on it takes nothing: what is passed waits in the socket."""
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


async def ask(child: ModelStoreChild, path: str = "", on_end: OnEnd = nobody) -> trio.SocketStream:
    """Pass one end of a connection; return the other."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    target = f"{PREFIX}{path}"
    with theirs:
        try:
            request = PassedRequest(0, "GET", target, target, "", (), "x", b"")
            await child.pass_on(request, theirs.fileno(), on_end)
        except BaseException:
            ours.close()
            raise
    return client


async def answer_of(client: trio.SocketStream) -> bytes:
    received = b""
    async with client:
        async for data in client:
            received += data
    return received


async def test_a_passed_connection_is_answered_and_counted_until_it_is_closed(
    tmp_path: Path,
) -> None:
    raised: list[BaseException] = []
    async with running(tmp_path, raised) as child:
        ended: list[RequestEnded] = []
        client = await ask(child, on_end=ended.append)
        assert child.num_passed == 1
        body = (await answer_of(client)).partition(b"\r\n\r\n")[2]
        assert json.loads(body)["size_bytes"] == 10**9
        await until(lambda: child.num_passed == 0)
        assert [(each.status, each.changed) for each in ended] == [(200, "")]
    assert raised == []


async def test_as_many_connections_as_the_limit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.balancer.fleet.model_store_child.MAX_PASSED", 2)
    async with running(tmp_path, []) as child:
        stop(child)
        clients = [await ask(child), await ask(child)]
        with pytest.raises(NotPassedError, match="its limit"):
            await ask(child)
        os.kill(child.pid, signal.SIGCONT)
        for client in clients:
            assert (await answer_of(client)).startswith(b"HTTP/1.1 200")
        await until(lambda: child.num_passed == 0)
        assert (await answer_of(await ask(child))).startswith(b"HTTP/1.1 200")


async def test_a_store_that_takes_nothing_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.balancer.fleet.model_store_child.PASS_S", 0.2)
    clients: list[trio.SocketStream] = []

    async def fill(child: ModelStoreChild) -> None:
        while True:
            clients.append(await ask(child, "/" + "x" * 60_000))

    async with running(tmp_path, []) as child:
        stop(child)
        with pytest.raises(NotPassedError, match=r"within 0\.2 s"):
            await fill(child)
        assert child.num_passed == len(clients)
        os.kill(child.pid, signal.SIGCONT)
        for client in clients:
            await client.aclose()


async def test_what_is_being_passed_on_as_the_store_is_ended_is_told_so_at_once(
    tmp_path: Path,
) -> None:
    """Its socket is closed under who waits for room in it."""
    clients: list[trio.SocketStream] = []
    problems: list[str] = []

    async def fill(child: ModelStoreChild) -> None:
        try:
            while True:
                clients.append(await ask(child, "/" + "x" * 60_000))
        except NotPassedError as error:
            problems.append(str(error))

    async with trio.open_nursery() as passing, running(tmp_path, []) as child:
        stop(child)
        passing.start_soon(fill, child)
        await trio.testing.wait_all_tasks_blocked()
        assert clients
        assert problems == []
    assert problems == ["the model store has just ended"]
    assert child.num_passed == 0
    for client in clients:
        await client.aclose()


async def test_a_store_that_is_killed_takes_its_connections_with_it(tmp_path: Path) -> None:
    raised: list[BaseException] = []
    ended: list[RequestEnded] = []
    async with running(tmp_path, raised) as child:
        stop(child)
        client = await ask(child, on_end=ended.append)
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda: bool(raised))
        assert [each.status for each in ended] == [0], "its end is told, without an answer"
        assert child.num_passed == 0
        assert await answer_of(client) == b""
        with pytest.raises(NotPassedError, match="starting"):
            await ask(child)
    (group,) = raised
    assert "status -9" in repr(group)


async def test_the_process_is_gone_when_its_task_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path, []) as child:
        pid = child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_machine_without_room_for_a_process_is_no_end_of_the_balancer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fork(*args: object, **options: object) -> trio.Process:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(trio.lowlevel, "open_process", fork)
    child = ModelStoreChild(tmp_path, 10**9, desired=lambda: (), desired_changes=Changes())
    with pytest.raises(ModelStoreError, match="cannot be started: Resource temporarily"):
        await child.run()


async def test_a_folder_has_one_store(tmp_path: Path) -> None:
    raised: list[BaseException] = []
    async with running(tmp_path, []), running(tmp_path, raised) as second:
        assert not second.is_up
    (group,) = raised
    assert "another store uses this folder" in repr(group)

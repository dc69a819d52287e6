"""The budget of all inputs over real sockets: what is refused, what passes, what is given back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing
from http_world import inflated
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from paddler_trio.net.server import input_budget
from paddler_trio.net.server.asgi import (
    HttpProblem,
    Message,
    read_body,
    send_json,
)
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.input_budget import FREE_BYTES, MIB, InputBudget
from paddler_trio.net.server.json_body import MAX_INFLATION, json_body
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.websocket import bounded_websocket
from paddler_trio.wire.json_limits import DEFAULT_LIMITS, decoded_bytes

PATIENCE_S = 60
JSON = b"Content-Type: application/json\r\n"


def post(size_bytes: int) -> bytes:
    return b"POST /echo HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n" % (
        JSON,
        size_bytes,
    )


def text_of(size_bytes: int) -> bytes:
    return b'"' + b"x" * (size_bytes - 2) + b'"'


@attrs.define
class Served:
    address: str
    budget: InputBudget
    taken: trio.MemoryReceiveChannel[object]
    answer: trio.Event = attrs.field(factory=trio.Event)

    async def connect(self) -> trio.SocketStream:
        host, _, port = self.address.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    async def holds(self, size_bytes: int) -> None:
        """Wait until so much is held."""
        while self.budget.held_bytes != size_bytes:  # noqa: ASYNC110  # nobody else wants to know
            await trio.sleep(0.005)

    async def holds_more_than(self, size_bytes: int) -> None:
        """Wait until more than that is held."""
        while self.budget.held_bytes <= size_bytes:  # noqa: ASYNC110  # as above
            await trio.sleep(0.005)


@asynccontextmanager
async def serving(limit_bytes: int = 4 * MIB, **limits: float) -> AsyncIterator[Served]:
    budget = InputBudget(limit_bytes)
    took, taken = trio.open_memory_channel[object](10)
    served = Served("", budget, taken)

    async def echo(exchange: Exchange, params: Params) -> None:
        value = await json_body(exchange, lambda value: value, limit_bytes=8 * MIB)
        took.send_nowait(value)
        await served.answer.wait()
        await send_json(exchange.send, 200, len(json.dumps(value)))

    async def socket(exchange: Exchange, params: Params) -> None:
        await exchange.receive()
        await exchange.send({"type": "websocket.accept"})
        while (message := await exchange.receive())["type"] == "websocket.receive":
            took.send_nowait(message["text"])
            await served.answer.wait()

    routes = Router()
    routes.http("POST", "/echo", echo)
    routes.websocket("/socket", socket)
    server = HttpServer(
        routes,
        name="test",
        limits=HttpLimits(**limits),  # type: ignore[arg-type]  # ints are floats here
        budget=budget,
    )
    sockets = listen("127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
            start = partial(server.serve, sockets, connections=connections)
            (served.address,) = await listeners.start(start)
            yield served
            listeners.cancel_scope.cancel()
            connections.cancel_scope.cancel()
            server.cut_all()


def length_in(head: bytearray) -> int:
    found = re.search(rb"content-length: (\d+)", head)
    return int(found[1]) if found else 0


async def status_of(stream: trio.SocketStream) -> tuple[int, bytes]:
    """The status, and the header and the body of which it is the beginning."""
    received = bytearray()
    while not (head := received.partition(b"\r\n\r\n"))[1] or len(head[2]) < length_in(head[0]):
        data = await stream.receive_some(65_536)
        assert data, "no answer"
        received += data
    return int(received.split()[1]), bytes(received)


async def test_a_body_over_the_budget_is_503_while_small_ones_and_those_under_way_go_on() -> None:
    async with serving() as served:
        first, second, small = [await served.connect() for _ in range(3)]
        await first.send_all(post(3 * MIB) + text_of(3 * MIB)[:-1])  # unfinished
        await served.holds(3 * MIB - 1 - FREE_BYTES)
        await second.send_all(post(2 * MIB))
        with trio.move_on_after(PATIENCE_S / 4):
            # refused in the middle of it; nobody reads the rest
            await second.send_all(text_of(2 * MIB))
        status, head = await status_of(second)
        assert status == 503
        assert b"retry-after: 2" in head.lower()
        assert b"--input-memory" in head
        await served.holds(3 * MIB - 1 - FREE_BYTES)  # what it had is given back
        served.answer.set()
        await small.send_all(post(FREE_BYTES) + text_of(FREE_BYTES))
        assert (await status_of(small))[0] == 200
        await first.send_all(b'"')
        assert (await status_of(first))[0] == 200
        for stream in (first, second, small):
            await stream.aclose()
        await served.holds(0)


async def test_what_a_request_held_is_given_back_when_its_client_leaves() -> None:
    async with serving() as served:
        stream = await served.connect()
        await stream.send_all(post(2 * MIB) + text_of(MIB))
        await served.holds(MIB - FREE_BYTES)
        await stream.aclose()
        await served.holds(0)


async def test_what_is_sent_ahead_takes_half_of_the_budget_at_most_until_it_is_consumed() -> None:
    requests = post(64) + text_of(64) + (post(32_000) + text_of(32_000)) * 400
    async with serving() as served:
        async with trio.open_nursery() as nursery:
            stream = await served.connect()
            nursery.start_soon(stream.send_all, requests)
            await served.holds(2 * MIB)
            await trio.testing.wait_all_tasks_blocked(cushion=0.05)
            assert served.budget.held_bytes == 2 * MIB
            small = await served.connect()
            text = text_of(MIB)
            await small.send_all(post(MIB) + text)
            size = decoded_bytes(bytearray(text), DEFAULT_LIMITS)
            await served.holds(2 * MIB + size - FREE_BYTES)
            nursery.start_soon(take_all, served)
            served.answer.set()
            for client in (small, stream):
                assert (await status_of(client))[0] == 200
            nursery.start_soon(read_all, stream)
            await served.holds(0)
            nursery.cancel_scope.cancel()
        for client in (small, stream):
            client.socket.close()


async def read_all(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65_536):
        pass


async def take_all(served: Served) -> None:
    async for _ in served.taken:
        pass


async def test_what_was_sent_ahead_is_given_back_when_its_client_leaves() -> None:
    async with serving() as served:
        stream = await served.connect()
        await stream.send_all(post(64) + text_of(64) + bytes(MIB))
        await served.holds_more_than(MIB // 2)  # the parser holds some of it
        await stream.aclose()
        await served.holds(0)


async def test_values_are_counted_as_what_they_take() -> None:
    async with serving() as served:
        stream = await served.connect()
        body = b"[" + b"1," * 200_000 + b"1]"
        await stream.send_all(post(len(body)) + body)
        assert (await status_of(stream))[0] == 503
        await stream.aclose()


@asynccontextmanager
async def websocket(served: Served) -> AsyncIterator[WebSocketConnection]:
    async with await served.connect() as stream, trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, served.address, "/socket")
        nursery.cancel_scope.cancel()


async def test_a_message_over_the_budget_closes_its_socket_with_1013() -> None:
    async with serving() as served, websocket(served) as hungry, websocket(served) as modest:
        await hungry.send_message("x" * (5 * MIB))
        with pytest.raises(ConnectionClosed) as closed:
            await hungry.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 1013
        assert "MiB" in str(closed.value.reason.reason)
        await served.holds(0)
        await modest.send_message("still here")
        served.answer.set()
        assert await served.taken.receive() == "still here"


async def test_a_message_is_held_until_the_next_is_asked_for() -> None:
    async with serving() as served, websocket(served) as client:
        wide = "x" * (MIB - 1) + "\U0001f600"  # as a text each of its characters takes four bytes
        await client.send_message(wide[: MIB // 2])
        await served.holds(MIB // 2 - FREE_BYTES)
        served.answer.set()
        await served.holds(0)
        served.answer = trio.Event()
        await client.send_message(wide[MIB // 2 :])
        await served.holds(2 * MIB - FREE_BYTES)
        served.answer.set()
        await served.holds(0)


async def test_a_message_that_stands_still_gives_up_what_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_budget, "MIN_PROGRESS_INTERVAL_S", 0.1)
    async with serving(ping_interval_s=0.05) as served:
        async with await served.connect() as stream:
            await stream.send_all(
                b"GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert (await status_of(stream))[0] == 101
            frame = b"\x81\xff" + (2 * MIB).to_bytes(8, "big") + bytes(4)
            await stream.send_all(frame + b"x" * MIB)  # half of what was announced
            received = bytearray()
            while data := await stream.receive_some(65_536):
                received += data
            assert b"\x03\xf0message incomplete" in received  # 1008
        await served.holds(0)


async def test_a_body_that_stands_still_is_408(autojump_clock: trio.testing.MockClock) -> None:
    pieces = iter([b"x" * 100_000])

    async def receive() -> Message:
        for piece in pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        await trio.sleep(1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    began_s = trio.current_time()
    with pytest.raises(HttpProblem, match="100009 bytes") as refused:
        await read_body(receive, limit_bytes=MIB, deadline_s=60)
    assert refused.value.status == 408
    assert trio.current_time() - began_s == pytest.approx(input_budget.MIN_PROGRESS_INTERVAL_S)


def test_inflation_is_bounded_by_a_ratio_beyond_the_first_mebibyte() -> None:
    import zlib

    first = zlib.compress(bytes(MIB))
    assert len(inflated(first, b"deflate", limit_bytes=64 * MIB)) == MIB
    bomb = zlib.compress(bytes(32 * MIB))
    with pytest.raises(HttpProblem, match=rf"at most {MAX_INFLATION} bytes out of one"):
        inflated(bomb, b"deflate", limit_bytes=64 * MIB)


async def test_large_text_goes_out_in_fragments_that_are_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_websocket, "FRAGMENT_BYTES", 1000)
    texts = ["", "x", "é" * 700, "y" * 1000, "z" * 70_001]

    async def talk(exchange: Exchange, params: Params) -> None:
        await exchange.receive()
        await exchange.send({"type": "websocket.accept"})
        send_text = exchange.send_encoded
        for text in texts:
            await send_text(text.encode())
        await exchange.receive()

    routes = Router()
    routes.websocket("/socket", talk)
    sockets = listen("127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as connections:
            server = HttpServer(routes, name="test")
            (address,) = await connections.start(
                partial(server.serve, sockets, connections=connections)
            )
            async with websocket(
                Served(address, InputBudget(), trio.open_memory_channel[object](0)[1])
            ) as client:
                assert [await client.get_message() for _ in texts] == texts
            connections.cancel_scope.cancel()


async def test_a_client_that_leaves_before_its_turn_has_nothing_decoded() -> None:
    """Its body waits for the thread that decodes large ones, which another client's keeps busy."""
    async with serving(limit_bytes=32 * MIB) as served, trio.open_nursery() as nursery:
        thread = served.budget.thread_of(1.0)
        goes_on, is_busy = threading.Event(), threading.Event()

        def keep_busy() -> None:
            is_busy.set()
            assert goes_on.wait(PATIENCE_S)

        nursery.start_soon(partial(thread.run, keep_busy, client="other"))
        assert await trio.to_thread.run_sync(is_busy.wait, PATIENCE_S)
        leaves = await served.connect()
        await leaves.send_all(post(MIB) + text_of(MIB))
        await served.holds(MIB - FREE_BYTES)
        await leaves.aclose()
        await served.holds(0)
        goes_on.set()
        stays = await served.connect()
        served.answer.set()
        await stays.send_all(post(64) + text_of(64))
        assert (await status_of(stays))[0] == 200
        assert await served.taken.receive() == "x" * 62
        await stays.aclose()
        nursery.cancel_scope.cancel()

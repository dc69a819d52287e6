"""Connections over TLS that are passed on: the other process gets plain bytes and all ends."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio
from http_world import Client, Served, hello, over_tls, serving, until

from paddler_trio.net.server.asgi import send_text
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.tls.tls_records import TlsPassage

HEAD = b"PUT /pass HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@attrs.define
class Store:
    """Takes connections as the store's process does, and answers them in tasks of this test."""

    answer: Callable[[bytes, trio.SocketStream], Awaitable[None]]
    nursery: trio.Nursery
    refuses: bool = False
    ended: int = 0

    async def __call__(self, exchange: Exchange) -> None:
        connection = exchange.passable
        if connection is None:
            await hello(exchange)
            return
        unread, descriptor = connection.unread(), connection.fileno()
        if self.refuses:
            await send_text(exchange.send, 503, "not now")
            return
        sock = socket.socket(fileno=os.dup(descriptor))
        sock.setblocking(False)
        connection.release()
        self.nursery.start_soon(
            self._answer, unread, trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        )

    async def _answer(self, unread: bytes, stream: trio.SocketStream) -> None:
        with stream.socket:
            await self.answer(unread, stream)
        self.ended += 1


@pytest.fixture(scope="module", autouse=True)
def _over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with over_tls(tmp_path_factory.mktemp("certificates")):
        yield


def is_passed(path: str) -> bool:
    return path.startswith("/pass")


async def closed(served: Served) -> None:
    await until(lambda: served.server.statistics().open_connections == 0)


async def test_an_answer_of_another_process_arrives_with_its_end(nursery: trio.Nursery) -> None:
    sent = os.urandom(3_000_000)

    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        await stream.send_all(sent)

    async with serving(Store(answer, nursery), passes=is_passed) as served:
        client = await served.connect()
        await client.get("/pass")
        assert await client.read_to_end() == sent
        client.stream.socket.close()
        await closed(served)


async def test_an_upload_arrives_whole_and_is_answered(nursery: trio.Nursery) -> None:
    body = os.urandom(5_000_000)

    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        digest, missing = hashlib.sha256(unread), len(body) - len(unread)
        while missing > 0:
            data = await stream.receive_some(65_536)
            assert data, f"ended {missing} bytes before its end"
            digest.update(data)
            missing -= len(data)
        await stream.send_all(digest.hexdigest().encode())

    async with serving(Store(answer, nursery), passes=is_passed) as served:
        client = await served.connect()
        await client.stream.send_all(HEAD % len(body) + body)
        assert await client.read_to_end() == hashlib.sha256(body).hexdigest().encode()


async def test_a_client_that_leaves_is_the_end_of_file_of_the_other_process(
    nursery: trio.Nursery,
) -> None:
    store = Store(_read_to_end, nursery)
    async with serving(store, passes=is_passed) as served:
        client = await served.connect()
        await client.stream.send_all(HEAD % 10 + b"half")
        await until(lambda: _num_released(served) == 1)
        await client.stream.aclose()
        await until(lambda: store.ended == 1)
        await closed(served)


async def test_a_client_that_closes_its_side_still_gets_the_answer(nursery: trio.Nursery) -> None:
    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        await _read_to_end(unread, stream)
        await stream.send_all(b"answered after your end")

    async with serving(Store(answer, nursery), passes=is_passed) as served:
        client = await served.connect()
        await client.stream.send_all(HEAD % 4 + b"body")
        await client.stream.send_eof()
        assert await client.read_to_end() == b"answered after your end"


async def test_an_answer_before_the_body_was_read_is_not_cut_by_the_rest_of_the_body(
    nursery: trio.Nursery,
) -> None:
    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        await stream.send_all(b"too large")

    async with serving(Store(answer, nursery), passes=is_passed) as served:
        client = await served.connect()
        await client.stream.send_all(HEAD % 1_000_000 + bytes(400_000))
        assert await client.read_to_end() == b"too large"


async def test_a_slow_reader_makes_the_other_process_wait(nursery: trio.Nursery) -> None:
    sent_bytes = 0
    is_over = trio.Event()

    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        nonlocal sent_bytes
        with trio.move_on_after(0.3):
            while True:
                await stream.send_all(bytes(65_536))
                sent_bytes += 65_536
        is_over.set()

    async with serving(Store(answer, nursery), passes=is_passed) as served:
        client = await served.connect()
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await client.get("/pass")
        await is_over.wait()
        assert 0 < sent_bytes < 12_000_000, "what the kernel's buffers hold, and no more"


async def test_a_reader_that_stops_is_cut_at_the_write_deadline(nursery: trio.Nursery) -> None:
    async def answer(unread: bytes, stream: trio.SocketStream) -> None:
        try:
            while True:
                await stream.send_all(bytes(65_536))
        except trio.BrokenResourceError:
            return

    store = Store(answer, nursery)
    async with serving(store, passes=is_passed, write_timeout_s=0.1) as served:
        client = await served.connect()
        await client.get("/pass")
        await until(lambda: store.ended == 1)
        await closed(served)


async def test_the_end_of_the_server_ends_what_was_passed_on(nursery: trio.Nursery) -> None:
    store = Store(_read_to_end, nursery)
    async with serving(store, passes=is_passed) as served:
        client = await served.connect()
        await client.get("/pass")
        await until(lambda: _num_released(served) == 1)
        served.server.close_idle()
        await closed(served)
        await until(lambda: store.ended == 1)
        assert await client.read_to_end() == b""


async def test_cutting_the_server_ends_it_at_once(nursery: trio.Nursery) -> None:
    store = Store(_read_to_end, nursery)
    async with serving(store, passes=is_passed) as served:
        client = await served.connect()
        await client.get("/pass")
        await until(lambda: _num_released(served) == 1)
        served.server.cut_all()
        await closed(served)
        await until(lambda: store.ended == 1)


async def test_a_refusal_is_answered_here_and_leaves_no_descriptor(nursery: trio.Nursery) -> None:
    before = _num_descriptors()
    store = Store(_read_to_end, nursery, refuses=True)
    async with serving(store, passes=is_passed) as served:
        client: Client = await served.connect()
        await client.get("/pass")
        status, _, body = await client.response()
        assert (status, body) == (503, b"not now")
        client.stream.socket.close()
        await closed(served)
    assert _num_descriptors() == before


def test_a_passage_shows_its_state() -> None:
    passage = TlsPassage()
    assert repr(passage) == "<TlsPassage closed>"
    assert passage.descriptor() == passage.descriptor() >= 0
    assert repr(passage) == "<TlsPassage open>"
    passage.release()
    assert repr(passage) == "<TlsPassage released>"
    passage.close()


async def _read_to_end(unread: bytes, stream: trio.SocketStream) -> None:
    while await stream.receive_some(65_536):
        pass


def _num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _num_released(served: Served) -> int:
    return sum(each._passage.is_released for each in served.server._open)  # type: ignore[attr-defined]

"""Connections that are passed on: everything unread goes with them, and nothing of them stays."""

from __future__ import annotations

import os
import socket

import attrs
import pytest
import trio
from http_world import Client, Served, hello, serving, until

from paddler_trio.net.server.asgi import send_text
from paddler_trio.net.server.exchange import Exchange


@attrs.define
class Passer:
    """Passes connections on to this test, as a sender of descriptors would."""

    passed: list[socket.socket] = attrs.field(factory=list)
    unread: list[bytes] = attrs.field(factory=list)
    refuses: bool = False

    async def __call__(self, exchange: Exchange) -> None:
        connection = exchange.passable
        if connection is None:
            await hello(exchange)
        elif self.refuses:
            await send_text(exchange.send, 503, "not now")
        else:
            self.unread.append(connection.unread())
            self.passed.append(socket.socket(fileno=os.dup(connection.fileno())))
            connection.release()

    def close(self) -> None:
        for sock in self.passed:
            sock.close()


def is_passed(path: str) -> bool:
    return path.startswith("/pass")


async def closed(served: Served) -> None:
    await until(lambda: served.server.statistics().open_connections == 0)


@pytest.mark.parametrize("path", ["/pass", "/p%61ss"])
async def test_a_passed_connection_is_answered_elsewhere_and_forgotten_here(path: str) -> None:
    app = Passer()
    async with serving(app, passes=is_passed) as served:
        client = await served.connect()
        await client.get(path)
        await closed(served)
        (sock,) = app.passed
        sock.sendall(b"answered elsewhere")
        app.close()
        assert await client.read_to_end() == b"answered elsewhere"


async def test_what_arrived_of_a_body_goes_with_the_connection_and_the_rest_is_left_in_it() -> None:
    app = Passer()
    async with serving(app, passes=is_passed) as served:
        client = await served.connect()
        head = b"PUT /pass HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        await client.stream.send_all(head + b"first")
        await closed(served)
        await client.stream.send_all(b"last")
        (sock,) = app.passed
        received = await trio.to_thread.run_sync(sock.recv, 100)
        assert app.unread == [b"first"]
        assert received == b"last"
        app.close()
        assert await client.read_to_end() == b"", "no 100 Continue: the other process decides"


async def test_a_refusal_is_answered_here_and_ends_the_connection() -> None:
    app = Passer(refuses=True)
    async with serving(app, passes=is_passed) as served:
        client = await served.connect()
        await client.stream.send_all(
            b"PUT /pass HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\nbegun"
        )
        status, head, body = await client.response()
        assert (status, body) == (503, b"not now")
        assert b"connection: close" in head
        client.stream.socket.shutdown(socket.SHUT_WR)
        await closed(served)


async def test_other_paths_of_the_port_keep_their_connection() -> None:
    app = Passer()
    async with serving(app, passes=is_passed) as served:
        client = await served.connect()
        for number in (1, 2):
            await client.get(f"/kept/{number}")
            assert (await client.response())[2] == f"hello /kept/{number}".encode()
        await client.get("/pass")
        await closed(served)
        assert len(app.passed) == 1
        app.close()


async def test_an_application_that_fails_on_such_a_path_is_a_500() -> None:
    async def broken(exchange: Exchange) -> None:
        raise RuntimeError("a bug")

    async with serving(broken, passes=is_passed) as served:
        client: Client = await served.connect()
        await client.get("/pass")
        assert (await client.response())[0] == 500
        client.stream.socket.shutdown(socket.SHUT_WR)
        await closed(served)

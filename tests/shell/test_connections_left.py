"""A server whose port another process takes: what comes is answered, and in its own time."""

from __future__ import annotations

import trio
import trio.testing
from http_world import LARGE, Served, Waiter, hello, serving, until

from paddler_trio.net.server.asgi import send_text
from paddler_trio.net.server.exchange import Exchange


async def all_closed(served: Served) -> None:
    """The clients close their sides; the server would wait for that a while."""
    for client in served.clients:
        client.stream.socket.close()
    await served.server.wait_all_closed()


async def test_each_connection_hears_that_its_next_response_is_its_last() -> None:
    async with serving(hello) as served:
        kept = await served.connect()
        await kept.get("/1")
        assert b"connection: close" not in (await kept.response())[1]
        served.server.close_after_next()
        fresh = await served.connect()
        for client in (kept, fresh):
            await client.get("/2")
            status, head, body = await client.response()
            assert (status, body) == (200, b"hello /2")
            assert b"connection: close" in head
            assert await client.read_to_end() == b""
        await all_closed(served)


async def test_a_quiet_connection_is_closed_and_a_new_one_keeps_its_first_request() -> None:
    async with serving(hello) as served:
        quiet, fresh, silent = [await served.connect() for _ in range(3)]
        await quiet.get("/1")
        await quiet.response()
        await until(lambda: served.server.statistics().accepted == 3)
        assert served.server.num_fresh == 2
        await trio.testing.wait_all_tasks_blocked(cushion=0.01)
        served.server.close_quiet(fresh=False)
        assert await quiet.read_to_end() == b""
        await fresh.get("/2")
        assert (await fresh.response())[2] == b"hello /2"
        assert await fresh.read_to_end() == b""
        assert served.server.num_fresh == 1
        served.server.close_quiet(fresh=True)
        assert await silent.read_to_end() == b""
        await all_closed(served)


async def test_what_has_arrived_on_a_kept_connection_is_answered() -> None:
    async with serving(hello) as served:
        client = await served.connect()
        await client.get("/1")
        await client.response()
        await trio.testing.wait_all_tasks_blocked(cushion=0.01)
        await client.get("/2")  # the kernel has it, and the server has not looked yet
        served.server.close_quiet(fresh=True)
        status, head, body = await client.response()
        assert (status, body) == (200, b"hello /2")
        assert b"connection: close" in head
        await all_closed(served)


async def test_a_request_in_progress_is_answered_and_a_slow_reader_has_all_its_time() -> None:
    size_bytes = 256 * len(LARGE)

    async def long_answer(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, "x" * size_bytes)

    async with serving(long_answer, drain_write_timeout_s=0.02) as served:
        slow = await served.connect()
        await slow.get("/")
        await slow.read_until(b"\r\n\r\n")
        served.server.close_quiet(fresh=True)
        await trio.testing.wait_all_tasks_blocked(cushion=0.1)
        assert len(await slow.read_to_end()) == size_bytes
        await all_closed(served)
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        served.server.close_quiet(fresh=True)
        waiter.answer.set()
        assert (await client.response())[2] == b"waited"
        assert await client.read_to_end() == b""

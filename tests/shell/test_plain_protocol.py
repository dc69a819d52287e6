"""A port whose responses are others' bytes: plain exchanges, and what ends them being plain."""

from __future__ import annotations

import h11
import pytest
import trio
from http_world import PATIENCE_S, hello, serving, until

from paddler_trio.net.server.asgi import ClientGoneError, RawResponse, read_body
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.streaming import cut_on_disconnect

RAW = b"HTTP/1.1 200 Fine\r\nContent-Length: %d\r\nServer: Other\r\n\r\n%b"
POST = b"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"
GET = b"GET /raw HTTP/1.1\r\nHost: x\r\n\r\n"
OURS = b"GET /ours HTTP/1.1\r\nHost: x\r\n\r\n"
CUT = b"GET /cut HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(exchange: Exchange) -> None:
    """``/ours``: by ASGI; ``/raw``: in bytes of its own, ``/cut``: and not to their end."""
    if exchange.path == "/ours":
        await hello(exchange)
        return
    body = bytes(await read_body(exchange.receive, limit_bytes=1000, deadline_s=PATIENCE_S))
    raw = exchange.raw_response
    assert raw is not None
    closes = exchange.query == b"closes"
    await raw.begin(exchange.send, 200, closes=closes)
    await raw.write(RAW % (len(body), body))
    if exchange.path != "/cut":
        await raw.end(exchange.send)


async def test_plain_exchanges_follow_one_another_and_h11_sees_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(h11.Connection, "receive_data")
    monkeypatch.delattr(h11.Connection, "send")
    async with serving(app, forwards=True) as served:
        client = await served.connect()
        for _ in range(3):
            await client.stream.send_all(POST)
            assert await client.read_until(b"body") == RAW % (4, b"body")
            await client.stream.send_all(GET)
            assert await client.read_until(b"\r\n\r\n") == RAW % (0, b"")


async def test_every_order_of_kinds_is_answered_on_one_connection() -> None:
    in_pieces = POST[:20], POST[20:]
    async with serving(app, forwards=True) as served:
        client = await served.connect()
        for first in (GET, OURS, POST):
            for second in (GET, OURS, POST):
                for request in (first, second):
                    await client.stream.send_all(request)
                    expected = b"hello /ours" if request is OURS else b"\r\n\r\n"
                    assert expected in await client.read_until(expected)
                    if request is POST:
                        await client.read_until(b"body")
            for piece in in_pieces:
                await client.stream.send_all(piece)
            assert await client.read_until(b"body") == RAW % (4, b"body")


async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with serving(app, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(POST + OURS + POST)
        await client.read_until(b"\r\n\r\nbody")
        await client.read_until(b"hello /ours")
        await client.read_until(b"\r\n\r\nbody")


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_request_that_comes_before_the_end_of_a_plain_one_waits_for_it(
    has_begun: bool,
) -> None:
    entered, go_on = trio.Event(), trio.Event()

    async def begin(exchange: Exchange) -> RawResponse:
        raw = exchange.raw_response
        assert raw is not None
        await raw.begin(exchange.send, 200, closes=False)
        await raw.write(RAW[:20])
        return raw

    async def slow(exchange: Exchange) -> None:
        if entered.is_set():
            await app(exchange)
            return
        raw = await begin(exchange) if has_begun else None
        entered.set()
        await go_on.wait()
        raw = raw or await begin(exchange)
        await raw.write(RAW[20:] % (1, b"1"))
        await raw.end(exchange.send)

    async with serving(slow, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(GET)
        await entered.wait()
        await client.stream.send_all(POST)
        (connection,) = served.server._open
        await until(lambda: connection._protocol._plain is None)  # type: ignore[attr-defined]
        go_on.set()
        assert await client.read_until(b"\r\n\r\n1") == RAW % (1, b"1")
        assert await client.read_until(b"body") == RAW % (4, b"body")


async def test_an_answer_that_is_cut_ends_the_connection() -> None:
    async with serving(app, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(CUT)
        assert await client.read_to_end() == RAW % (0, b"")


async def test_an_answer_whose_end_is_that_of_the_connection_ends_it() -> None:
    async with serving(app, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(GET.replace(b"/raw", b"/raw?closes"))
        assert await client.read_to_end() == RAW % (0, b"")


async def test_the_last_answer_of_a_server_that_ends_ends_the_connection() -> None:
    entered, go_on = trio.Event(), trio.Event()

    async def waits(exchange: Exchange) -> None:
        entered.set()
        await go_on.wait()
        raw = exchange.raw_response
        assert raw is not None
        assert raw.must_close
        await app(exchange)

    async with serving(waits, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(GET)
        await entered.wait()
        served.server.close_idle()
        go_on.set()
        assert await client.read_to_end() == RAW % (0, b"")


async def test_an_application_that_fails_before_its_answer_is_answered_with_500() -> None:
    async def fails(exchange: Exchange) -> None:
        raise ValueError("a bug")

    async with serving(fails, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(POST)
        assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 500")


async def test_a_client_that_leaves_in_a_plain_exchange_is_noticed() -> None:
    entered, gone = trio.Event(), trio.Event()

    async def waits(exchange: Exchange) -> None:
        await read_body(exchange.receive, limit_bytes=1000, deadline_s=PATIENCE_S)
        with cut_on_disconnect(exchange):
            entered.set()
            await trio.sleep_forever()
        raw = exchange.raw_response
        assert raw is not None
        try:
            await raw.begin(exchange.send, 200, closes=False)
        except ClientGoneError:
            gone.set()

    async with serving(waits, forwards=True) as served:
        client = await served.connect()
        await client.stream.send_all(POST)
        await entered.wait()
        client.stream.socket.close()
        await gone.wait()

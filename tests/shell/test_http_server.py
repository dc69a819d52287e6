"""The HTTP server over real loopback sockets: whom it serves, how long, and how each thing ends."""

from __future__ import annotations

import gc
import re
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
import trio.testing
from http_world import LARGE, PATIENCE_S, Waiter, hello, serving, until
from trio_websocket import CloseReason, ConnectionClosed, ConnectionRejected
from wsproto.frame_protocol import FrameProtocol

from exchanges import exchange_for
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.networks import parse_networks
from paddler_trio.net.server import protocol as http_protocol
from paddler_trio.net.server.asgi import (
    ClientGoneError,
    HttpProblem,
    Message,
    send_json,
    send_text,
)
from paddler_trio.net.server.connection import HttpConnection
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App, DirectBody, Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.quart_adapter import QuartRouter
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import ACCEPT_RETRY_S, ACCEPTED_AT_ONCE, HttpServer
from paddler_trio.net.websocket.bounded_websocket import FREE_FRAGMENTS
from paddler_trio.system.ready_sockets import run_ready_sockets

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


async def pour(exchange: Exchange) -> None:
    """Send for ever, whatever the client does."""
    await exchange.send(START)
    while True:
        await exchange.send({"type": "http.response.body", "body": LARGE, "more_body": True})


def pour_directly(ended_by: Callable[[BaseException], None]) -> App:
    async def app(exchange: Exchange) -> None:
        await exchange.send(START)
        body = exchange.open_body()
        assert body is not None
        try:
            while True:
                await body.write(LARGE)
        except BaseException as error:
            ended_by(error)
            raise

    return app


async def who(exchange: Exchange) -> None:
    await send_text(exchange.send, 200, f"<{exchange.client[0]}>")


@pytest.mark.parametrize(
    ("networks", "client"), [(["127.0.0.0/8"], b"<192.0.2.1>"), (["10.0.0.0/8"], b"<127.0.0.1>")]
)
async def test_a_client_is_known_behind_trusted_proxies_only(
    networks: list[str], client: bytes
) -> None:
    trusted = parse_networks(networks, "--trusted-proxy")
    async with serving(who, trusted_proxies=trusted) as served:
        connection = await served.connect()
        for more in ((), ("Connection: x",)):  # past h11, and through it
            await connection.get("/", "X-Forwarded-For: 1.2.3.4, 192.0.2.1", *more)
            assert client in await connection.read_until(b">")


# ------------------------------------------------------------------------------------ listening


def test_listening_reports_the_port_the_system_chose() -> None:
    (sock,) = listen("127.0.0.1:0")
    with sock:
        assert sock.getsockname()[1] > 0
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


def test_a_name_with_several_addresses_listens_on_one_port() -> None:
    sockets = listen("localhost:0")
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        sock.close()


def test_an_ipv6_address_is_written_in_brackets() -> None:
    try:
        (sock,) = listen("[::1]:0")
    except ConfigurationError as error:
        pytest.skip(str(error))
    with sock:
        assert sock.family is socket.AF_INET6


def test_a_port_in_use_is_one_plain_error_that_says_what_to_do() -> None:
    (sock,) = listen("127.0.0.1:0")
    with sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConfigurationError) as refused:
            listen(address)
    assert str(refused.value) == (
        f"cannot listen on {address}: address already in use; "
        "stop the other process or choose another port"
    )


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "::1:80",
     "127.0.0.1:-1", "[::1]", "[::1:80", "127.0.0.1:²"],
)  # fmt: skip
def test_addresses_that_are_not_host_and_port_are_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="write host:port"):
        listen(address)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"192\.0\.2\.1:0: this machine has no such address"
    ):
        listen("192.0.2.1:0")


# ----------------------------------------------------------------------- keep-alive and deadlines


async def test_a_connection_serves_one_request_after_another() -> None:
    async with serving(hello) as served:
        client = await served.connect()
        for number in range(3):
            await client.get(f"/{number}")
            status, head, body = await client.response()
            assert (status, body) == (200, b"hello /%d" % number)
            assert b"server:" not in head
        assert served.server.statistics().accepted == 1


async def test_a_method_that_is_head_in_other_letters_is_another_one() -> None:
    """Its answer has a body, and the connection stays."""
    async with serving(hello) as served:
        client = await served.connect()
        for method in (b"Head", b"head", b"get"):
            await client.stream.send_all(b"%b / HTTP/1.1\r\nHost: x\r\n\r\n" % method)
            assert (await client.response())[2] == b"hello /"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(hello) as served:
        client = await served.connect()
        await client.stream.send_all(
            b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(9))
        )
        assert [(await client.response())[2] for _ in range(9)] == [
            b"hello /%d" % i for i in range(9)
        ]


def quart_hello() -> App:
    async def root(exchange: Exchange, params: Params) -> None:
        await hello(exchange)

    async def echo(exchange: Exchange, params: Params) -> None:
        await exchange.receive()
        await exchange.send({"type": "websocket.accept"})
        text = (await exchange.receive())["text"]
        await exchange.send({"type": "websocket.send", "text": text})
        await exchange.send({"type": "websocket.close", "code": 1000})

    router = QuartRouter()
    router.http("GET", "/", root)
    router.websocket("/socket", echo)
    return router


@pytest.mark.parametrize("make_app", [lambda: hello, quart_hello])
async def test_a_short_response_comes_in_one_piece(make_app: Callable[[], App]) -> None:
    async with serving(make_app()) as served:
        client = await served.connect()
        for _ in range(3):
            await client.get("/")
            piece = await client.stream.receive_some(65_536)
            assert piece.startswith(b"HTTP/1.1 200")
            assert piece.endswith(b"\r\n\r\nhello /")


@pytest.mark.parametrize("extra_bytes", [0, 1])
async def test_a_long_response_of_known_length_is_whole(extra_bytes: int) -> None:
    body = "x" * (http_protocol.MAX_WITH_HEAD_BYTES + extra_bytes)

    async def app(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, body)

    async with serving(app) as served:
        client = await served.connect()
        for _ in range(2):
            await client.get("/")
            assert (await client.response())[2] == body.encode()


@pytest.mark.parametrize("make_app", [lambda: hello, quart_hello])
@pytest.mark.parametrize("how", [("1.1", "Connection: close"), ("1.0",)])
async def test_a_client_that_asks_for_the_end_gets_it(
    make_app: Callable[[], App], how: tuple[str, ...]
) -> None:
    version, *headers = how
    async with serving(make_app()) as served:
        client = await served.connect()
        await client.get("/", *headers, version=version)
        assert (await client.read_to_end()).endswith(b"hello /")


@pytest.mark.parametrize("make_app", [lambda: hello, quart_hello])
async def test_keep_alive_expires_after_a_request(make_app: Callable[[], App]) -> None:
    async with serving(make_app(), keep_alive_s=0.5) as served:
        client = await served.connect()
        await client.get("/")
        await client.response()
        assert await client.read_to_end() == b""


async def test_a_request_in_progress_outlives_every_idle_deadline() -> None:
    waiter = Waiter()
    async with serving(waiter, keep_alive_s=0.5, header_deadline_s=0.5) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        impatient = await served.connect()
        assert await impatient.read_to_end() == b""  # both deadlines have passed by now
        waiter.answer.set()
        assert (await client.response())[2] == b"waited"


async def test_a_header_that_trickles_in_is_cut_at_its_deadline() -> None:
    async with serving(hello, header_deadline_s=0.5) as served:
        client = await served.connect()
        await client.stream.send_all(b"GET / HTTP/1.1\r\n")

        async def trickle() -> None:
            while True:
                await client.stream.send_all(b"X: y\r\n")
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            with pytest.raises((AssertionError, trio.BrokenResourceError)):
                await client.read_until(b"never")
            nursery.cancel_scope.cancel()
        await until(lambda: served.server.statistics().dropped_for_abuse == 1)


async def test_connections_over_the_cap_are_closed_at_once() -> None:
    waiter = Waiter()
    async with serving(waiter, max_connections=1) as served:
        first = await served.connect()
        await first.get("/")
        await waiter.entered.wait()
        second = await served.connect()
        assert await second.read_to_end() == b""
        assert served.server.statistics().refused == 1
        waiter.answer.set()
        assert (await first.response())[2] == b"waited"


@pytest.mark.parametrize("is_busy", [False, True])
async def test_who_has_most_connections_gives_one_up_for_a_newcomer(is_busy: bool) -> None:
    entered, answer = 0, trio.Event()

    async def waits(exchange: Exchange) -> None:
        nonlocal entered
        entered += 1
        await answer.wait()
        await send_text(exchange.send, 200, "waited")

    async with serving(waits, max_connections=4) as served:
        held = [await served.connect() for _ in range(4)]
        if is_busy:
            for client in held:
                await client.get("/")
            await until(lambda: entered == 4)
        else:
            await until(lambda: served.server.statistics().open_connections == 4)
        newcomers = [await served.connect(source="127.0.0.2") for _ in range(3)]
        for client in newcomers:
            await client.get("/")
        given_up = held[2:] if is_busy else held[:2]  # the newest at work, the oldest at rest
        for client in [*given_up, newcomers[2]]:  # two of each are fair: the third is too many
            assert await client.read_to_end() == b""
        assert served.server.statistics().refused == 3
        assert served.server.statistics().open_connections == 4
        answer.set()
        for client in newcomers[:2]:
            assert (await client.response())[2] == b"waited"


async def test_a_trusted_proxy_gives_up_no_connection() -> None:
    proxies = parse_networks(["127.0.0.1/32"], "--trusted-proxy")
    async with serving(hello, max_connections=4, trusted_proxies=proxies) as served:
        held = [await served.connect() for _ in range(4)]
        await until(lambda: served.server.statistics().open_connections == 4)
        newcomer = await served.connect(source="127.0.0.2")
        assert await newcomer.read_to_end() == b""
        await held[0].get("/")
        assert (await held[0].response())[0] == 200


async def test_clients_that_wait_are_accepted_several_in_a_turn_of_the_event_loop() -> None:
    """In a busy balancer a turn takes long: with one for each, they would wait as many."""
    number, turns = 3 * ACCEPTED_AT_ONCE, 0
    server = HttpServer(hello, name="test", limits=HttpLimits(max_connections=number - 1))
    (sock,) = listen("127.0.0.1:0")
    clients = [
        socket.create_connection(sock.getsockname(), timeout=PATIENCE_S) for _ in range(number)
    ]
    async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
        await listeners.start(partial(server.serve, [sock], connections=connections))
        while (counts := server.statistics()).accepted + counts.refused < number:
            await trio.lowlevel.checkpoint()
            turns += 1
        listeners.cancel_scope.cancel()
        connections.cancel_scope.cancel()
    for client in clients:
        client.close()
    assert turns < number / 2
    assert counts.refused == 1


async def test_without_descriptors_clients_wait_and_the_log_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(hello) as served:
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as client:
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
            try:
                await until(lambda: bool(caplog.records))
                await trio.sleep(3.5 * ACCEPT_RETRY_S)  # it tries again, and says nothing
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            await until(lambda: served.server.statistics().accepted == 1)
            answer = await trio.to_thread.run_sync(client.recv, 65_536)
            assert answer.endswith(b"hello /")
    (line,) = caplog.messages
    assert "Too many open files" in line
    assert "ulimit -n" in line


async def guarded_hello(exchange: Exchange) -> None:
    """Answers by way of a guard that knows the exchange which knows it."""
    send = exchange.send

    async def send_of(message: Message) -> None:
        assert exchange.path == "/"
        await send(message)

    exchange.send = send_of
    await hello(exchange)


@pytest.mark.parametrize("app", [hello, guarded_hello])
async def test_a_connection_that_has_ended_is_no_garbage(app: App) -> None:
    """Full collections are rare in a daemon: what waits for one is as good as a leak."""

    def connections() -> int:
        return sum(isinstance(each, HttpConnection) for each in gc.get_objects())

    gc.collect()
    before = connections()
    gc.disable()
    try:
        async with serving(app) as served:
            asks, idle = [await served.connect() for _ in range(2)]
            await asks.get("/")
            await asks.response()
            for client in (asks, idle):
                await client.stream.aclose()
            await until(lambda: not served.server.statistics().open_connections)
            await trio.testing.wait_all_tasks_blocked()
            assert connections() == before
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------- departures


@pytest.mark.parametrize("ahead", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
@pytest.mark.parametrize("half", [True, False])
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(
    ahead: bytes, half: bool
) -> None:
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + ahead)
        await waiter.entered.wait()
        await (client.stream.send_eof() if half else client.stream.aclose())
        await waiter.gone.wait()
        await until(lambda: served.server.statistics().open_connections == 0)


async def test_sending_to_a_client_that_left_neither_raises_nor_holds_up_others() -> None:
    async with serving(pour) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        await client.stream.aclose()
        # The application above never looks; only cancellation ends it, and everyone else lives.
        other = await served.connect()
        await other.get("/")
        await other.read_until(LARGE)


async def test_an_answer_before_the_body_was_read_arrives_and_ends_the_connection() -> None:
    async def deaf(exchange: Exchange) -> None:
        await send_text(exchange.send, 404, "no")

    async with serving(deaf) as served:
        client = await served.connect()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, head + bytes(8_388_608))
            assert (await client.response())[0] == 404
            assert await client.read_to_end() == b""
        await client.stream.aclose()
        await until(lambda: served.server.statistics().open_connections == 0)


async def test_an_answer_before_the_body_was_read_announces_that_it_is_the_last() -> None:
    async def refuse(exchange: Exchange) -> None:
        await send_text(exchange.send, 501, "no")

    async with serving(refuse) as served:
        early, whole = await served.connect(), await served.connect()
        await early.stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert b"connection: close" in (await early.response())[1]
        for _ in range(2):
            await whole.get("/")
            assert b"connection" not in (await whole.response())[1]


async def test_a_client_that_does_not_read_is_cut_at_the_write_deadline() -> None:
    ended: list[BaseException] = []
    async with serving(pour_directly(ended.append), write_timeout_s=0.1) as served:
        client = await served.connect()
        await client.get("/")
        await until(lambda: served.server.statistics().open_connections == 0 and bool(ended))
        assert isinstance(ended[0], ClientGoneError)
        assert "did not read for 0.1 s" in str(ended[0])
        assert served.server.statistics().dropped_for_abuse == 1


# ------------------------------------------------------------------------------- closing in order


@pytest.mark.parametrize("app", [pour, pour_directly(lambda error: None)])
async def test_cutting_all_ends_a_write_that_its_reader_stalls(app: App) -> None:
    async with serving(app, write_timeout_s=3600) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        # Nobody reads: the write is stuck once the kernel's buffers are full.
        await trio.testing.wait_all_tasks_blocked(cushion=0.05)
        served.server.cut_all()
        await until(lambda: served.server.statistics().open_connections == 0)


async def test_a_closed_listener_harms_no_connection() -> None:
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        served.listeners.cancel_scope.cancel()
        await until(lambda: not served.listeners.child_tasks)
        with pytest.raises(OSError, match="all attempts to connect"):
            await served.connect()
        waiter.answer.set()
        assert (await client.response())[2] == b"waited"
        await client.get("/")
        assert (await client.response())[2] == b"waited"


async def test_closing_idle_connections_spares_requests_in_progress() -> None:
    waiter = Waiter()
    async with serving(waiter) as served:
        busy, fresh, half = [await served.connect() for _ in range(3)]
        await busy.get("/")
        await half.stream.send_all(b"GET / HT")
        await waiter.entered.wait()
        await until(lambda: served.server.statistics().open_connections == 3)
        served.server.close_idle()
        assert await fresh.read_to_end() == b""
        with pytest.raises((AssertionError, trio.BrokenResourceError)):
            await half.read_until(b"never")
        waiter.answer.set()
        _, head, body = await busy.response()
        assert body == b"waited"
        assert b"connection: close" in head.lower()
        assert await busy.read_to_end() == b""
        assert served.server.statistics().dropped_for_abuse == 0


async def test_a_response_that_began_before_the_idle_were_closed_ends_its_connection() -> None:
    goes_on = trio.Event()

    async def slowly(exchange: Exchange) -> None:
        await exchange.send(START)
        await goes_on.wait()
        await exchange.send(END)

    async with serving(slowly) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        served.server.close_idle()
        goes_on.set()
        assert await client.read_to_end() == b"0\r\n\r\n"


@pytest.mark.parametrize("drained_after", [False, True])
async def test_a_client_that_keeps_its_side_open_does_not_hold_up_the_end(
    drained_after: bool,
) -> None:
    waiter = Waiter()
    async with serving(waiter, linger_s=3600) as served:
        client = await served.connect()
        await client.get("/", *(["Connection: close"] if drained_after else []))
        await waiter.entered.wait()
        if not drained_after:
            served.server.close_idle()
        waiter.answer.set()
        assert (await client.read_to_end()).endswith(b"waited")
        if drained_after:
            served.server.close_idle()
        await served.server.wait_all_closed()


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    ended: list[BaseException] = []
    app = pour_directly(ended.append)
    async with serving(app, write_timeout_s=3600, drain_write_timeout_s=0.05) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(cushion=0.05)
        assert served.server.statistics().open_connections == 1
        served.server.close_idle()
        await served.server.wait_all_closed()
        assert "did not read for 0.05 s" in str(ended[0])


async def test_a_client_that_reads_gets_all_of_a_long_write_while_the_server_ends() -> None:
    size_bytes = 256 * len(LARGE)

    async def long_answer(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, "x" * size_bytes)

    async with serving(long_answer) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(cushion=0.05)
        served.server.close_idle()
        assert len(await client.read_to_end()) == size_bytes
        await served.server.wait_all_closed()


async def test_cancelling_the_connections_ends_their_requests() -> None:
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        served.connections.cancel_scope.cancel()
        await until(lambda: served.server.statistics().open_connections == 0)


async def test_an_application_that_fails_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fragile(exchange: Exchange) -> None:
        if exchange.path == "/fail":
            raise KeyError("bug")
        if exchange.path == "/half":
            await exchange.send(START)
            await exchange.send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise KeyError("bug")
        await hello(exchange)

    async with serving(fragile) as served:
        good = await served.connect()
        for path, expected in [("/fail", b"HTTP/1.1 500"), ("/half", b"half\r\n")]:
            bad = await served.connect()
            await bad.get(path)
            answer = await bad.read_to_end()
            assert expected in answer
            assert b"0\r\n\r\n" not in answer
        await good.get("/")
        assert (await good.response())[0] == 200
    assert "application failed on /fail" in caplog.text


async def test_a_bug_in_parsing_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")  # whatever a command that ran in this process has set
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()

        def broken(request: object, limits: object) -> None:
            raise UnicodeDecodeError("ascii", b"\xff", 0, 1, "as hypercorn might raise")

        monkeypatch.setattr(http_protocol, "objection_to", broken)
        victim = await served.connect()
        await victim.get("/")
        assert await victim.read_to_end() == b""
        waiter.answer.set()
        assert (await client.response())[2] == b"waited"
        assert served.server.statistics().dropped_for_abuse == 1
    assert "connection from 127.0.0.1:" in caplog.text
    assert "UnicodeDecodeError" in caplog.text


# ---------------------------------------------------------------------------------- direct chunks


async def stream_both_ways(exchange: Exchange) -> None:
    await exchange.send(START)
    body = exchange.open_body()
    for piece in (b"one", b"", b"two" * 1000):
        if body is None:
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        else:
            await body.write(piece)
    await exchange.send({"type": "http.response.body", "body": b"end", "more_body": True})
    await exchange.send(END)


async def test_direct_chunks_mix_with_ordinary_ones_and_keep_the_connection() -> None:
    async with serving(stream_both_ways) as served:
        client = await served.connect()
        for _ in range(2):
            await client.get("/")
            body = (await client.read_until(b"0\r\n\r\n")).partition(b"\r\n\r\n")[2]
            assert body == b"3\r\none\r\nbb8\r\n" + b"two" * 1000 + b"\r\n3\r\nend\r\n0\r\n\r\n"


@pytest.mark.parametrize("way", ["direct", "without waiting", "ordinary"])
async def test_a_reader_slower_than_its_writer_still_gets_every_byte_in_order(way: str) -> None:
    pieces = [bytes([number]) * 300_000 for number in range(20)]

    async def app(exchange: Exchange) -> None:
        await exchange.send(START)
        body = None if way == "ordinary" else exchange.open_body()
        for piece in pieces:
            if body is not None:
                if way == "direct" or not body.write_now(piece):
                    await body.write(piece if way == "direct" else b"")
            else:
                await exchange.send(
                    {"type": "http.response.body", "body": piece, "more_body": True}
                )
        await exchange.send(END)

    async with serving(app) as served:
        client = await served.connect()
        await client.get("/", "Connection: close")
        await client.read_until(b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(cushion=0.01)  # the writer is stuck by now
        expected = b"".join(b"493e0\r\n" + piece + b"\r\n" for piece in pieces)
        assert await client.read_to_end() == expected + b"0\r\n\r\n"


async def test_without_chunks_there_is_no_direct_writer() -> None:
    async with serving(stream_both_ways) as served:
        client = await served.connect()
        await client.get("/", version="1.0")
        answer = await client.read_to_end()
        assert answer.endswith(b"\r\n\r\none" + b"two" * 1000 + b"end")


async def test_a_direct_writer_ends_with_its_response() -> None:
    kept: list[DirectBody | None] = []

    async def app(exchange: Exchange) -> None:
        assert exchange.open_body() is None
        sized = exchange.path == "/sized"
        headers = [(b"content-length", b"0")] if sized else []
        await exchange.send({**START, "headers": headers})
        kept.append(exchange.open_body())
        await exchange.send(END)

    async with serving(app) as served:
        client = await served.connect()
        await client.get("/sized")
        await client.response()
        await client.get("/")
        await client.read_until(b"0\r\n\r\n")
        none, body = kept
        assert none is None
        assert body is not None
        with pytest.raises(ClientGoneError):
            await body.write(b"late")
        with pytest.raises(ClientGoneError):
            body.write_now(b"late")


async def test_a_direct_writer_says_that_the_client_has_left() -> None:
    ended: list[BaseException] = []
    async with serving(pour_directly(ended.append)) as served:
        client = await served.connect()
        await client.get("/")
        await client.read_until(b"\r\n\r\n")
        await client.stream.aclose()
        await until(lambda: bool(ended))
        assert isinstance(ended[0], ClientGoneError)


# -------------------------------------------------------------------------------------- WebSockets


class Listener:
    """Accepts a WebSocket, and reads only when told to.

    ``takes_texts``: where they are read, instead of receiving them; ``at_once``: without waiting.
    """

    def __init__(self, *, takes_texts: bool = False, at_once: bool = False) -> None:
        self.read = trio.Event()
        self.seen: list[str | bytes] = []
        self.end: dict[str, object] = {}
        self.ended = trio.Event()
        self.takes_texts = takes_texts
        self.at_once = at_once
        self.num_at_once = 0

    def takes_now(self, text: str) -> bool:
        return self.at_once and self.read.is_set() and len(text) < 1000

    def take(self, texts: Sequence[str]) -> Awaitable[None] | None:
        if not all(map(self.takes_now, texts)):
            return self.take_slowly(texts)
        self.num_at_once += len(texts)
        self.seen += texts
        return None

    async def take_slowly(self, texts: Sequence[str]) -> None:
        await self.read.wait()
        self.seen += texts

    async def __call__(self, exchange: Exchange) -> None:
        assert (await exchange.receive())["type"] == "websocket.connect"
        if self.takes_texts:
            assert exchange.websocket is not None
            exchange.websocket.take_texts_to(self)
        await exchange.send({"type": "websocket.accept"})
        await self.read.wait()
        while (message := await exchange.receive())["type"] == "websocket.receive":
            text = message.get("text")
            self.seen.append(text if text is not None else message["bytes"])
        self.end = dict(message)
        self.ended.set()


@pytest.fixture(params=["received", "taken", "at once", "while Trio waits"])
async def listener(request: pytest.FixtureRequest) -> AsyncIterator[Listener]:
    """All ways to get texts: everything holds for each."""
    at_once = request.param in {"at once", "while Trio waits"}
    async with trio.open_nursery() as nursery:
        if request.param == "while Trio waits":
            nursery.start_soon(run_ready_sockets)
        yield Listener(takes_texts=request.param != "received", at_once=at_once)
        nursery.cancel_scope.cancel()


def _has_seen(listener: Listener, number: int) -> bool:
    return len(listener.seen) == number


@pytest.mark.parametrize("size", [1, 40])
async def test_texts_keep_their_order_whatever_comes_between(listener: Listener, size: int) -> None:
    listener.read.set()
    async with serving(listener, ping_interval_s=3600) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        long = b"\x81\xff" + (100_000).to_bytes(8, "big") + b"\0\0\0\0" + b"l" * 100_000
        fragments = b"\x01\x81\0\0\0\0f" + b"\x89\x80\0\0\0\0" + b"\x80\x81\0\0\0\0g"

        def short(letter: bytes) -> bytes:
            return bytes([0x81, 0x80 | size, 0, 0, 0, 0]) + letter * size

        mixed = short(b"a") + long + short(b"b") + fragments + b"".join([short(b"c")] * 200)
        for data, number in ((mixed, 204), (short(b"d"), 205), (short(b"e"), 206)) * 2:
            if len(listener.seen) >= number:
                number += 206  # the second time
            await client.stream.send_all(data)
            await until(partial(_has_seen, listener, number))
        await client.stream.send_all(b"\x88\x82\0\0\0\0\x03\xe8")
        await listener.ended.wait()
        await client.read_until(b"\x8a\x00")  # the pong
        around = [letter * size for letter in ("a", "b", *"c" * 200, "d", "e")]
        once = [around[0], "l" * 100_000, around[1], "fg", *around[2:]]
        assert listener.seen == [*once, *once]
        assert listener.num_at_once > 400 or not listener.at_once
        assert listener.end["code"] == 1000


async def test_six_messages_and_then_a_close_all_arrive_with_its_code(
    listener: Listener,
) -> None:
    async with serving(listener, ping_interval_s=3600) as served:  # nothing waits for a ping
        async with served.websocket("/") as sock:
            for number in range(6):
                await sock.send_message(f"message {number}")
            listener.read.set()
            await sock.aclose(4001, "enough")
        await listener.ended.wait()
        assert listener.seen == [f"message {number}" for number in range(6)]
        assert (listener.end["code"], listener.end["reason"]) == (4001, "enough")
        await until(lambda: served.server.statistics().open_connections == 0)


async def test_a_socket_that_vanishes_ends_with_1006(
    listener: Listener,
) -> None:
    listener.read.set()
    async with serving(listener) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        await client.stream.aclose()
        await listener.ended.wait()
        assert listener.end["code"] == 1006


async def test_a_socket_that_vanishes_leaves_no_parser(listener: Listener) -> None:
    """As with connections: no garbage waits for a full collection."""

    def parsers() -> int:
        return sum(isinstance(each, FrameProtocol) for each in gc.get_objects())

    listener.read.set()
    async with serving(listener, ping_interval_s=3600) as served:
        gc.collect()
        gc.disable()
        try:
            before = parsers()
            client = await served.connect()
            await client.get("/", *UPGRADE)
            await client.read_until(b"\r\n\r\n")
            await client.stream.send_all(b"\x89\x80\0\0\0\0")
            await client.read_until(b"\x8a\x00")
            assert parsers() == before + 1
            await client.stream.aclose()
            await listener.ended.wait()
            await until(lambda: not served.server.statistics().open_connections)
            await trio.testing.wait_all_tasks_blocked()
            assert parsers() == before
        finally:
            gc.enable()


UPGRADE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def test_compression_is_never_negotiated_and_pings_begin_at_once() -> None:
    async with serving(Listener()) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE, "Sec-WebSocket-Extensions: permessage-deflate")
        head = await client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        assert b"extensions" not in head.lower()
        await client.read_until(b"\x89\x00")


@pytest.mark.parametrize("message", ["x" * 1001, "ä" * 501, b"x" * 1001, "x" * 5_000_000])
async def test_a_message_over_the_limit_closes_with_1009_and_tells_the_application(
    message: str | bytes, listener: Listener
) -> None:
    listener.read.set()
    async with serving(listener, max_websocket_message_bytes=1000) as served:
        async with served.websocket("/") as sock:
            await sock.send_message("x" * 1000)
            await sock.send_message(message)
            with pytest.raises(ConnectionClosed) as closed:
                await sock.get_message()
            assert isinstance(closed.value.reason, CloseReason)
            assert closed.value.reason.code == 1009
            assert closed.value.reason.reason == "message over the limit of 1000 bytes"
        await listener.ended.wait()
        assert listener.seen == ["x" * 1000]
        assert listener.end["code"] == 1009


async def test_what_an_over_long_message_goes_on_sending_is_not_kept(
    listener: Listener,
) -> None:
    listener.read.set()
    async with serving(listener, max_websocket_message_bytes=1000, linger_s=0.2) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        endless = b"\x82\xff" + (2**40).to_bytes(8, "big") + b"\0\0\0\0"
        await client.stream.send_all(endless)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_until_refused()
        await until(lambda: served.server.statistics().open_connections == 0)
        assert listener.end["code"] == 1009


async def test_a_message_in_more_fragments_than_its_length_explains_closes_with_1008(
    listener: Listener,
) -> None:
    listener.read.set()
    async with serving(listener) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        # large enough to be no small frames
        piece = b"\xa8\0\0\0\0" + b"a" * 40
        first, next_one, last = b"\x01" + piece, b"\x00" + piece, b"\x80" + piece
        await client.stream.send_all(first + next_one * (FREE_FRAGMENTS - 2) + last)
        await client.stream.send_all(first + next_one * (2 * FREE_FRAGMENTS))
        await client.read_until((1008).to_bytes(2, "big"))
        await listener.ended.wait()
        assert listener.seen == ["a" * 40 * FREE_FRAGMENTS]
        assert listener.end["code"] == 1008
        assert "fragments" in str(listener.end["reason"])


async def test_malformed_frames_get_their_close_code(listener: Listener) -> None:
    listener.read.set()
    async with serving(listener) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        await client.stream.send_all(b"\x81\x81\0\0\0\0\xff")  # text that is not UTF-8
        await client.read_until((1007).to_bytes(2, "big"))
        await listener.ended.wait()
        assert listener.end["code"] == 1007


EMPTY_TEXT, TEXT_BEGINS, LETTER = b"\x81\x80\0\0\0\0", b"\x01\x80\0\0\0\0", b"\x00\x81\0\0\0\0x"
MESSAGE_ENDS = b"\x80\x80\0\0\0\0"
PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0"
LARGE_PING = b"\x89\xfd\0\0\0\0" + b"p" * 125


@pytest.mark.parametrize("frame", [EMPTY_TEXT, LETTER, PING, LARGE_PING, PONG])
async def test_a_flood_of_small_frames_closes_with_1008(frame: bytes, listener: Listener) -> None:
    listener.read.set()
    async with serving(listener) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                client.stream.send_all, TEXT_BEGINS * (frame is LETTER) + frame * 10_000
            )
            await client.read_until((1008).to_bytes(2, "big") + b"more than ")
            nursery.cancel_scope.cancel()
        await listener.ended.wait()
        assert listener.end["code"] == 1008
        assert len(listener.seen) < 5_000


async def test_a_message_in_a_thousand_small_fragments_is_taken(listener: Listener) -> None:
    listener.read.set()
    async with serving(listener) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.read_until(b"\r\n\r\n")
        await client.stream.send_all(TEXT_BEGINS + LETTER * 1_000 + MESSAGE_ENDS)
        await client.stream.send_all(b"\x88\x82\0\0\0\0" + (1000).to_bytes(2, "big"))
        await client.read_until(b"\x88\x02" + (1000).to_bytes(2, "big"))
        await listener.ended.wait()
        assert listener.seen == ["x" * 1_000]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Version": "Sec-WebSocket-Version: 8"}, 400),
        ({"Key": "X: y"}, 400),
        ({}, 403),
    ],
)
async def test_a_refused_handshake_ends_its_connection(
    changes: dict[str, str], status: int
) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.send({"type": "websocket.close", "code": 1000})

    headers = [
        next((new for name, new in changes.items() if f"-{name}:" in line), line)
        for line in UPGRADE
    ]
    async with serving(refuse) as served:
        client = await served.connect()
        await client.get("/", *headers)
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 %d" % status)


async def test_frames_before_the_handshake_are_refused_and_the_application_is_told() -> None:
    told = trio.Event()

    async def slow(exchange: Exchange) -> None:
        while (await exchange.receive())["type"] != "websocket.disconnect":
            pass
        told.set()

    async with serving(slow) as served:
        client = await served.connect()
        await client.get("/", *UPGRADE)
        await client.stream.send_all(b"\x81\x80\0\0\0\0")
        assert (await client.read_to_end()).startswith(b"HTTP/1.1 400")
        await told.wait()


async def test_quart_serves_websockets_beside_its_routes() -> None:
    async with serving(quart_hello()) as served:
        async with served.websocket("/socket") as sock:
            await sock.send_message("echo")
            assert await sock.get_message() == "echo"
        for path, status in (("/nowhere", 403), ("/", 426)):
            with pytest.RaisesGroup(
                pytest.RaisesExc(ConnectionRejected, match=str(status)),
                allow_unwrapped=True,
                flatten_subgroups=True,
            ):
                async with served.websocket(path):
                    pass


async def test_quart_answers_ordinary_routes_as_the_router_answers_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(exchange: Exchange, params: Params) -> None:
        if params["how"] == "bug":
            raise KeyError("bug")
        raise HttpProblem(409, f"it is {params['how']}", [(b"retry-after", b"5")])

    def numbers(value: object) -> list[int]:
        assert isinstance(value, list)
        return value

    async def sums(exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, sum(await json_body(exchange, numbers)))

    async def pieces(exchange: Exchange, params: Params) -> None:
        await exchange.send(START)
        await exchange.send({"type": "http.response.body", "body": b"one", "more_body": True})
        await exchange.send(END)

    requests = (
        ("GET", "/fails/taken%20now", b""),
        ("GET", "/fails/bug", b""),
        ("GET", "/fails/", b""),
        ("GET", "/fails/a/b", b""),
        ("POST", "/fails/bug", b""),
        ("POST", "/sums", b"[1, 2, 39]"),
        ("POST", "/sums", b"[1, 2"),
        ("GET", "/sums", b""),
        ("DELETE", "/sums", b""),
        ("GET", "/sums/", b""),
        ("GET", "//sums", b""),
        ("HEAD", "/fails/bug", b""),
        ("GET", "/nowhere", b""),
    )
    answers: list[list[bytes]] = []
    for router in (QuartRouter(), Router()):
        router.http("GET", "/fails/{how}", fails)
        router.http("POST", "/sums", sums)
        router.stream("GET", "/sums", pieces)
        answers.append([])
        async with serving(router) as served:
            for method, target, body in requests:
                client = await served.connect()
                lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close"]
                if body:
                    lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
                await client.stream.send_all("\r\n".join([*lines, "", ""]).encode() + body)
                answer = await client.read_to_end()
                answers[-1].append(re.sub(rb"date: [^\r]+\r\n", b"", answer))
    by_quart, by_router = answers
    assert by_quart == by_router
    statuses = [int(answer.split()[1]) for answer in by_quart]
    assert statuses == [409, 500, 404, 404, 404, 200, 400, 200, 404, 404, 404, 404, 404]
    assert by_quart[0].endswith(b"it is taken now")
    assert b"retry-after: 5\r\n" in by_quart[0]
    assert by_quart[5].endswith(b"\r\n\r\n42")
    assert caplog.text.count("GET /fails/bug failed") == 2


async def test_quart_answers_nothing_to_a_client_that_has_left() -> None:
    async def gone(exchange: Exchange, params: Params) -> None:
        raise ClientGoneError("it has left")

    router = QuartRouter()
    router.http("GET", "/gone", gone)
    scope = {"path": "/gone", "raw_path": b"/gone", "root_path": "", "scheme": "http"}
    await router(exchange_for({**scope, "http_version": "1.1"}))  # whose send would fail

"""WebSockets to servers behind agents pass as if nobody stood between both ends.

Balancer and agents run in the test's own nursery, on real sockets; the server is one of wsproto, or
sends exactly the bytes that a test wants.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio_websocket
from native_client import running_balancer
from scripted_server import Exchange, scripted_server
from test_reverse_proxy import (
    FINE,
    PATIENCE_S,
    PORT,
    Proxy,
    proxy,
    read_until,
    sends,
    start_agent,
)
from test_tunnels_that_lie import lying
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from certificates import Authority
from paddler_trio.balancer.reverse_proxy import slot_paths, tunnel_exchange
from paddler_trio.nursery_tree.dispatch_limits import STOP_CONFIRMATION_S

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ASK = (
    b"GET /ws?a=%%20b HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: realtime\r\n\r\n"
) % KEY
MIB = 1_048_576


def switching(exchange: Exchange, more: bytes = b"") -> bytes:
    """The head with which a server agrees."""
    key = exchange.headers[b"sec-websocket-key"]
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
    return (
        b"HTTP/1.1 101 Come In\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n%b\r\n" % (accept, more)
    )


async def echo(exchange: Exchange) -> None:
    """A WebSocket server that sends each message back, in the fragments in which it came."""
    await exchange.send(switching(exchange))
    server = Connection(ConnectionType.SERVER)
    while True:
        data = await exchange.stream.receive_some(65_536)
        server.receive_data(bytes(data) or None)
        for event in server.events():
            if isinstance(event, TextMessage | BytesMessage):
                await exchange.send(server.send(event))
            elif isinstance(event, Ping | CloseConnection):
                if event == CloseConnection(code=1006, reason=None) or not data:
                    return None
                await exchange.send(server.send(event.response()))
                if isinstance(event, CloseConnection):
                    return await exchange.stream.aclose()


async def raw_echo(exchange: Exchange) -> None:
    """No WebSocket, but whatever comes, and what is left when the client has closed its side."""
    await exchange.send(switching(exchange))
    async for data in exchange.stream:
        await exchange.send(bytes(data))
    await exchange.send(b"bye")
    await exchange.stream.aclose()


@asynccontextmanager
async def client(fleet: Proxy, path: str = "/ws") -> AsyncIterator[Any]:
    url = f"ws://{fleet.balancer.reverse_proxy}{path}"
    with trio.fail_after(PATIENCE_S):
        async with trio_websocket.open_websocket_url(url, max_message_size=8 * MIB) as opened:
            yield opened


async def switched(stream: trio.SocketStream, ask: bytes = ASK) -> bytes:
    """What came behind the 101."""
    await stream.send_all(ask)
    data = await read_until(stream, b"\r\n\r\n")
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Come In"), data
    return rest


async def at_end(stream: trio.SocketStream) -> bytes:
    """All that comes until the connection ends, in order or not."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        try:
            async for piece in stream:
                data += piece
        except trio.BrokenResourceError:
            pass
    return data


async def free(fleet: Proxy) -> None:
    """Wait until no slot is taken."""
    await fleet.balancer.wait_slots(0)


async def test_messages_of_four_mib_pings_and_close_codes_pass_both_ways() -> None:
    big = os.urandom(4 * MIB)
    async with proxy(echo) as fleet, client(fleet) as opened:
        for message in ("hello", big, "x" * 70_000):
            await opened.send_message(message)
            assert await opened.get_message() == message
        await opened.ping(b"are you there")
        await opened.aclose(4321, "as agreed")
        assert opened.closed.code == 4321
        assert opened.closed.reason == "as agreed"


async def test_heads_pass_and_what_comes_right_behind_them() -> None:
    async def script(exchange: Exchange) -> None:
        more = b"Sec-WebSocket-Protocol: realtime\r\nX-Odd: 1\r\nContent-Length: 0\r\n"
        await exchange.send(switching(exchange, more) + b"\x81\x02hi")
        await exchange.client_gone()

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK)
        data = await read_until(stream, b"\x81\x02hi")
        head = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert head[0] == b"HTTP/1.1 101 Come In"
        assert b"Upgrade: WebSocket" in head
        assert b"Connection: Upgrade" in head
        assert b"Sec-WebSocket-Protocol: realtime" in head
        assert b"X-Odd: 1" in head
        assert b"X-Paddler-Agent: up1".lower() in [line.lower() for line in head]
        assert not any(line.lower().startswith(b"content-length") for line in head)
        (asked,) = fleet.servers[0].asked
        assert asked.target == b"/ws?a=%20b"
        assert asked.headers[b"sec-websocket-key"] == KEY
        assert asked.headers[b"sec-websocket-extensions"] == b"permessage-deflate"
        assert asked.headers[b"sec-websocket-protocol"] == b"realtime"
        assert asked.headers[b"x-forwarded-for"] == b"127.0.0.1"


async def test_bytes_before_the_101_wait_for_it_and_come_first() -> None:
    early = bytes(range(256)) * 800
    async with (
        proxy(raw_echo) as fleet,
        await fleet.connect() as stream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stream.send_all, ASK + early + b"end")
        data = await read_until(stream, b"end")
        assert data.partition(b"\r\n\r\n")[2] == early + b"end"


async def test_a_side_that_is_closed_is_closed_for_the_server_which_may_answer() -> None:
    async with proxy(raw_echo) as fleet, await fleet.connect() as stream:
        await switched(stream)
        await stream.send_all(b"last")
        await stream.send_eof()
        assert await at_end(stream) == b"lastbye"


async def test_a_refusal_is_an_answer_and_the_connection_is_kept() -> None:
    refusal = b"HTTP/1.1 403 No\r\nX-Why: so\r\nContent-Length: 2\r\n\r\nno"
    async with proxy(sends(refusal)) as fleet, await fleet.connect() as stream:
        for _ in range(3):
            await stream.send_all(ASK)
            answer = await read_until(stream, b"\r\n\r\nno")
            assert answer.startswith(b"HTTP/1.1 403 No\r\nX-Why: so\r\n")
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        await read_until(stream, b'"slots_idle"')


async def test_other_upgrades_are_not_asked_of_the_server() -> None:
    async with proxy(sends(FINE)) as fleet:
        for other in (b"h2c", b"websocket, h2c", b"x"):
            answer = await fleet.answer(ASK.replace(b"Upgrade: websocket", b"Upgrade: " + other))
            assert answer.endswith(b"fine")
            assert b"upgrade" not in fleet.servers[0].asked[-1].headers


async def test_a_server_that_switches_unasked_gets_nobody_out_of_http() -> None:
    async with proxy(sends(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n")) as fleet:
        answer = await fleet.answer(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 502")


async def test_a_page_of_a_foreign_origin_opens_none() -> None:
    async with proxy(raw_echo) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK.replace(b"Host: h", b"Host: h\r\nOrigin: http://evil.example"))
        answer = await read_until(stream, b"open a WebSocket")
        assert answer.startswith(b"HTTP/1.1 403")
        assert not fleet.servers[0].asked


async def test_one_has_a_slot_as_long_as_it_is_open_where_a_model_works() -> None:
    async with proxy(raw_echo, slots=1) as fleet:
        ask = ASK.replace(b"/ws?a=%20b", b"/v1/realtime?model=m")
        async with await fleet.connect() as first, await fleet.connect() as second:
            await switched(first, ask)
            await fleet.balancer.wait_slots(1)
            await second.send_all(ask)
            await fleet.balancer.wait_buffered(1)
            assert len(fleet.servers[0].asked) == 1
            await first.aclose()
            await read_until(second, b"\r\n\r\n")
        await free(fleet)


async def test_who_has_most_sockets_in_slots_gives_one_up_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_paths, "PATIENCE_S", 0.05)
    ask = ASK.replace(b"/ws", b"/v1/realtime")
    async with proxy(raw_echo, slots=4) as fleet:
        streams = [await fleet.connect() for _ in range(4)]
        for number, stream in enumerate(streams, 1):
            await switched(stream, ask)
            await fleet.balancer.wait_slots(number)
        for stream in streams[1:]:  # the first one is the one that was silent longest
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"x"
        async with await fleet.connect(source="127.0.0.2") as other:
            await switched(other, ask)
            assert await at_end(streams[0]) == b""
            await fleet.balancer.wait_slots(4)
            for stream in streams[1:]:
                await stream.send_all(b"y")
                assert await stream.receive_some() == b"y"
        for stream in streams:
            await stream.aclose()
        await free(fleet)


async def test_pings_keep_no_slot_from_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_paths, "PATIENCE_S", 0.05)
    monkeypatch.setattr(slot_paths, "SILENCE_S", 0.5)
    ask = ASK.replace(b"/ws", b"/v1/realtime")
    async with proxy(raw_echo, slots=1) as fleet, trio.open_nursery() as nursery:
        sleeper = await fleet.connect()
        await switched(sleeper, ask)

        async def ping() -> None:
            try:
                while True:
                    await sleeper.send_all(b"\x89\x84\0\0\0\0ping\x89\x80\0\0\0\0")
                    await trio.sleep(0.05)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        nursery.start_soon(ping)
        async with await fleet.connect() as second:
            await switched(second, ask)
        nursery.cancel_scope.cancel()
        await sleeper.aclose()


async def test_those_beside_slots_are_bounded() -> None:
    async with proxy(raw_echo, slots=1) as fleet:
        streams = [await fleet.connect() for _ in range(17)]
        for stream in streams[:16]:
            await switched(stream)
        await streams[16].send_all(ASK)
        answer = await read_until(streams[16], b"open already at the server of up1")
        assert answer.startswith(b"HTTP/1.1 503")
        await streams[0].aclose()
        answer = b""
        while not answer.startswith(b"HTTP/1.1 101"):  # as soon as the first one has ended
            await streams[16].send_all(ASK)
            answer = await read_until(streams[16], b"\r\n\r\n")
            if answer.startswith(b"HTTP/1.1 503") and b"already" not in answer:
                await read_until(streams[16], b"already")
        for stream in streams:
            await stream.aclose()


async def test_the_client_that_is_gone_ends_it_for_the_server() -> None:
    ended = trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange))
        await exchange.client_gone()
        ended.set()

    async with proxy(script) as fleet:
        for is_reset in (False, True):
            stream = await fleet.connect()
            await switched(stream)
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await stream.aclose()
            with trio.fail_after(PATIENCE_S):
                await ended.wait()
            ended = trio.Event()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_server_that_is_gone_ends_it_for_the_client(is_reset: bool) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange) + b"\x81\x02hi")
        await exchange.stream.receive_some(1)
        if is_reset:
            linger = struct.pack("ii", 1, 0)
            exchange.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await exchange.stream.aclose()

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await switched(stream)
        await stream.send_all(b"x")
        assert await at_end(stream) in (b"\x81\x02hi", b"")


async def test_the_agent_that_stops_ends_it_on_both_sides() -> None:
    ended = trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange))
        await exchange.client_gone()
        ended.set()

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await switched(stream)
        fleet.agents[0].set()
        await at_end(stream)
        with trio.fail_after(PATIENCE_S):
            await ended.wait()


async def test_nothing_either_way_for_too_long_ends_it() -> None:
    async with proxy(raw_echo, reverseproxy_response_timeout_s=0.5) as fleet:
        for path in (b"/ws", b"/v1/realtime"):
            async with await fleet.connect() as stream:
                await switched(stream, ASK.replace(b"/ws", path))
                for _ in range(8):
                    await stream.send_all(b"x")
                    assert await stream.receive_some(1) == b"x"
                    await trio.sleep(0.1)  # in which it is not idle
                assert await at_end(stream) == b""
        await free(fleet)


async def test_a_101_that_never_comes_is_given_up() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.client_gone()

    async with proxy(script, reverseproxy_response_timeout_s=0.3) as fleet:
        answer = await fleet.answer(ASK)
        assert answer.startswith(b"HTTP/1.1 504")


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_server_that_does_not_read_stops_the_client_whose_loss_is_seen(
    is_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_exchange, "CLOSED_SIDE_S", 0.5)
    ended, go_on = trio.Event(), trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange))
        await go_on.wait()
        await exchange.client_gone()
        ended.set()

    async with proxy(script) as fleet:
        stream = await fleet.connect()
        await switched(stream, ASK.replace(b"/ws", b"/v1/realtime"))
        await fleet.balancer.wait_slots(1)
        if not is_reset:
            await stream.send_all(bytes(16 * MIB))  # of which the balancer reads some ahead
        else:
            for _ in range(64):
                with trio.move_on_after(1) as patience:
                    await stream.send_all(bytes(MIB))
                if patience.cancelled_caught:
                    break
            else:
                raise AssertionError("nothing stops the client")
            linger = struct.pack("ii", 1, 0)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await stream.aclose()
        with trio.fail_after(STOP_CONFIRMATION_S - 0.5):  # the agent noticed, and said so
            await fleet.balancer.wait_slots(0)
        go_on.set()
        with trio.fail_after(PATIENCE_S):
            await ended.wait()


async def test_a_client_that_does_not_read_stops_the_server() -> None:
    stopped = trio.Event()
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(switching(exchange))
        while sent < 64 * MIB:
            with trio.move_on_after(1) as patience:
                await exchange.send(bytes(MIB))
            if patience.cancelled_caught:
                stopped.set()
                return
            sent += MIB

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK)
        with trio.fail_after(PATIENCE_S):
            await stopped.wait()
        assert sent < 64 * MIB


async def test_an_agent_of_before_is_not_asked_and_the_client_is_told() -> None:
    async with lying(allowed_hosts=("h",)) as agent:
        host, _, port = agent.balancer.reverse_proxy.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(ASK)
            answer = await read_until(stream, b"of an older version")
            assert answer.startswith(b"HTTP/1.1 501")


async def test_another_agent_is_asked_if_the_first_one_is_too_old_or_has_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel_exchange, "MAX_WEBSOCKETS", 1)
    async with (
        lying(allowed_hosts=("h",)) as old,
        scripted_server(raw_echo) as server,
        trio.open_nursery() as nursery,
    ):
        host, _, port = old.balancer.reverse_proxy.rpartition(":")
        stops = [
            await start_agent(nursery, old.balancer, server.url, name, 2, {})
            for name in ("up1", "up2")
        ]
        await old.balancer.wait_agents(lambda agents: [a["slots_total"] for a in agents] == [2] * 3)
        async with (
            await trio.open_tcp_stream(host, int(port)) as first,
            await trio.open_tcp_stream(host, int(port)) as second,
            await trio.open_tcp_stream(host, int(port)) as third,
        ):
            for stream in (first, second):
                await switched(stream)
                await stream.send_all(b"x")
                assert await stream.receive_some(1) == b"x"
            await third.send_all(ASK)
            answer = await read_until(third, b"\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 501", b"HTTP/1.1 503")), "nobody is left"
        async with await trio.open_tcp_stream(host, int(port)) as named:
            await named.send_all(ASK.replace(b"Host", b"X-Paddler-Agent: liar\r\nHost"))
            assert (await read_until(named, b"older version")).startswith(b"HTTP/1.1 501")
        for stop in stops:
            stop.set()
        nursery.cancel_scope.cancel()


async def test_an_agent_that_is_killed_ends_it_on_both_sides() -> None:
    ended = trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange))
        await exchange.client_gone()
        ended.set()

    async with (
        running_balancer(**PORT) as balancer,
        scripted_server(script) as server,
        trio.open_nursery() as nursery,
    ):
        command = [sys.executable, "-m", "paddler_trio", "agent", "--slots", "1", "--name", "up1"]
        places = ["--upstream", server.url, "--management-addr", balancer.management]
        run = partial(trio.run_process, check=False, capture_stdout=True)
        process = await nursery.start(run, [*command, *places])
        await balancer.wait_agents(lambda agents: [a["slots_total"] for a in agents] == [1])
        host, _, port = balancer.reverse_proxy.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await switched(stream)
            process.kill()
            assert await at_end(stream) == b""
            with trio.fail_after(PATIENCE_S):
                await ended.wait()


async def test_a_balancer_that_stops_ends_it_within_its_drain() -> None:
    ended = trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(switching(exchange))
        await exchange.client_gone()
        ended.set()

    async with (
        proxy(script) as fleet,
        await fleet.connect() as beside,
        await fleet.connect() as stream,
    ):
        await switched(beside)
        await switched(stream, ASK.replace(b"/ws", b"/v1/realtime"))
        fleet.balancer.stop.set()
        with trio.fail_after(PATIENCE_S):
            await fleet.balancer.ended.wait()
            await ended.wait()
        assert await at_end(stream) == await at_end(beside) == b""


async def test_over_tls_on_every_way(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    pair = authority.sign()
    early = bytes(range(256)) * 1200
    async with (
        running_balancer(
            **PORT,
            tls_cert=pair.cert,
            tls_key=pair.key,
            buffered_request_timeout_s=PATIENCE_S,  # the agent is a process that takes its time
        ) as balancer,
        scripted_server(raw_echo) as server,
        trio.open_nursery() as nursery,
    ):
        command = [sys.executable, "-m", "paddler_trio", "agent", "--slots", "1", "--name", "up1"]
        places = ["--upstream", server.url, "--management-addr", f"https://{balancer.management}"]
        run = partial(trio.run_process, check=False, capture_stdout=True)
        await nursery.start(run, [*command, *places, "--tls-ca", str(authority.cert)])
        host, _, port = balancer.reverse_proxy.rpartition(":")
        context = authority.client_context()
        for _ in range(3):
            stream = await trio.open_ssl_over_tcp_stream(
                host, int(port), ssl_context=context, https_compatible=True
            )
            async with trio.open_nursery() as sending:
                sending.start_soon(stream.send_all, ASK + early + b"end")
                data = b""
                with trio.fail_after(PATIENCE_S):
                    while not data.endswith(b"end"):
                        piece = await stream.receive_some(65_536)
                        assert piece, data[:200]
                        data += piece
            assert data.partition(b"\r\n\r\n")[2] == early + b"end"
            await stream.aclose()
        nursery.cancel_scope.cancel()

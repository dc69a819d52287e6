"""Handshakes: who is refused and how, and what one may cost."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from http_world import EncryptedStream, WorldTls, hello, over_tls, serving, until

from certificates import Authority
from openssl_client import OpensslClient
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.tls.server_context import TlsFiles
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.net.tls.tls_connection import MAX_BYTES, MAX_PIECES


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldTls]:
    with over_tls(tmp_path_factory.mktemp("certificates")) as tls:
        yield tls


@pytest.fixture(autouse=True)
def _in_the_world(world: WorldTls) -> None:
    """Every test is over TLS."""


async def test_plain_http_is_answered_with_the_right_scheme() -> None:
    async with serving(hello) as served:
        for request in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /completion HT"):
            stream = (await served.connect(handshake=False)).stream
            await stream.send_all(request)
            answer = await _read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b"use https:// instead of http://" in answer
        assert served.server.statistics().dropped_for_abuse == 2


@pytest.mark.parametrize("sent", [b"\x00", b"\x80\x2e\x01\x00\x02", bytes(5000)])
async def test_garbage_ends_at_once(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.send_all(sent)
        assert await stream.receive_some(10) == b""
    assert "no TLS: neither TLS nor HTTP" in caplog.text


async def test_a_record_that_is_no_hello_gets_an_alert() -> None:
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.send_all(b"\x16\x03\x01\x00\x05hello")
        answer = await _read_to_end(stream)
        assert answer[:1] == b"\x15", "the type of alerts"
        assert served.server.statistics().dropped_for_abuse == 1


async def test_a_client_that_says_nothing_is_closed_at_the_deadline_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(hello, header_deadline_s=0.1) as served:
        stream = (await served.connect(handshake=False)).stream
        assert await stream.receive_some(10) == b""
        assert served.server.statistics().dropped_for_abuse == 0
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_handshake_that_stands_still_is_cut_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(hello, header_deadline_s=0.5) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.send_all(_hello()[:50])
        assert await stream.receive_some(10) == b""
        assert served.server.statistics().dropped_for_abuse == 1
    assert "its handshake was not done within 0.5 s" in caplog.text


async def test_the_time_for_the_first_request_begins_behind_the_handshake(world: WorldTls) -> None:
    async with serving(hello, header_deadline_s=0.5) as served:
        client = await served.connect()
        assert await client.read_to_end() == b""
        assert served.server.statistics().dropped_for_abuse == 0


async def test_a_probe_that_connects_and_leaves_is_not_worth_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.aclose()
        await until(lambda: served.server.statistics().accepted == 1)
        await until(lambda: served.server.statistics().open_connections == 0)
        assert served.server.statistics().dropped_for_abuse == 0
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_handshake_in_many_pieces_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    message = _hello()
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        for byte in message:
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked(0.0005)
            if served.server.statistics().dropped_for_abuse:
                break
        assert served.server.statistics().dropped_for_abuse == 1
    assert f"more than {MAX_PIECES} pieces" in caplog.text


async def test_a_handshake_over_its_size_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    # a hello that announces 64 KiB, in records of 16 KiB that come at their time
    record = b"\x16\x03\x01\x40\x00"
    hello_head = b"\x01\x00\xff\xff\x03\x03"
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.send_all(record + hello_head + bytes(0x4000 - len(hello_head)))
        for _ in range(3):
            await stream.send_all(record + bytes(0x4000))
        await until(lambda: served.server.statistics().dropped_for_abuse == 1)
    assert f"more than {MAX_BYTES} bytes" in caplog.text


async def test_connections_over_the_cap_are_closed_before_their_handshake(world: WorldTls) -> None:
    async with serving(hello, max_connections=1) as served:
        first = await served.connect()
        below = await trio.open_tcp_stream("127.0.0.1", served.port)
        with pytest.raises(trio.BrokenResourceError):
            await EncryptedStream.over(below, world.trusting)
        assert served.server.statistics().refused == 1
        await first.get("/")
        assert (await first.response())[0] == 200


async def test_a_connection_in_its_handshake_ends_when_the_server_does() -> None:
    async with serving(hello, header_deadline_s=1000) as served:
        stream = (await served.connect(handshake=False)).stream
        await stream.send_all(_hello()[:50])
        await until(lambda: served.server.statistics().open_connections == 1)
        served.server.close_idle()
        with trio.fail_after(50):
            await served.server.wait_all_closed()


async def test_the_next_request_and_the_goodbye_are_as_they_should_be(world: WorldTls) -> None:
    async with serving(hello, keep_alive_s=0.1) as served:
        below = await trio.open_tcp_stream("127.0.0.1", served.port)
        strict = trio.SSLStream(below, world.trusting, server_hostname="localhost")
        await strict.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while data := await strict.receive_some(1000):  # raises if the end comes without a goodbye
            received += data
        assert received.endswith(b"hello /")
        below.socket.close()


async def test_the_goodbye_comes_when_the_kernel_has_room_for_it(world: WorldTls) -> None:
    async with serving(hello) as served:
        below = (await served.connect(handshake=False)).stream
        assert isinstance(below, trio.SocketStream)
        strict = trio.SSLStream(below, world.trusting, server_hostname="localhost")
        await strict.do_handshake()
        (connection,) = served.server._open
        connection._write_some = lambda data: 0  # type: ignore[method-assign]  # it is full
        await strict.send_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
        received = b""
        while data := await strict.receive_some(65_536):
            received += data
        assert received.endswith(b"hello /")


async def test_the_answer_comes_in_order_when_it_is_written_in_pieces(world: WorldTls) -> None:
    parts = [b"%07d," % number for number in range(200_000)]

    async def count(exchange: Exchange) -> None:
        await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
        for start in (0, 50_000, 50_001, 100_000):
            stop = {0: 50_000, 50_000: 50_001, 50_001: 100_000, 100_000: 200_000}[start]
            body = b"".join(parts[start:stop])
            await exchange.send({"type": "http.response.body", "body": body, "more_body": True})
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving(count) as served:
        client = await served.connect()
        await client.get("/", version="1.0")
        received = await client.read_to_end()
        assert received.partition(b"\r\n\r\n")[2] == b"".join(parts)


async def test_a_request_and_its_body_may_come_with_the_last_of_the_handshake() -> None:
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        client = OpensslClient()
        while not client.handshake():
            if output := client.output():
                await stream.send_all(output)
            client.feed(bytes(await stream.receive_some(65_536)))
        client.write(b"POST /all HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
        for _ in range(20):
            client.write(bytes(10_000))
        await stream.send_all(client.output())
        received = b""
        while b"hello /all" not in received:
            client.feed(bytes(await stream.receive_some(65_536)))
            received += client.read() + client.read()
        client.close()


async def test_a_flood_of_key_updates_slows_its_sender(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(hello) as served:
        stream = (await served.connect(handshake=False)).stream
        client = OpensslClient()
        while not client.handshake():
            if output := client.output():
                await stream.send_all(output)
            client.feed(bytes(await stream.receive_some(65_536)))
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = client.output()
        for _ in range(3000):
            client.update_keys(asks_for_ours=True)
        client.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.send_all(sent + client.output())
        (connection,) = served.server._open
        began_s = trio.current_time()
        # 3,000 at 100 a second
        await until(lambda: connection._next_read_s > began_s + 10)
        client.close()


# --------------------------------------------------------------------------- clients' certificates


@pytest.mark.parametrize("auth", ["required", "optional"])
async def test_clients_certificates(
    world: WorldTls, tmp_path: object, tmp_path_factory: pytest.TempPathFactory, auth: str
) -> None:
    authority = Authority.make(tmp_path_factory.mktemp("clients"))
    stranger = Authority.make(tmp_path_factory.mktemp("strangers"))
    ours, theirs = authority.sign("alice"), stranger.sign("mallory")
    files = world.server.files
    tls = ServerTls.read(
        TlsFiles.of(files.cert, files.key, authority.cert, auth)  # type: ignore[arg-type]
    )
    async with serving(hello, tls=tls) as served:

        async def answer(cert: object, key: object) -> bytes:
            context = ssl.create_default_context(cafile=str(files.cert.parent / "ca.pem"))
            if cert is not None:
                context.load_cert_chain(str(cert), str(key))
            below = await trio.open_tcp_stream("127.0.0.1", served.port)
            stream = trio.SSLStream(
                below, context, server_hostname="localhost", https_compatible=True
            )
            try:
                await stream.send_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
                return await _read_to_end(stream)
            except trio.BrokenResourceError:
                return b""
            finally:
                below.socket.close()

        assert (await answer(ours.cert, ours.key)).endswith(b"hello /")
        assert await answer(theirs.cert, theirs.key) == b""
        assert bool(await answer(None, None)) == (auth == "optional")


def _hello() -> bytes:
    """The first bytes of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def _read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    while data := await stream.receive_some(65_536):
        received += data
    return received

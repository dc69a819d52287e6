"""The client of downloads against sockets that say exactly what a test has them say."""

from __future__ import annotations

import random
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from paddler_trio.models.hub.hub_settings import HubSettings, open_client_of
from paddler_trio.net.client.http_client import (
    MAX_IDLE,
    Answer,
    AnswerBrokenError,
    BodyBrokenError,
    Connection,
    NoAnswerError,
    Timeouts,
    open_client,
)
from paddler_trio.net.tls.certificate import certificates_of
from paddler_trio.net.tls.client_tls import ClientTls

TIMEOUTS = Timeouts(connect_s=5, silence_s=5)

Handler = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[int]:
    """The port where ``handle`` gets every connection."""

    async def connection(stream: trio.abc.Stream) -> None:
        try:
            await handle(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), connection, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def head(stream: trio.abc.Stream) -> bytes:
    """A request's head."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        piece = await stream.receive_some()
        if not piece:
            raise trio.BrokenResourceError
        received += piece
    return received


def saying(*answers: bytes) -> Handler:
    """A server that answers with these bytes, one for each request, then closes."""

    async def handle(stream: trio.abc.Stream) -> None:
        for answer in answers:
            try:
                await head(stream)
            except trio.BrokenResourceError:
                return
            await stream.send_all(answer)

    return handle


async def body_of(answer: Answer, space_bytes: int | None = None) -> bytes:
    """In pieces, or written to a space of ``space_bytes`` as often as it takes."""
    body, space = b"", memoryview(bytearray(space_bytes or 0))
    try:
        if space_bytes is None:
            while piece := await answer.receive():
                body += piece
        else:
            while count := await answer.receive_into(space):
                body += space[:count]
    finally:
        await answer.close()
    return body


async def get(url: str, space_bytes: int | None = None) -> bytes:
    async with open_client(TIMEOUTS) as client:
        return await body_of(await client.send("GET", httpx.URL(url), {}), space_bytes)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
@pytest.mark.parametrize("space_bytes", [None, 2, 100])
async def test_a_body_ends_where_its_framing_says(answer: bytes, space_bytes: int | None) -> None:
    async with served(saying(answer)) as port:
        assert await get(f"http://127.0.0.1:{port}/", space_bytes) == b"hello"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"SSH-2.0\r\n\r\n", "broke HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "broke HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "broke HTTP"),
    ],
)
async def test_a_head_that_is_none_is_refused(answer: bytes, cause: str) -> None:
    async with served(saying(answer)) as port:
        with pytest.raises(AnswerBrokenError, match=cause):
            await get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("space_bytes", [None, 2, 100])
async def test_a_body_that_ends_early_or_is_no_chunk_is_broken(space_bytes: int | None) -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"
    async with served(saying(short)) as port:
        with pytest.raises(BodyBrokenError, match="45 of 50 bytes before the end"):
            await get(f"http://127.0.0.1:{port}/", space_bytes)
    no_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    async with served(saying(no_chunk)) as port:
        with pytest.raises(BodyBrokenError, match="broke HTTP"):
            await get(f"http://127.0.0.1:{port}/", space_bytes)


async def test_what_follows_a_head_is_written_before_what_follows_it() -> None:
    """A body that comes with its head, and goes on after it, into spaces it does not fit."""
    body = bytes(range(256)) * 40

    async def in_two(stream: trio.abc.Stream) -> None:
        for answered in range(2):
            await head(stream)
            start = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            await stream.send_all(start + body[: 1000 * (answered + 1)])
            await stream.send_all(body[1000 * (answered + 1) :])

    async with served(in_two) as port, open_client(TIMEOUTS) as client:
        for space_bytes in (7, 4096):  # the second on the same connection: no byte was left over
            answer = await client.send("GET", httpx.URL(f"http://127.0.0.1:{port}/"), {})
            assert await body_of(answer, space_bytes) == body


async def test_no_answer_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with open_client(Timeouts(silence_s=30)) as client:
        near, far = trio.testing.memory_stream_pair()
        client.keep(("http", "host", 80), Connection(near, "host", 30, keep=lambda _: True))
        with pytest.raises(NoAnswerError, match="within 30 s"):
            await client.send("GET", httpx.URL("http://host/"), {})
        await trio.aclose_forcefully(far)


async def test_a_kept_connection_is_used_again_and_replaced_when_it_was_closed() -> None:
    connections = 0
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def handle(stream: trio.abc.Stream) -> None:
        nonlocal connections
        connections += 1
        await saying(answer, answer)(stream)

    async with served(handle) as port, open_client(TIMEOUTS) as client:
        url = httpx.URL(f"http://127.0.0.1:{port}/")
        for expected in (1, 1, 2, 2):
            assert await body_of(await client.send("GET", url, {})) == b"ok"
            assert connections == expected


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("169.254.169.254", "169.254.169.254 is link-local"),
        ("[::ffff:169.254.1.1]", "is link-local"),
        ("[fe80::1]", "fe80::1 is link-local"),
        ("2852039166", "169.254.169.254 is link-local"),  # the same in one number
        ("named.example", "169.254.7.7 is link-local"),
        ("[64:ff9b::a9fe:a9fe]", "is link-local"),  # NAT64
        ("[64:ff9b:1:a9fe:a9:fe00::]", "is link-local"),  # NAT64 with a prefix of the network's own
        ("[64:ff9b:1::a9fe:a9fe]", "is link-local"),
        ("[2002:a9fe:a9fe::1]", "is link-local"),  # 6to4
        ("[::a9fe:a9fe]", "is link-local"),  # IPv4-compatible
        ("[2001:db8::200:5efe:a9fe:a9fe]", "is link-local"),  # ISATAP
        ("[2001:0:a9fe:a9fe::1]", "is link-local"),  # Teredo
        ("[fd00:ec2::254]", "is a cloud's own"),
        ("[::ffff:100.100.100.200]", "is a cloud's own"),
        ("127.0.0.1:99999", "its port is 99999, the last is 65535"),
    ],
)
async def test_what_is_never_dialled(host: str, problem: str) -> None:
    trio.socket.set_custom_hostname_resolver(_Names())
    with pytest.raises(NoAnswerError, match=problem):
        await get(f"http://{host}/latest/meta-data")


@pytest.mark.parametrize("host", ["169.254.169.254", "2852039166", "0xa9.254.0xa9fe", "[fe80::1]"])
async def test_a_proxy_is_asked_for_no_address_that_is_never_dialled(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def handle(stream: trio.abc.Stream) -> None:
        asked.append(await head(stream))
        await stream.send_all(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with served(handle) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(NoAnswerError, match="is link-local"):
            await get(f"http://{host}/latest/meta-data")
        assert asked == []
        await get("http://named.example/")  # whose name it looks up, and judges
    assert asked[0].startswith(b"GET http://named.example:80/ ")


class _Names(trio.abc.HostnameResolver):
    """The system's answers, but for one name."""

    async def getaddrinfo(self, host: Any, port: Any, *more: Any) -> Any:
        if host in ("named.example", b"named.example"):
            host = "169.254.7.7"
        return await trio.to_thread.run_sync(socket.getaddrinfo, host, port, *more)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


async def test_users_and_passwords_of_a_url_become_a_header() -> None:
    heads: list[bytes] = []

    async def handle(stream: trio.abc.Stream) -> None:
        heads.append(await head(stream))
        await stream.send_all(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with served(handle) as port:
        await get(f"http://me:pass@127.0.0.1:{port}/x")
    assert b"Authorization: Basic bWU6cGFzcw==\r\n" in heads[0]
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in heads[0]


# --- TLS and proxies ------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost that signs itself, with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    path = tmp_path / "localhost.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", tmp_path / "key.pem", "-out", path, "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    with path.open("a") as file:
        file.write((tmp_path / "key.pem").read_text())
    return path


def encrypted(certificate: Path, handle: Handler) -> Handler:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def handle_tls(stream: trio.abc.Stream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError, ssl.SSLError):  # the client does not trust us
            await handle(tls)

    return handle_tls


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"


async def test_a_certificate_of_the_environment_is_trusted_and_another_one_is_not(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(encrypted(certificate, saying(OK))) as port:
        with pytest.raises(NoAnswerError, match="its certificate is not trusted"):
            await get(f"https://localhost:{port}/")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await get(f"https://localhost:{port}/") == b"secret"


@pytest.mark.parametrize("space_bytes", [None, 1000, 1 << 20])
async def test_a_large_body_over_tls_is_as_it_was_sent(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, space_bytes: int | None
) -> None:
    """Its connection is used again, so that no byte was left over; one that ends without a goodbye,
    as many servers do, has ended."""
    body = random.Random(1).randbytes(700_000)

    async def answer_twice(stream: trio.abc.Stream) -> None:
        for length in (len(body), len(body), len(body) + 1):
            await head(stream)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with (
        served(encrypted(certificate, answer_twice)) as port,
        open_client(TIMEOUTS) as client,
    ):
        url = httpx.URL(f"https://localhost:{port}/")
        for _ in range(2):
            assert await body_of(await client.send("GET", url, {}), space_bytes) == body
        with pytest.raises(BodyBrokenError, match="broke off 1 of 700001 bytes before the end"):
            await body_of(await client.send("GET", url, {}), space_bytes)


@pytest.mark.parametrize("space_bytes", [None, 1000])
async def test_what_is_no_record_breaks_the_body(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, space_bytes: int | None
) -> None:
    async def lie(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, trio.SSLStream)
        await head(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
        await stream.transport_stream.send_all(b"no record of TLS at all, " * 4)
        await stream.transport_stream.receive_some(1)  # until the client has gone

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with served(encrypted(certificate, lie)) as port:
        with pytest.raises(BodyBrokenError, match=r"localhost broke off: .*SSL"):
            await get(f"https://localhost:{port}/", space_bytes)


async def test_a_silent_handshake_is_given_up() -> None:
    async def say_nothing(stream: trio.abc.Stream) -> None:
        while await stream.receive_some():
            pass

    async with served(say_nothing) as port, open_client(Timeouts(connect_s=0.05)) as client:
        with pytest.raises(NoAnswerError, match=r"no connection to localhost within 0\.05 s"):
            await client.send("GET", httpx.URL(f"https://localhost:{port}/"), {})


@pytest.fixture
def pin(certificate: Path) -> str:
    return certificates_of(certificate.read_bytes())[0].fingerprint


async def test_a_model_store_is_verified_as_its_balancer_is_and_no_proxy_asked(
    certificate: Path, pin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    hub = HubSettings(cache=tmp_path, url_cache=tmp_path, timeouts=TIMEOUTS)
    async with served(encrypted(certificate, saying(OK))) as port:
        url = f"https://localhost:{port}"
        for tls in (ClientTls(ca_file=certificate), ClientTls(fingerprint=pin)):
            async with open_client_of(hub.through_store(url, None, tls)) as client:
                answer = await client.send("GET", httpx.URL(url), {})
                assert await body_of(answer) == b"secret"
                await answer.close()
        another = hub.through_store(url, None, ClientTls(fingerprint="0" * 64))
        async with open_client_of(another) as client:
            with pytest.raises(NoAnswerError, match=f"has the fingerprint {pin}, and 0000"):
                await client.send("GET", httpx.URL(url), {"Authorization": "Bearer secret"})


async def test_a_proxy_tunnels_to_https_and_forwards_http(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    async def proxy(stream: trio.abc.Stream) -> None:
        heads.append(await head(stream))
        if heads[-1].startswith(b"CONNECT"):
            await stream.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await encrypted(certificate, saying(OK))(stream)
        else:
            await stream.send_all(OK)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with served(proxy) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass@127.0.0.1:{port}")
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port}")
        assert await get("https://localhost:1/x") == b"secret"
        assert await get("http://some.invalid/x?y=1") == b"secret"
        monkeypatch.setenv("NO_PROXY", "localhost")
        with pytest.raises(NoAnswerError, match="cannot reach localhost"):
            await get("https://localhost:1/x")
    assert heads[0].startswith(b"CONNECT localhost:1 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6cGFzcw==\r\n" in heads[0]
    assert heads[1].startswith(b"GET http://some.invalid:80/x?y=1 HTTP/1.1\r\n")


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(saying(b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n")) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(NoAnswerError, match=r"the proxy 127\.0\.0\.1 answered 407"):
            await get("https://localhost:1/x")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(NoAnswerError, match="socks5 are not supported"):
        await get("https://localhost:1/x")


async def test_connections_beyond_those_that_are_kept_are_closed() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    has_ended = trio.Event()

    async def handle(stream: trio.abc.Stream) -> None:
        await saying(answer)(stream)
        assert await stream.receive_some(1) == b""
        has_ended.set()

    async with served(handle) as port, open_client(TIMEOUTS) as client:
        url = httpx.URL(f"http://127.0.0.1:{port}/")
        answers = [await client.send("GET", url, {}) for _ in range(MAX_IDLE + 1)]
        for each in answers:
            assert await each.receive() == b"ok"
            await each.close()
        with trio.fail_after(5):
            await has_ended.wait()

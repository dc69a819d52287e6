"""The client and the monitor of upstream servers over real sockets, with TLS and without."""

from __future__ import annotations

import resource
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from upstream_world import Handler, answering, body_of

from certificates import Authority
from paddler_trio.agent.model.server_files import ServerFiles
from paddler_trio.agent.servers.upstream_monitor import MonitorSettings, UpstreamMonitor
from paddler_trio.agent.servers.upstream_state import Reachability
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.response_body import FailureKind, UpstreamError
from paddler_trio.net.client.upstream_address import (
    UpstreamAddress,
    UpstreamTimeouts,
    upstream_context,
)
from paddler_trio.net.client.upstream_client import UpstreamClient, make_upstream_client
from upstream_double import LlamaServerDouble, read_request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def served(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port where ``handle`` gets every connection."""

    async def connection(stream: trio.abc.Stream) -> None:
        if tls is not None:
            stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await handle(stream)
        except trio.BrokenResourceError:
            pass  # the client has gone
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        listeners = await nursery.start(serve, connection, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open no file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def client_of(port: int, *, is_tls: bool = False, ca_file: Path | None = None) -> UpstreamClient:
    return make_upstream_client(UpstreamAddress("127.0.0.1", port, is_tls), ca_file=ca_file)


@asynccontextmanager
async def running(client: UpstreamClient) -> AsyncIterator[UpstreamClient]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        yield client
        nursery.cancel_scope.cancel()


def server_context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    return context


async def test_authorities_that_were_replaced_are_used_and_useless_ones_are_not(
    authority: Authority, tmp_path: Path
) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Authority.make(tmp_path / "other").cert.read_bytes())
    tls = server_context(authority)
    async with served(answering(OK, OK, OK), tls) as port:
        files = ServerFiles.read(None, ca_file)
        async with running(client_of(port, is_tls=True, ca_file=ca_file)) as client:
            with pytest.raises(UpstreamError, match="no trusted authority"):
                await body_of(client)
            await files.renew(client)
            with pytest.raises(UpstreamError, match="no trusted authority"):
                await body_of(client)
            ca_file.write_bytes(authority.cert.read_bytes())
            await files.renew(client)
            assert await body_of(client) == b"hello"
            assert client.num_kept == 1
            ca_file.write_text("nothing")
            await files.renew(client)
            assert await body_of(client) == b"hello"
            assert client.num_kept == 1
            ca_file.write_bytes(authority.cert.read_bytes())
            await files.renew(client)
            assert client.num_kept == 0, "it was verified by those of before"
            assert await body_of(client) == b"hello"


async def test_a_connection_that_is_in_use_as_authorities_are_replaced_is_not_used_again(
    authority: Authority,
) -> None:
    """It was verified by those of before."""
    tls = server_context(authority)
    async with (
        served(answering(OK, OK), tls) as port,
        running(client_of(port, is_tls=True, ca_file=authority.cert)) as client,
    ):
        async with client.request(b"GET", b"/", []) as response:
            await client.renew(None, upstream_context(authority.cert))
            async for part in response.body():
                assert part.data == b"hello"
        assert client.num_open == 0
        assert await body_of(client) == b"hello"
        assert client.num_kept == 1


async def test_files_that_could_not_be_read_are_read_at_the_next_look(tmp_path: Path) -> None:
    """A process without a descriptor left reads none, and nothing is wrong with them."""
    key_file = tmp_path / "key"
    key_file.write_text("old")
    files = ServerFiles.read(key_file, None)
    client = client_of(1)
    key_file.write_text("newer")
    with no_descriptors(), capture_logs() as logs:
        await files.renew(client)
        await files.renew(client)
    assert files.bearer == b"old"
    assert [each["reason"] for each in logs] == [
        f"cannot read the key in {key_file}: Too many open files"
    ]
    await files.renew(client)
    assert files.bearer == b"newer"


async def test_connections_are_kept_and_one_that_was_closed_is_not_used() -> None:
    async with served(answering(OK, OK)) as port, running(client_of(port)) as client:
        for _ in range(2):
            assert await body_of(client) == b"hello"
        assert client.num_open == 1
        kept = client._kept[0]
        with trio.fail_after(50):
            await trio.lowlevel.wait_readable(kept.stream.socket)  # the server has closed it
        assert await body_of(client) == b"hello"
        assert client._kept[0] is not kept


async def test_leaving_early_is_noticed_by_the_server() -> None:
    server = LlamaServerDouble(token_s=0.01)
    async with served(server.handle) as port, running(client_of(port)) as client:
        async with client.request(b"POST", b"/v1/completions", [], b"{}") as response:
            async for part in response.body():
                assert part.data.startswith(b"data: ")
                break
        with trio.fail_after(50):
            while server.ours:
                await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(0.01)


async def test_a_half_closed_connection_ends_the_body_early() -> None:
    async def half_close(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(OK[:-2])
        assert isinstance(stream, trio.SocketStream)
        await stream.send_eof()
        await stream.receive_some(1)

    async with served(half_close) as port, running(client_of(port)) as client:
        with pytest.raises(UpstreamError, match="2 of 5 bytes before the end"):
            await body_of(client)


@pytest.mark.parametrize("runs", [True, False])
async def test_silence_within_an_answer_ends_it(runs: bool) -> None:
    async def falls_silent(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(OK[:-2])
        await stream.receive_some(1)

    timeouts = UpstreamTimeouts(idle_s=0.05)
    async with served(falls_silent) as port, trio.open_nursery() as nursery:
        client = client_of(port)
        if runs:
            nursery.start_soon(client.run)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.05 s") as caught:
            async with client.request(b"GET", b"/", [], timeouts=timeouts) as response:
                assert len([part async for part in response.body()]) == 1
        assert caught.value.kind is FailureKind.TIMEOUT
        assert client.num_open == 0
        nursery.cancel_scope.cancel()


async def test_a_large_answer_passes_through_little_memory() -> None:
    size = 96 * 1024 * 1024

    async def huge(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        piece = bytes(256 * 1024)
        for _ in range(size // len(piece)):
            await stream.send_all(piece)

    async with served(huge) as port, running(client_of(port)) as client:
        tracemalloc.start()
        try:
            async with client.request(b"GET", b"/", []) as response:
                received = 0
                async for part in response.body():
                    received += len(part.data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert received == size
    assert peak < 2 * 1024 * 1024


async def test_nobody_listening_is_no_connection() -> None:
    async with served(answering(OK)) as port:
        pass
    with pytest.raises(UpstreamError, match=r"no connection .*: Connection refused") as caught:
        await body_of(client_of(port))
    assert caught.value.kind is FailureKind.CONNECT
    assert caught.value.before_first_byte


async def test_over_tls_with_its_authority_all_is_the_same(authority: Authority) -> None:
    context = server_context(authority)
    async with (
        served(answering(OK, OK), context) as port,
        running(client_of(port, is_tls=True, ca_file=authority.cert)) as client,
    ):
        for _ in range(2):
            assert await body_of(client) == b"hello"
        assert client.num_open == 1


async def test_an_unknown_authority_is_said_with_what_to_do(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority.make(tmp_path / "other", "other authority")
    async with served(answering(OK), server_context(authority)) as port:
        with pytest.raises(UpstreamError, match=r"no trusted authority .* --upstream-ca") as caught:
            await body_of(client_of(port, is_tls=True, ca_file=other.cert))
        assert caught.value.kind is FailureKind.CONNECT


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks no TLS: write"),
        (b"", "it closed the connection during the TLS handshake: if it speaks no TLS, write"),
    ],
)
async def test_a_server_without_tls_is_said_with_what_to_do(answer: bytes, text: str) -> None:
    async def refuse(stream: trio.abc.Stream) -> None:
        await stream.receive_some(65_536)
        await stream.send_all(answer)

    async with served(refuse) as port:
        with pytest.raises(UpstreamError, match=rf"{text} http://127.0.0.1:{port}"):
            await body_of(client_of(port, is_tls=True))


def test_an_authority_that_cannot_be_read_is_said_with_its_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read --upstream-ca .*/none"):
        client_of(1, is_tls=True, ca_file=tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"--upstream-ca .* needs --upstream https://"):
        client_of(1, ca_file=tmp_path / "none")


async def test_a_server_is_monitored_over_a_socket() -> None:
    server = LlamaServerDouble(is_loading=True)
    async with served(server.handle) as port, trio.open_nursery() as nursery:
        client = client_of(port)
        monitor = UpstreamMonitor(client, MonitorSettings(busy_s=0.02, idle_s=0.02))
        nursery.start_soon(client.run)
        await nursery.start(monitor.run)
        assert monitor.state.reachability is Reachability.LOADING
        server.is_loading, server.foreign = False, 2
        with trio.fail_after(50):
            while monitor.state.slots_busy_elsewhere != 2:
                await monitor.wait_changed(monitor.state)
        assert monitor.state.slots_offered == 2
        nursery.cancel_scope.cancel()
    assert client.num_open == 0

"""What is said of an RPC server that is none, or not ours, before llama.cpp relies on it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.rpc.rpc_greeting import PROTOCOL, greet, split_server

HELLO = bytes([14]) + struct.pack("<Q", 24) + bytes(24)


def version(major: int, minor: int, *, size: int = 28) -> bytes:
    return struct.pack("<Q4B24x", size, major, minor, 5, 0)


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which ``serve`` handles one connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            connection, _ = listening.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            thread.join()


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Says ``answer`` byte by byte once it was greeted, then closes."""

    def serve(connection: socket.socket) -> None:
        heard = b""
        while len(heard) < len(HELLO):
            heard += connection.recv(64)
        assert heard == HELLO
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(answer)):
            connection.sendall(answer[index : index + 1])

    return serve


def test_a_server_of_our_protocol_is_welcome() -> None:
    with server(answering(version(*PROTOCOL))) as port:
        greet("127.0.0.1", port)
    with server(answering(version(*PROTOCOL))) as port:
        greet("localhost", port)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", ["closes the connection without a word", "another release"]),
        (version(*PROTOCOL)[:-1], ["no RPC server that speaks protocol 7.0"]),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, ["no RPC server that speaks protocol 7.0"]),
        (version(*PROTOCOL, size=4), ["no RPC server that speaks protocol 7.0"]),
        (version(6, 2), ["speaks protocol 6.2.5", "this llama.cpp 7.0", "same release"]),
        (version(7, 1), ["speaks protocol 7.1.5", "this llama.cpp 7.0", "same release"]),
    ],
)
def test_what_else_answers_is_told_by_its_address(answer: bytes, words: list[str]) -> None:
    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # the other side may have heard enough
            answering(answer)(connection)

    with server(serve) as port, pytest.raises(EngineError) as caught:
        greet("127.0.0.1", port)
    for word in [f"127.0.0.1:{port}", *words]:
        assert word in str(caught.value)


def test_silence_has_a_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(EngineError, match=rf"127\.0\.0\.1:{port} takes connections") as caught:
            greet("127.0.0.1", port, limit_s=0.5)
    assert "one engine at a time" in str(caught.value)


@pytest.mark.thorough
def test_an_answer_that_never_ends_has_one_too() -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(version(*PROTOCOL)[:-1])
        while connection.recv(64):
            pass  # until it is left alone

    with server(serve) as port, pytest.raises(EngineError, match="takes connections"):
        greet("127.0.0.1", port, limit_s=0.5)


def test_a_refused_connection_is_told_at_once() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(EngineError, match=rf"no RPC server at 127\.0\.0\.1:{port}: .*refused"):
            greet("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no..name", "a\0b", "x" * 70])
def test_a_name_that_is_none_is_told(host: str) -> None:
    with pytest.raises(EngineError, match="has no IPv4 address"):
        greet(host, 1)


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x", "h:٣"]
)
def test_what_is_no_address_is_told_with_what_is_wanted(text: str) -> None:
    with pytest.raises(EngineError) as caught:
        split_server(text)
    assert caught.value.permanent
    assert repr(text) in str(caught.value)
    assert "1 to 65535" in str(caught.value)


@pytest.mark.parametrize("text", ["::1:5", "[::1]:5"])
def test_ipv6_is_refused_because_llama_cpp_would_end_the_process(text: str) -> None:
    with pytest.raises(EngineError, match="IPv4"):
        split_server(text)


def test_addresses_are_taken_apart() -> None:
    assert split_server("gpu-box.lan:050052") == ("gpu-box.lan", 50052)

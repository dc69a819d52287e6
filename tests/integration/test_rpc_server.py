"""The rpc-server command as a process: where it serves, whom it refuses, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess

import forked_processes
import pytest
from rpc_client import ENVIRONMENT, lacks_rpc, needs_rpc, rpc_server

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.rpc.rpc_greeting import PROTOCOL, greet, split_server


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A server that does not start."""
    return forked_processes.run("rpc-server", *arguments, env=ENVIRONMENT)


def refusal(*arguments: str) -> str:
    """Its one line."""
    process = ended(*arguments)
    assert process.returncode == 1, process.stderr
    assert process.stdout == ""
    [line] = process.stderr.splitlines()
    assert line.startswith("paddler-trio: ")
    return line


def say_hello(address: str) -> bytes:
    """The answer to the protocol's greeting, spelled out byte by byte."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes([14, 24]) + bytes(7) + bytes(24))
        answer = b""
        while len(answer) < 36:
            answer += connection.recv(36 - len(answer))
    return answer


@needs_rpc
def test_it_says_where_it_serves_when_it_does_and_speaks_the_protocol_we_expect() -> None:
    with rpc_server(is_command=True) as server:
        answer = say_hello(server.address)
        assert answer[:8] == (28).to_bytes(8, "little")
        assert tuple(answer[8:10]) == PROTOCOL
        greet(*split_server(server.address))


@needs_rpc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_the_first_signal_also_while_an_engine_has_it(number: signal.Signals) -> None:
    with rpc_server() as idle:
        assert idle.stop(number) == 0
    with rpc_server() as busy:
        host, _, port = busy.address.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(bytes([14]))  # now it reads, in C, and waits for more
            with pytest.raises(EngineError, match="works for one engine at a time"):
                greet(*split_server(busy.address), limit_s=0.5)
            assert busy.stop(number) == 0
            assert connection.recv(1) == b""


@needs_rpc
def test_a_port_in_use_is_named() -> None:
    with rpc_server() as server:
        assert f"{server.address}: address already in use" in refusal(f"--addr={server.address}")


@needs_rpc
def test_what_llama_cpp_prints_is_no_answer_of_ours() -> None:
    with rpc_server() as server:
        greet(*split_server(server.address))
        greet(*split_server(server.address))  # it served the first one, and has printed so
        server.kill()
        assert server.process.stdout is not None
        assert server.process.stderr is not None
        assert server.process.stdout.read() == b""
        assert b"Accepted client connection" in server.process.stderr.read()


def test_strangers_are_kept_out_unless_they_are_meant_to_come_in() -> None:
    line = refusal("--addr=0.0.0.0:0")
    for word in ("0.0.0.0:0", "open to everybody", "127.0.0.1", "--insecure-rpc"):
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--addr=here"], ["'here'", "host:port"]),
        (["--addr=[::1]:0"], ["[::1]:0", "IPv4"]),
        (["--addr=no..name:1"], ["no..name:1", "host:port"]),
        (["--addr=192.0.2.1:0", "--insecure-rpc"], ["192.0.2.1", "no such address"]),
    ],
)
def test_an_address_that_cannot_be_served_is_named(arguments: list[str], words: list[str]) -> None:
    process = ended(*arguments)
    assert (process.returncode, process.stdout) == (1, "")
    for word in words:
        assert word in process.stderr


@needs_rpc
def test_a_cache_folder_that_cannot_be_one_is_named() -> None:
    assert "--cache-dir /dev/null/x" in refusal("--addr=127.0.0.1:0", "--cache-dir=/dev/null/x")


@lacks_rpc
def test_a_build_without_rpc_says_how_to_get_one() -> None:
    assert "-DGGML_RPC=ON" in refusal("--addr=127.0.0.1:0")


def test_no_threads_is_a_wrong_command_line() -> None:
    process = ended("--threads=0")
    assert process.returncode == 2
    assert "--threads" in process.stderr

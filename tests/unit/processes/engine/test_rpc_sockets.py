"""Sockets that were made behind our back are found, and the kernel watches them."""

from __future__ import annotations

import socket
import subprocess
import sys

from paddler_trio.processes.engine.rpc.rpc_sockets import listening_socket, watch_connections


def is_watched(connection: socket.socket) -> bool:
    return (
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        and connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        and connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    )


def test_every_connection_is_watched_and_stays_open() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):
        assert not is_watched(ours)
        assert watch_connections() >= 2
        assert is_watched(ours)
        assert is_watched(theirs)
        ours.sendall(b"still here")
        assert theirs.recv(64) == b"still here"


def test_what_is_accepted_by_a_listening_socket_that_was_found_is_watched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert listening_socket() == listening.getsockname()
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert is_watched(accepted)


def test_a_process_that_does_not_listen_is_told_so() -> None:
    script = (
        "import socket\n"
        "from paddler_trio.processes.engine.rpc.rpc_sockets import (\n"
        "    listening_socket, watch_connections)\n"
        "with socket.socket() as bound:\n"
        "    bound.bind(('127.0.0.1', 0))\n"
        "    print(listening_socket(), watch_connections())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "None 0\n"

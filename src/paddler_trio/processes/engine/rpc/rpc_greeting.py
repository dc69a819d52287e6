"""The greeting of llama.cpp's RPC protocol: is a server there, and has it our version?

llama.cpp ends its process where it cannot reach a server, and waits without a limit for one that
sends nothing. So each server is greeted here before llama.cpp connects to it. The greeting is the
protocol's own: one byte of command, eight of length, and the features of the connection, all zeros
for plain TCP; the answer begins with the version.

A server talks to one engine at a time and lets all others wait: silence after a connection
usually means that another engine has it.
"""

from __future__ import annotations

import socket
import struct
import time

from paddler_trio.errors import EngineError

PROTOCOL = (7, 0)
"""Major and minor version of the RPC protocol of the pinned llama.cpp; a test compares them."""
GREETING_LIMIT_S = 5.0
_CAPABILITY_BYTES = 24
_HELLO = struct.pack(f"<BQ{_CAPABILITY_BYTES}x", 14, _CAPABILITY_BYTES)
_ANSWER = struct.Struct(f"<Q4B{_CAPABILITY_BYTES}x")


def split_server(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; EngineError (permanent) if llama.cpp could not reach
    it."""
    host, _, digits = text.rpartition(":")
    is_number = digits.isascii() and digits.isdigit() and 0 < int(digits) <= 65_535
    if not host or ":" in host or not is_number:
        raise EngineError(
            f"rpc: {text!r} is no address of an RPC server: want host:port with a name or an IPv4 "
            "address, and a port from 1 to 65535",
            permanent=True,
        )
    return host, int(digits)


def greet(host: str, port: int, *, limit_s: float = GREETING_LIMIT_S) -> None:
    """Make sure that an RPC server of our protocol answers.

    Args:
      limit_s: for connecting and answering together, in seconds; resolving a name has the
        resolver's own.

    Errors:
      EngineError with the address and what was seen there.
    """
    server = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: no name at all, such as one with a NUL
        raise EngineError(f"rpc: {server!r} has no IPv4 address: {error}") from error
    give_up_s = time.monotonic() + limit_s
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_s)
        try:
            connection.connect(found[0][4])  # llama.cpp takes the first address too
        except TimeoutError as error:
            raise EngineError(
                f"rpc: no RPC server at {server}: no connection within {limit_s:g} s"
            ) from error
        except OSError as error:
            raise EngineError(f"rpc: no RPC server at {server}: {error.strerror}") from error
        try:
            connection.sendall(_HELLO)
            answer = _receive(connection, _ANSWER.size, give_up_s)
        except TimeoutError as error:
            raise EngineError(
                f"rpc: {server} takes connections and then says nothing for {limit_s:g} s: an "
                "RPC server works for one engine at a time, and another one may have this one"
            ) from error
        except OSError as error:
            raise EngineError(f"rpc: {server} broke off: {error.strerror}") from error
    _check(server, answer)


def _receive(connection: socket.socket, size: int, give_up_s: float) -> bytes:
    """Return at most ``size`` bytes, fewer if the other side closes; TimeoutError when time is
    up."""
    received = b""
    while len(received) < size:
        left_s = give_up_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        more = connection.recv(size - len(received))
        if not more:
            break
        received += more
    return received


def _check(server: str, answer: bytes) -> None:
    ours = ".".join(map(str, PROTOCOL))
    if not answer:  # as a tunnel does that leads to no server
        raise EngineError(
            f"rpc: {server} closes the connection without a word: no RPC server is behind it, or "
            "one of another release"
        )
    if len(answer) < _ANSWER.size or _ANSWER.unpack(answer)[0] != _ANSWER.size - 8:
        raise EngineError(
            f"rpc: what answers at {server} is no RPC server that speaks protocol {ours}"
        )
    _, major, minor, patch, _ = _ANSWER.unpack(answer)
    if major != PROTOCOL[0] or minor > PROTOCOL[1]:
        raise EngineError(
            f"rpc: the RPC server at {server} speaks protocol {major}.{minor}.{patch}, this "
            f"llama.cpp {ours}: run the same release on both machines"
        )

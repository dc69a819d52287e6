"""Ten thousand readers of streams in one process: plain sockets, one epoll, nothing parsed.

    python benchmarks/limits_clients.py --address HOST:PORT --streams 10000 [--leave 0.1]

Run by limits.py. Keeps so many streams open: an answer that ended is followed by another request,
over the same connection or a new one. With ``--leave`` such a share of the answers is left in the
middle. Prints a line of JSON five times a second. Ends with a signal.
"""

from __future__ import annotations

import argparse
import errno
import json
import random
import select
import socket
import sys
import time
from collections import Counter

import attrs

LINE_EVERY_S = 0.2
TURN_S = 0.05
BEGUN_IN_A_TURN = 100
"""Connections: 2,000 a second."""
TOKEN = b'"ContentToken"'
END = b"0\r\n\r\n"
READ_BYTES = 65_536


@attrs.define(eq=False)
class Reader:
    """One connection and what was read of its answer."""

    sock: socket.socket
    tail: bytes = b""
    tokens: int = 0
    is_first: bool = True
    leaves_after: int | None = None


@attrs.define(eq=False)
class Readers:
    """All of them."""

    address: tuple[str, int]
    streams: int
    leave: float
    readers: dict[int, Reader] = attrs.field(factory=dict, init=False)
    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    request: bytes = attrs.field(init=False)
    poll: select.epoll = attrs.field(factory=select.epoll, init=False)

    def __attrs_post_init__(self) -> None:
        body = json.dumps({"raw_prompt": "x", "max_tokens": 2**31 - 1}).encode()
        self.request = (
            b"POST /api/v1/continue_from_raw_prompt HTTP/1.1\r\nHost: %b:%d\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (self.address[0].encode(), self.address[1], len(body))
        ) + body

    def run(self) -> None:
        told_s = begun_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s - begun_s >= TURN_S:
                begun_s = now_s
                for _ in range(min(BEGUN_IN_A_TURN, self.streams - len(self.readers))):
                    self.begin()
            if now_s - told_s >= LINE_EVERY_S:
                told_s = now_s
                self.tell(now_s)
            for descriptor, _ in self.poll.poll(TURN_S, 4096):
                self.read(self.readers[descriptor])

    def tell(self, now_s: float) -> None:
        line = {"at_s": now_s, "connections": len(self.readers), **self.counts}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def begin(self) -> None:
        sock = socket.create_connection(self.address, timeout=30.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = Reader(sock)
        self.readers[sock.fileno()] = reader
        self.ask(reader)
        sock.setblocking(False)
        self.poll.register(sock, select.EPOLLIN)

    def ask(self, reader: Reader) -> None:
        reader.sock.sendall(self.request)
        reader.tokens, reader.is_first, reader.tail = 0, True, b""
        reader.leaves_after = random.randint(1, 40) if random.random() < self.leave else None
        self.counts["asked"] += 1

    def close(self, reader: Reader, how: str) -> None:
        self.counts[how] += 1
        self.counts["streaming"] -= not reader.is_first
        self.poll.unregister(reader.sock)
        del self.readers[reader.sock.fileno()]
        reader.sock.close()

    def read(self, reader: Reader) -> None:
        try:
            data = reader.sock.recv(READ_BYTES)
        except OSError as error:
            self.close(reader, f"broken: {errno.errorcode.get(error.errno or 0)}")
            return
        if not data:
            self.close(reader, "broken: closed")
            return
        if not reader.tail and not data.startswith(b"HTTP/1.1 200"):
            self.close(reader, f"refused: {data[:12].decode('latin-1')}")
            return
        found = data.count(TOKEN)
        if found and reader.is_first:
            reader.is_first = False
            self.counts["streaming"] += 1
        self.counts["tokens"] += found
        reader.tokens += found
        reader.tail = (reader.tail + data)[-8:]
        if reader.tail.endswith(END):
            self.counts["streaming"] -= not reader.is_first
            reader.is_first = True
            if random.random() < 0.5:
                self.close(reader, "whole")
            else:
                self.counts["whole"] += 1
                self.ask(reader)
        elif reader.leaves_after is not None and reader.tokens >= reader.leaves_after:
            self.close(reader, "left")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--leave", type=float, default=0.0, help="share of the answers")
    arguments = parser.parse_args()
    host, _, port = arguments.address.rpartition(":")
    Readers((host, int(port)), arguments.streams, arguments.leave).run()


if __name__ == "__main__":
    main()

"""The client of both contestants: raw sockets, one thread, nothing parsed while the clock runs.

It shares the processors with what it measures, so it does as little as it can: it notes when
bytes came and keeps them. All that it looks for in them is where an answer ends. A lane is a
client that sends one request after the other on one connection, as a keep-alive client does.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Sequence

import attrs
from answers import AnswerError, Exchange

READ_BYTES = 1 << 18
LATE_AFTER_PIECES = 8
"""A late lane begins when every other lane has received this many pieces of its first answer."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@attrs.frozen
class Lane:
    """Requests, ready to be written, that one client sends one after the other."""

    requests: tuple[bytes, ...]
    is_late: bool = False


@attrs.define(eq=False)
class _Client:
    """A lane while it runs."""

    lane: Lane
    address: tuple[str, int]
    sock: socket.socket | None = None
    is_reused: bool = False
    exchanges: list[Exchange] = attrs.field(factory=list)
    sent_s: float = 0.0
    pieces: list[tuple[float, bytes]] = attrs.field(factory=list)
    tail: bytes = b""
    missing_bytes: int | None = None
    """Of a body with a length; None while unknown or chunked."""
    header_seen: bool = False

    @property
    def is_finished(self) -> bool:
        return len(self.exchanges) == len(self.lane.requests)

    @property
    def has_begun(self) -> bool:
        return bool(self.exchanges) or len(self.pieces) >= LATE_AFTER_PIECES

    def send_next(self, selector: selectors.BaseSelector) -> None:
        """Write the next request, on the connection at hand or on a new one."""
        self.pieces, self.tail, self.header_seen, self.missing_bytes = [], b"", False, None
        self.sent_s = time.perf_counter()
        self.is_reused = self.sock is not None
        if self.sock is None:
            self.sock = socket.create_connection(self.address)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(self.sock, selectors.EVENT_READ, self)
        # a request is some kilobytes and the kernel's buffer is empty: this does not block
        self.sock.sendall(self.lane.requests[len(self.exchanges)])

    def receive(self, selector: selectors.BaseSelector) -> None:
        """Take what came; when it ends the answer, go on with the next request."""
        assert self.sock is not None
        try:
            data = self.sock.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.close(selector)
            if self.pieces or not self.is_reused:
                raise AnswerError("the server closed the connection in the middle of an answer")
            self.send_next(selector)  # it had closed an idle connection: nothing was lost
            return
        self.pieces.append((time.perf_counter(), data))
        if self._ends_answer(data):
            self.exchanges.append(Exchange(self.sent_s, tuple(self.pieces)))
            if not self.is_finished:
                self.send_next(selector)
            else:
                self.close(selector)

    def close(self, selector: selectors.BaseSelector) -> None:
        """Give up the connection; safe to say twice."""
        if self.sock is not None:
            selector.unregister(self.sock)
            self.sock.close()
            self.sock = None

    def _ends_answer(self, data: bytes) -> bool:
        if not self.header_seen:
            whole = b"".join(piece for _, piece in self.pieces)
            header, blank, body = whole.partition(b"\r\n\r\n")
            if not blank:
                return False
            self.header_seen = True
            length = _LENGTH.search(header + b"\r\n")
            if length is not None:
                self.missing_bytes = int(length[1]) - len(body)
        elif self.missing_bytes is not None:
            self.missing_bytes -= len(data)
        if self.missing_bytes is not None:
            return self.missing_bytes <= 0
        self.tail = (self.tail + data)[-7:]
        return self.tail == b"\r\n0\r\n\r\n"


def run_lanes(
    address: tuple[str, int], lanes: Sequence[Lane], *, limit_s: float
) -> list[list[Exchange]]:
    """Run all lanes side by side; returns the exchanges of each, in the order of its requests.

    Raises:
      AnswerError: not done after ``limit_s``, or a connection broke.
    """
    deadline_s = time.perf_counter() + limit_s
    clients = [_Client(lane, address) for lane in lanes]
    waiting = [client for client in clients if client.lane.is_late]
    early = [client for client in clients if not client.lane.is_late]
    with selectors.DefaultSelector() as selector:
        try:
            for client in early:
                client.send_next(selector)
            while not all(client.is_finished for client in clients):
                left_s = deadline_s - time.perf_counter()
                if left_s <= 0:
                    done = sum(len(client.exchanges) for client in clients)
                    total = sum(len(lane.requests) for lane in lanes)
                    raise AnswerError(f"{done} of {total} requests were answered in {limit_s:g} s")
                for key, _ in selector.select(left_s):
                    key.data.receive(selector)
                if waiting and all(client.has_begun for client in early):
                    for client in waiting:
                        client.send_next(selector)
                    waiting = []
        finally:
            for client in clients:
                client.close(selector)
    return [client.exchanges for client in clients]

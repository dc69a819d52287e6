"""A relay before a server that keeps what clients asked, and how they were answered."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import h11

END_S: Final = 60.0


@attrs.frozen
class Asked:
    """One request, and what came back.

    Args:
      body: JSON, or None for anything else.
      answer: the bytes of the response's body, as many as came.
    """

    method: str
    path: str
    headers: tuple[str, ...]
    body: object
    status: int
    answer: bytes
    ignored: str


@attrs.define(eq=False)
class _Way:
    """The bytes of one connection, in both directions."""

    asked: bytearray = attrs.field(factory=bytearray)
    answered: bytearray = attrs.field(factory=bytearray)


@attrs.define(eq=False)
class Recorder:
    """Its address, and the connections that it has had."""

    port: int
    _ways: list[_Way] = attrs.field(factory=list, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def exchanges(self) -> list[Asked]:
        """Return what was asked until now, each connection in its order."""
        return [each for way in list(self._ways) for each in _exchanges(way)]


@contextmanager
def recorder(server: str) -> Iterator[Recorder]:
    """Run one before ``server``, which is ``host:port``."""
    host, _, port = server.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = Recorder(listener.getsockname()[1])
        opened: list[socket.socket] = []
        threads: list[threading.Thread] = []

        def copy(source: socket.socket, sink: socket.socket, into: bytearray) -> None:
            try:
                while data := source.recv(65_536):
                    into.extend(data)
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:  # one side has gone: the other one shall know
                for each in (source, sink):
                    each.close()

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return  # it is closed: the test is over
                behind = socket.create_connection((host, int(port)))
                way = _Way()
                kept._ways.append(way)
                opened.extend((client, behind))
                for pair in ((client, behind, way.asked), (behind, client, way.answered)):
                    threads.append(threading.Thread(target=copy, args=pair, daemon=True))
                    threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield kept
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(END_S)
            for each in opened:
                _end(each)
            for thread in threads:
                thread.join(END_S)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _exchanges(way: _Way) -> Iterator[Asked]:
    asked, answered = bytes(way.asked), bytes(way.answered)
    while asked:
        server = h11.Connection(h11.SERVER)
        server.receive_data(asked)
        request = server.next_event()
        if not isinstance(request, h11.Request):
            return
        body = b""
        while isinstance(event := server.next_event(), h11.Data):
            body += event.data
        asked = server.trailing_data[0] if isinstance(event, h11.EndOfMessage) else b""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=request.method, target="/", headers=[("Host", "here")]))
        client.send(h11.EndOfMessage())
        client.receive_data(answered)
        status, answer, ignored = 0, b"", ""
        while True:
            try:
                got = client.next_event()
            except h11.RemoteProtocolError:  # the client has left it without an answer
                return
            if isinstance(got, h11.Response | h11.InformationalResponse):
                status = got.status_code
                ignored = dict(got.headers).get(b"x-paddler-ignored-fields", b"").decode()
            elif isinstance(got, h11.Data):
                answer += got.data
            else:
                break
        answered = client.trailing_data[0] if isinstance(got, h11.EndOfMessage) else b""
        yield Asked(
            request.method.decode(),
            request.target.decode(),
            tuple(sorted(name.decode().lower() for name, _ in request.headers)),
            _read(body),
            status,
            answer,
            ignored,
        )


def _read(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None

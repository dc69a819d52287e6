"""One passed connection: a request that was parsed elsewhere, and its one answer.

Every wait has a deadline. The slowest client that is served reads ``PIECE_BYTES`` in ``WRITE_S``;
what a client does not read stays in the file and in the kernel, never in memory here.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar

import attrs
import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.processes.model_store.store_messages import PassedRequest

T = TypeVar("T")

PIECE_BYTES: Final = 512 * 1024
SENT_BYTES: Final = 4 * 1024 * 1024
"""The bytes of a file with one call, as far as the kernel's buffer has room."""
WRITE_S: Final = 30.0
READ_S: Final = 30.0
MAX_STRAY_BYTES: Final = 64 * 1024
"""That a client may send behind its request."""
LINGER_S: Final = 2.0
"""The time for the client to close its side after our last byte: what it still sends would reset
it."""

StoreHeader: TypeAlias = tuple[str, str]


class ReaderGoneError(PaddlerError):
    """The client left, or did not read in time; nobody is there to be answered."""


class FileCutError(PaddlerError):
    """The file ended before the answer did: the answer is cut, which shows that it is not whole."""


@attrs.define(eq=False, repr=False)
class StoreConnection:
    """See the module docstring. Closed by its owner."""

    request: PassedRequest
    stream: trio.SocketStream
    on_sent: Callable[[int], None] = lambda num_bytes: None
    """Hears of bytes of files as the kernel takes them."""
    has_begun: bool = attrs.field(default=False, init=False)
    """The head of the answer was sent, or some of it."""
    status: int = attrs.field(default=0, init=False)
    """The status of the answer, once it has begun."""
    changed: str = attrs.field(default="", init=False)
    """The change that the request made in the store, as its handler says it for the audit log."""
    headers: Mapping[str, str] = attrs.field(init=False)
    """The headers of the request; names are lower case; of several with one name, the first."""
    _unread: bytes = attrs.field(init=False)
    _received_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.headers = dict(reversed(self.request.headers))
        self._unread = self.request.unread

    def __repr__(self) -> str:
        state = "answering" if self.has_begun else "no answer yet"
        return f"<StoreConnection {self.request.id} {self.request.client}: {state}>"

    @classmethod
    def open(
        cls,
        request: PassedRequest,
        descriptor: int,
        on_sent: Callable[[int], None] = lambda num_bytes: None,
    ) -> StoreConnection:
        """Take over the descriptor."""
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        return cls(request, stream, on_sent)

    # ---------------------------------------------------------------- request

    @property
    def body_bytes(self) -> int:
        """The length that the request announces for its body; 0 if it has none.

        Errors:
          HttpProblem: 411, the body is chunked; 400, the length is no number.
        """
        if "transfer-encoding" in self.headers:
            raise HttpProblem(411, "send the body with a Content-Length, not chunked")
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise HttpProblem(400, f"Content-Length is {text[:40]!r}, not a number of bytes")
        return int(text)

    async def receive_body(self) -> bytes:
        """Return the next piece of the body, empty at its end.

        Errors:
          HttpProblem: as ``body_bytes``; 408, nothing came for ``READ_S``.
          ReaderGoneError: the client left in the middle of it.
        """
        missing = self.body_bytes - self._received_bytes
        if missing <= 0:
            return b""
        if self._received_bytes == 0 and not self._unread and self._waits_for_continue:
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        data, self._unread = self._unread, b""
        if not data:
            try:
                with trio.fail_after(READ_S):
                    data = bytes(await self.stream.receive_some(min(missing, PIECE_BYTES)))
            except trio.TooSlowError as error:
                raise HttpProblem(408, f"nothing of the body came for {READ_S:g} s") from error
            except trio.BrokenResourceError as error:
                raise ReaderGoneError("the client broke off in its body") from error
            if not data:
                raise ReaderGoneError(f"the client left {missing} bytes before the body's end")
        data = data[:missing]
        self._received_bytes += len(data)
        return data

    @property
    def _waits_for_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"

    async def receive_whole(self, limit_bytes: int) -> bytes:
        """Return the whole body; errors as of ``receive_body``, and HttpProblem 413."""
        if self.body_bytes > limit_bytes:
            raise HttpProblem(413, f"a body of {self.body_bytes} bytes; the limit is {limit_bytes}")
        body = b""
        while piece := await self.receive_body():
            body += piece
        return body

    async def wait_gone(self) -> None:
        """Return when the client has closed its side, or talks where it has nothing to say; for
        requests whose body was read."""
        too_many_bytes = MAX_STRAY_BYTES
        with suppress(trio.BrokenResourceError):
            while too_many_bytes > 0 and (data := await self.stream.receive_some(4096)):
                too_many_bytes -= len(data)

    async def while_reader(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, which is cancelled when the client leaves; its body was
        read.

        Errors:
          ReaderGoneError: it left first.
          Exception: what ``work`` raised, without the group of a nursery.
        """
        results: list[T] = []
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self.wait_gone()
                nursery.cancel_scope.cancel(reason="the client is gone")

            nursery.start_soon(watch, name="client watch")
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001  # raised below, without the nursery's group
                failures.append(error)
            nursery.cancel_scope.cancel(reason="the answer is sent")
        if failures:
            raise failures[0]
        if not results:
            raise ReaderGoneError("the client left before it had everything")
        return results[0]

    # ----------------------------------------------------------------- answer

    async def send_head(self, status: int, headers: Iterable[StoreHeader]) -> None:
        """Begin the answer; ReaderGoneError."""
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = "\r\n".join([*lines, "Connection: close", "", ""])
        self.has_begun, self.status = True, status
        await self.send(head.encode("latin-1"))

    async def send(self, data: bytes) -> None:
        """Send bytes of the body; ReaderGoneError."""
        try:
            for start in range(0, len(data), PIECE_BYTES):
                with trio.fail_after(WRITE_S):
                    await self.stream.send_all(data[start : start + PIECE_BYTES])
        except trio.TooSlowError as error:
            raise ReaderGoneError(f"the client did not read for {WRITE_S:g} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ReaderGoneError("the client broke off") from error

    async def send_file(self, descriptor: int, start: int, stop: int) -> None:
        """Send these bytes of a file without reading them; ReaderGoneError, FileCutError."""
        sock = self.stream.socket
        next_mark = start + PIECE_BYTES
        try:
            with trio.fail_after(WRITE_S) as patience:
                while start < stop:
                    await trio.lowlevel.wait_writable(sock)
                    # in a thread: the disk may be slow; the socket never blocks
                    sent = await trio.to_thread.run_sync(
                        _send_some, sock.fileno(), descriptor, start, min(stop - start, SENT_BYTES)
                    )
                    self.on_sent(sent)
                    start += sent
                    if start >= next_mark:
                        next_mark = start + PIECE_BYTES
                        patience.deadline = trio.current_time() + WRITE_S
        except trio.TooSlowError as error:
            raise ReaderGoneError(f"the client did not read for {WRITE_S:g} s") from error
        except (BrokenPipeError, ConnectionError, trio.ClosedResourceError) as error:
            raise ReaderGoneError("the client broke off") from error

    async def send_text(self, status: int, text: str, headers: Iterable[StoreHeader] = ()) -> None:
        """Answer with plain text."""
        await self._send_whole(status, text.encode(), "text/plain; charset=utf-8", headers)

    async def send_json(self, status: int, value: object) -> None:
        """Answer with JSON."""
        body = json.dumps(value, separators=(",", ":")).encode()
        await self._send_whole(status, body, "application/json", ())

    async def send_empty(self, status: int) -> None:
        """Answer without a body."""
        await self.send_head(status, [])

    async def send_problem(self, problem: HttpProblem) -> None:
        """Answer with a refusal."""
        headers = [(name.decode(), value.decode()) for name, value in problem.headers]
        await self.send_text(problem.status, problem.text, headers)

    async def close(self) -> None:
        """End the connection behind what was sent; a cancelled scope ends it at once."""
        try:
            with trio.move_on_after(LINGER_S), suppress(OSError, trio.BrokenResourceError):
                self.stream.socket.shutdown(socket.SHUT_WR)
                while await self.stream.receive_some(PIECE_BYTES):
                    pass
        finally:
            self.stream.socket.close()

    async def _send_whole(
        self, status: int, body: bytes, content_type: str, headers: Iterable[StoreHeader]
    ) -> None:
        length = ("Content-Length", str(len(body)))
        await self.send_head(status, [("Content-Type", content_type), length, *headers])
        if self.request.method != "HEAD":
            await self.send(body)


def _send_some(sock: int, descriptor: int, start: int, count: int) -> int:
    try:
        sent = os.sendfile(sock, descriptor, start, count)
    except BlockingIOError:
        return 0
    if sent == 0:
        raise FileCutError(f"the file ended at byte {start}")
    return sent

"""One client's connection: its reader, its writes, its deadlines and the tasks it owns.

A connection is one task with a small nursery: the reader in its body, the application calls and
WebSocket pings as children. Invariants:

* Nothing a client sends and nothing hypercorn raises leaves `HttpConnection.run`; it ends this
  connection, in one line of the log.
* The reader is never stuck: it waits for the socket, for room in an inbox that is released when
  its application ends, or in `PausedGate`, and all of it lies in one cancel scope, ``_reading``.
  That scope's deadline is the header and keep-alive deadline; a request lifts it.
* A write is shielded, because half a chunk on the wire cannot be taken back, and has a deadline,
  because a client that stops reading would otherwise hold the task for ever; the deadline is nearer
  while the server ends. A write that fails closes the socket: nothing may follow half a chunk.
* We close gracefully: after the last byte we close our side, then discard for a bounded time what
  still arrives. Closing with unread bytes would reset the connection under the response. A server
  that ends shortens that time: some clients notice only at their next request that we closed.
* `cut` is synchronous and ends everything at once, shielded writes included.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator
from math import inf
from typing import ClassVar

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext

from paddler_trio.errors import one_line
from paddler_trio.net.server.app_inbox import PassableConnection
from paddler_trio.net.server.app_tasks import AppTasks
from paddler_trio.net.server.asgi import ClientGoneError
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import AHEAD_SHARE, FREE_BYTES, InputBudget
from paddler_trio.net.server.protocol import Http11Protocol
from paddler_trio.net.websocket.bounded_websocket import BoundedWebSocket
from paddler_trio.scheduler.limits.token_bucket import TokenBucket
from paddler_trio.system.kernel.socket_options import wait_hung_up
from paddler_trio.system.ready_sockets import closing, read_while, reset_on_close

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 65_536
PORTION_BYTES = 4096
PORTION_LINES = 512
"""What has more ends of lines in one read is parsed in portions of ``PORTION_BYTES``, and others
have their turn between them: 64 KiB of a body in chunks of one byte take 20 ms, on each of as many
connections as a client opens."""
WRITE_PIECE_BYTES = 262_144
"""A long write is done in pieces of this size, each with a deadline."""

SMALL_READ_BYTES = 64
SMALL_READS = 1024
SMALL_READS_PER_S = 100.0
"""The burst of reads below ``SMALL_READ_BYTES`` that is allowed, and the rate after it."""
LEFT_S = 0.1
"""How long a kept connection waits for a request that is on its way, when others are not wanted."""
SMALL_READS_PAUSE_S = 0.02
"""Beyond it the next read waits, so that the kernel joins small segments."""


class HttpConnection:
    """Serves one accepted socket until either side ends it; `TlsConnection` does so over TLS.

    Args:
      app: called once for each request and each WebSocket.
      stream: the accepted socket; closed when `run` returns.
      budget, share: of the input of its requests.
      passes: whether another process may answer requests for a path.
      protocol: that parses it.
      on_abuse: called for each rule the client broke, after it was logged.
    """

    is_encrypted: ClassVar[bool] = False

    def __init__(
        self,
        app: App,
        stream: trio.SocketStream,
        *,
        limits: HttpLimits,
        config: Config,
        context: WorkerContext,
        budget: InputBudget,
        share: float,
        passes: Callable[[str], bool],
        protocol: type[Http11Protocol] = Http11Protocol,
        on_abuse: Callable[[], None],
    ) -> None:
        self.peer = "unknown peer"
        self.draining = False
        self.closes_after_next = False
        """The response that is next says that it is the last; it has all the time it takes."""
        self._is_left = False
        self.is_fresh = True
        """No request has begun on it yet."""
        self._app = app
        self._stream = stream
        self._limits = limits
        self._config = config
        self._context = context
        self._budget = budget
        self._share = share
        self._passes = passes
        self._protocol_type = protocol
        self._on_abuse = on_abuse
        self._whole = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._writing = trio.CancelScope()
        self._lingering = trio.CancelScope(deadline=-inf)  # over, unless `_begin_linger` says so
        self._ahead = bytearray()
        self._rest = b""  # of a read that is parsed in portions; before what is ahead
        self._ahead_room = budget.reservation(share=share * AHEAD_SHARE)
        self._small_reads = TokenBucket(SMALL_READS, SMALL_READS_PER_S, trio.current_time())
        self._next_read_s = -inf
        self._write_turn = trio.Lock()
        self._idle = True
        self._gone = False
        self._waits_for_bytes = False
        self._is_drained = False
        self._unsent = b""
        self._tasks: AppTasks | None = None

    def __repr__(self) -> str:
        state = "closed" if self._gone else "idle" if self._idle else "in a request"
        draining = ", draining" if self.draining else ""
        ahead = f"{len(self._ahead)} bytes ahead"
        return f"<HttpConnection with {self.peer}: {state}{draining}, {ahead}>"

    async def run(self) -> None:
        """Serve until the client leaves, a deadline passes, or the response said it was the last.

        Cancellation: application calls are cancelled; a write in progress keeps its deadline
        unless `cut` is called.
        """
        try:
            with self._whole:
                await self._serve()
        except* OSError as group:
            logger.debug("%s: %s", self.peer, one_line(group))  # the network's business
        except* Exception as group:  # noqa: BLE001  # the boundary of a connection
            self.report_abuse(one_line(group))
        finally:
            self._ahead_room.close()
            self._stream.socket.close()
            self._part()

    # -------------------------------------------------------------------- for the owner

    @property
    def is_quiet(self) -> bool:
        """Nothing is in progress."""
        return self._idle

    def drain(self) -> None:
        """Take no request after the one in progress; without one, end now."""
        self.draining = True
        self._lingering.deadline = min(self._lingering.deadline, self._linger_deadline())
        self._writing.deadline = min(self._writing.deadline, self._piece_deadline())
        if self._idle:
            self._reading.cancel()

    def close_quiet(self, *, fresh: bool) -> None:
        """End it if nothing is in progress or has arrived; else with the response that is next.

        Args:
          fresh: also if it has not had a request yet.
        """
        self.closes_after_next = self._is_left = True
        if self._idle and (fresh or not self.is_fresh) and not self.has_unread():
            self.drain()

    def cut(self) -> None:
        """End now, whatever is in progress."""
        self._whole.cancel()
        self._give_up()

    # ------------------------------------------------------------------ for the protocol

    @property
    def ends_with_response(self) -> bool:
        """A response that begins now says that it is the last."""
        return self.draining or self.closes_after_next

    async def send(self, event: Event) -> None:
        """Carry out a decision of the protocol; a client that has left is not an error here."""
        if isinstance(event, RawData):
            try:
                await self.write(event.data)
            except ClientGoneError as gone:
                # ASGI reports it by http.disconnect, never by send
                logger.debug("%s: %s", self.peer, gone)
        elif isinstance(event, Closed):
            self._begin_linger()
            await self._protocol.handle(event)
        elif isinstance(event, Updated):
            self._note_idle(idle=event.idle)

    async def write(self, data: bytes) -> None:
        """Write all of ``data`` within the write deadline.

        Nearly always the kernel takes all of it at once, and then no scope is entered: it would
        be half the cost of a small chunk.

        Cancellation: none once the write has begun; see the module's invariants.

        Errors:
          ClientGoneError: the connection is closed, broke, or the deadline passed; it stays so.
        """
        if self._gone or self._is_write_pending:
            await self._write_rest(memoryview(data))
        elif self.write_now(data):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self._write_rest(memoryview(b""))

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; whether the kernel took all of it. What it did not take is kept,
        and the next `write` sends it first: await one soon.

        Errors:
          ClientGoneError: the connection is closed, or broke.
        """
        if self._gone:
            raise ClientGoneError("connection is closed")
        if self._is_write_pending:
            self._unsent += data
            return False
        written_bytes = self._write_some(data)
        if written_bytes == len(data):
            return True
        self._unsent = data[written_bytes:]
        return False

    @property
    def _is_write_pending(self) -> bool:
        """Return whether something must be written before anything else."""
        return bool(self._unsent) or self._write_turn.locked()

    async def receive(self) -> bytes:
        """The next bytes from the client; empty at the end, whatever ended the connection."""
        if self._rest:
            await trio.lowlevel.checkpoint()
            return self._next_portion()
        if self._ahead:
            await trio.lowlevel.checkpoint()
            data = bytes(self._ahead[:RECEIVE_BYTES])
            del self._ahead[:RECEIVE_BYTES]
            self._ahead_room.shrink(len(data))
        else:
            data = await self._receive_some(RECEIVE_BYTES)
        if len(data) > PORTION_BYTES and data.count(b"\r\n") > PORTION_LINES:
            self._rest = data
            return self._next_portion()
        return data

    def _next_portion(self) -> bytes:
        portion, self._rest = self._rest[:PORTION_BYTES], self._rest[PORTION_BYTES:]
        return portion

    async def wait_gone(self) -> None:
        """Wait until the client has closed its side; bytes that it sent before are received later.

        Its end of file lies behind all bytes that it has sent, so those are read and held here: a
        little always, more while the input budget is little used. The rest stays in the kernel,
        whose full buffer makes the client wait. From then on only a hang-up is awaited: trio's
        ``wait_readable`` would return at once, but an epoll of our own can watch for the hang-up
        alone, and be awaited itself.
        """
        while (room_bytes := self._room_ahead_bytes()) > 0:
            data = b""
            self._ahead_room.grow(room_bytes)  # before the read: others may take it meanwhile
            try:
                data = await self._receive_some(room_bytes)
                self._ahead += data
            finally:
                self._ahead_room.shrink(room_bytes - len(data))
            if not data:
                return
        try:
            await wait_hung_up(self._stream.socket)
        except OSError as error:
            # Without a descriptor the client's absence is noticed at the next write instead.
            logger.warning("connection from %s is not watched: %s", self.peer, error.strerror)
            await trio.sleep_forever()

    def has_unread(self) -> bool:
        """Return whether bytes, or the end, have arrived that were not read yet."""
        if self._rest or self._ahead or not self._waits_for_bytes:
            return True  # the reader is busy
        descriptor = self._stream.socket.fileno()
        if descriptor < 0:
            return True  # closed: the reader is about to see it
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(0))

    def client_gone(self) -> None:
        """Stop reading; the calls in progress get a disconnect."""
        self._reading.cancel()

    def abort(self) -> None:
        """Reset it, with what the client has not taken: nobody takes what it has for all."""
        if not self._gone:
            reset_on_close(self._stream.socket)
            self._give_up()

    def report_abuse(self, reason: str) -> None:
        """Log one line about this client and count it."""
        logger.warning("connection from %s: %s", self.peer, reason)
        self._on_abuse()

    # ---------------------------------------------------------------------------------- inside

    async def _serve(self) -> None:
        sock = self._stream.socket
        client, server = sock.getpeername()[:2], sock.getsockname()[:2]
        self.peer = f"[{client[0]}]:{client[1]}" if ":" in client[0] else f"{client[0]}:{client[1]}"
        async with trio.open_nursery() as nursery:
            tasks = AppTasks(self._app, nursery, self._limits, self._budget, share=self._share)
            self._tasks = tasks
            self._protocol = tasks.protocol = self._protocol_type(
                config=self._config,
                context=self._context,
                tasks=tasks,
                limits=self._limits,
                wire=self,
                client=client,
                server=server,
                passes=self._passes,
                is_encrypted=self.is_encrypted,
            )
            tasks.passable = self._passable()
            await self._serve_requests(tasks)
            nursery.cancel_scope.cancel()  # pings

    def _part(self) -> None:
        """Forget what knows this connection: no garbage collector need find them."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            self._protocol.part()
            tasks.protocol = tasks.passable = None
            del self._protocol

    async def _serve_requests(self, tasks: AppTasks) -> None:
        self._reading.deadline = trio.current_time() + self._limits.header_deadline_s
        with self._reading:
            if await self._open():
                while data := await self.receive():
                    await self._protocol.handle(RawData(data))
        if self._idle and trio.current_time() >= self._reading.deadline and self._has_input():
            self.report_abuse("request header incomplete at its deadline")
        await self._protocol.handle(Closed())
        self._rest = b""
        self._ahead.clear()
        self._ahead_room.close()
        tasks.disconnect()
        await self._close()
        with self._lingering:
            while await self.receive():
                pass
        await tasks.wait_finished()

    async def _open(self) -> bool:
        """Before the first request; whether there may be one."""
        return True

    async def _close(self) -> None:
        """After the last request."""

    def _passable(self) -> PassableConnection:
        return PassableConnection(self._stream.socket.fileno, self._unread, self._give_up)

    def _pieces(self, data: memoryview) -> Iterator[bytes | memoryview]:
        """Yield the unsent bytes and ``data`` in the pieces in which they are written, each with
        its own deadline.
        """
        unsent, self._unsent = memoryview(self._unsent), b""
        for part in (unsent, data):
            for start in range(0, len(part), WRITE_PIECE_BYTES):
                yield part[start : start + WRITE_PIECE_BYTES]

    def _unread(self) -> bytes:
        """Everything behind what was parsed."""
        return self._protocol.unparsed() + self._rest + bytes(self._ahead)

    def _room_ahead_bytes(self) -> int:
        """Return how much more may be read ahead now."""
        held_bytes = len(self._ahead)
        piece_bytes = FREE_BYTES - held_bytes % FREE_BYTES
        if not self._ahead_room.has_room(piece_bytes):
            return 0
        return min(piece_bytes, self._limits.max_read_ahead_bytes - held_bytes)

    async def _receive_some(self, max_bytes: int) -> bytes:
        if self._next_read_s > -inf:  # not after the read: cancelled, it would lose
            if self._next_read_s > trio.current_time():
                await trio.sleep_until(self._next_read_s)
            self._next_read_s = -inf
        self._waits_for_bytes = True
        try:
            data = await self._read(max_bytes)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return b""
        finally:
            self._waits_for_bytes = False
        self._is_drained = len(data) < max_bytes
        if len(data) < min(max_bytes, SMALL_READ_BYTES):
            now_s = trio.current_time()
            if not self._small_reads.take(now_s):
                self._next_read_s = now_s + SMALL_READS_PAUSE_S
        return data

    async def _read(self, max_bytes: int) -> bytes:
        """The next bytes, empty at the end. Where the read before left nothing, the first thing is
        to wait: a read that finds nothing costs as much as one that finds a token.

        Errors: OSError, trio.BrokenResourceError, trio.ClosedResourceError.
        """
        sock = self._stream.socket
        if self._is_drained and sock.fileno() >= 0:
            while not self.is_encrypted and (texts := self._protocol.texts) is not None:
                data = await self._read_texts(texts, max_bytes)
                if data is not None:
                    return data
            await trio.lowlevel.wait_readable(sock)
            try:
                return os.read(sock.fileno(), max_bytes)  # asked again: it may be closed meanwhile
            except BlockingIOError:
                pass  # it was woken for nothing
        return bytes(await self._stream.receive_some(max_bytes))

    async def _read_texts(self, texts: BoundedWebSocket, max_bytes: int) -> bytes | None:
        """Have texts taken in the step in which they are read. A short read, and the end, are
        returned; None if something had to wait, and was taken here. Errors as of `_read`."""
        descriptor = self._stream.socket.fileno()
        short: bytes | None = None

        def read() -> bool:
            nonlocal short
            try:
                data = os.read(descriptor, max_bytes)
            except BlockingIOError:
                return True
            if len(data) < SMALL_READ_BYTES:
                short = data
                return False
            return texts.take_now(data)

        await read_while(descriptor, read)
        if short is None:
            await texts.finish()
        return short

    def _write_some(self, data: bytes) -> int:
        """Write as much as fits into the kernel's buffer; return the number of bytes."""
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._give_up()
            raise ClientGoneError(f"connection broke during a write: {error.strerror}") from error

    async def _write_rest(self, data: memoryview) -> None:
        try:
            self._write_turn.acquire_nowait()  # no checkpoint between the parts of a write
        except trio.WouldBlock:
            await self._write_turn.acquire()
        try:
            if self._gone:
                await trio.lowlevel.checkpoint()  # a loop of sends must not hold up the others
                raise ClientGoneError("connection is closed")
            whole_s = trio.current_time() + self._limits.write_timeout_s
            with trio.CancelScope(shield=True) as scope:
                self._writing = scope
                for piece in self._pieces(data):
                    scope.deadline = min(whole_s, self._piece_deadline())
                    await self._stream.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._give_up()
            raise ClientGoneError("connection broke during a write") from error
        finally:
            self._write_turn.release()
        if scope.cancelled_caught:
            self._give_up()
            limits = self._limits
            timeout_s = limits.drain_write_timeout_s if self.draining else limits.write_timeout_s
            self.report_abuse(f"did not read what we wrote for {timeout_s:g} s")
            raise ClientGoneError(f"client did not read for {timeout_s:g} s")

    def _has_input(self) -> bool:
        return bool(self._protocol.connection.trailing_data[0])

    def _note_idle(self, *, idle: bool) -> None:
        self._idle = idle
        if not idle:
            self.is_fresh = False
            self._reading.deadline = float("inf")
        elif self.draining:
            self._begin_linger()
        elif self._is_left:  # its last response may have begun before anybody knew that
            self._reading.deadline = trio.current_time() + LEFT_S
        else:
            self._reading.deadline = trio.current_time() + self._limits.keep_alive_s

    def _begin_linger(self) -> None:
        """Close our side after the last byte and let the reader discard the rest."""
        if self._gone:
            return
        self._gone = True
        self._lingering.deadline = self._linger_deadline()
        self._reading.cancel()
        self._shut_down()

    def _shut_down(self) -> None:
        """Close our side, behind what the kernel has."""
        try:
            self._stream.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in {errno.ENOTCONN, errno.EBADF}:
                raise

    def _linger_deadline(self) -> float:
        limits = self._limits
        return trio.current_time() + (limits.drain_linger_s if self.draining else limits.linger_s)

    def _piece_deadline(self) -> float:
        """Return when a piece that is being written must be with the kernel, if we are ending."""
        return trio.current_time() + (self._limits.drain_write_timeout_s if self.draining else inf)

    def _give_up(self) -> None:
        """Close the socket, also under a task that waits for it."""
        self._gone = True
        self._lingering.cancel()
        self._reading.cancel()
        closing(self._stream.socket.fileno())
        self._stream.socket.close()

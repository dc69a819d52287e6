"""A connection over TLS: what `HttpConnection` does, with records between it and its socket.

Bytes are encrypted in the turn to write and go through the same raw path; a goodbye (close_notify)
is sent where the connection ends in order. Renegotiation does not exist here, so a write never
waits for a read.

The first step of a connection with TLS: its handshake, bounded in bytes, pieces and threads.

A client that never speaks costs what any connection does: OpenSSL's part begins with the first
byte. The steps run in a few threads, because a signature takes milliseconds with some keys. Whoever
comes with plain HTTP is answered in plain HTTP.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import ClassVar, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from paddler_trio.net.server.app_inbox import PassableConnection
from paddler_trio.net.server.asgi import TEXT_PLAIN, ClientGoneError
from paddler_trio.net.server.connection import RECEIVE_BYTES, WRITE_PIECE_BYTES, HttpConnection
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.net.server.protocol import Http11Protocol
from paddler_trio.net.tls.server_tls import ServerTls
from paddler_trio.net.tls.tls_records import HANDSHAKE, TlsError, TlsPassage, TlsRecords

MAX_BYTES: Final = 16_384
"""Of a handshake from the client; a chain of three certificates has a third of it. OpenSSL holds 30
KiB beside it until the end."""
MAX_PIECES: Final = 100
"""That it may come in."""
HELLO_BYTES: Final = 16_384
"""Of one read."""

_ADVICE: Final = (
    b"This port speaks HTTPS, and the request came without TLS: use https:// instead of http:// "
    b"(wss:// instead of ws://).\n"
)
PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n%b"
) % (TEXT_PLAIN, len(_ADVICE), _ADVICE)


async def shake_hands(stream: trio.SocketStream, tls: ServerTls, data: bytes) -> TlsRecords:
    """The TLS of a connection whose first bytes are ``data``; the deadline is the caller's.

    Errors:
      TlsError: there is none, and why; an alert or a plain answer was sent.
      BrokenResourceError: the connection broke.
    """
    if data[0] != HANDSHAKE:
        await _answer_plainly(stream, data)
    records = TlsRecords(tls.context)
    await _finish(stream, records, data, tls)
    tls.handshakes += 1
    return records


async def _answer_plainly(stream: trio.SocketStream, data: bytes) -> None:
    if not data[:1].isalpha():
        raise TlsError("neither TLS nor HTTP")
    await stream.send_all(PLAIN_ANSWER)
    raise TlsError("plain HTTP on a port with TLS: use https://")


async def _finish(
    stream: trio.SocketStream, records: TlsRecords, data: bytes, tls: ServerTls
) -> None:
    size_bytes = 0
    for _ in range(MAX_PIECES):
        try:
            is_done = await trio.to_thread.run_sync(records.handshake, data, limiter=tls.turns)
        finally:
            if output := records.output():
                await stream.send_all(output)
        if is_done:
            return  # a request may have come with the last of it: that is not counted
        size_bytes += len(data)
        if size_bytes > MAX_BYTES:
            raise TlsError(f"a handshake of more than {MAX_BYTES} bytes")
        data = bytes(await stream.receive_some(HELLO_BYTES))
        if not data:
            raise TlsError("the client left in its handshake")
    raise TlsError(f"a handshake in more than {MAX_PIECES} pieces")


MAX_OUTPUT_BYTES: Final = 16_384
"""That OpenSSL may have to send by itself: a client that asks for new keys and reads nothing would
let it grow without end."""
BARREN_RECORDS: Final = 256
BARREN_RECORDS_PER_S: Final = 100.0
"""The burst of records without data that is read at once, and the rate after it: whoever sends more
waits."""


class TlsConnection(HttpConnection):
    """See the module docstring.

    Args:
      tls: its context at the time of the handshake is this connection's until the end.
    """

    is_encrypted: ClassVar[bool] = True

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
        tls: ServerTls,
    ) -> None:
        super().__init__(
            app,
            stream,
            limits=limits,
            config=config,
            context=context,
            budget=budget,
            share=share,
            passes=passes,
            protocol=protocol,
            on_abuse=on_abuse,
        )
        self._tls = tls
        self._records: TlsRecords | None = None
        self._passage = TlsPassage()
        self._goodbye_left = b""
        """Of the last bytes, what the kernel had no room for."""
        self._barren_records = 0
        self._barren_due_s = -inf

    def drain(self) -> None:
        """Take no request after the one in progress; what was passed on ends now."""
        super().drain()
        self._passage.cut()

    async def run(self) -> None:
        """Run the connection as one without TLS runs."""
        try:
            await super().run()
        finally:
            self._passage.close()

    def write_now(self, data: bytes) -> bool:
        """Write at once as a connection without TLS does; nothing is encrypted that may not be
        written.
        """
        records = self._records
        if records is None or self._gone or self._is_write_pending:
            return super().write_now(data)
        piece = self._encrypted(records, data[:WRITE_PIECE_BYTES])
        self._unsent = data[WRITE_PIECE_BYTES:]
        written_bytes = self._write_some(piece)
        if written_bytes == len(piece):
            return not self._unsent
        records.put_back(piece[written_bytes:])
        return False

    @property
    def _is_write_pending(self) -> bool:
        records = self._records
        return super()._is_write_pending or (records is not None and records.output_bytes > 0)

    def _pieces(self, data: memoryview) -> Iterator[bytes | memoryview]:
        records = self._records
        assert records is not None, "there is no request before the handshake"
        if output := records.output():
            yield output
        for piece in super()._pieces(data):
            yield self._encrypted(records, piece)

    def _encrypted(self, records: TlsRecords, data: bytes | memoryview) -> bytes:
        try:
            return records.encrypt(data)
        except TlsError as error:
            self._give_up()
            raise ClientGoneError(f"TLS broke: {error}") from error

    # ---------------------------------------------------------------------------------- reading

    async def _open(self) -> bool:
        seconds, deadline_s = self._limits.header_deadline_s, self._reading.deadline
        first = await super()._receive_some(HELLO_BYTES)
        if not first:
            return False  # left without a word, as probes do
        try:
            self._records = await shake_hands(self._stream, self._tls, first)
        except TlsError as error:
            self.report_abuse(f"no TLS: {error}")
            self._begin_linger()
            return False
        except trio.BrokenResourceError:
            return False
        except trio.Cancelled:
            if trio.current_time() >= deadline_s:
                self.report_abuse(f"no TLS: its handshake was not done within {seconds:g} s")
            raise
        self._reading.deadline = trio.current_time() + seconds
        return True

    async def _receive_some(self, max_bytes: int) -> bytes:
        records = self._records
        if records is None:
            return await super()._receive_some(max_bytes)
        while True:
            while records.held_bytes:
                await trio.lowlevel.checkpoint()
                if (data := self._decrypted(records, max_bytes)) is not None:
                    return data
            records.feed(await super()._receive_some(max_bytes))
            if (data := self._decrypted(records, max_bytes)) is not None:
                return data

    def _decrypted(self, records: TlsRecords, max_bytes: int) -> bytes | None:
        try:
            data = records.decrypt(max_bytes)
        except TlsError as error:
            self.report_abuse(f"TLS broke: {error}")
            self._begin_linger()
            return b""
        if records.output_bytes:
            self._send_output(records)
        if (barren := records.barren_records) != self._barren_records:
            now_s = trio.current_time()
            begin_s = max(self._barren_due_s, now_s - BARREN_RECORDS / BARREN_RECORDS_PER_S)
            self._barren_due_s = begin_s + (barren - self._barren_records) / BARREN_RECORDS_PER_S
            self._barren_records = barren
            self._next_read_s = max(self._next_read_s, self._barren_due_s)
        return data

    def _send_output(self, records: TlsRecords) -> None:
        """Send what OpenSSL has to say by itself, as far as nobody else writes."""
        if not (self._gone or self._write_turn.locked()):
            output = records.output()
            with suppress(ClientGoneError):  # the next read or write notices
                records.put_back(output[self._write_some(output) :])
        if records.output_bytes > MAX_OUTPUT_BYTES:
            self.report_abuse("asks for new keys and does not read the answers")
            self._give_up()

    # ------------------------------------------------------------------------------------ the end

    def _begin_linger(self) -> None:
        if self._gone:
            return
        self._say_goodbye()
        super()._begin_linger()
        self._records = None  # what still arrives is only discarded

    def _say_goodbye(self) -> None:
        """Send TLS's goodbye if everything was written."""
        is_cut = self._gone or self._write_turn.locked() or self._unsent
        if self._records is not None and not is_cut:
            goodbye = self._records.goodbye()
            with suppress(ClientGoneError):
                self._goodbye_left = goodbye[self._write_some(goodbye) :]

    def _shut_down(self) -> None:
        if not self._goodbye_left:
            super()._shut_down()

    async def _close(self) -> None:
        limits = self._limits
        if self._passage.is_released and self._records is not None:
            await self._passage.run(
                self._receive_passed, self._send_passed, linger_s=limits.linger_s
            )
            return
        if not self._gone:
            self._say_goodbye()
        if self._goodbye_left:  # the kernel has no room yet
            with (
                suppress(trio.BrokenResourceError, trio.ClosedResourceError),
                trio.move_on_after(limits.drain_linger_s if self.draining else limits.linger_s),
            ):
                await self._stream.send_all(self._goodbye_left)
            self._goodbye_left = b""
            self._shut_down()

    # ------------------------------------------------------------------------------- passing on

    def _passable(self) -> PassableConnection:
        return PassableConnection(self._passage.descriptor, self._unread, self._release)

    def _release(self) -> None:
        """Nothing is answered here any more; what is read and written is the passage's."""
        self._passage.release()
        self._gone = True
        self._reading.cancel()

    async def _receive_passed(self) -> bytes:
        return await self._receive_some(RECEIVE_BYTES)

    async def _send_passed(self, data: bytes) -> None:
        """ClientGoneError; ``data`` is empty for the end."""
        records = self._records
        assert records is not None, "a connection without TLS is passed on itself"
        if not data:
            with suppress(ClientGoneError, OSError):
                self._write_some(records.goodbye())
                self._stream.socket.shutdown(socket.SHUT_WR)
            return
        try:
            with trio.fail_after(self._limits.write_timeout_s):
                await self._stream.send_all(self._encrypted(records, data))
        except trio.TooSlowError as error:
            raise ClientGoneError(
                f"client did not read for {self._limits.write_timeout_s:g} s"
            ) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientGoneError("connection broke during a write") from error

"""One connection's TLS, between its plain bytes and those on the wire: no socket anywhere.

The bytes of the two sides go through memory, so that a connection writes, reads and waits as it
does without TLS. What OpenSSL has to send by itself (tickets, the answers to key updates, alerts)
is part of the output, in front of what is encrypted next.

A connection over TLS that another process answers: it gets one end of a pair of sockets.

The other process neither has the keys nor needs them: what it writes into its end is encrypted
here, and what the client sends comes decrypted out of it. Each direction holds one piece at a time;
a receiver that is slow makes its sender wait. The ends of both directions are carried too, so the
other process sees a client that leaves as it would without TLS.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.net.server.asgi import ClientGoneError, HttpProblem

SCRATCH_BYTES: Final = 65_536
HANDSHAKE: Final = 0x16
"""The first byte of every TLS connection: the type of its first record."""
HEADER_BYTES: Final = 5
"""Of a record: type, version, and the length of what follows in two bytes."""
RECORDS_AT_A_TIME: Final = 64
"""That one call decrypts: a millisecond, if they are key updates."""

_scratch = memoryview(bytearray(SCRATCH_BYTES))
"""Where records are decrypted, one call at a time: a buffer for each would be given back to the
system and taken again for each."""


class TlsError(PaddlerError):
    """The peer broke TLS, or ended it with an alert."""


class TlsRecords:
    """The TLS of one connection; `handshake` until it is done, then everything else."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.barren_records = 0
        """How many brought no data: a key update costs its sender 27 bytes, and OpenSSL 16 us."""
        self._undecided_records = 0
        """Given to OpenSSL, and not known to have brought data or none."""
        self._raw = memoryview(b"")
        """What has arrived and is not OpenSSL's yet."""
        self._next_record = 0
        """Where in it the next record begins; negative if its header has begun before."""
        self._begun = b""
        """Of that header."""
        self._kept = b""
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<TlsRecords {self._tls.version()} {self.cipher}: {self.held_bytes} bytes to read>"

    @property
    def version(self) -> str:
        """Such as ``TLSv1.3``."""
        return self._tls.version() or "none"

    @property
    def cipher(self) -> str:
        """The name of the cipher suite."""
        cipher = self._tls.cipher()
        return "none" if cipher is None else cipher[0]

    @property
    def held_bytes(self) -> int:
        """Decrypted or not, what has arrived and can be read."""
        return len(self._raw) + self._incoming.pending + self._tls.pending()

    def handshake(self, data: bytes) -> bool:
        """Go on with what has arrived; whether that was the end of it. Send the `output` in any
        case. TlsError."""
        self.feed(data)
        while self._raw:
            self._take_records()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        self._undecided_records = 0
        return True

    def output(self) -> bytes:
        """Return the bytes to be sent now, without more to encrypt."""
        kept, self._kept = self._kept, b""
        return kept + self._outgoing.read()

    @property
    def output_bytes(self) -> int:
        """Return how many bytes `output` would return."""
        return len(self._kept) + self._outgoing.pending

    def put_back(self, data: bytes) -> None:
        """The end of an output that could not be sent yet: it comes first in the next."""
        self._kept = data + self._kept

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """``data`` as it is sent, behind the `output`. The order of calls is the order on the wire.
        TlsError once the connection has broken."""
        rest = memoryview(data)
        try:
            while len(rest) > 0:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        return self.output()

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived once nothing is held any more; empty bytes are the end."""
        assert not self._raw, "fed before the last was decrypted"
        self._raw = memoryview(data)
        self._has_ended = self._has_ended or not data

    def decrypt(self, max_bytes: int) -> bytes | None:
        """Return at most ``max_bytes`` of the text that arrived, empty bytes at its end, or None if
        more has to arrive or another call is needed while bytes are held. An end without the peer's
        goodbye is an end too: HTTP's own framing shows what is missing. TlsError.
        """
        self._take_records()
        size_bytes = 0
        room_bytes = min(max_bytes, SCRATCH_BYTES)
        try:
            while size_bytes < room_bytes and (self._incoming.pending or self._tls.pending()):
                count = _read_into(self._tls, room_bytes - size_bytes, _scratch[size_bytes:])
                if count == 0:
                    self._has_ended = True
                    break
                size_bytes += count
                self._undecided_records = max(0, self._undecided_records - 1)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to arrive
        except ssl.SSLZeroReturnError:
            self._has_ended = True
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        self._count_barren()
        if size_bytes:
            return bytes(_scratch[:size_bytes])
        return b"" if self._has_ended and not self._raw else None

    def _take_records(self) -> None:
        """Give OpenSSL what has arrived, as far as that is not too many records."""
        raw, begun, at, count = self._raw, self._begun, self._next_record, 0
        while at + HEADER_BYTES <= len(raw) and count < RECORDS_AT_A_TIME:
            high, low = at + 3, at + 4  # of the length; negative ones lie in what came before
            body_bytes = (raw[high] if high >= 0 else begun[high]) << 8
            body_bytes += raw[low] if low >= 0 else begun[low]
            count += 1
            at += HEADER_BYTES + body_bytes
        taken = min(at, len(raw)) if count == RECORDS_AT_A_TIME else len(raw)
        self._begun = (begun[at:] if at < 0 else b"") + bytes(raw[max(at, 0) : taken])
        self._next_record = at - taken
        self._raw = raw[taken:]
        self._incoming.write(raw[:taken])
        self._undecided_records += count

    def _count_barren(self) -> None:
        if self._incoming.pending or self._tls.pending():
            return
        incomplete = min(self._undecided_records, int(self._next_record > 0))
        self.barren_records += self._undecided_records - incomplete
        self._undecided_records = incomplete

    def goodbye(self) -> bytes:
        """The last bytes to send: nothing is encrypted after them."""
        with suppress(ssl.SSLError):  # the peer's own is not awaited; or the connection broke
            self._tls.unwrap()
        return self.output()


def _read_into(tls: ssl.SSLObject, max_bytes: int, buffer: memoryview) -> int:
    """Read into ``buffer`` and return how much was read: the library's type hints know no buffers
    but bytearrays.
    """
    read: Callable[[int, memoryview], int] = tls.read  # type: ignore[assignment]
    return read(max_bytes, buffer)


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's short reason in words, with what it means where people meet it."""
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"{reason} ({error.verify_message})"
    advice = _ADVICE.get(error.reason or "")
    return f"{reason}: {advice}" if advice else reason


_ADVICE: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this certificate's authority; give it "
    "the CA (--tls-ca) or the fingerprint",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client refused this certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client sees this certificate as expired; are the "
    "clocks right?",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client refused this certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "clients must show one here",
    "CERTIFICATE_VERIFY_FAILED": "the client's is of no authority that is trusted here, or expired",
    "UNSUPPORTED_PROTOCOL": "the client is too old; TLS 1.2 is the oldest that is served",
    "NO_SHARED_CIPHER": "the client and this OpenSSL have no cipher suite in common",
}


PIECE_BYTES: Final = 65_536
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


@attrs.define(eq=False)
class TlsPassage:
    """One connection's; without a pair until somebody asks for its descriptor."""

    is_released: bool = attrs.field(default=False, init=False)
    """Another process holds the far end."""
    _near: socket.socket | None = attrs.field(default=None, init=False)
    _far: socket.socket | None = attrs.field(default=None, init=False)
    _running: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __repr__(self) -> str:
        state = "released" if self.is_released else "closed" if self._far is None else "open"
        return f"<TlsPassage {state}>"

    def descriptor(self) -> int:
        """Return the descriptor of the far end, made at the first call; HttpProblem (503) if none
        is left.
        """
        if self._far is None:
            try:
                self._near, self._far = socket.socketpair()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                reason = os.strerror(error.errno)
                raise HttpProblem(503, f"this request cannot be passed on: {reason}") from error
            self._near.setblocking(False)
        return self._far.fileno()

    def release(self) -> None:
        """Forget the far end: another process has a copy of it."""
        assert self._far is not None, "released without a descriptor"
        self._far.close()
        self.is_released = True

    def cut(self) -> None:
        """End it now; the other process sees that the client is gone."""
        self._running.cancel(reason="the server ends")

    def close(self) -> None:
        """Close what is open of the pair."""
        for end in (self._near, self._far):
            if end is not None:
                end.close()

    async def run(
        self,
        receive: Callable[[], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
        *,
        linger_s: float,
    ) -> None:
        """Carry bytes both ways until the other process has closed its end and the client its own.

        Args:
          receive: the next bytes of the client; empty at their end, and from then on.
          send: to the client, empty for the end; ClientGoneError if it left.
          linger_s: for the client to close its side behind the last byte.
        """
        assert self._near is not None, "run without a descriptor"
        near = trio.SocketStream(trio.socket.from_stdlib_socket(self._near))
        with self._running:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_carry_up, receive, near, name="bytes of the client")
                try:
                    await _carry_down(near, send)
                except ClientGoneError:
                    nursery.cancel_scope.cancel(reason="the client is gone")
                nursery.cancel_scope.deadline = trio.current_time() + linger_s


async def _carry_up(receive: Callable[[], Awaitable[bytes]], near: trio.SocketStream) -> None:
    is_read = True
    while data := await receive():
        if is_read:
            try:
                await near.send_all(data)
            except trio.BrokenResourceError:
                is_read = False  # the answer may be under way: the client must not be reset
    if is_read:
        try:
            await near.send_eof()
        except trio.BrokenResourceError:
            return  # it has ended already


async def _carry_down(near: trio.SocketStream, send: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        try:
            data = bytes(await near.receive_some(PIECE_BYTES))
        except trio.BrokenResourceError:
            data = b""  # it ended with bytes of the client unread
        await send(data)
        if not data:
            return

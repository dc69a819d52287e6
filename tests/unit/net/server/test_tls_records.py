"""Records against a client of the standard library, in memory, however the bytes are split."""

from __future__ import annotations

import ssl
from contextlib import suppress

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates import Authority
from paddler_trio.net.tls.server_context import TlsFiles, server_context
from paddler_trio.net.tls.tls_records import RECORDS_AT_A_TIME, TlsError, TlsRecords


@attrs.define
class Pair:
    """Both ends of one connection, after its handshake."""

    records: TlsRecords
    client: ssl.SSLObject
    to_client: ssl.MemoryBIO
    to_server: ssl.MemoryBIO

    @classmethod
    def of(
        cls, context: ssl.SSLContext, trusting: ssl.SSLContext, piece_bytes: int = 65_536
    ) -> Pair:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
        pair = cls(TlsRecords(context), client, to_client, to_server)
        is_done = False
        while not is_done:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            while not is_done and (data := to_server.read(piece_bytes)):
                is_done = pair.records.handshake(data)
            to_client.write(pair.records.output())
        return pair

    def decrypted(self, piece_bytes: int = 65_536, room_bytes: int = 65_536) -> bytes:
        """All that the client has sent, arriving in such pieces, read with such room."""
        received = b""
        while data := self.to_server.read(piece_bytes):
            self.records.feed(data)
            while self.records.held_bytes:
                received += self.records.decrypt(room_bytes) or b""
        return received


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign()
    return server_context(TlsFiles(pair.cert, pair.key))


@pytest.fixture(scope="module")
def trusting(authority: Authority) -> ssl.SSLContext:
    return authority.client_context()


@settings(max_examples=40)
@given(
    writes=st.lists(st.binary(min_size=1, max_size=400) | st.just(bytes(17_000)), max_size=3),
    piece_bytes=st.integers(5, 300) | st.integers(1000, 70_000),
    room_bytes=st.integers(1, 70_000),
)
def test_any_split_of_the_bytes_gives_the_same(
    context: ssl.SSLContext,
    trusting: ssl.SSLContext,
    writes: list[bytes],
    piece_bytes: int,
    room_bytes: int,
) -> None:
    pair = Pair.of(context, trusting, piece_bytes)
    for write in writes:
        pair.client.write(write)
    assert pair.decrypted(piece_bytes, room_bytes) == b"".join(writes)
    assert pair.records.barren_records == 0
    answer = pair.records.encrypt(b"".join(writes))
    pair.to_client.write(answer)
    received = b""
    while len(received) < sum(map(len, writes)):
        received += pair.client.read(65_536)
    assert received == b"".join(writes)


def test_one_call_decrypts_few_records(context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    pair = Pair.of(context, trusting)
    for _ in range(1000):
        pair.client.write(b"x")
    pair.records.feed(pair.to_server.read())
    assert pair.records.decrypt(65_536) == b"x" * RECORDS_AT_A_TIME
    assert pair.records.held_bytes > 0
    with pytest.raises(AssertionError, match="before the last was decrypted"):
        pair.records.feed(b"more")


def test_what_could_not_be_sent_comes_first(
    context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    pair = Pair.of(context, trusting)
    first = pair.records.encrypt(b"first")
    pair.records.put_back(first[3:])
    assert pair.records.output_bytes == len(first) - 3
    pair.to_client.write(first[:3] + pair.records.encrypt(b"second"))
    assert pair.client.read(100) + pair.client.read(100) == b"firstsecond"
    assert pair.records.output_bytes == 0


def test_a_goodbye_is_the_end_on_either_side(
    context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    pair = Pair.of(context, trusting)
    pair.client.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.records.feed(pair.to_server.read())
    assert pair.records.decrypt(100) == b"last words"
    assert pair.records.decrypt(100) == b""
    pair.to_client.write(pair.records.goodbye())
    with pytest.raises(ssl.SSLZeroReturnError):
        pair.client.read(100)


def test_an_end_without_a_goodbye_is_an_end(
    context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    pair = Pair.of(context, trusting)
    pair.client.write(b"cut in the middle")
    pair.records.feed(pair.to_server.read()[:-1])
    assert pair.records.decrypt(100) is None
    pair.records.feed(b"")
    assert pair.records.decrypt(100) == b""


def test_damaged_bytes_break_the_connection(
    context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    pair = Pair.of(context, trusting)
    pair.client.write(b"something")
    damaged = bytearray(pair.to_server.read())
    damaged[-1] ^= 1
    pair.records.feed(bytes(damaged))
    with pytest.raises(TlsError, match="bad record mac"):
        pair.records.decrypt(100)
    assert pair.records.output_bytes > 0, "an alert"


def test_a_client_that_does_not_trust_us_is_explained(
    context: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Authority.make(tmp_path_factory.mktemp("other")).client_context()
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = other.wrap_bio(to_client, to_server, server_hostname="localhost")
    records = TlsRecords(context)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    assert not records.handshake(to_server.read())
    to_client.write(records.output())
    with pytest.raises(ssl.SSLCertVerificationError):
        client.do_handshake()
    with pytest.raises(TlsError, match="unknown ca: the client does not trust"):
        records.handshake(to_server.read())

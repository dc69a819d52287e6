"""Key updates: free for their sender, bounded for us."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from certificates import Authority
from openssl_client import OpensslClient
from paddler_trio.net.tls.server_context import TlsFiles, server_context
from paddler_trio.net.tls.tls_records import RECORDS_AT_A_TIME, TlsRecords


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    pair = Authority.make(tmp_path_factory.mktemp("authority")).sign()
    return server_context(TlsFiles(pair.cert, pair.key))


@pytest.fixture
def client() -> Iterator[OpensslClient]:
    client = OpensslClient()
    yield client
    client.close()


def connected(context: ssl.SSLContext, client: OpensslClient) -> TlsRecords:
    records, is_done = TlsRecords(context), False
    while not is_done:
        client.handshake()
        is_done = records.handshake(client.output())
        client.feed(records.output())
    assert records.version == "TLSv1.3"
    assert client.read() == b"", "tickets are read with the first bytes"
    return records


@pytest.mark.parametrize("asks_for_ours", [True, False])
def test_one_call_takes_few_and_all_are_counted(
    context: ssl.SSLContext, client: OpensslClient, asks_for_ours: bool
) -> None:
    records = connected(context, client)
    for _ in range(500):
        client.update_keys(asks_for_ours=asks_for_ours)
    client.write(b"data at last")
    records.feed(client.output())
    assert records.decrypt(65_536) is None
    assert records.barren_records == RECORDS_AT_A_TIME
    received = b""
    while records.held_bytes:
        received += records.decrypt(65_536) or b""
    assert received == b"data at last"
    assert records.barren_records == 500
    assert (records.output_bytes > 0) == asks_for_ours
    client.feed(records.encrypt(b"with new keys"))
    assert client.read() == b"with new keys"


def test_records_with_data_are_not_counted(context: ssl.SSLContext, client: OpensslClient) -> None:
    records = connected(context, client)
    for _ in range(100):
        client.write(b"x")
        client.update_keys(asks_for_ours=False)
    sent = client.output()
    received = b""
    for start in range(0, len(sent), 7):  # headers of records begin in one piece and end in another
        records.feed(sent[start : start + 7])
        while records.held_bytes:
            received += records.decrypt(65_536) or b""
    assert received == b"x" * 100
    assert records.barren_records == 100

"""The agent's link over TLS: whom it trusts, and deadlines that hold."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import cast

import pytest
import trio
from wrong_peers import (
    OK,
    PEERS,
    Peer,
    agreed,
    agrees_on,
    closes_at_once,
    dial,
    impatient,
    reasons,
    says,
    until_gone,
)

from certificates import Authority
from paddler_trio.agent.link import balancer_link
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

__all__ = ["impatient"]  # a fixture

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("impatient")]


async def agrees_and_is_silent(stream: trio.SocketStream) -> None:
    await agreed(stream)
    await until_gone(stream)


async def agrees_and_reads_nothing(stream: trio.SocketStream) -> None:
    await agreed(stream)
    await trio.sleep_forever()


async def never_shakes_hands(stream: trio.SocketStream) -> None:
    assert isinstance(stream, trio.SSLStream)
    await until_gone(cast("trio.SocketStream", stream.transport_stream))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    pair = authority.sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (closes_at_once, "closed the connection during the TLS handshake"),
        (never_shakes_hands, "TLS and WebSocket handshakes to https://127.0.0.1:"),
        (says(OK), "ConnectionRejected"),
        (PEERS["a page without end"], "no WebSocket"),
        (agrees_and_is_silent, "no answer to a ping"),
        (agrees_and_reads_nothing, "no answer to a ping"),
        (agrees_on(SUBPROTOCOL), "1006"),
    ],
)
async def test_over_tls_too(
    peer: Peer,
    reason: str,
    authority: Authority,
    context: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deadlines of silence and of closing hold, and no end waits for a goodbye of TLS."""
    monkeypatch.setattr(balancer_link, "CLOSE_S", 0.2)
    with trio.fail_after(50):
        (first, *_) = reasons(await dial(peer, context, ClientTls(ca_file=authority.cert)))
    assert reason in first


async def test_what_verifies_the_balancer_is_read_at_every_dialling(
    authority: Authority, context: ssl.SSLContext, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(Authority.make(tmp_path / "other").cert.read_bytes())

    async def peer(stream: trio.SocketStream) -> None:
        trusted.write_bytes(authority.cert.read_bytes())  # the agent has read the other one
        await until_gone(stream)

    ends = reasons(await dial(peer, context, ClientTls(ca_file=trusted)))
    assert len(ends) == 1
    assert "no trusted authority vouches" in ends[0]

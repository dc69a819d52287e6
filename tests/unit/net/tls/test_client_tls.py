"""Contexts of clients: handshakes in memory, over real sockets, and their errors."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from certificates import Authority, Pair
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.certificate import certificates_of, date_of
from paddler_trio.net.tls.client_errors import seen_certificate, tls_problem
from paddler_trio.net.tls.client_tls import ClientTls, PinMismatchError, parse_fingerprint

PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign()


def fingerprint_of(pair: Pair) -> str:
    return certificates_of(pair.cert.read_bytes())[0].fingerprint


def server_context(pair: Pair, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Listener:
    """Answers one byte to one byte, to as many clients as come; ``received`` is all that they
    sent."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.received = bytearray()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = BalancerAddress("127.0.0.1", self.socket.getsockname()[1], is_tls=True)

    def run(self) -> None:
        while True:
            try:
                plain, _ = self.socket.accept()
            except OSError:
                return
            plain.settimeout(PATIENCE_S)
            with plain:
                try:
                    self.answer(plain)
                except OSError:
                    continue

    def answer(self, plain: socket.socket) -> None:
        if self.context is None:
            plain.recv(4096)
            plain.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            return
        with self.context.wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False
        ) as encrypted:
            try:
                encrypted.do_handshake()
            except ssl.SSLError:
                with socket.socket(fileno=encrypted.detach()) as rest:
                    rest.settimeout(PATIENCE_S)
                    rest.shutdown(socket.SHUT_WR)  # the alert is read before a reset comes
                    while rest.recv(4096):
                        pass
                return
            while piece := encrypted.recv(4096):
                self.received += piece
                encrypted.sendall(piece)


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[Listener]:
    listener = Listener(context)
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        yield listener
    finally:
        listener.socket.shutdown(socket.SHUT_RDWR)
        listener.socket.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def exchange(tls: ClientTls, address: BalancerAddress) -> bytes:
    with (
        socket.create_connection((address.host, address.port), PATIENCE_S) as plain,
        tls.context().wrap_socket(plain, server_hostname=address.host) as encrypted,
    ):
        encrypted.sendall(b"x")
        return encrypted.recv(1)


def problem(tls: ClientTls, listener: Listener) -> str:
    with pytest.raises(ssl.SSLError) as caught:
        exchange(tls, listener.address)
    text = tls_problem(caught.value, listener.address)
    assert "\n" not in text
    assert not listener.received
    return text


def test_an_authority_or_a_pin_opens_it(authority: Authority, pair: Pair) -> None:
    with listening(server_context(pair)) as listener:
        assert exchange(ClientTls(ca_file=authority.cert), listener.address) == b"x"
        assert exchange(ClientTls(fingerprint=fingerprint_of(pair)), listener.address) == b"x"
        assert seen_certificate(listener.address).fingerprint == fingerprint_of(pair)


def test_an_authority_that_is_no_root_is_enough(pair: Pair, tmp_path: Path) -> None:
    """The certificate itself, as a store of trust."""
    with listening(server_context(pair)) as listener:
        assert exchange(ClientTls(ca_file=pair.cert), listener.address) == b"x"


def test_an_unknown_issuer(pair: Pair, tmp_path: Path) -> None:
    other = Authority.make(tmp_path)
    with listening(server_context(pair)) as listener:
        for tls in (ClientTls(), ClientTls(ca_file=other.cert)):
            text = problem(tls, listener)
            assert "no trusted authority vouches" in text
            assert "--tls-ca FILE" in text
            assert f"--tls-fingerprint {fingerprint_of(pair)}" in text


def test_a_wrong_name(authority: Authority) -> None:
    elsewhere = authority.sign("elsewhere", alternatives="DNS:elsewhere.example")
    with listening(server_context(elsewhere)) as listener:
        text = problem(ClientTls(ca_file=authority.cert), listener)
        assert "is for another name" in text
        assert "127.0.0.1" in text
        pinned = ClientTls(fingerprint=fingerprint_of(elsewhere))
        assert exchange(pinned, listener.address) == b"x"


def test_an_expired_certificate_and_one_of_tomorrow(authority: Authority) -> None:
    now = datetime.now(UTC)
    last = now - timedelta(days=1)
    expired = authority.sign_for("expired", now - timedelta(days=9), last)
    with listening(server_context(expired)) as listener:
        text = problem(ClientTls(ca_file=authority.cert), listener)
        assert f"expired at {date_of(last.timestamp())}" in text
        assert exchange(ClientTls(fingerprint=fingerprint_of(expired)), listener.address) == b"x"
    tomorrow = authority.sign_for("tomorrow", now + timedelta(days=1), now + timedelta(days=9))
    with listening(server_context(tomorrow)) as listener:
        assert "check this machine's clock" in problem(ClientTls(ca_file=authority.cert), listener)


def test_another_certificate_than_the_pinned_one(authority: Authority, pair: Pair) -> None:
    pin = fingerprint_of(authority.pair)
    with listening(server_context(pair)) as listener:
        text = problem(ClientTls(ca_file=authority.cert, fingerprint=pin), listener)
        assert pin in text
        assert fingerprint_of(pair) in text
        assert "Nothing was sent" in text


async def test_a_pin_holds_for_trios_streams(authority: Authority, pair: Pair) -> None:
    pin = fingerprint_of(authority.pair)
    with listening(server_context(pair)) as listener, trio.fail_after(PATIENCE_S):
        for tls, is_right in (
            (ClientTls(fingerprint=fingerprint_of(pair)), True),
            (ClientTls(fingerprint=pin), False),
        ):
            plain = await trio.open_tcp_stream("127.0.0.1", listener.address.port)
            async with trio.SSLStream(
                plain, tls.context(), server_hostname="127.0.0.1", https_compatible=True
            ) as stream:
                if is_right:
                    await stream.send_all(b"y")
                    assert await stream.receive_some(1) == b"y"
                    continue
                with pytest.raises(trio.BrokenResourceError) as caught:
                    await stream.send_all(b"secret")
                assert isinstance(caught.value.__cause__, PinMismatchError)
        assert bytes(listener.received) == b"y"


def test_a_port_without_tls(pair: Pair) -> None:
    with listening(None) as listener:
        text = problem(ClientTls(), listener)
        assert "speaks no TLS: write 127.0.0.1:" in text


def test_clients_certificates(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    shown = authority.sign("agent")
    stranger = Authority.make(tmp_path).sign("stranger")
    with listening(server_context(pair, authority.cert)) as listener:
        tls = ClientTls(ca_file=authority.cert, cert_file=shown.cert, key_file=shown.key)
        assert exchange(tls, listener.address) == b"x"
        listener.received.clear()
        assert "--tls-client-cert and --tls-client-key" in problem(
            ClientTls(ca_file=authority.cert), listener
        )
        unknown = ClientTls(ca_file=authority.cert, cert_file=stranger.cert, key_file=stranger.key)
        assert "does not accept this client's certificate" in problem(unknown, listener)
        both = tmp_path / "both.pem"
        both.write_bytes(shown.cert.read_bytes() + shown.key.read_bytes())
        one_file = ClientTls(ca_file=authority.cert, cert_file=both)
        assert exchange(one_file, listener.address) == b"x"


def test_files_that_are_wrong(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    nothing, empty, large = tmp_path / "nothing", tmp_path / "empty", tmp_path / "large"
    empty.touch()
    large.write_bytes(b"x" * (1024 * 1024 + 1))
    for tls, text in (
        (ClientTls(ca_file=nothing), f"cannot read --tls-ca {nothing}: No such file"),
        (ClientTls(ca_file=empty), "holds no certificate of an authority"),
        (ClientTls(ca_file=large), "more than 1048576 bytes"),
        (ClientTls(cert_file=nothing), f"cannot read --tls-client-cert {nothing}"),
        (ClientTls(cert_file=pair.cert, key_file=nothing), "cannot read --tls-client-key"),
        (ClientTls(cert_file=pair.cert), "cannot be used with the key in"),
        (ClientTls(cert_file=pair.cert, key_file=authority.pair.key), "give the pair"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            tls.context()


def test_an_encrypted_key(authority: Authority, tmp_path: Path) -> None:
    options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-passout", "pass:secret")
    locked = authority.sign("locked", key_options=options)
    with pytest.raises(ConfigurationError, match="is encrypted: `openssl pkey"):
        ClientTls(cert_file=locked.cert, key_file=locked.key).context()


def test_flags_that_do_not_go_together(pair: Pair) -> None:
    with pytest.raises(ConfigurationError, match="needs --tls-client-cert FILE"):
        ClientTls(key_file=pair.key)
    assert not ClientTls().is_given
    assert ClientTls(fingerprint="A" * 64).is_given


def test_fingerprints() -> None:
    digits = "0123456789abcdef" * 4
    colons = ":".join(digits.upper()[at : at + 2] for at in range(0, 64, 2))
    for text in (digits, colons, f" sha256:{digits}\n", f"SHA256:{colons}"):
        assert parse_fingerprint(text) == digits
    for text in ("", digits[1:], digits + "0", "g" * 64, "sha1:" + digits):
        with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
            parse_fingerprint(text)

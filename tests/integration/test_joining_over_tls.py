"""Machines join over TLS: what is verified, and that nobody else hears the secret."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from joining_place import PATIENCE_S, as_pem, here_token, place

from certificates import Authority, Pair
from cli_in_process import invoke
from paddler_trio.net.joining.join_token import JoinToken


@contextmanager
def impostor(pair: Pair, certificates: list[str]) -> Iterator[tuple[int, list[bytes]]]:
    """A server that is not the balancer: its port, and all that it was sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    raw, _ = server.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(raw, server_side=True) as stream:
                        stream.settimeout(PATIENCE_S)
                        heard.append(stream.recv(65_536))
                        body = json.dumps({"certificates": certificates}).encode()
                        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
                        stream.sendall(head + body)
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], heard
        finally:
            server.shutdown(socket.SHUT_RDWR)
            server.close()
            thread.join(PATIENCE_S)


def test_joining_over_tls_sends_the_secret_to_the_balancer_alone(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    pair = authority.sign()
    chain = tmp_path / "chain.pem"
    chain.write_text(pair.cert.read_text() + authority.cert.read_text())
    options = (f"--tls-cert={chain}", f"--tls-key={pair.key}")
    with place(tmp_path, *options, scheme="https") as here:
        token = here_token(here, uses=4)
        assert token.address == f"https://{here.address}"
        assert "joined" in here.join(token.render(), "one", "--name=gpu-1")
        assert (tmp_path / "one" / "balancer-ca.pem").read_text() == as_pem(authority.cert)
        joined = json.loads((tmp_path / "one" / "joined.json").read_text())
        assert (joined["address"], joined["fingerprint"]) == (token.address, None)
        here.agent("one").wait_for_log("linked to the balancer")
        here.wait(lambda: set(here.agents()) == {"gpu-1"}, "the balancer has read that")

        other = Authority.make(tmp_path / "other").sign("impostor")
        certificates = [as_pem(other.cert), as_pem(authority.cert)]
        with impostor(other, certificates) as (port, heard):
            to_impostor = attrs.evolve(token, address=f"https://127.0.0.1:{port}")
            printed = here.join(to_impostor.render(), "two", "--name=gpu-2", code=1)
            assert "Nothing was sent" in printed
            assert heard
            assert not any(token.secret.encode() in each or b"POST" in each for each in heard)
        with impostor(other, [as_pem(other.cert)]) as (port, heard):
            to_impostor = attrs.evolve(token, address=f"https://127.0.0.1:{port}")
            printed = here.join(to_impostor.render(), "two", "--name=gpu-2", code=1)
            assert "shows other certificates" in printed
            assert not any(token.secret.encode() in each for each in heard)
        plain = attrs.evolve(token, address=here.address, certificate_hash=None)
        printed = here.join(plain.render(), "three", "--name=gpu-3", code=1)
        assert "speaks HTTPS" in printed


def test_a_certificate_that_stands_alone_is_pinned(tmp_path: Path) -> None:
    alone = Authority.make(tmp_path / "alone", "balancer").pair
    options = (f"--tls-cert={alone.cert}", f"--tls-key={alone.key}")
    with place(tmp_path, *options, scheme="https") as here:
        token = here_token(here)
        here.join(token.render(), "one", "--name=gpu-1")
        joined = json.loads((tmp_path / "one" / "joined.json").read_text())
        assert joined["fingerprint"] == token.certificate_hash
        assert not (tmp_path / "one" / "balancer-ca.pem").exists()
        here.agent("one").wait_for_log("linked to the balancer")


def test_a_balancer_that_asks_for_certificates_is_joined_with_one(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    pair, client = authority.sign(), authority.sign("client")
    shown = (f"--tls-client-cert={client.cert}", f"--tls-client-key={client.key}")
    options = (
        f"--tls-cert={pair.cert}",
        f"--tls-key={pair.key}",
        f"--tls-client-ca={authority.cert}",
    )
    with place(tmp_path, *options, scheme="https") as here:
        made = here.run("join-token", "new", f"--tls-ca={authority.cert}", *shown, with_tls=True)
        token = made.split("'")[1]
        assert "--tls-client-cert" in here.join(token, "one", "--name=gpu", code=1)
        here.join(token, "one", "--name=gpu", *shown)
        here.agent("one", *shown).wait_for_log("linked to the balancer")


def test_without_tls_nothing_is_sent_beyond_this_machine(tmp_path: Path) -> None:
    token = JoinToken("0" * 12, "s" * 43, None, "192.0.2.1:8060")
    (tmp_path / "token").write_text(token.render())
    ran = invoke("join", f"--state-dir={tmp_path / 'state'}", f"--token-file={tmp_path / 'token'}")
    assert ran.exit_code == 1
    assert "without TLS" in ran.stderr
    assert "--insecure" in ran.stderr
    assert not (tmp_path / "state").exists()

"""A balancer with TLS on every port, tried by the clients that people have."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked_processes
import httpx
import pytest
import trio
from fleet import Daemon
from tls_balancer import PATIENCE_S, PORTS, TlsBalancer, install, tls_balancer
from trio_websocket import open_websocket_url

from certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def balancer(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsBalancer]:
    folder = tmp_path_factory.mktemp("store")
    options = (
        f"--model-store={folder}",
        "--model-store-size=1GB",
        "--buffered-request-timeout=100",
    )
    with tls_balancer(authority, authority.sign(), *options) as started:
        started.daemon.wait_for_log("model store up")
        yield started


@pytest.mark.parametrize("port", PORTS)
def test_every_port_speaks_tls_and_explains_itself_without(
    balancer: TlsBalancer, port: str
) -> None:
    path = "/info" if port == "web_admin_panel" else "/health"
    assert balancer.get(port, path).status_code == 200
    plain = httpx.get(
        balancer.url(port, path).replace("https", "http"), trust_env=False, timeout=PATIENCE_S
    )
    assert plain.status_code == 400
    assert "use https://" in plain.text


def test_a_client_without_the_authority_is_in_the_log_with_advice(balancer: TlsBalancer) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(balancer.url("management"), trust_env=False, timeout=PATIENCE_S)
    balancer.daemon.wait_for_line("does not trust this certificate's authority")


def test_the_metrics_show_when_the_certificate_expires(balancer: TlsBalancer) -> None:
    text = balancer.get("management", "/metrics").text
    (line,) = re.findall(r"^paddler_tls_certificate_expiry_seconds (.+)$", text, re.MULTILINE)
    assert 9 * 86_400 < float(line) <= 10 * 86_400, "the test's is valid for ten days"


def test_the_panel_is_at_https_and_gives_agents_that_address(balancer: TlsBalancer) -> None:
    management = balancer.addresses["management"]
    document = balancer.get("web_admin_panel", "/info").json()
    assert document["join"]["address"] == f"https://{management}"
    assert document["encrypted"] is True  # the page writes https:// before the other addresses


# ------------------------------------------------------------------------------------- openssl


def s_client(balancer: TlsBalancer, *options: str) -> subprocess.CompletedProcess[str]:
    address = balancer.addresses["inference"]
    return subprocess.run(
        ["openssl", "s_client", "-connect", address, "-CAfile", str(balancer.authority.cert),
         "-verify_return_error", "-servername", "localhost", *options],
        input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "is_served"),
    [("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)],
)
def test_tls_1_2_is_the_oldest(balancer: TlsBalancer, option: str, is_served: bool) -> None:
    weak = () if is_served else ("-cipher", "ALL@SECLEVEL=0")
    ran = s_client(balancer, option, "-alpn", "h2,http/1.1", *weak)
    assert (ran.returncode == 0) is is_served, ran.stderr
    if is_served:
        assert "ALPN protocol: http/1.1" in ran.stdout
        assert "Verify return code: 0 (ok)" in ran.stdout
        assert "Compression: NONE" in ran.stdout
    else:
        assert "alert protocol version" in ran.stderr or "unsupported" in ran.stderr.lower()


class Interactive:
    """``openssl s_client`` with commands: the first character of a line is one."""

    def __init__(self, balancer: TlsBalancer, *options: str) -> None:
        self.process = subprocess.Popen(
            ["openssl", "s_client", "-connect", balancer.addresses["inference"], *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self.printed = b""

    def write(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)

    def read_until(self, text: bytes) -> bytes:
        """What was printed up to there; what comes later is kept."""
        assert self.process.stdout is not None
        give_up_s = time.monotonic() + PATIENCE_S
        while text not in self.printed:
            ready, _, _ = select.select([self.process.stdout], [], [], 1)
            data = os.read(self.process.stdout.fileno(), 65_536) if ready else b""
            assert data or not ready, f"ended before {text!r}: {self.printed!r}"
            assert time.monotonic() < give_up_s, f"no {text!r} in {self.printed!r}"
            self.printed += data
        before, _, self.printed = self.printed.partition(text)
        return before

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def interactive(balancer: TlsBalancer, *options: str) -> Iterator[Interactive]:
    client = Interactive(balancer, *options)
    try:
        client.read_until(b"Verify return code")
        yield client
    finally:
        client.end()


def test_renegotiation_is_refused(balancer: TlsBalancer) -> None:
    with interactive(balancer, "-tls1_2") as client:
        client.write(b"R\n")
        client.read_until(b"no renegotiation")


def test_a_client_that_changes_its_keys_is_served_on(balancer: TlsBalancer) -> None:
    with interactive(balancer, "-tls1_3") as client:
        for _ in range(20):
            client.write(b"K\n")  # and asks for the same of us
            client.read_until(b"KEYUPDATE")
        client.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.read_until(b"HTTP/1.1 200")


# ------------------------------------------------------------------------------ what people do


def test_a_model_is_uploaded_and_downloaded_over_tls(balancer: TlsBalancer) -> None:
    data = os.urandom(24 * 2**20)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"/api/v2/store/blobs/sha256/{sha256}"
    context = balancer.authority.client_context()
    with httpx.Client(verify=context, trust_env=False, timeout=PATIENCE_S) as client:
        url = balancer.url("management", path)
        span = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        answer = client.put(url, content=data, headers=span)
        assert answer.is_success, answer.text
        got = client.get(url)
        assert got.status_code == 200
        assert hashlib.sha256(got.content).hexdigest() == sha256
        listing = client.get(balancer.url("management", "/api/v2/store")).json()
        assert [each["size_bytes"] for each in listing["files"]] == [len(data)]
        with client.stream("GET", url) as half:  # a reader that leaves in the middle
            next(half.iter_raw(65_536))
        assert client.get(balancer.url("management", "/health")).status_code == 200


async def test_websockets_of_clients_and_of_agents(balancer: TlsBalancer) -> None:
    context = balancer.authority.client_context()
    inference = f"wss://{balancer.addresses['inference']}/api/v1/inference_socket"
    agents = f"wss://{balancer.addresses['management']}/api/v1/agent_socket/over-tls"
    with trio.fail_after(PATIENCE_S):
        async with open_websocket_url(inference, ssl_context=context) as client:
            await client.send_message(
                json.dumps(
                    {
                        "Request": {
                            "id": "one",
                            "request": {
                                "ContinueFromRawPrompt": {"raw_prompt": "x" * 300_000,
                                                          "max_tokens": 1, "grammar": None}
                            },
                        }
                    }
                )
            )  # fmt: skip
            answer = json.loads(await client.get_message())
            assert answer["Error"]["request_id"] == "one", answer
        async with open_websocket_url(agents, ssl_context=context) as agent:
            message = json.loads(await agent.get_message())
            assert message["Notification"], message


def test_a_new_certificate_is_found_and_read_after_sighup(
    authority: Authority, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    first, second, third = (authority.sign(f"number-{count}") for count in (1, 2, 3))
    install(first, pair)
    with tls_balancer(authority, pair) as balancer:
        kept = httpx.Client(verify=authority.client_context(), trust_env=False, timeout=PATIENCE_S)
        with kept:
            assert kept.get(balancer.url("inference", "/health")).status_code == 200
            assert _shown(balancer) == _fingerprint(first)
            install(second, pair)
            balancer.daemon.wait_for_log("certificate read again")
            assert _shown(balancer) == _fingerprint(second)
            install(third, pair)
            balancer.daemon.signal(signal.SIGHUP)
            balancer.daemon.wait_for_line(_fingerprint(third))
            assert _shown(balancer) == _fingerprint(third)
            pair.cert.write_text("nothing\n")
            balancer.daemon.wait_for_log("certificate not read again, the old one stays")
            assert _shown(balancer) == _fingerprint(third)
            assert kept.get(balancer.url("inference", "/health")).status_code == 200


def test_the_cookie_of_a_session_is_for_tls_only_and_clients_show_certificates(
    authority: Authority, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    made = forked_processes.run("key", "new", "ops", "--scope=management", f"--file={keys}")
    clients = Authority.make(tmp_path / "clients")
    shown = clients.sign("alice")
    options = (f"--api-key-file={keys}", f"--tls-client-ca={clients.cert}")
    with tls_balancer(authority, authority.sign("keyed"), *options) as balancer:
        url = balancer.url("web_admin_panel", "/session")
        secret = {"key": made.stdout.strip()}
        with pytest.raises(httpx.TransportError):
            httpx.post(
                url, json=secret, verify=authority.client_context(), trust_env=False, timeout=10
            )
        balancer.daemon.wait_for_line("clients must show one here")
        context = authority.client_context(shown)
        answer = httpx.post(url, json=secret, verify=context, trust_env=False, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        assert "; Secure" in answer.headers["set-cookie"]


def test_the_metrics_of_an_agent_have_tls_and_ask_for_a_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    pair, shown = authority.sign("agent"), authority.sign("prometheus")
    daemon = Daemon.start(
        "agent",
        ["agent", "--management-addr=127.0.0.1:9", "--slots=1", "--metrics-addr=127.0.0.1:0",
         f"--metrics-tls-cert={pair.cert}", f"--metrics-tls-key={pair.key}",
         f"--metrics-tls-client-ca={authority.cert}", "--log-json"],
        {"PADDLER_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    try:
        (address,) = daemon.wait_for_log("metrics")["addresses"]  # type: ignore[misc]
        url = f"https://{address}/metrics"
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=authority.client_context(), trust_env=False, timeout=PATIENCE_S)
        context = authority.client_context(shown)
        answer = httpx.get(url, verify=context, trust_env=False, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert "paddler_build_info" in answer.text
    finally:
        daemon.end()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-cert=/nowhere/cert.pem"], "give --tls-key FILE too"),
        (["--tls-cert=/nowhere/c.pem", "--tls-key=/nowhere/k.pem"], "No such file or directory"),
        (["--tls-client-auth=required"], "needs TLS"),
    ],
)
def test_a_balancer_that_cannot_have_tls_says_why(options: list[str], problem: str) -> None:
    daemon = Daemon.start(
        "balancer", ["balancer", "--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0",
                     *options], {},
    )  # fmt: skip
    try:
        assert daemon.wait(within_s=PATIENCE_S) == 1
        daemon.wait_for_line(problem)
    finally:
        daemon.end()


def _fingerprint(pair: Pair) -> str:
    der = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    return hashlib.sha256(der).hexdigest()


def _shown(balancer: TlsBalancer) -> str:
    host, _, port = balancer.addresses["inference"].rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=PATIENCE_S)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()

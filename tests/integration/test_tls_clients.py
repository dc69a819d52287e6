"""Agents and commands over TLS: a balancer that asks everybody for a certificate, and for a key."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forked_processes
import pytest
from fleet import BUNDLED_MODEL, Daemon
from tls_balancer import TlsBalancer, install, tls_balancer

from certificates import Authority, Pair
from paddler_trio.net.tls.certificate import certificates_of

PATIENCE_S = 60


def fingerprint_of(pair: Pair) -> str:
    return certificates_of(pair.cert.read_bytes())[0].fingerprint


def paddler_trio(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked_processes.run(*arguments, timeout_s=PATIENCE_S)


class Site:
    """A balancer with everything that guards it, and what its people have."""

    def __init__(self, authority: Authority, pair: Pair, folder: Path) -> None:
        self.authority = authority
        self.pair = pair
        self.client = authority.sign("client")
        self.folder = folder
        self.keys = folder / "keys.toml"
        self.key_file = folder / "operator.key"
        made = paddler_trio("key", "new", "op", "--scope", "management", "--scope", "inference",
                            "--file", self.keys)  # fmt: skip
        assert made.returncode == 0, made.stderr
        self.key_file.write_text(made.stdout.strip())
        self.key_file.chmod(0o600)
        self.running: TlsBalancer

    @property
    def management(self) -> str:
        return f"https://{self.running.addresses['management']}"

    @property
    def inference(self) -> str:
        return f"https://{self.running.addresses['inference']}"

    @property
    def shown(self) -> list[str]:
        return [f"--tls-client-cert={self.client.cert}", f"--tls-client-key={self.client.key}"]

    @property
    def trusted(self) -> list[str]:
        return [f"--tls-ca={self.authority.cert}", f"--key-file={self.key_file}", *self.shown]

    def managed(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return paddler_trio(*arguments, f"--management-addr={self.management}", *self.trusted)

    def agent(self, name: str, *options: str, path: str | None = None) -> Daemon:
        """``path``: its ``PYTHONPATH``, if not that of the tests."""
        return Daemon.start(
            name,
            ["agent", f"--management-addr={self.management}", "--slots=2", f"--name={name}",
             "--fit=off", "--drain-timeout=1000", "--log-json", f"--token-file={self.key_file}",
             *self.shown, *options],
            {"PADDLER_CACHE_DIR": str(self.folder / f"cache-{name}"),
             **({} if path is None else {"PYTHONPATH": path})},
        )  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def site(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    pair = Pair(folder / "server.pem", folder / "server.key")
    install(authority.sign("server"), pair)
    site = Site(authority, pair, folder)
    options = (
        f"--tls-client-ca={authority.cert}",
        f"--api-key-file={site.keys}",
        f"--model-store={folder / 'store'}",
        "--model-store-size=1GB",
        "--rollout-min-ready=0",
        "--drain-timeout=1000",
    )
    with tls_balancer(authority, pair, *options) as running:
        site.running = running
        running.daemon.wait_for_log("model store up")
        yield site


POLITE = """\
from paddler_trio.agent.link import balancer_connection
balancer_connection.DEREGISTRATION_S = 1000.0
"""
"""A ``sitecustomize`` for an agent that leaves when the balancer lets it, and not before."""


def test_a_fleet_lives_over_tls(site: Site, tmp_path: Path) -> None:
    """Agents with an authority and with a pin link, fetch what was pushed, and answer."""
    (tmp_path / "sitecustomize.py").write_text(POLITE)
    pin = ":".join(f"{byte:02X}" for byte in bytes.fromhex(fingerprint_of(site.pair)))
    agents = [
        site.agent(
            "by-authority",
            f"--tls-ca={site.authority.cert}",
            path=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        ),
        site.agent("by-pin", f"--tls-fingerprint={pin}"),
    ]
    try:
        for agent in agents:
            record = agent.wait_for_log("linked to the balancer")
            assert record["tls"] is True
        pushed = site.managed("model", "push", BUNDLED_MODEL)
        assert pushed.returncode == 0, pushed.stderr
        source = next(word for word in pushed.stdout.split() if word.startswith("store://"))
        swapped = site.managed("model", "swap", source, "--context-size=1024")
        assert swapped.returncode == 0, swapped.stderr
        listed = json.loads(site.managed("agents", "--json").stdout)
        assert {each["name"] for each in listed["agents"]} == {"by-authority", "by-pin"}
        assert all(each["served_state"] for each in listed["agents"])
        for name in ("by-authority", "by-pin"):
            cached = list((site.folder / f"cache-{name}").rglob("*.gguf"))
            assert [each.stat().st_size for each in cached] == [BUNDLED_MODEL.stat().st_size]
        answered = paddler_trio(
            "chat", "hello", "--max-tokens=4", "--json", f"--inference-addr={site.inference}",
            *site.trusted,
        )  # fmt: skip
        assert answered.returncode == 0, answered.stderr
        assert json.loads(answered.stdout)["usage"]
        seen = site.managed("top", "--once", "--json")
        assert seen.returncode == 0, seen.stderr
        assert "by-pin" in seen.stdout
        for words in (
            ["tree"],
            ["tree", "--agent=by-pin"],
            ["rollout"],
            ["fleet", "show"],
            ["requests", "--json"],
            ["model", "show"],
            ["model", "list"],
            ["audit", "--json"],
            ["model", "fit", source, "--agent=by-pin"],
            ["agent", "drain", "by-pin"],
        ):
            ran = site.managed(*words)
            assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        agents[0].signal(signal.SIGTERM)
        assert agents[0].wait() == 0, "it says goodbye, and the balancer closes"
        listed = json.loads(site.managed("agents", "--json").stdout)
        assert [each["name"] for each in listed["agents"]] == ["by-pin"]
    except BaseException as error:
        for agent in agents:
            error.add_note(agent.tail())
        raise
    finally:
        for agent in agents:
            agent.end()


def refused(site: Site, *options: str) -> str:
    """What a command says, in one line, to whom the balancer cannot prove itself."""
    ran = paddler_trio("agents", f"--management-addr={site.management}", *options)
    assert ran.returncode == 1, ran.stdout
    assert ran.stderr.startswith("paddler-trio: "), ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


def test_commands_say_what_is_wrong_and_what_to_do(site: Site, tmp_path: Path) -> None:
    pin = fingerprint_of(site.pair)
    assert f"--tls-fingerprint {pin}" in refused(site, *site.shown)
    other = fingerprint_of(site.client)
    text = refused(site, f"--tls-fingerprint={other}")
    assert pin in text
    assert other in text
    assert "give --tls-client-cert" in refused(site, f"--tls-ca={site.authority.cert}")
    stranger = Authority.make(tmp_path).sign("stranger")
    text = refused(
        site, f"--tls-ca={site.authority.cert}", f"--tls-client-cert={stranger.cert}",
        f"--tls-client-key={stranger.key}",
    )  # fmt: skip
    assert "does not accept this client's certificate" in text
    plain = site.running.addresses["management"]
    ran = paddler_trio("agents", f"--management-addr={plain}")
    assert "use https://" in ran.stderr, ran.stderr


def test_the_fingerprint_to_pin_is_printed_and_is_the_one_in_the_log(site: Site) -> None:
    ran = paddler_trio("tls", "fingerprint", site.management)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == fingerprint_of(site.pair) + "\n"
    assert "not verified" in ran.stderr
    logged = site.running.daemon.wait_for_log("TLS")
    assert logged["fingerprint"] == ran.stdout.strip()
    assert json.loads(paddler_trio("tls", "fingerprint", site.management, "--json").stdout)
    plain = paddler_trio("tls", "fingerprint", site.running.addresses["management"])
    assert plain.returncode == 2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    nobody = paddler_trio("tls", "fingerprint", f"https://127.0.0.1:{port}")
    assert "connection refused" in nobody.stderr


def test_what_the_environment_says_counts(site: Site) -> None:
    environment = {
        "PADDLER_TRIO_MANAGEMENT_ADDR": site.management,
        "PADDLER_TRIO_TLS_FINGERPRINT": fingerprint_of(site.pair),
        "PADDLER_TRIO_TLS_CLIENT_CERT": str(site.client.cert),
        "PADDLER_TRIO_TLS_CLIENT_KEY": str(site.client.key),
        "PADDLER_TRIO_KEY_FILE": str(site.key_file),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ran = paddler_trio("agents", "--json")
    assert ran.returncode == 0, ran.stderr
    assert "agents" in json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "no trusted authority vouches"),
        (["--tls-fingerprint=" + "0" * 64], "and --tls-fingerprint is 0000"),
    ],
)
def test_agents_say_so_too(site: Site, options: list[str], reason: str) -> None:
    agent = site.agent("stranger", *options)
    try:
        record = agent.wait_for_log("no link to the balancer")
        assert reason in str(record["reason"])
        assert fingerprint_of(site.pair) in str(record["reason"])
        assert site.key_file.read_text() not in agent.tail()
    finally:
        agent.end()


def test_an_agent_without_tls_at_a_port_with_it_and_the_reverse(site: Site) -> None:
    address = site.running.addresses["management"]
    plain = Daemon.start(
        "plain", ["agent", f"--management-addr={address}", "--slots=1", "--log-json"], {}
    )
    try:
        record = plain.wait_for_log("no link to the balancer")
        assert "use https://" in str(record["reason"])
    finally:
        plain.end()
    without = Daemon.start(
        "balancer",
        ["balancer", "--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0", "--log-json"],
        {},
    )
    try:
        management = without.wait_for_log("balancer up")["management"][0]  # type: ignore[index]
        ran = paddler_trio("agents", f"--management-addr=https://{management}")
        assert ran.returncode == 1
        assert f"{management} speaks no TLS: write {management} without https://" in ran.stderr
        agent = Daemon.start(
            "encrypted",
            ["agent", f"--management-addr=https://{management}", "--slots=1", "--log-json"],
            {},
        )
        try:
            record = agent.wait_for_log("no link to the balancer")
            assert "speaks no TLS" in str(record["reason"])
        finally:
            agent.end()
    finally:
        without.end()


@contextmanager
def silent_port() -> Iterator[tuple[str, list[bytes]]]:
    """Accepts connections, reads what comes, and says nothing."""
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with ExitStack() as kept:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                received.append(kept.enter_context(connection).recv(65_536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


@pytest.mark.slow
def test_a_handshake_has_a_deadline(site: Site) -> None:
    with silent_port() as (address, received):
        agent = Daemon.start(
            "agent",
            ["agent", f"--management-addr=https://{address}", "--slots=1", "--log-json",
             f"--token-file={site.key_file}"],
            {},
        )  # fmt: skip
        try:
            began_s = time.monotonic()
            ran = paddler_trio(
                "agents", f"--management-addr=https://{address}", f"--key-file={site.key_file}"
            )
            assert 4 < time.monotonic() - began_s < 20
            assert "no connection, or no TLS handshake, within 5 s" in ran.stderr
            record = agent.wait_for_log("no link to the balancer", within_s=30)
            assert "no connection with TLS and WebSocket handshakes" in str(record["reason"])
        finally:
            agent.end()
        key = site.key_file.read_bytes()
        assert len(received) >= 2
        assert not any(key in data for data in received)

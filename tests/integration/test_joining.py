"""Machines join, are known again, get other secrets and are cut off: with real daemons."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import forked_processes
import httpx
import pytest
import trio
from fleet import Daemon
from trio_websocket import open_websocket_url

from certificates import Authority, Pair
from cli_in_process import invoke
from paddler_trio.agent.status import AgentStatus
from paddler_trio.joining.join_token import JoinToken
from paddler_trio.wire.paddler.messages import RegisterAgent, render

SOURCES = Path(__file__).parents[2] / "src" / "paddler_trio"
PATIENCE_S = 60.0
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@attrs.define
class Place:
    """A balancer with a management key that can be started again on its ports, and its agents."""

    folder: Path
    options: tuple[str, ...] = ()
    scheme: str = "http"
    balancer: Daemon = attrs.field(init=False)
    address: str = attrs.field(default="127.0.0.1:0", init=False)
    key: str = attrs.field(init=False)
    logs: list[Daemon] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        made = invoke(
            "key", "new", "ops", "--scope=management", f"--file={self.folder / 'keys.json'}"
        )
        self.key = made.stdout.strip()
        (self.folder / "key").write_text(self.key)

    def start(self, *more: str) -> None:
        arguments = [
            "balancer",
            "--inference-addr=127.0.0.1:0",
            f"--management-addr={self.address}",
            f"--api-key-file={self.folder / 'keys.json'}",
            f"--state-database=file://{self.folder / 'state.json'}",
            "--drain-timeout=500",
            "--log-json",
            *self.options,
            *more,
        ]
        self.balancer = Daemon.start("balancer", arguments, {})
        self.logs.append(self.balancer)
        addresses = self.balancer.wait_for_log("balancer up")["management"]
        assert isinstance(addresses, list)
        self.address = addresses[0]

    def restart(self, *more: str, is_orderly: bool = False) -> None:
        """As after a power cut, or as ``systemctl restart`` does."""
        if is_orderly:
            self.balancer.signal(signal.SIGTERM)
            assert self.balancer.wait() == 0
        self.balancer.end()
        self.start(*more)

    def agent(self, state: str, *options: str) -> Daemon:
        arguments = ["agent", "--slots=1", f"--state-dir={self.folder / state}", "--log-json"]
        agent = Daemon.start(state, [*arguments, *options], {})
        self.logs.append(agent)
        return agent

    def end(self) -> None:
        for daemon in reversed(self.logs):
            daemon.end()

    def run(self, *arguments: str, code: int = 0, with_tls: bool = False) -> str:
        """A command of an operator's; what it printed on both streams."""
        address = f"https://{self.address}" if with_tls else self.address
        where = (f"--management-addr={address}", f"--key-file={self.folder / 'key'}")
        ran = invoke(*arguments, *where)
        assert ran.exit_code == code, ran.stderr
        return ran.output

    def token(self, *options: str) -> str:
        printed = self.run("join-token", "new", *options)
        found = re.search(r"<<< '([^']*)'$", printed, re.MULTILINE)
        assert found is not None, printed
        return found[1]

    def join(self, token: str, state: str, *options: str, code: int = 0) -> str:
        """As a person does on a new machine; what it printed."""
        ran = invoke("join", f"--state-dir={self.folder / state}", *options, stdin=f"{token}\n")
        assert ran.exit_code == code, ran.stderr
        assert not token or token.split(".")[2] not in ran.output
        return ran.output

    def get(self, path: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = httpx.get(
            f"{self.scheme}://{self.address}{path}",
            headers=headers,
            trust_env=False,
            verify=False,  # the certificate is not what is tested here
            timeout=30,
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def agents(self) -> dict[str, dict[str, Any]]:
        return {str(each["name"]): each for each in self.get("/api/v2/agents")["agents"]}

    def credentials(self) -> dict[str, dict[str, Any]]:
        listed = self.get("/api/v2/agent-credentials")["credentials"]
        return {str(each["name"]): each for each in listed}

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < give_up_s, what
            threading.Event().wait(0.05)


@contextmanager
def place(folder: Path, *options: str, scheme: str = "http") -> Iterator[Place]:
    found = Place(folder, options, scheme)
    try:
        found.start()
        yield found
    finally:
        found.end()


def secrets_of(place: Place, tokens: Sequence[str]) -> list[str]:
    files = [*place.folder.glob("*/credential"), place.folder / "key"]
    texts = [file.read_text().strip().rpartition(".")[2] for file in files]
    return [*texts, *(token.split(".")[2] for token in tokens)]


def test_a_machine_joins_is_known_again_and_is_cut_off(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        token = here.token("--uses=2", "--label=gpu=yes", "--label=rack=7")
        assert here.get("/api/v2/join-tokens")["tokens"][0]["uses_left"] == 2
        assert "gpu=yes" in here.join(token, "one", "--name=gpu-1")
        assert "joined already" in here.join(token, "one", code=1)
        assert "joined already" in here.join(token, "two", "--name=gpu-1", code=1)
        here.join(token, "two", "--name=gpu-2")
        assert "opens nothing here" in here.join(token, "three", "--name=gpu-3", code=1)
        assert (tmp_path / "one" / "credential").stat().st_mode & 0o777 == 0o600

        one, two = here.agent("one", "--label=gpu=no", "--label=own=yes"), here.agent("two")
        here.wait(lambda: len(here.agents()) == 2, "two agents are here")
        assert here.agents()["gpu-1"]["labels"] == {"gpu": "yes", "rack": "7", "own": "yes"}
        refused = forked_processes.run("agent", "--slots=1", f"--state-dir={tmp_path / 'one'}")
        assert (refused.returncode, "another agent" in refused.stderr) == (1, True)

        here.restart()  # the agents find it again, with what they have
        here.wait(lambda: len(here.agents()) == 2, "two agents are here again")
        assert all(each["connected"] for each in here.credentials().values())

        assert "is cut off" in here.run("agents", "revoke", "gpu-2")
        two.wait_for_line("paddler-trio join-token new", within_s=PATIENCE_S)
        assert set(here.agents()) == {"gpu-1"}
        assert set(here.credentials()) == {"gpu-1"}
        assert "gpu-1" in here.run("agents", "credentials")
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
        audited = {each["action"] for each in here.get("/api/v2/audit")["entries"]}
        assert "agent revoked" in audited
        logs = "\n".join(line for daemon in here.logs for line in daemon.log)
        stored = (tmp_path / "state.json.agents.json").read_text()
        for secret in secrets_of(here, [token]):
            assert secret not in logs
            assert secret not in stored


@pytest.mark.slow
def test_a_secret_is_replaced_whenever_the_agent_is_killed(tmp_path: Path) -> None:
    """The file's time makes it two days old; then the agent is killed a little later each time."""
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        file = tmp_path / "one" / "credential"
        seen = {file.read_text()}
        for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02):
            two_days_ago = time.time() - 2 * 86_400
            os.utime(file, (two_days_ago, two_days_ago))
            agent = here.agent("one")
            agent.wait_for_log("linked to the balancer")
            threading.Event().wait(delay_s)
            agent.end()
            if delay_s == 0.005:
                here.restart()
            seen.add(file.read_text())
        agent = here.agent("one")
        agent.wait_for_log("linked to the balancer")
        two_days_ago = time.time() - 2 * 86_400
        agent.end()
        os.utime(file, (two_days_ago, two_days_ago))
        agent = here.agent("one")
        agent.wait_for_log("this agent's secret was replaced")
        seen.add(file.read_text())
        agent.end()
        here.agent("one").wait_for_log("linked to the balancer")
        (credential,) = here.credentials().values()
        assert credential["suspicious"] is None
        assert len(seen) > 1


@pytest.mark.slow
def test_a_copied_credential_is_noticed(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        copy = (tmp_path / "one" / "credential").read_text()
        here.agent("one").wait_for_log("linked to the balancer")
        old = time.time() - 2 * 86_400
        here.logs[-1].end()
        os.utime(tmp_path / "one" / "credential", (old, old))
        here.agent("one").wait_for_log("this agent's secret was replaced")
        here.logs[-1].end()
        here.agent("one").wait_for_log("linked to the balancer")
        # with it ends the time in which the old secret is still good
        here.restart(is_orderly=True)
        thief = tmp_path / "thief"
        thief.write_text(copy)
        stolen = Daemon.start(
            "thief",
            [
                *("agent", "--slots=1", f"--management-addr={here.address}", "--log-json"),
                f"--credential-file={thief}",
            ],
            {},
        )
        here.logs.append(stolen)
        stolen.wait_for_line("(401)")
        assert "shown again" in here.credentials()["gpu"]["suspicious"]
        assert "agents revoke gpu" in here.run("agents", "credentials")
        assert copy.strip().rpartition(".")[2] not in "\n".join(here.balancer.log)


@pytest.mark.slow
def test_a_credential_that_two_machines_use_at_once_is_noticed(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        one, two = here.agent("one"), here.agent("two")
        one.wait_for_log("linked to the balancer")
        two.wait_for_log("linked to the balancer")
        here.balancer.wait_for_line("processes use it at once")
        assert "SUSPICIOUS" in here.run("agents", "credentials")
        assert len(here.get("/api/v2/agents")["agents"]) == 2  # to cut one could cut the right one
        here.run("agents", "revoke", "gpu")
        one.wait_for_line("(401)")
        two.wait_for_line("(401)")
        here.join(here.token(), "one", "--name=gpu", "--replace")
        here.wait(lambda: "gpu" in here.agents(), "it is back, without a restart")


def paths_in_the_sources() -> list[str]:
    """Every path that a source file mentions, with a value for each parameter."""
    found = set()
    for file in SOURCES.rglob("*.py"):
        for path in re.findall(
            r'"(/(?:api|v1|metrics|panel|livez|readyz|health)[^"\s]*)"', file.read_text()
        ):
            found.add(re.sub(r"\{[^}]*\}|<[^>]*>", "a", path))
    return sorted(found)


def test_without_a_key_there_are_probes_and_joining_and_nothing_else(tmp_path: Path) -> None:
    paths = paths_in_the_sources()
    assert len(paths) > 60
    with (
        place(tmp_path) as here,
        httpx.Client(base_url=f"http://{here.address}", trust_env=False) as client,
    ):
        opened = {
            (method, path)
            for path in paths
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")
            if client.request(method, path).status_code not in (401, 404)
        }
        sockets = {
            path
            for path in paths
            if client.get(path, headers=UPGRADE).status_code not in (401, 403, 404)
        }
    assert {path for _, path in opened} - {"/api/v2/join"} <= {
        *("/health", "/livez", "/readyz", "/panel/", "/panel"),
    }
    assert {method for method, path in opened if path == "/api/v2/join"} == {"GET", "POST"}
    assert sockets <= {"/health", "/livez", "/readyz", "/panel/", "/panel", "/api/v2/join"}


async def test_an_agent_of_paddlers_is_admitted_from_its_network_only(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        path = "/api/v1/agent_socket/old"
        with httpx.Client(base_url=f"http://{here.address}", trust_env=False) as client:
            refused = await trio.to_thread.run_sync(lambda: client.get(path, headers=UPGRADE))
        assert refused.status_code == 401
        here.restart("--legacy-agents=127.0.0.0/8")
        async with open_websocket_url(f"ws://{here.address}{path}") as link:
            assert "version" in (await link.get_message()).lower()
            status = AgentStatus(1).snapshot()
            await link.send_message(render(RegisterAgent("old", status)).decode())
            joined = here.balancer.wait_for_log
            assert (await trio.to_thread.run_sync(joined, "agent joined"))["agent"] == "old"
        with httpx.Client(base_url=f"http://{here.address}", trust_env=False) as client:
            denied = await trio.to_thread.run_sync(client.get, "/api/v1/agents")
        assert denied.status_code == 401


def test_what_operators_see_and_what_is_refused(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        assert "no join token is in force" in here.run("join-token", "list")
        assert "no agent has joined" in here.run("agents", "credentials")
        made = json.loads(here.run("join-token", "new", "--name=gpu-7", "--ttl=90s", "--json"))
        assert set(made) == {"id", "token", "command", "expires", "address"}
        listed = here.run("join-token", "list")
        assert made["id"] in listed
        assert made["token"].split(".")[2] not in listed
        printed = here.run("join-token", "new")
        assert "only this machine reaches" in printed
        assert "good once until" in printed
        elsewhere = here.run("join-token", "new", "--address=192.0.2.1:8060")
        assert "has no TLS" in elsewhere
        assert "is worthless" in here.run("join-token", "revoke", made["id"])
        assert "there is no join token" in here.run("join-token", "revoke", made["id"], code=1)
        assert "opens nothing here" in here.join(made["token"], "one", code=1)
        assert "no agent has joined under" in here.run("agents", "revoke", "gpu-7", code=1)
        for option in ("--ttl=soon", "--ttl=0", "--label=x", "--uses=0"):
            here.run("join-token", "new", option, code=2)
        assert "ttl_s" in here.run("join-token", "new", "--ttl=31d", code=1)
        ran = invoke("join", f"--state-dir={tmp_path / 'x'}", stdin="pt-secret\n")
        assert (ran.exit_code, "no join token" in ran.stderr) == (1, True)
        assert "pt-secret" not in ran.stderr
        assert "no join token on standard input" in here.join("", "x", code=1)


@pytest.mark.slow
def test_one_pasted_line_makes_a_running_agent(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        made = json.loads(here.run("join-token", "new", "--json"))
        command = made["command"].replace("paddler-trio", f"{sys.executable} -m paddler_trio", 1)
        pasted = Daemon(
            "pasted",
            subprocess.Popen(
                ["bash", "-c", command],
                env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ),
        )
        here.logs.append(pasted)
        here.balancer.wait_for_log("agent joined")
        (agent,) = here.get("/api/v2/agents")["agents"]
        assert agent["desired_slots_total"] == 4
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:
                continue  # it has ended
            if b"bash\0-c\0" not in line:  # the paste itself: a shell that people type into
                assert made["token"].encode() not in line


# --------------------------------------------------------------------------------- over TLS


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
                        stream.settimeout(5)
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
        assert set(here.agents()) == {"gpu-1"}

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


def here_token(place: Place, *, uses: int = 1) -> JoinToken:
    """Made over the API, which needs no client certificate of the command line."""
    answer = httpx.post(
        f"https://{place.address}/api/v2/join-tokens",
        headers={"Authorization": f"Bearer {place.key}"},
        json={"uses": uses},
        verify=False,  # as above
        trust_env=False,
    )
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return JoinToken.parse(answer.json()["token"])


def as_pem(path: Path) -> str:
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(path.read_text()))

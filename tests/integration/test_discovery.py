"""Machines find a balancer by multicast and join with six digits, each in its own namespace."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import attrs
import pytest
from fleet import Daemon, children
from local_network import MAY_S, NetworkMachine, clean_environment, local_network
from person_at_terminal import person

from certificates import Authority, Pair
from cli_in_process import invoke
from paddler_trio.agent.link.balancer_trust import token_for_pin
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.pin_exchange import PinBond, PinSide
from paddler_trio.net.tls.client_tls import ClientTls

KEY_FILE, PORT = "key", 8060
RELAY = """
import select, socket, ssl, sys, threading
cert, key, port, target = sys.argv[1:]
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(cert, key)
client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
def serve(raw):
    try:
        near = server.wrap_socket(raw, server_side=True)
        with near, client.wrap_socket(socket.create_connection((target, int(port)))) as far:
            ways = {near: far, far: near}
            for each in ways:
                each.settimeout(0.2)
            while True:  # one thread: two may not use one connection of TLS
                ready = [each for each in ways if each.pending()]
                for source in ready or select.select(list(ways), [], [])[0]:
                    try:
                        data = source.recv(65536)
                    except TimeoutError:
                        continue  # what came was TLS's own: a ticket
                    if not data:
                        return
                    ways[source].sendall(data)
    except OSError:
        return
with socket.create_server(("0.0.0.0", int(port))) as listener:
    print("up", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
"""Somebody in between, who reads everything and shows a certificate of his own."""


@attrs.define
class Household:
    """Balancers and agents on machines of one network, each with a folder; all end with it."""

    folder: Path
    daemons: list[Daemon] = attrs.field(factory=list)

    def at(self, machine: NetworkMachine) -> Path:
        folder = self.folder / machine.name
        folder.mkdir(exist_ok=True)
        return folder

    def balancer(self, machine: NetworkMachine, pair: Pair, *options: str) -> Daemon:
        folder = self.at(machine)
        keys = folder / "keys.json"
        made = invoke("key", "new", "ops", "--scope=management", f"--file={keys}")
        (folder / KEY_FILE).write_text(made.stdout)
        return self.started(
            machine,
            "balancer up",
            "balancer",
            f"--management-addr=0.0.0.0:{PORT}",
            "--inference-addr=127.0.0.1:8061",
            f"--api-key-file={keys}",
            f"--state-database=file://{folder / 'state.json'}",
            f"--tls-cert={pair.cert}",
            f"--tls-key={pair.key}",
            *options,
        )

    def started(self, machine: NetworkMachine, event: str, *arguments: str) -> Daemon:
        daemon = Daemon(
            machine.name,
            subprocess.Popen(
                machine.paddler_trio(*arguments, "--log-json"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=clean_environment(),
                start_new_session=True,
            ),
        )
        self.daemons.append(daemon)
        daemon.wait_for_log(event)
        return daemon

    def ask(self, machine: NetworkMachine, *arguments: str, code: int = 0) -> str:
        """What a command of the operator printed on standard output, on the balancer's machine."""
        where = (f"--management-addr=https://127.0.0.1:{PORT}", f"--key-file={self._key(machine)}")
        trust = f"--tls-fingerprint={self._fingerprint(machine)}"
        return machine.run(*arguments, *where, trust, code=code).stdout

    def pin(self, machine: NetworkMachine, *options: str) -> str:
        printed = self.ask(machine, "join-pin", *options)
        assert re.fullmatch(r"\d{3} \d{3}\n", printed)
        return printed

    def credentials(self, machine: NetworkMachine) -> Sequence[Mapping[str, object]]:
        answer = json.loads(self.ask(machine, "agents", "credentials", "--json"))
        found: Sequence[Mapping[str, object]] = answer["credentials"]
        return found

    def try_to_join(self, machine: NetworkMachine, pin: str) -> str:
        """What an agent says that does not get in."""
        ran = machine.run("agent", *self.discovering(machine), stdin=pin, code=1)
        assert not (self.at(machine) / "agent" / "credential").exists()
        return ran.stderr

    def discovering(self, machine: NetworkMachine) -> Sequence[str]:
        folder = self.at(machine) / "agent"
        return ("--discover", "--slots=1", f"--name={machine.name}", f"--state-dir={folder}")

    def _key(self, machine: NetworkMachine) -> Path:
        return self.at(machine) / KEY_FILE

    def _fingerprint(self, machine: NetworkMachine) -> str:
        own = (self.folder / f"ca-{machine.name}" / f"{machine.name}.pem").read_text()
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(own)).hexdigest()


@contextmanager
def household(folder: Path) -> Iterator[Household]:
    found = Household(folder)
    try:
        yield found
    finally:
        for daemon in reversed(found.daemons):
            daemon.end()


def certificate(folder: Path, machine: NetworkMachine, *, alternatives: str | None = None) -> Pair:
    """One for this machine's address, with its authority behind it."""
    authority = Authority.make(folder / f"ca-{machine.name}")
    names = f"IP:{machine.address}" if alternatives is None else alternatives
    pair = authority.sign(machine.name, alternatives=names)
    chain = folder / f"{machine.name}.pem"
    chain.write_text(pair.cert.read_text() + authority.cert.read_text())
    return Pair(chain, pair.key)


def first_agent(household: Household, machine: NetworkMachine, pin: str) -> Daemon:
    """An agent that is started for the first time, and told the PIN on standard input."""
    process = subprocess.Popen(
        machine.paddler_trio("agent", *household.discovering(machine), "--log-json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(pin.encode())
    process.stdin.close()
    agent = Daemon(machine.name, process)
    household.daemons.append(agent)
    agent.wait_for_log("linked to the balancer")
    return agent


def test_a_machine_finds_the_balancer_and_joins_with_its_pin(tmp_path: Path) -> None:
    with local_network("study", "gpu") as (study, gpu), household(tmp_path) as home:
        balancer = home.balancer(study, certificate(tmp_path, study), "--discoverable")
        balancer.wait_for_log("announced on the local network")
        pin = home.pin(study, "--label", "rack=7")
        agent = first_agent(home, gpu, pin)
        (joined,) = home.credentials(study)
        assert (joined["name"], joined["labels"]) == ("gpu", {"rack": "7"})
        kept = json.loads((home.at(gpu) / "agent" / "joined.json").read_text())
        assert kept["address"] == f"https://{gpu.address[:-1]}1:{PORT}"
        assert kept["fingerprint"] is None  # its authority is kept: a new certificate needs nothing

        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0
        arguments = ("agent", *home.discovering(gpu))  # nobody is asked any more
        home.started(gpu, "linked to the balancer", *arguments)
        digits = pin.replace(" ", "").strip()
        for daemon in home.daemons:
            assert not any(digits in line or pin.strip() in line for line in daemon.log)

        (announcing,) = announcers(balancer)
        balancer.signal(signal.SIGTERM)
        assert balancer.wait() == 0
        assert not Path(f"/proc/{announcing}").exists()
        nothing = home.try_to_join(study, "123456\n")
        assert "no balancer announces itself" in nothing


def announcers(balancer: Daemon) -> list[int]:
    """The processes that announce it."""
    return [
        pid
        for pid in children(balancer.pid)
        if b"processes.announcement" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_balancer_that_is_killed_is_announced_by_nobody(tmp_path: Path) -> None:
    with local_network("study", "gpu") as (study, gpu), household(tmp_path) as home:
        balancer = home.balancer(study, certificate(tmp_path, study), "--discoverable")
        balancer.wait_for_log("announced on the local network")
        (announcing,) = announcers(balancer)
        balancer.signal(signal.SIGKILL)
        balancer.wait()
        wait(lambda: not Path(f"/proc/{announcing}").exists(), "its announcement ends")
        assert "no balancer announces itself" in home.try_to_join(gpu, "123456\n")


@pytest.mark.slow
def test_of_two_balancers_a_person_chooses_one(tmp_path: Path) -> None:
    with local_network("attic", "study", "gpu") as (attic, study, gpu), household(tmp_path) as home:
        for machine in (attic, study):
            balancer = home.balancer(
                machine, certificate(tmp_path, machine, alternatives="DNS:other"), "--discoverable"
            )
            balancer.wait_for_log("announced on the local network")
        wait_for_both(home, gpu)
        pin = home.pin(study)
        with person(command=gpu.paddler_trio("agent", *home.discovering(gpu))) as operator:
            operator.reads("which one? 1 to 2:")
            operator.press("2\n")
            operator.reads("PIN of study:8060")
            operator.press(pin)
            operator.reads("joined https://10.7.0.2:8060 as gpu")
        assert [each["name"] for each in home.credentials(study)] == ["gpu"]
        assert home.credentials(attic) == []
        kept = json.loads((home.at(gpu) / "agent" / "joined.json").read_text())
        assert kept["fingerprint"] is not None  # the certificate is not for its address


def wait_for_both(home: Household, machine: NetworkMachine) -> None:
    said: list[str] = []

    def are_both_there() -> bool:
        said.append(home.try_to_join(machine, "123456\n"))
        return "2 balancers announce themselves: attic:8060" in said[-1]

    wait(are_both_there, "both are announced")
    assert "study:8060 (https://10.7.0.2:8060)" in said[-1]


def test_somebody_in_between_gets_nothing_and_lets_nobody_in(tmp_path: Path) -> None:
    with local_network("study", "liar", "gpu") as (study, liar, gpu), household(tmp_path) as home:
        home.balancer(study, certificate(tmp_path, study))
        own = certificate(tmp_path, liar)
        said = json.dumps({"name": "study:8060", "port": PORT, "bound": ["0.0.0.0"]})
        relay = (str(own.cert), str(own.key), str(PORT), study.address)
        with (
            ended(liar.command(sys.executable, "-c", RELAY, *relay)) as relaying,
            ended(liar.command(sys.executable, "-m", "paddler_trio.processes.announcement", said)),
        ):
            assert relaying.stdout is not None
            assert relaying.stdout.readline() == b"up\n"
            pin = home.pin(study)
            printed = ""

            def is_found() -> bool:
                nonlocal printed
                printed = home.try_to_join(gpu, pin)
                return "no balancer announces itself" not in printed

            wait(is_found, "the liar is found")
            assert f"https://{liar.address}:{PORT}" in printed
            assert "somebody is between" in printed
            assert home.credentials(study) == []
            assert json.loads(home.ask(study, "join-token", "list", "--json"))["tokens"] == []


class Guesser(BaseHTTPRequestHandler):
    """Answers as a balancer does, with a PIN that it guessed."""

    side: ClassVar[PinSide]
    heard: ClassVar[list[dict[str, str]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.heard.append(body)
        answer = {"exchange": "0" * 12, "message": self.side.message}
        if "confirmation" in body:
            answer = {"token": "1" * 12, "certificate_sha256": "2" * 64, "confirmation": "3" * 64}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        return


def test_whoever_guesses_the_pin_wrong_is_no_balancer(tmp_path: Path) -> None:
    pair = Authority.make(tmp_path / "ca").sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    der = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    bond = PinBond("gpu", "study:8060", hashlib.sha256(der).hexdigest())
    Guesser.side, Guesser.heard = PinSide.start("000000", bond, is_agent=False), []
    with ThreadingHTTPServer(("127.0.0.1", 0), Guesser) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ConfigurationError, match="does not know the PIN"):
                token_for_pin(
                    "123456",
                    f"https://127.0.0.1:{server.server_address[1]}",
                    agent=bond.agent,
                    balancer=bond.balancer,
                    ca_file=tmp_path / "ca.pem",
                    tls=ClientTls(),
                )
        finally:
            server.shutdown()
            thread.join()
    first, last = Guesser.heard
    assert set(first) == {"message", "name", "balancer"}
    keys = Guesser.side.finish(first["message"])
    assert last["confirmation"] != keys.agent_confirmation()


@pytest.mark.slow
def test_three_wrong_pins_burn_it(tmp_path: Path) -> None:
    with local_network("study", "gpu") as (study, gpu), household(tmp_path) as home:
        balancer = home.balancer(study, certificate(tmp_path, study), "--discoverable")
        balancer.wait_for_log("announced on the local network")
        pin = home.pin(study)
        wrong = "111 111\n" if pin == "000 000\n" else "000 000\n"
        refusals = [home.try_to_join(gpu, wrong) for _ in range(3)]
        assert all("this PIN opens nothing here" in each for each in refusals)
        assert "this PIN opens nothing here" in home.try_to_join(gpu, pin)
        assert home.credentials(study) == []
        first_agent(home, gpu, home.pin(study))
        assert "this PIN opens nothing here" in home.try_to_join(study, pin)


@contextmanager
def ended(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait(is_so: Callable[[], bool], what: str) -> None:
    for _ in range(int(MAY_S / 0.1)):
        if is_so():
            return
        threading.Event().wait(0.1)
    raise AssertionError(what)

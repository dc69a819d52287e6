"""A file of one machine on every agent: pushed once, whatever is killed on the way."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import forked_processes
import httpx
import pytest
from fleet import BUNDLED_MODEL, Daemon, Fleet
from streams import story

MIB = 1 << 20
LARGE = b"GGUF" + random.Random(2).randbytes(32 * MIB)
SHA256 = hashlib.sha256(LARGE).hexdigest()
PATIENCE_S = 60.0


@attrs.define
class Gate:
    """A port in front of a balancer: counts what clients send, and stops behind so many bytes."""

    target: str
    address: str = ""
    sent_bytes: int = 0
    is_shut: threading.Event = attrs.field(factory=threading.Event)
    """Set when it has stopped."""
    _stops_at: int | None = None
    _is_cut: threading.Event = attrs.field(factory=threading.Event)

    def stop_after(self, count: int) -> None:
        """Pass on ``count`` more bytes of clients, and then nothing until :meth:`cut`."""
        self.is_shut.clear()
        self._is_cut.clear()
        self._stops_at = self.sent_bytes + count

    def cut(self) -> None:
        """Close the connection that was stopped; others pass from now on."""
        self._stops_at = None
        self._is_cut.set()

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed: the test is over
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with client, suppress(OSError), socket.create_connection((host, int(port))) as server:
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(64 * 1024):
                self.sent_bytes += len(data)
                server.sendall(data)
                if self._stops_at is not None and self.sent_bytes >= self._stops_at:
                    self.is_shut.set()
                    self._is_cut.wait(PATIENCE_S)
                    server.shutdown(socket.SHUT_RDWR)
                    client.shutdown(socket.SHUT_RDWR)
            back.join(PATIENCE_S)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(64 * 1024):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def gate_to(target: str) -> Iterator[Gate]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = Gate(target, f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=gate.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield gate
        finally:
            gate.cut()
            listener.shutdown(socket.SHUT_RDWR)


def command(address: str, *arguments: object) -> list[str]:
    words = [sys.executable, "-m", "paddler_trio", "model", *map(str, arguments)]
    return [*words, "--management-addr", address]


def run(address: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = ("model", *arguments, "--management-addr", address)
    return forked_processes.run(*words, timeout_s=2 * PATIENCE_S)


def store_options(folder: Path) -> list[str]:
    return [f"--model-store={folder}", "--model-store-size=1GB"]


def here_bytes(address: str) -> int:
    """How much of the large file has arrived."""
    url = f"http://{address}/api/v2/store/blobs/sha256/{SHA256}"
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        answer = httpx.head(url, trust_env=False, timeout=PATIENCE_S)
        if answer.status_code != 503:
            return int(answer.headers.get("upload-offset", len(LARGE)))
    raise AssertionError("the store does not come up")


def start_balancer(folder: Path, port: int = 0) -> tuple[Daemon, str]:
    options = ["--inference-addr=127.0.0.1:0", f"--management-addr=127.0.0.1:{port}", "--log-json"]
    balancer = Daemon.start("balancer", ["balancer", *options, *store_options(folder)], {})
    try:
        up = balancer.wait_for_log("balancer up")
        balancer.wait_for_log("model store up")
    except BaseException:
        balancer.end()
        raise
    assert isinstance(up["management"], list)
    return balancer, str(up["management"][0])


@pytest.fixture
def large(tmp_path: Path) -> Path:
    file = tmp_path / "large.gguf"
    file.write_bytes(LARGE)
    return file


def test_one_push_is_served_by_every_agent(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(BUNDLED_MODEL.read_bytes())
    options = store_options(tmp_path / "store")
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        for name in ("a1", "a2"):
            fleet.start_agent(
                name,
                slots=2,
                env={
                    "PADDLER_CACHE_DIR": str(tmp_path / name),
                    "HF_HOME": str(tmp_path / name),
                    "HF_ENDPOINT": "http://127.0.0.1:9",
                },
            )
        fleet.wait_until(lambda view: len(view["agents"]) == 2, nobody_ends=True)
        swapped = run(fleet.management, "swap", mine, "--push", "--context-size=1024")
        assert swapped.returncode == 0, swapped.stderr
        state = httpx.get(
            f"{fleet.management_url}/api/v1/balancer_desired_state",
            trust_env=False,
            timeout=PATIENCE_S,
        )
        url = state.json()["model"]["Url"]["url"]
        assert url.startswith("store://sha256/")
        assert url.endswith("/mine.gguf")
        digest = url.split("/")[3]
        paths = {str(agent["model_path"]) for agent in fleet.wait_serving()["agents"]}
        assert paths == {str(tmp_path / f"{n}/pushed/{digest}/mine.gguf") for n in ("a1", "a2")}
        answer = httpx.post(
            f"{fleet.inference_url}/api/v1/continue_from_conversation_history",
            json=story(1, max_tokens=3),
            trust_env=False,
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 200
        again = run(fleet.management, "push", mine, "--json")
        *steps, last = map(json.loads, again.stdout.splitlines())
        assert last == {"source": url, "projection": None}
        assert "sending" not in {step["progress"]["phase"] for step in steps}, "it is there"
        listed = run(fleet.management, "list")
        assert f"{url} " in listed.stdout
        stored = [line for line in listed.stdout.splitlines() if " store " in line]
        assert len(stored) == 1
        assert "desired" in stored[0]
        audit = httpx.get(
            f"{fleet.management_url}/api/v2/audit", trust_env=False, timeout=PATIENCE_S
        ).json()
        actions = [(each["action"], each["target"]) for each in audit["entries"]]
        assert ("model sent to the store", url) in actions
        assert ("desired state replaced", "default") in actions


def test_a_push_survives_its_own_end_and_the_balancers(tmp_path: Path, large: Path) -> None:
    folder = tmp_path / "store"
    balancer, address = start_balancer(folder)
    try:
        with gate_to(address) as gate:
            # the command is killed
            gate.stop_after(12 * MIB)
            killed = subprocess.Popen(
                command(gate.address, "push", large),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert gate.is_shut.wait(PATIENCE_S)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            gate.cut()
            give_up_s = time.monotonic() + PATIENCE_S
            while (here := here_bytes(address)) < 11 * MIB:
                assert time.monotonic() < give_up_s, f"only {here} bytes are here"

            # the balancer is killed, and another one takes its place
            gate.stop_after(12 * MIB)
            push = subprocess.Popen(
                command(gate.address, "push", large), stdout=subprocess.PIPE, text=True
            )
            assert gate.is_shut.wait(PATIENCE_S)
            balancer.signal(signal.SIGKILL)
            balancer.wait()
            balancer.end()
            balancer, address = start_balancer(folder)
            gate.target = address
            gate.cut()
            out, _ = push.communicate(timeout=2 * PATIENCE_S)
            assert push.returncode == 0
            assert out.startswith("pushed: paddler-trio model swap store://sha256/")
            assert here_bytes(address) == len(LARGE)
            again_bytes = gate.sent_bytes - len(LARGE)
            assert again_bytes < 12 * MIB, "only what was in the kernel's buffers is sent again"
        blob = folder / "pushed" / "blobs" / SHA256
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == SHA256
        assert list((folder / "pushed" / "uploads").iterdir()) == []

        # what is damaged on its way is refused
        url = f"http://{address}/api/v2/store/blobs/sha256/{'0' * 64}"
        damaged = httpx.put(url, content=LARGE[:MIB], trust_env=False, timeout=PATIENCE_S)
        assert damaged.status_code == 422
        assert list((folder / "pushed" / "uploads").iterdir()) == []
        text = tmp_path / "text.gguf"
        text.write_text("no model")
        refused = run(address, "push", text)
        assert refused.returncode == 2
        words = " ".join(refused.stderr.replace("│", " ").split())
        assert "is no GGUF file" in words
    finally:
        balancer.end()

"""A balancer that machines join, started again on its ports, and the machines: for tests."""

from __future__ import annotations

import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
from fleet import Daemon

from cli_in_process import invoke
from paddler_trio.net.joining.join_token import JoinToken

PATIENCE_S = 60.0


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
            timeout=60,
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


def here_token(place: Place, *, uses: int = 1) -> JoinToken:
    """Made over the API, which needs no client certificate of the command line."""
    answer = httpx.post(
        f"https://{place.address}/api/v2/join-tokens",
        headers={"Authorization": f"Bearer {place.key}"},
        json={"uses": uses},
        verify=False,  # as above
        trust_env=False,
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return JoinToken.parse(answer.json()["token"])


def as_pem(path: Path) -> str:
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(path.read_text()))

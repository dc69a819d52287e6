"""A balancer and what is around it as processes, and what the kernel and the balancer say of it."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import attrs
from answers import AnswerError
from child_processes import ask, cpu_seconds, process, split

HERE = Path(__file__).parent
READY_S = 60.0
POLL_S = 0.05
SPARE_DESCRIPTORS = 300
"""For the listeners, the log, and what looks at the balancer."""
STATE = {
    "chat_template_override": None,
    "model": {"LocalToAgent": "/m"},
    "multimodal_projection": "None",
    "use_chat_template_override": False,
}


def allow_descriptors(wanted: int) -> int:
    """Raise the soft limit of this process and of its children; how many there may be.

    Raises:
      AnswerError: fewer than ``wanted``.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < wanted:
        raise AnswerError(
            f"{wanted} descriptors are needed and the hard limit is {most}: raise it "
            f"(`ulimit -Hn`), or ask for {most - SPARE_DESCRIPTORS} streams and agents at most"
        )
    return most


@attrs.frozen
class Sample:
    """A balancer at one moment; ``tasks`` is the number of tasks in its printed tree."""

    at_s: float
    cpu_s: float
    rss_kib: float
    fds: int
    tasks: int = 0


@attrs.define(eq=False)
class LimitFleet:
    """A balancer with a state file; it can be killed and started again at the same addresses."""

    folder: Path
    max_connections: int
    max_buffered: int = 100_000
    inference: str = attrs.field(factory=lambda: f"127.0.0.1:{_free_port()}")
    management: str = attrs.field(factory=lambda: f"127.0.0.1:{_free_port()}")
    balancer: Popen[bytes] | None = attrs.field(default=None, init=False)

    @property
    def pid(self) -> int:
        assert self.balancer is not None
        return self.balancer.pid

    @contextmanager
    def running(self) -> Iterator[float]:
        """The balancer, until the block ends; yields how long it took to answer, in seconds."""
        command = [
            sys.executable,
            "-m",
            "paddler_trio",
            "balancer",
            "--log-level=warning",
            f"--inference-addr={self.inference}",
            f"--management-addr={self.management}",
            f"--state-database=file://{self.folder / 'state.json'}",
            f"--max-connections={self.max_connections}",
            f"--max-buffered-requests={self.max_buffered}",
            "--buffered-request-timeout=120000",
            "--inference-item-timeout=300000",
        ]
        began_s = time.monotonic()
        with process(command, self.folder / f"balancer-{began_s:.0f}.log") as self.balancer:
            wait_until(lambda: self._answers(), "the balancer answers")
            yield time.monotonic() - began_s

    def _answers(self) -> bool:
        try:
            self.read("/health")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def kill(self) -> None:
        """As a crash would."""
        assert self.balancer is not None
        self.balancer.kill()
        self.balancer.wait(10)

    def desire(self) -> None:
        """A model; fake agents pretend to serve any."""
        from paddler_trio.wire.codec import unstructure
        from paddler_trio.wire.paddler.desired_state import InferenceParameters

        body = {**STATE, "inference_parameters": unstructure(InferenceParameters())}
        address = split(self.management)
        ask(address, "PUT", "/api/v1/balancer_desired_state", json.dumps(body))

    def read(self, path: str) -> bytes:
        return ask(split(self.management), "GET", path)

    def agents(self) -> list[dict[str, Any]]:
        agents: list[dict[str, Any]] = json.loads(self.read("/api/v1/agents"))["agents"]
        return agents

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        for line in self.read("/metrics").decode().splitlines():
            if line.startswith(f"paddler_{name} "):
                return float(line.split()[1])
        raise AnswerError(f"there is no metric paddler_{name}")

    def cpu_s(self) -> float:
        return cpu_seconds({"balancer": self.pid})["balancer"]

    def sample(self, *, with_tasks: bool = False) -> Sample:
        status = Path(f"/proc/{self.pid}/status").read_text()
        rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        tasks = self.read("/api/v2/tree").count(b'"name":') if with_tasks else 0
        return Sample(
            at_s=time.monotonic(),
            cpu_s=self.cpu_s(),
            rss_kib=float(rss.split()[1]),
            fds=sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir()),
            tasks=tasks,
        )

    @contextmanager
    def beside(self, script: str, *arguments: str) -> Iterator[Told]:
        """One of the other processes, until the block ends."""
        log = self.folder / f"{script}-{time.monotonic():.3f}.log"
        with process([sys.executable, str(HERE / script), *arguments], log) as child:
            yield Told(child, log)

    @contextmanager
    def fake_agents(self, number: int, slots: int, *arguments: str) -> Iterator[Told]:
        """Agents, all of which serve when the block begins."""
        with self.beside(
            "limits_agents.py",
            f"--address={self.management}",
            f"--agents={number}",
            f"--slots={slots}",
            *arguments,
        ) as told:
            told.wait_for("all agents serve", lambda line: line["serving"] == number)
            yield told

    @contextmanager
    def clients(self, streams: int, *arguments: str) -> Iterator[Told]:
        with self.beside(
            "limits_clients.py",
            f"--address={self.inference}",
            f"--streams={streams}",
            *arguments,
        ) as told:
            yield told


@attrs.define(eq=False)
class Told:
    """What another process prints, line by line."""

    child: Popen[bytes]
    log: Path
    _read_bytes: int = attrs.field(default=0, init=False)
    _lines: list[dict[str, float]] = attrs.field(factory=list, init=False)

    def lines(self) -> list[dict[str, float]]:
        """All whole lines; AnswerError if it has ended."""
        if self.child.poll() is not None:
            text = self.log.read_text(errors="replace")
            raise AnswerError(f"{self.log.stem} ended with {self.child.returncode}: {text[-2000:]}")
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")
        self._read_bytes += len(whole[0]) + len(whole[1])
        self._lines += [json.loads(line) for line in whole[0].splitlines() if line[:1] == b"{"]
        return self._lines

    def last(self) -> dict[str, float]:
        """The newest one."""
        wait_until(lambda: bool(self.lines()), f"{self.log.stem} says something")
        return self.lines()[-1]

    def wait_for(
        self,
        what: str,
        is_so: Callable[[dict[str, float]], bool],
        *,
        since_s: float = 0.0,
        within_s: float = READY_S,
    ) -> float:
        """The moment of the first line after ``since_s`` that is as it shall be."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            for line in self.lines():
                if line["at_s"] >= since_s and is_so(line):
                    return line["at_s"]
            time.sleep(POLL_S)
        raise AnswerError(f"not within {within_s:g} s: {what}; the last was {self.last()}")


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = READY_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise AnswerError(f"not within {within_s:g} s: {what}")
        time.sleep(POLL_S)


def progress(text: str) -> None:
    """What goes on, for whoever waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])

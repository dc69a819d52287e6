"""Operators watch a fleet from a terminal, find out about requests, and end what must not go on."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import forked_processes
import httpx
import pytest
from fleet import Daemon, Fleet
from person_at_terminal import person

from no_tls import NO_TLS

LIMIT_S = 60


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One agent with two slots."""
    with Fleet.start(slots=2) as fleet:
        yield fleet


@attrs.define(eq=False)
class Client:
    """One request in a thread of its own; ``answer`` is there once it has ended."""

    fleet: Fleet
    name: str
    answer: httpx.Response | None = None
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        self.answer = httpx.post(
            f"{self.fleet.inference_url}/v1/completions",
            json={"prompt": "Once", "max_tokens": 20},
            headers={"X-Paddler-Client": self.name},
            trust_env=False,
            verify=NO_TLS,
            timeout=LIMIT_S,
        )

    def ends(self) -> httpx.Response:
        self._thread.join(LIMIT_S)
        assert self.answer is not None, f"the request of {self.name} did not end"
        return self.answer


def row_of(screen: str, name: str) -> str:
    """The row of an agent; empty if there is none."""
    return next((line for line in screen.splitlines() if line.startswith(f"{name} ")), "")


@contextmanager
def stopped_agent(fleet: Fleet) -> Iterator[None]:
    """Within the block the agent does nothing, so what it has stays in flight. An engine that
    stood still would be ended by its agent."""
    fleet.agents["a1"].signal(signal.SIGSTOP)
    try:
        yield
    finally:
        fleet.agents["a1"].signal(signal.SIGCONT)


def command(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    address = ("--management-addr", fleet.management)
    return forked_processes.run(*arguments, *address, timeout_s=LIMIT_S)


def requests(fleet: Fleet, *arguments: str) -> list[dict[str, object]]:
    ended = command(fleet, "requests", "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    listed = json.loads(ended.stdout)["requests"]
    assert isinstance(listed, list)
    return listed


def test_top_shows_the_fleet_cancels_drains_outlives_a_balancer_and_gives_the_terminal_back(
    fleet: Fleet,
) -> None:
    with person("top", "--management-addr", fleet.management) as operator:
        operator.reads("slots 0/2 busy")
        with stopped_agent(fleet):
            clients = [Client(fleet, name) for name in ("ann", "bob", "cleo")]
            operator.reads("slots 2/2 busy")
            there = ("ann", "bob", "cleo", "queued", "queue 1/30")
            screen = operator.sees(lambda s: all(each in s for each in there), "all three")
            (waiting,) = (line for line in screen.splitlines() if "queued" in line)
            name = waiting.split()[1]
            operator.press("/queued\r")
            operator.sees(lambda s: s.count("/v1/completions") == 1, "the one that waits")
            operator.press("c")
            operator.reads(f"cancel request {waiting.split()[0]}?")
            operator.press("y")
            operator.reads("is cancelled")
            (cancelled,) = (client for client in clients if client.name == name)
            assert cancelled.ends().status_code == 499
            assert "operator" in cancelled.ends().text
            operator.press("\x1b")
        assert {client.ends().status_code for client in clients if client.name != name} == {200}
        operator.press("\td")
        operator.reads("drain a1?")
        operator.press("y")
        operator.reads("a1 is drained")
        operator.sees(lambda s: "drained" in row_of(s, "a1"), "a drained agent")
        assert fleet.agent_view("a1")["is_accepting"] is False
        operator.press("dy")
        operator.reads("a1 gets work again")

        fleet.balancer.end()
        operator.reads("tries again")
        again = Daemon.start(
            "balancer again",
            [
                "balancer",
                f"--inference-addr={fleet.inference}",
                f"--management-addr={fleet.management}",
                "--log-json",
            ],
            fleet.env,
        )
        try:
            operator.sees(lambda s: "  live  " in s and "a1  " in s, "the balancer is back")
            operator.press("q")
            assert operator.waits_for_end() == 0
            assert operator.is_restored
        finally:
            again.end()


@pytest.fixture(scope="module")
def other_fleet() -> Iterator[Fleet]:
    with Fleet.start(slots=2) as fleet:
        yield fleet


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_top_and_gives_the_terminal_back(
    other_fleet: Fleet, number: signal.Signals
) -> None:
    with person("top", "--management-addr", other_fleet.management) as operator:
        operator.reads("slots 0/2 busy")
        operator.process.send_signal(number)
        assert operator.waits_for_end() == 128 + number
        assert operator.is_restored


def test_without_a_terminal_top_is_one_look(other_fleet: Fleet) -> None:
    ended = command(other_fleet, "top")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[1].startswith("agents 1   slots 0/2 busy   queue 0/30")
    assert lines[4].split()[:5] == ["a1", "serving", "··", "2", "0"]
    document = json.loads(command(other_fleet, "top", "--json").stdout)
    (agent,) = document["agents"].values()
    assert (agent["label"], document["balancer"]["status"]["slots"]["total"]) == ("a1", 2)


def test_a_balancer_that_is_not_there_is_one_line() -> None:
    ended = forked_processes.run("top", "--management-addr", "127.0.0.1:9", timeout_s=LIMIT_S)
    assert ended.returncode == 1
    assert ended.stderr.startswith("paddler-trio: cannot reach the balancer at 127.0.0.1:9")
    assert len(ended.stderr.splitlines()) == 1


def test_requests_are_listed_filtered_and_explained(other_fleet: Fleet) -> None:
    assert Client(other_fleet, "dora").ends().status_code == 200
    (listed,) = requests(other_fleet, "--client", "dora", "--state", "finished")
    assert (listed["client"], listed["phase"]) == ("dora", "ended")
    assert requests(other_fleet, "--client", "nobody") == []
    assert requests(other_fleet, "--state", "in_flight") == []
    assert len(requests(other_fleet, "--since", "600", "--limit", "1")) == 1
    table = command(other_fleet, "requests", "--client", "dora")
    (head, row) = table.stdout.splitlines()
    assert head.split()[:4] == ["key", "arrived", "client", "deployment"]
    assert row.split()[2:6] == ["dora", "default", "/v1/completions", "done,"]
    rows = list(csv.DictReader(io.StringIO(command(other_fleet, "requests", "--csv").stdout)))
    (in_csv,) = (each for each in rows if each["client"] == "dora")
    assert (in_csv["key"], in_csv["ending"]) == (str(listed["key"]), "done")

    for name in (str(listed["key"]), str(listed["id"])):
        explained = command(other_fleet, "explain", name)
        assert explained.returncode == 0, explained.stderr
        for words in (f"request {listed['key']}", "client dora", "a1, slot 0", "decode", "end "):
            assert words in explained.stdout
    unknown = command(other_fleet, "explain", "chatcmpl-nothing")
    assert unknown.returncode == 1
    assert "no request 'chatcmpl-nothing' is known" in unknown.stderr


def test_a_request_is_cancelled_by_its_key(other_fleet: Fleet) -> None:
    with stopped_agent(other_fleet):
        client = Client(other_fleet, "emil")
        for _ in range(1000):
            if found := requests(other_fleet, "--state", "in_flight", "--client", "emil"):
                break
        ended = command(other_fleet, "requests", "--cancel", str(found[0]["key"]))
        assert (ended.returncode, ended.stdout) == (0, "")
        assert ended.stderr == f"request {found[0]['key']} is cancelled\n"
    assert client.ends().status_code == 499
    over = command(other_fleet, "requests", "--cancel", str(found[0]["key"]))
    assert (over.returncode, over.stdout) == (1, "")
    assert "is over already" in over.stderr
    unknown = command(other_fleet, "requests", "--cancel", "999999")
    assert unknown.returncode == 1
    assert "no request 999999 is in flight" in unknown.stderr

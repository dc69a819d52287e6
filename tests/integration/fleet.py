"""A balancer and agents as real processes on free loopback ports, for tests that want the whole.

``with Fleet.start(agents=2) as fleet:`` returns when both agents serve the bundled model. Nothing
here is async and nothing sleeps: a log line or the balancer's own event stream says when something
has happened. Every process, engines included, is gone when the block is left, however it is left;
when it is left by an exception, the logs of all daemons are attached to it as a note.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, cast

import attrs
import forked_processes
import httpx
from forked_processes import ForkedProcess

from no_tls import NO_TLS
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

START_S = 90.0
SERVING_S = 180.0
END_S = 60.0
"""All of them for machines that are busy with other things."""
PATIENT = (
    "--buffered-request-timeout=100000",
    "--inference-item-timeout=100000",
    "--continuation-wait=60000",
    "--agent-silence=60000",
)
"""What a balancer lets pass by default is less than a busy machine may need; a test that is about
one of these limits gives its own."""

OWN_INTERPRETER = {"PYTHONNOUSERSITE": "1"}
"""For an agent whose memory a test judges: forked processes have that of their server as well."""
NOTE_LINES = 60


class AgentView(TypedDict):
    """One agent in ``/api/v2/agents``."""

    id: str
    name: str | None
    protocol: str
    phase: str | None
    detail: str | None
    wanted_state: str | None
    served_state: str | None
    is_accepting: bool
    slots_processing: int
    slots_total: int
    desired_slots_total: int
    model_path: str | None
    issues: list[object]


class FleetView(TypedDict):
    """The whole of ``/api/v2/agents``."""

    desired_state_digest: str
    agents: list[AgentView]


@attrs.define(eq=False)
class Daemon:
    """One process of ours; its log is read by a thread, so it never blocks on a full pipe."""

    name: str
    process: subprocess.Popen[bytes] | ForkedProcess
    log: deque[str] = attrs.field(factory=lambda: deque(maxlen=5000), init=False)
    _news: threading.Condition = attrs.field(factory=threading.Condition, init=False)
    _reader: threading.Thread = attrs.field(init=False)
    _has_ended: bool = attrs.field(default=False, init=False)

    @classmethod
    def start(cls, name: str, arguments: Sequence[str], env: Mapping[str, str]) -> Daemon:
        """A fork, which has imported everything; what only an interpreter reads needs a new one."""
        if any(variable.startswith("PYTHON") and variable != "PYTHONPATH" for variable in env):
            return cls.start_command(name, arguments, env)
        process = forked_processes.start(
            "paddler_trio", arguments, env={**os.environ, **env}, stderr=subprocess.PIPE
        )
        return cls(name, process)

    @classmethod
    def start_command(cls, name: str, arguments: Sequence[str], env: Mapping[str, str]) -> Daemon:
        """As it is started in real life, and slower by a second."""
        process = subprocess.Popen(
            [sys.executable, "-m", "paddler_trio", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C reaches the test, which ends it in order
        )
        return cls(name, process)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, name=f"log of {self.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine_pid(self) -> int | None:
        """The pid of the newest engine; without one that of the oldest child, None for none."""
        others = children(self.pid)
        return next(reversed(self.engine_pids), next(iter(others), None))

    @property
    def engine_pids(self) -> list[int]:
        """Of all engines, oldest first: an agent has two while one is loaded beside another."""
        return [pid for pid in children(self.pid) if is_engine(pid)]

    def wait_for_log(self, event: str, *, within_s: float = START_S) -> Mapping[str, object]:
        """The first record, past or coming, with this ``event``; AssertionError if it never is."""
        line = self._wait(lambda line: _record(line).get("event") == event, event, within_s)
        return _record(line)

    def wait_for_line(self, text: str, *, within_s: float = START_S) -> str:
        """The first line, past or coming, that has this ``text`` in it; AssertionError if none."""
        return self._wait(lambda line: text in line, text, within_s)

    def _wait(self, is_it: Callable[[str], bool], what: str, within_s: float) -> str:
        give_up_s = time.monotonic() + within_s
        with self._news:
            while True:
                for line in self.log:
                    if is_it(line):
                        return line
                left_s = give_up_s - time.monotonic()
                assert not self._has_ended, f"{self.name} ended before it logged {what!r}"
                assert left_s > 0, f"{self.name} did not log {what!r} within {within_s:g} s"
                self._news.wait(left_s)

    def tail(self, lines: int = NOTE_LINES) -> str:
        """The newest lines of the log."""
        with self._news:
            return "\n".join(list(self.log)[-lines:])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, *, within_s: float = END_S) -> int:
        """The exit status, once it has ended by itself."""
        return self.process.wait(within_s)

    def end(self) -> None:
        """Kill it and its engine, now; harmless when it is gone already."""
        engines = children(self.pid) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in engines:  # a stopped engine does not notice that its pipe is closed
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._reader.join(END_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.log.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()


@attrs.define(eq=False)
class Fleet:
    """A running balancer and its agents; made by :meth:`start`.

    ``inference`` and ``management`` are ``host:port``; the ``*_url`` have ``http://`` before it.
    """

    balancer: Daemon
    inference: str
    management: str
    env: Mapping[str, str]
    _started: list[Daemon]
    """Whatever was ever started here; all of it is ended with the fleet."""
    _arguments: Sequence[str]
    """Of the balancer."""
    agents: dict[str, Daemon] = attrs.field(factory=dict, init=False)
    """By name; a second agent of the same name takes the first one's place."""

    @classmethod
    @contextmanager
    def start(
        cls,
        *,
        agents: int = 1,
        slots: int = 4,
        model: Path | None = BUNDLED_MODEL,
        balancer_options: Sequence[str] = (),
        agent_options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Fleet]:
        """Agents are called ``a1``, ``a2`` and so on; ``model=None`` leaves them without one.

        The options come last on the command lines, so they win over what is set here. Agents have
        a cache of their own, so that no test learns from another one's loads.
        """
        cache = tempfile.TemporaryDirectory(prefix="paddler-trio-cache-")
        environment = {"PADDLER_CACHE_DIR": cache.name, **(env or {})}
        arguments = [
            "balancer",
            "--inference-addr=127.0.0.1:0",
            "--management-addr=127.0.0.1:0",
            "--drain-timeout=2000",
            "--rollout-min-ready=0",
            "--log-json",
            *PATIENT,
            *balancer_options,
        ]
        balancer = Daemon.start("balancer", arguments, environment)
        started = [balancer]
        try:
            up = balancer.wait_for_log("balancer up")
            fleet = cls(
                balancer,
                _first(up["inference"]),
                _first(up["management"]),
                environment,
                started,
                arguments,
            )
            if model is not None:
                fleet.desire(model)
            for number in range(1, agents + 1):
                fleet.start_agent(f"a{number}", slots=slots, options=agent_options)
            if model is not None:
                fleet.wait_until(
                    lambda view: serving(view, agents),
                    what=f"{agents} agents serve",
                    nobody_ends=True,
                )
            else:
                fleet.wait_until(
                    lambda view: len(view["agents"]) == agents,
                    what=f"{agents} agents joined",
                    nobody_ends=True,
                )
            yield fleet
        except BaseException as error:
            for daemon in started:
                error.add_note(f"--- log of {daemon.name} (pid {daemon.pid})\n{daemon.tail()}")
            raise
        finally:
            for daemon in reversed(started):
                daemon.end()
            cache.cleanup()

    @property
    def inference_url(self) -> str:
        return f"http://{self.inference}"

    @property
    def management_url(self) -> str:
        return f"http://{self.management}"

    def start_agent(
        self,
        name: str,
        *,
        slots: int = 4,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Start one more agent; it is not waited for. ``env`` comes over the fleet's."""
        agent = Daemon.start(
            name,
            [
                "agent",
                f"--management-addr={self.management}",
                f"--slots={slots}",
                "--threads=1",  # more spin while they wait for each other, and cores are few
                f"--name={name}",
                "--drain-timeout=60000",  # what runs at a swap is done in moments, or is slow
                "--fit=off",  # a process more for each load of each test; tests of fits say on
                "--log-json",
                *options,
            ],
            {**self.env, **({} if env is None else env)},
        )
        self._started.append(agent)
        self.agents[name] = agent
        return agent

    def restart_balancer(self) -> None:
        """Kill it, and start one at the same addresses; it is up when this returns."""
        self.balancer.signal(signal.SIGKILL)
        self.balancer.wait()
        at = [f"--inference-addr={self.inference}", f"--management-addr={self.management}"]
        self.balancer = Daemon.start("balancer", [*self._arguments, *at], self.env)
        self._started.append(self.balancer)
        self.balancer.wait_for_log("balancer up")

    def start_successor(self, *options: str) -> Daemon:
        """Start a balancer that takes over from the one that runs; it is not waited for."""
        name = f"balancer {sum(each.name.startswith('balancer') for each in self._started) + 1}"
        successor = Daemon.start(name, [*self._arguments, "--take-over", *options], self.env)
        self._started.append(successor)
        return successor

    def take_over(self) -> Daemon:
        """Let another balancer take over; the one before, which finishes what it has."""
        before, successor = self.balancer, self.start_successor()
        up = successor.wait_for_log("balancer up")
        assert (_first(up["inference"]), _first(up["management"])) == (
            self.inference,
            self.management,
        )
        self.balancer = successor
        return before

    def view(self) -> FleetView:
        """``/api/v2/agents`` as it is now."""
        answer = httpx.get(
            f"{self.management_url}/api/v2/agents", trust_env=False, verify=NO_TLS, timeout=END_S
        )
        answer.raise_for_status()
        return cast("FleetView", answer.json())

    def agent_view(self, name: str) -> AgentView:
        """One agent as the balancer sees it; KeyError if it is not connected."""
        for agent in self.view()["agents"]:
            if agent["name"] == name:
                return agent
        raise KeyError(name)

    def desire(self, model: Path | None, **parameters: object) -> str:
        """Store a desired state: this model, these parameters over the current ones.

        The context is made 1024 tokens, small enough to load in no time, unless it is given.

        Returns:
          The digest of the state, as agents report it in ``served_state``.
        """
        url = f"{self.management_url}/api/v1/balancer_desired_state"
        with httpx.Client(trust_env=False, verify=NO_TLS, timeout=END_S) as http:
            state = http.get(url).raise_for_status().json()
            state["model"] = "None" if model is None else {"LocalToAgent": str(model)}
            state["inference_parameters"] |= {"context_size": 1024, **parameters}
            answer = http.put(url, json=state)
        assert answer.status_code == 204, f"{answer.status_code}: {answer.text}"
        return answer.headers["X-Paddler-State-Digest"]

    def wait_until(
        self,
        is_so: Callable[[FleetView], bool],
        *,
        what: str = "the fleet is as wanted",
        within_s: float = SERVING_S,
        nobody_ends: bool = False,
    ) -> FleetView:
        """Follow the event stream until a snapshot satisfies ``is_so``; that snapshot.

        AssertionError when time is up, or with ``nobody_ends`` as soon as a daemon has ended.
        """
        give_up_s = time.monotonic() + within_s
        view: FleetView | None = None
        url = f"{self.management_url}/api/v2/agents/stream"
        with httpx.stream("GET", url, trust_env=False, verify=NO_TLS, timeout=END_S) as answer:
            for line in answer.iter_lines():  # a keep-alive comes every few seconds
                if line.startswith("data: "):
                    view = cast("FleetView", json.loads(line.removeprefix("data: ")))
                    if is_so(view):
                        return view
                ended = [each.name for each in self._started if each.process.poll() is not None]
                assert not (nobody_ends and ended), f"ended while waiting: {', '.join(ended)}"
                if time.monotonic() > give_up_s:
                    break
        raise AssertionError(f"not so within {within_s:g} s: {what}; last seen: {view}")

    def wait_until_buffered(self, number: int, *, headers: Mapping[str, str] | None = None) -> None:
        """Follow the event stream until so many requests wait in the buffer."""
        give_up_s = time.monotonic() + END_S
        url = f"{self.management_url}/api/v1/buffered_requests/stream"
        with httpx.stream(
            "GET", url, headers=headers, trust_env=False, verify=NO_TLS, timeout=END_S
        ) as answer:
            for line in answer.iter_lines():
                if line == f'data: {{"buffered_requests_current":{number}}}':
                    return
                assert time.monotonic() < give_up_s, f"not {number} in the buffer: {line}"
        raise AssertionError("the stream has ended")

    def wait_serving(self, agents: int | None = None) -> FleetView:
        """Wait until this many agents (default: all that were started) serve the desired state."""
        number = len(self.agents) if agents is None else agents
        return self.wait_until(lambda view: serving(view, number), what=f"{number} agents serve")


def serving(view: FleetView, agents: int) -> bool:
    """Whether exactly this many agents are connected and all serve what is desired."""
    return len(view["agents"]) == agents and all(
        agent["is_accepting"]
        and agent["slots_total"] > 0
        and agent["served_state"] == view["desired_state_digest"]
        for agent in view["agents"]
    )


def children(pid: int) -> list[int]:
    """The pids of a process's children, oldest first; empty when it is gone."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        state, parent = text.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def is_engine(pid: int) -> bool:
    """Whether this process is an engine's, and no dry run's."""
    try:
        return b"paddler_trio.processes.engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(
            b"\0"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended while we looked


def _record(line: str) -> Mapping[str, object]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _first(addresses: object) -> str:
    assert isinstance(addresses, list)
    return str(addresses[0])

"""A balancer and agents as real processes that may be killed, stopped and started again.

Everything started here is known by its id and ended by it in ``Fleet.end``, which is synchronous
and may be called whatever happened.

What the fleet looks like comes from the balancer's own event stream, written down with the time
of each snapshot: recovery is measured between what the balancer said, not between polls.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, cast

import attrs
import httpx
import trio
from chaos_daemon import ChaosError, Daemon, end_engine, engines_of

from paddler_trio.cli.balancer_http import async_lines_of

START_S = 60.0
END_S = 5.0
ANSWER_S = 30.0
"""The event stream says something every three seconds; on a crowded machine that may take long."""
POLL_S = 0.02


class AgentView(TypedDict):
    """What is looked at of one agent in ``/api/v2/agents``."""

    id: str
    name: str | None
    is_accepting: bool
    served_state: str | None
    slots_processing: int
    slots_total: int
    usable_slots: int
    """Fewer than all for some seconds after the agent was away."""


class FleetView(TypedDict):
    """``/api/v2/agents``."""

    desired_state_digest: str
    agents: list[AgentView]


@attrs.frozen
class Sight:
    """What the balancer said of its agents, and when (monotonic seconds)."""

    seen_s: float
    view: FleetView


@attrs.frozen
class Terms:
    """What every round runs on. ``silence_s``: after so long a stopped agent is given up."""

    model: Path
    agents: int
    slots: int
    context_tokens: int
    silence_s: float


@attrs.define(eq=False)
class Fleet:
    """See the module docstring. ``agents`` by name; a restarted one takes its old place."""

    terms: Terms
    folder: Path
    agents: dict[str, Daemon] = attrs.field(factory=dict, init=False)
    sights: list[Sight] = attrs.field(factory=list, init=False)
    addresses: Mapping[str, str] = attrs.field(factory=dict, init=False)
    """``inference`` and ``management`` to ``host:port``."""
    _balancer: Daemon | None = attrs.field(default=None, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _started: list[Daemon] = attrs.field(factory=list, init=False)
    _engines: set[int] = attrs.field(factory=set, init=False)
    """Engines whose agent we killed or stopped: they may be left alone."""

    async def start(self, watchers: trio.Nursery) -> None:
        """Balancer, model, agents; returns when all of them serve."""
        silence_ms = round(self.terms.silence_s * 1000)
        balancer = self._start(
            "balancer",
            "balancer",
            "--inference-addr=127.0.0.1:0",
            "--management-addr=127.0.0.1:0",
            "--max-buffered-requests=1000",
            "--buffered-request-timeout=120000",
            f"--agent-silence={silence_ms}",
        )
        self._balancer = balancer
        with _within(START_S, "the balancer is up"):
            while (up := _record_of(balancer, "balancer up")) is None:
                self.check_alive()
                await trio.sleep(POLL_S)
        for listener in ("inference", "management"):
            addresses = up[listener]
            assert isinstance(addresses, list)
            self.addresses = {**self.addresses, listener: str(addresses[0])}
        await watchers.start(self._watch)
        await self.desire(self.terms.model)
        for number in range(1, self.terms.agents + 1):
            self.start_agent(f"a{number}")
        await self.first_sight(self.is_whole, "all agents serve")

    @property
    def balancer(self) -> Daemon:
        assert self._balancer is not None, "the fleet was not started"
        return self._balancer

    def start_agent(self, name: str) -> None:
        """Start this agent, for the first time or again."""
        self.agents[name] = self._start(
            name,
            "agent",
            f"--management-addr={self.addresses['management']}",
            f"--slots={self.terms.slots}",
            f"--name={name}",
        )

    # -------------------------------------------------------------- harm

    def kill_agent(self, name: str) -> int:
        """``kill -9``; returns its engine, which has to end by itself."""
        engine = self.agents[name].engine_pid()
        self._engines.add(engine)
        self.agents[name].process.kill()
        return engine

    def kill_engine(self, name: str) -> None:
        os.kill(self.agents[name].engine_pid(), signal.SIGKILL)

    def pause(self, name: str, *, with_engine: bool) -> list[int]:
        """SIGSTOP; returns whom, for :meth:`resume`."""
        agent = self.agents[name]
        engine = agent.engine_pid()
        self._engines.add(engine)
        pids = [agent.process.pid, engine] if with_engine else [agent.process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def resume(self, pids: Sequence[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    # ------------------------------------------------------ what it says

    def is_whole(self, view: FleetView) -> bool:
        """Every agent is connected, exactly once, and serves what is desired in all its slots."""
        names = sorted(agent["name"] or "" for agent in view["agents"])
        return names == sorted(self.agents) and all(
            agent["is_accepting"]
            and agent["slots_total"] == self.terms.slots
            and agent["served_state"] == view["desired_state_digest"]
            for agent in view["agents"]
        )

    def is_rested(self, view: FleetView) -> bool:
        """It is whole, and who was away has opened all its slots again."""
        return self.is_whole(view) and all(
            agent["usable_slots"] == self.terms.slots for agent in view["agents"]
        )

    async def first_sight(
        self,
        is_so: Callable[[FleetView], bool],
        what: str,
        *,
        after_s: float = -1.0,
        within_s: float = START_S,
    ) -> Sight:
        """The first snapshot after a time that is so; ChaosError if none comes in time."""
        place = 0
        with _within(within_s, what):
            while True:
                for sight in self.sights[place:]:
                    if sight.seen_s >= after_s and is_so(sight.view):
                        return sight
                place = len(self.sights)
                await self._news.wait()

    async def unreturned(self) -> tuple[int, int]:
        """Slots taken and requests waiting, according to the balancer, at this moment."""
        view = cast("FleetView", await self._ask("GET", "/api/v2/agents"))
        waiting = cast("dict[str, int]", await self._ask("GET", "/api/v1/buffered_requests"))
        taken = sum(agent["slots_processing"] for agent in view["agents"])
        return taken, waiting["buffered_requests_current"]

    async def desire(self, model: Path) -> None:
        """This model for all agents, greedy: the likeliest token is the same everywhere."""
        path = "/api/v1/balancer_desired_state"
        state = await self._ask("GET", path)
        assert isinstance(state, dict)
        state["model"] = {"LocalToAgent": str(model)}
        state["inference_parameters"] |= {
            "context_size": self.terms.context_tokens,
            "temperature": 0.0,
            "penalty_repeat": 1.0,
            "penalty_presence": 0.0,
            "penalty_frequency": 0.0,
        }
        await self._ask("PUT", path, state)

    def check_alive(self) -> None:
        """ChaosError if a daemon ended that nobody killed."""
        for daemon in (self.balancer, *self.agents.values()):
            if daemon.has_ended:
                status = daemon.process.returncode
                raise ChaosError(f"{daemon.name} ended ({status}) by itself:\n{daemon.tail()}")

    # ------------------------------------------------------------ the end

    def end(self) -> None:
        """Kill whatever is left, by id."""
        for daemon in reversed(self._started):
            if not daemon.has_ended:
                self._engines.update(engines_of(daemon.process.pid))
                daemon.process.kill()
        for daemon in self._started:
            daemon.process.wait(END_S)
        for pid in self._engines:  # one that is stopped does not notice that its pipe closed
            end_engine(pid)

    # ------------------------------------------------------------ private

    def _start(self, name: str, *arguments: str) -> Daemon:
        daemon = Daemon.start(name, arguments, self.folder / f"{name}.log")
        self._started.append(daemon)
        return daemon

    async def _ask(self, method: str, path: str, body: object = None) -> object:
        url = f"http://{self.addresses['management']}{path}"
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as http:
                answer = await http.request(method, url, json=body)
        except httpx.TransportError as error:
            raise ChaosError(f"{method} {path}: {error!r}; {self.balancer.tail()}") from error
        if not answer.is_success:
            raise ChaosError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None

    async def _watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write down every snapshot; started with the first one, ended by cancellation."""
        url = f"http://{self.addresses['management']}/api/v2/agents/stream"
        reason = "it was closed"
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as http,
                http.stream("GET", url) as answer,
            ):
                async for line in async_lines_of(answer.aiter_bytes()):
                    if line.startswith("data: "):
                        self._see(cast("FleetView", json.loads(line.removeprefix("data: "))))
                        if len(self.sights) == 1:
                            task_status.started()
        except httpx.TransportError as error:
            reason = repr(error)
        raise ChaosError(f"the balancer's event stream ended: {reason}; {self.balancer.tail()}")

    def _see(self, view: FleetView) -> None:
        self.sights.append(Sight(time.monotonic(), view))
        self._news.set()
        self._news = trio.Event()


def _record_of(daemon: Daemon, event: str) -> Mapping[str, object] | None:
    return next((record for record in daemon.records() if record.get("event") == event), None)


@contextmanager
def _within(limit_s: float, what: str) -> Iterator[None]:
    """``trio.move_on_after`` whose lateness is a ChaosError that says what did not happen."""
    with trio.move_on_after(limit_s) as patience:
        yield
    if patience.cancelled_caught:
        raise ChaosError(f"not so within {limit_s:g} s: {what}")

"""Faults of a rollout, each at its moment, under streams of real processes.

An engine that is stopped when it starts holds its agent, and the rollout, in one phase for as long
as a test wants. Answers of two models would have two kinds of blanks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import h11
import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, END_S, SERVING_S, Fleet, FleetView, is_engine, serving
from rollouts import apply, current, deployment, ends, follow, order
from streams import CONVERSATION, Heard, listen, story, until_first_tokens

from distinct_models import blanks_in, write_model
from hub_server import HubServer, Misbehaviour, hub_server
from no_tls import NO_TLS

AGENTS = 3
SLOTS = 8
ALL = AGENTS * SLOTS
RULES = {"min_capacity": ALL, "min_ready_s": 1, "progress_deadline_s": 120}
"""No slot may be away: agents load beside what they serve."""
TOKENS = 16
LONG = 120
WAITING = [ALL, pytest.param(200 - ALL, marks=pytest.mark.slow)]
"""Streams beside those that have a slot."""
LOOK_S = 0.05


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with hub_server() as running:
        yield running


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three agents that serve the bundled model, and take turns without losing a slot."""
    state = tmp_path_factory.mktemp("state") / "state.json"
    options = (
        "--max-buffered-requests=1000",
        "--buffered-request-timeout=100000",
        f"--state-database=file://{state}",
    )
    with Fleet.start(
        agents=AGENTS,
        slots=SLOTS,
        model=None,
        balancer_options=options,
        agent_options=["--fit=on"],
    ) as running:
        follow(running, ends("complete", apply(running, wanted(BUNDLED_MODEL))))
        yield running


def wanted(model: Path | str, **rules: object) -> dict[str, object]:
    """``model``: a path, or the URL of a file."""
    spec = deployment(Path("nowhere"), context_size=SLOTS * 256, rollout={**RULES, **rules})
    kind = "LocalToAgent" if isinstance(model, Path) else "Url"
    spec["model"] = {kind: str(model)} if isinstance(model, Path) else {kind: {"url": model}}
    return spec


def phases(rollout: dict[str, object], phase: str) -> int:
    """How many agents are in it."""
    agents = rollout["agents"]
    assert isinstance(agents, list)
    return sum(agent["phase"] == phase for agent in agents)


@attrs.define(eq=False)
class StoppedEngines:
    """Each engine that an agent starts is stopped when it begins, one after the other."""

    fleet: Fleet
    pid: int = 0
    """Of the one that is stopped, or was."""
    _known: set[int] = attrs.field(init=False)
    _is_over: threading.Event = attrs.field(factory=threading.Event)
    _found: Future[int] = attrs.field(init=False)
    _pool: ThreadPoolExecutor = attrs.field(factory=lambda: ThreadPoolExecutor(1))

    def __attrs_post_init__(self) -> None:
        self._known = engines(self.fleet)
        self._found = self._pool.submit(self._stop_next)

    @classmethod
    @contextmanager
    def of(cls, fleet: Fleet) -> Iterator[StoppedEngines]:
        """From now on; those that run are left alone. At the end all go on."""
        stopped = cls(fleet)
        try:
            yield stopped
        finally:
            stopped._is_over.set()
            stopped._pool.shutdown()
            for pid in stopped._known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def wait(self) -> int:
        """Until the next one is stopped; its pid."""
        self.pid = self._found.result(SERVING_S)
        return self.pid

    def let_go(self) -> None:
        """It goes on, unless its agent has ended it by now; the next one will be stopped."""
        self._found = self._pool.submit(self._stop_next)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def let_go_while(self, wait: Callable[[], object]) -> None:
        """The same for those that are stopped until ``wait`` returns: the canary may be another
        agent by now, with an engine of its own."""
        with ThreadPoolExecutor(1) as waiting:
            waited = waiting.submit(wait)
            self.let_go()
            while not waited.done():
                futures.wait([waited, self._found], return_when=futures.FIRST_COMPLETED)
                if self._found.done() and not waited.done():
                    self.pid = self._found.result()
                    self.let_go()
            waited.result()

    def _stop_next(self) -> int:
        while not self._is_over.wait(LOOK_S):  # the start of a process is no event
            for agent in self.fleet.agents.values():
                for pid in set(offspring(agent.pid)) - self._known:
                    if is_engine(pid):
                        os.kill(pid, signal.SIGSTOP)
                        self._known.add(pid)
                        return pid
        return 0


def offspring(pid: int) -> Iterator[int]:
    """The children of all its threads."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield from map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked


def engines(fleet: Fleet) -> set[int]:
    return {pid for agent in fleet.agents.values() for pid in agent.engine_pids}


def served_everywhere(fleet: Fleet, model: str) -> None:
    """All agents come to serve this, it is what is desired, and nothing is under way."""

    def is_so(view: FleetView) -> bool:
        paths = [str(agent["model_path"]) for agent in view["agents"]]
        return serving(view, AGENTS) and all(path.endswith(model) for path in paths)

    fleet.wait_until(is_so, what=f"all serve {model}")
    follow(fleet, lambda r: r["phase"] in ("complete", "rolled_back", "aborted"))
    assert model in str(current(fleet)["revision"]["state"])


def check(streams: list[Heard]) -> None:
    """None is lost, and none is of two models."""
    assert {tuple(heard.endings) for heard in streams} == {("Done",)}
    assert {len(blanks_in(heard.text)) for heard in streams} == {1}


async def ask(fleet: Fleet, heard: Heard, number: int, max_tokens: int = TOKENS) -> None:
    """One stream to its end, or until its balancer is killed."""
    body = story(number, max_tokens=max_tokens)
    with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
        await listen(fleet.inference, CONVERSATION, body, heard)


def killed_and_back(fleet: Fleet) -> None:
    """Kill the balancer under a stream in each slot; the next one answers as many at once."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number, heard in enumerate(cut):
                nursery.start_soon(ask, fleet, heard, number, LONG)
            await until_first_tokens(cut, ALL // 2)
            await trio.to_thread.run_sync(fleet.restart_balancer)
        async with trio.open_nursery() as nursery:
            for number, heard in enumerate(whole):
                nursery.start_soon(ask, fleet, heard, number)

    cut, whole = [Heard() for _ in range(ALL)], [Heard() for _ in range(ALL)]
    trio.run(run)
    assert {tuple(heard.endings) for heard in cut} <= {(), ("Done",)}
    assert max(len(blanks_in(heard.text)) for heard in cut) == 1
    check(whole)


def under_streams(fleet: Fleet, waiting: int, change: Callable[[], None]) -> None:
    """One stream in each slot and as many that wait; ``change`` happens meanwhile. No slot is
    away at any time, and no stream is lost."""

    async def run() -> None:
        with trio.fail_after(SERVING_S):
            async with trio.open_nursery() as nursery:
                for number, heard in enumerate(streams):
                    if number == ALL:
                        await until_first_tokens(streams, ALL)
                        nursery.start_soon(trio.to_thread.run_sync, change)
                    nursery.start_soon(ask, fleet, heard, number)

    streams = [Heard() for _ in range(ALL + waiting)]
    with slots_watched(fleet) as slots:
        trio.run(run)
    check(streams)
    assert set(slots) == {ALL}


@contextmanager
def slots_watched(fleet: Fleet) -> Iterator[list[int]]:
    """The slots that agents offer, at each change within the block."""
    seen: list[int] = []
    begun, is_over = threading.Event(), threading.Event()

    def watch() -> None:
        url = f"{fleet.management_url}/api/v2/agents/stream"
        with httpx.stream("GET", url, trust_env=False, verify=NO_TLS, timeout=END_S) as answer:
            for line in answer.iter_lines():  # a keep-alive comes every few seconds
                if line.startswith("data: "):
                    agents = json.loads(line.removeprefix("data: "))["agents"]
                    seen.append(sum(agent["slots_total"] for agent in agents))
                    begun.set()
                if is_over.is_set():
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert begun.wait(END_S)
        yield seen
    finally:
        is_over.set()
        thread.join(END_S)


@pytest.mark.parametrize(
    "kills",
    [
        {"loading", "going back"},
        pytest.param(
            {"prefetching", "loading", "canary", "rolling", "going back"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_balancer_that_is_killed_in_a_phase_goes_on_from_there(
    fleet: Fleet, hub: HubServer, kills: set[str], tmp_path: Path
) -> None:
    """An agent that is back late, after the balancer has settled, may have been replaced as the
    canary: so there may be more that load or serve than those that are waited for."""

    def killed_in(phase: str) -> None:
        if phase in kills:
            killed_and_back(fleet)

    name = f"tabs{len(kills)}.gguf"  # each is fetched once
    hub.stored[name] = write_model(tmp_path / name, "\t").read_bytes()
    gate = threading.Event()
    hub.misbehave = lambda seen: Misbehaviour(waits_for=gate)
    with StoppedEngines.of(fleet) as stopped:
        apply(fleet, wanted(f"{hub.storage_url}/storage/{name}"))
        try:
            follow(fleet, lambda r: r["phase"] == "prefetching" and phases(r, "prefetching") > 0)
            killed_in("prefetching")
        finally:
            gate.set()
        stopped.wait()
        follow(fleet, lambda r: phases(r, "loading") > 0)
        killed_in("loading")
        stopped.let_go_while(lambda: follow(fleet, lambda r: phases(r, "serving") > 0))
        killed_in("canary")
        stopped.wait()
        follow(fleet, lambda r: phases(r, "serving") > 0 and phases(r, "loading") > 0)
        killed_in("rolling")
        assert order(fleet, "abort").status_code == 200
        stopped.let_go()
        stopped.wait()
        follow(fleet, lambda r: r["phase"] == "aborted" and phases(r, "loading") > 0)
        killed_in("going back")
    served_everywhere(fleet, BUNDLED_MODEL.name)


@pytest.mark.parametrize("waiting", WAITING)
def test_an_engine_that_hangs_while_it_loads_leaves_the_old_model_everywhere(
    fleet: Fleet, waiting: int, tmp_path: Path
) -> None:
    before = engines(fleet)
    other = write_model(tmp_path / "tabs.gguf", "\t")

    def change() -> None:
        with StoppedEngines.of(fleet) as stopped:
            revision = apply(fleet, wanted(other, progress_deadline_s=8))
            pid = stopped.wait()
            follow(fleet, ends("rolled_back", revision))
            while is_engine(pid):  # its agent ends it
                time.sleep(LOOK_S)

    under_streams(fleet, waiting, change)
    served_everywhere(fleet, BUNDLED_MODEL.name)
    assert engines(fleet) <= before, "one that an earlier change left may have ended"


@pytest.mark.parametrize("waiting", WAITING)
def test_a_third_revision_in_the_middle_is_what_all_serve_in_the_end(
    fleet: Fleet, waiting: int, tmp_path: Path
) -> None:
    second = write_model(tmp_path / "tabs.gguf", "\t")
    third = write_model(tmp_path / "lines.gguf", "\v")

    def change() -> None:
        revision = apply(fleet, wanted(second, min_ready_s=300))
        follow(fleet, lambda r: r["to"] == revision and phases(r, "serving") == 1)
        revision = apply(fleet, wanted(third))
        follow(fleet, ends("complete", revision))

    under_streams(fleet, waiting, change)
    served_everywhere(fleet, third.name)

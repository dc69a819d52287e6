"""The four measurements of limits.py; each starts its own fleet and ends it."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import attrs
from answers import AnswerError
from child_processes import split
from limits_figures import Figure, trend
from limits_fleet import SPARE_DESCRIPTORS, LimitFleet, Sample, progress

REJOIN_GOAL_S = 10.0
STREAM_GOAL_KIB = 60.0
FLAT_GOAL = 0.9
SOAK_GOAL = 0.03
CHANGE_GOAL_MS = 1.0
FEW, MANY = 8, 5000
"""Streams between which the cost of a token shall be flat."""
TOKENS_PER_S = 4000.0
"""Of all streams together, few or many."""
AGENT_SLOTS = 8
VISITS_PER_S = 10.0
SOAK_AGENTS, SOAK_SLOTS = 50, 16
SOAK_LOAD = 0.7
SOAK_EVERY_S = 5.0
SOAK_WARM_SHARE = 0.2
LEAST_TREND_SAMPLES = 9


@contextmanager
def fleet(connections: int) -> Iterator[LimitFleet]:
    """In a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield LimitFleet(Path(folder), connections + SPARE_DESCRIPTORS)


# ------------------------------------------------------------------------------ agents rejoin


def rejoin(agents: int, outages_s: tuple[float, ...] = (0.0, 5.0)) -> Iterator[Figure]:
    """A balancer is killed under its agents and started again; when they all serve again."""
    with fleet(agents) as it, ExitStack() as stack:
        first = ExitStack()
        first.enter_context(it.running())
        it.desire()
        began_s = time.monotonic()
        told = stack.enter_context(it.fake_agents(agents, AGENT_SLOTS))
        yield Figure("rejoin", f"{agents} agents join for the first time", _since(began_s), "s")
        for outage_s in outages_s:
            dials = told.last()["dials"]
            it.kill()
            killed_s = time.monotonic()
            first.close()
            time.sleep(outage_s)
            first.enter_context(it.running())
            accepts_s, cpu_s = time.monotonic(), it.cpu_s()
            back_s = told.wait_for(
                "all agents are back", lambda line: line["serving"] == agents, since_s=accepts_s
            )
            cpu_s = it.cpu_s() - cpu_s
            known = len(it.agents())
            if known != agents:
                raise AnswerError(f"the balancer knows {known} agents of {agents}")
            name = f"all back, after {accepts_s - killed_s:.1f} s without a balancer"
            yield Figure("rejoin", name, back_s - accepts_s, "s", REJOIN_GOAL_S)
            yield Figure("rejoin", "  dials, an agent", (told.last()["dials"] - dials) / agents, "")
            yield Figure("rejoin", "  CPU, an agent", cpu_s / agents * 1000, "ms")
            yield Figure("rejoin", "  event loop late at most", _late_ms(it), "ms")
        first.close()


def _late_ms(it: LimitFleet) -> float:
    return it.metric("event_loop_lag_milliseconds")


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


# -------------------------------------------------------------------------------- open streams


def streams(number: int, rounds: int, seconds: float) -> Iterator[Figure]:
    """So many open streams, and what a token costs with few and with many."""
    yield from _open_streams(number, seconds)
    many = min(MANY, number)
    costs: dict[int, list[float]] = {FEW: [], many: []}
    idle: list[float] = []
    for turn in range(rounds):
        for size in (FEW, many) if turn % 2 == 0 else (many, FEW):
            cost, idle_share = _token_us(size, many, seconds)
            costs[size].append(cost)
            idle.append(idle_share)
            progress(f"streams: {size} open, {cost:.1f} us a token")
    few_us, many_us = median(costs[FEW]), median(costs[many])
    yield Figure("streams", f"CPU a token, {FEW} streams", few_us, "us")
    yield Figure("streams", f"CPU a token, {many} streams", many_us, "us")
    ratio = few_us / many_us
    name = f"  tokens a CPU second, of those with {FEW}"
    yield Figure("streams", name, ratio, "x", least=FLAT_GOAL)
    agents = -(-many // AGENT_SLOTS)
    yield Figure("streams", f"CPU of {agents} idle agents", median(idle), "core")


def _open_streams(number: int, seconds: float) -> Iterator[Figure]:
    agents = -(-number // AGENT_SLOTS)
    rate = TOKENS_PER_S / number
    with fleet(number + agents) as it, it.running():
        it.desire()
        with it.fake_agents(agents, AGENT_SLOTS, f"--rate={rate}"):
            before = it.sample()
            began_s = time.monotonic()
            with it.clients(number) as told:
                all_s = told.wait_for(
                    f"{number} streams",
                    lambda line: line.get("streaming", 0) >= number,
                    within_s=60 + number / 100 + 2 / rate,
                )
                progress(f"streams: {number} open after {all_s - began_s:.1f} s")
                time.sleep(seconds)
                after = it.sample(with_tasks=True)
                last = told.last()
                lost = sum(count for name, count in last.items() if name[:4] in ("brok", "refu"))
                late_ms = _late_ms(it)
    kib = (after.rss_kib - before.rss_kib) / number
    yield Figure("streams", f"{number} streams: memory of one", kib, "KiB", STREAM_GOAL_KIB)
    yield Figure("streams", "  RSS of the balancer", after.rss_kib / 1024, "MiB")
    yield Figure("streams", "  descriptors", after.fds, "")
    yield Figure("streams", "  tasks, one stream", after.tasks / number, "")
    yield Figure("streams", "  broken or refused", lost, "", 0)
    yield Figure("streams", "  until all are open", all_s - began_s, "s")
    yield Figure("streams", "  event loop late at most", late_ms, "ms")


def _token_us(size: int, many: int, seconds: float) -> tuple[float, float]:
    """Processor time of the balancer for one token beyond what idle agents cost it, in
    microseconds; and that, as a share of a core. Agents and tokens in a frame are the same for
    every size."""
    agents, working = -(-many // AGENT_SLOTS), -(-size // AGENT_SLOTS)
    rate = TOKENS_PER_S / size
    options = (f"--rate={rate}", f"--working={working}")
    with fleet(size + agents) as it, it.running():
        it.desire()
        with it.fake_agents(agents, AGENT_SLOTS, *options):
            time.sleep(1)
            idle = _cpu_share(it, seconds / 2)
            with it.clients(size) as told:
                told.wait_for(
                    f"{size} streams",
                    lambda line: line.get("streaming", 0) >= size,
                    within_s=60 + 2 / rate,
                )
                time.sleep(1)
                began, tokens = it.sample(), told.last()["tokens"]
                time.sleep(seconds)
                ended, tokens = it.sample(), told.last()["tokens"] - tokens
                used_s = ended.cpu_s - began.cpu_s - idle * (ended.at_s - began.at_s)
    return used_s / tokens * 1e6, idle


def _cpu_share(it: LimitFleet, seconds: float) -> float:
    began, at_s = it.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (it.cpu_s() - began) / (time.monotonic() - at_s)


# ------------------------------------------------------------------------------------- a soak


def soak(minutes: float) -> Iterator[Figure]:
    """Agents and clients that come and go, with most slots busy; does anything grow?"""
    number = int(SOAK_AGENTS * SOAK_SLOTS * SOAK_LOAD)
    samples: list[Sample] = []
    with fleet(number + SOAK_AGENTS) as it, it.running():
        it.desire()
        agents = it.fake_agents(
            SOAK_AGENTS, SOAK_SLOTS, "--rate=2", "--tokens=30", "--varies", "--churn=0.5"
        )
        with agents as links, it.clients(number, "--leave=0.2") as told:
            began_s = time.monotonic()
            while (passed_s := time.monotonic() - began_s) < minutes * 60:
                time.sleep(SOAK_EVERY_S)
                samples.append(it.sample(with_tasks=True))
                now, open_now = samples[-1], told.last().get("streaming", 0)
                progress(
                    f"soak: {passed_s / 60:.1f} of {minutes:g} min, "
                    f"{now.rss_kib / 1024:.1f} MiB, {now.fds} descriptors, {now.tasks} tasks, "
                    f"{open_now:.0f} streams"
                )
            last, ends = told.last(), links.last()
    kept = samples[int(len(samples) * SOAK_WARM_SHARE) :]
    if len(kept) < LEAST_TREND_SAMPLES:
        raise AnswerError(f"a soak of {minutes:g} minutes is too short: take 1 at least")
    share = (kept[-1].cpu_s - kept[0].cpu_s) / (kept[-1].at_s - kept[0].at_s)
    yield Figure("soak", "answers whole", last.get("whole", 0), "")
    yield Figure("soak", "  left by their clients", last.get("left", 0), "")
    yield Figure("soak", "  links of agents that ended", ends.get("links", 0), "")
    yield Figure("soak", "  CPU of the balancer", share, "core")
    times_s = [each.at_s for each in kept]
    for name, unit in (("rss_kib", "KiB"), ("fds", ""), ("tasks", "")):
        line = trend(times_s, [float(getattr(each, name)) for each in kept])
        yield Figure("soak", f"{name}: mean", line.mean, unit)
        yield Figure("soak", "  last third against the first", line.change, "", SOAK_GOAL)
        yield Figure("soak", "  slope an hour, of the mean", line.slope_per_hour, "")


# ------------------------------------------------------------------- what a change costs


def changes(agents: int, seconds: float) -> Iterator[Figure]:
    """One agent among many comes and goes; reads and watchers of them all."""
    joins: dict[int, float] = {}
    for size in (10, agents):
        with fleet(size + 100) as it, it.running():
            it.desire()
            with it.fake_agents(size, AGENT_SLOTS, "--rate=1"):
                time.sleep(1)
                joins[size] = _join_and_leave_ms(it, seconds)
                progress(f"changes: {joins[size]:.2f} ms for a link among {size} agents")
                if size == agents:
                    yield from _reads(it, seconds)
    yield Figure("changes", "a link, from dialling to leaving: CPU, 10 agents", joins[10], "ms")
    yield Figure("changes", f"  {agents} agents", joins[agents], "ms")
    more_ms = joins[agents] - joins[10]
    yield Figure("changes", "  what the others make it cost", more_ms, "ms", CHANGE_GOAL_MS)
    with fleet(agents + 100) as it, it.running():
        it.desire()
        with it.fake_agents(agents, AGENT_SLOTS, "--rate=1", "--reports"):
            time.sleep(1)
            yield Figure("changes", f"{agents} agents report: CPU", _cpu_share(it, seconds), "core")
            yield Figure("changes", "  event loop late at most", _late_ms(it), "ms")
            yield from _watched(it, seconds, "  and watched: CPU")


def _join_and_leave_ms(it: LimitFleet, seconds: float) -> float:
    """One agent more that comes and goes all the time: processor time for each link."""
    idle = _cpu_share(it, seconds / 2)
    with it.beside(
        "limits_agents.py",
        f"--address={it.management}",
        "--agents=1",
        f"--slots={AGENT_SLOTS}",
        "--name=visitor",
        f"--visits={VISITS_PER_S}",
    ) as told:
        told.wait_for("the visitor serves", lambda line: line.get("links", 0) > 0)
        began, links = it.sample(), told.last()["links"]
        time.sleep(seconds)
        ended, links = it.sample(), told.last()["links"] - links
    used_s = ended.cpu_s - began.cpu_s - idle * (ended.at_s - began.at_s)
    return used_s / links * 1000


def _reads(it: LimitFleet, seconds: float) -> Iterator[Figure]:
    for path in ("/api/v1/agents", "/api/v2/agents", "/metrics", "/api/v2/tree"):
        it.read(path)
        idle = _cpu_share(it, seconds / 2)
        began, number = it.sample(), 0
        while time.monotonic() < began.at_s + seconds / 2:
            it.read(path)
            number += 1
        ended = it.sample()
        used_s = ended.cpu_s - began.cpu_s - idle * (ended.at_s - began.at_s)
        yield Figure("changes", f"GET {path}: CPU", used_s / number * 1000, "ms")
    yield from _watched(it, seconds, "idle agents, watched: CPU")


def _watched(it: LimitFleet, seconds: float, name: str) -> Iterator[Figure]:
    for path in ("/api/v2/agents/stream", "/api/v2/events"):
        with _Watchers(split(it.management), path, 5) as watchers:
            time.sleep(2)
            before = watchers.num_bytes
            share = _cpu_share(it, seconds)
            rate = (watchers.num_bytes - before) / seconds / 1e6 / 5
        yield Figure("changes", f"{name}, 5 of {path}", share, "core")
        yield Figure("changes", "  each gets", rate, "MB/s")


@attrs.define(eq=False)
class _Watchers:
    """Connections that read a stream of events as fast as they can, in a thread."""

    address: tuple[str, int]
    path: str
    number: int
    _received: Counter[socket.socket] = attrs.field(factory=Counter, init=False)
    _socks: list[socket.socket] = attrs.field(factory=list, init=False)
    _threads: list[threading.Thread] = attrs.field(factory=list, init=False)

    def __enter__(self) -> _Watchers:
        for _ in range(self.number):
            sock = socket.create_connection(self.address, timeout=30)
            host = "{}:{}".format(*self.address)  # another name is refused
            sock.sendall(f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = sock.recv(12)
            if head != b"HTTP/1.1 200":
                raise AnswerError(f"GET {self.path}: answered with {head!r}")
            self._received[sock] = len(head)
            thread = threading.Thread(target=self._read, args=(sock,))
            thread.start()
            self._socks.append(sock)
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks:
            sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in self._socks:
            sock.close()

    @property
    def num_bytes(self) -> int:
        """That all of them got."""
        return sum(self._received.values())

    def _read(self, sock: socket.socket) -> None:
        while data := sock.recv(1 << 20):
            self._received[sock] += len(data)

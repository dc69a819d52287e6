"""What watching costs: a large fleet under load, without a watcher, with twenty, and without again.

    .venv/bin/python benchmarks/panel_feed.py [--agents 500] [--slots 32] [--events 2000]
                                              [--watchers 20] [--seconds 20]

The balancer's parts run in this process without sockets of agents: every slot is taken, requests
arrive, begin, answer and end at a steady rate (four events each), and each agent reports once a
second. The feed is served over real connections to watchers in another process, which read as fast
as they can; one of them applies what it gets, and must have the document of the feed at the end.

Printed is the processor time of this process with and without watchers, the difference of which is
what they cost; what of it was the feed's own task and what the streams'; and the longest step of
the event loop that each of them made, in processor time, since this machine may be busy otherwise.
It fails if watching takes more than a tenth of a core, or a step of it more than 5 ms.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import subprocess
import sys
import time
import timeit
from collections import deque
from functools import partial
from typing import Any

import attrs
import h11
import trio

from paddler_trio.balancer.activity.event_feed import LINGER_S, LONGEST_PAUSE_S, EventFeed
from paddler_trio.balancer.activity.event_routes import EventRoutes
from paddler_trio.balancer.activity.finished_requests import MAX_FINISHED
from paddler_trio.balancer.activity.metrics_history import BUCKET_S, MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.requests_topic import ENDED_S
from paddler_trio.balancer.assembly.balancer_core import event_feed
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_routes import NoRollouts
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.heap import freeze_heap
from paddler_trio.system.logs.logs import configure_logs
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.wire.engine.engine_pipe import EngineStats
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.request_frame import encode_work
from paddler_trio.wire.trio.trio_link import Report

WORK = encode_work(ContinueFromRawPromptParams("Once", 5))
DONE: dict[str, object] = {"Done": {"usage": {}}}
EVENTS_OF_A_REQUEST = 4
ROUND_S = 0.02
MOST_SHARE = 0.1
MOST_STEP_S = 0.005


# -------------------------------------------------------------------------------- the fleet


class Nowhere:
    """The link of an agent that is not there: what it is sent is dropped."""

    def send_nowait(self, frame: bytes) -> None:
        pass


@attrs.define(eq=False)
class Played:
    """A dispatcher whose agents and clients are played here."""

    dispatcher: Dispatcher
    agents: list[AgentConnection] = attrs.field(factory=list)
    requests: deque[Request] = attrs.field(factory=deque)
    events: int = 0
    is_paused: bool = False
    numbers: itertools.count[int] = attrs.field(factory=itertools.count)

    def join(self, slots: int) -> None:
        number = len(self.agents) + 1
        agent = AgentConnection(
            key=AgentKey(number),
            id=f"0f8fad5b-d9cb-469f-a165-{number:012}",
            name=f"gpu-{number}",
            kind=TRIO,
            status=_status(slots, 0),
            scope=trio.CancelScope(),
            outgoing=Nowhere(),  # type: ignore[arg-type]
            health=self.dispatcher.health,
        )
        agent.report = _report(0)
        self.dispatcher.join(agent)
        self.agents.append(agent)

    def arrive(self) -> None:
        """One more request, which begins to answer at once."""
        request = self.dispatcher.submit(
            f"chatcmpl-{next(self.numbers):032}", WORK, client="application"
        )
        assert request.lease is not None, request
        request.lease.deliver("GeneratedToken", [{"ContentToken": "a"}], ends=False, tokens=[1])
        self.requests.append(request)
        self.events += 3

    def end(self) -> None:
        """The request that is oldest has its ending."""
        lease = self.requests.popleft().lease
        assert lease is not None
        lease.deliver("GeneratedToken", [DONE], ends=True, tokens=[])
        self.events += 1

    async def work(self, events_per_s: int) -> None:
        """Requests come and go until cancelled."""
        began_s, done = trio.current_time(), self.events
        while True:
            await trio.sleep(ROUND_S)
            if self.is_paused:
                began_s, done = trio.current_time(), self.events
            due = (trio.current_time() - began_s) * events_per_s
            while self.events - done < due:
                self.end()
                self.arrive()
                await trio.lowlevel.checkpoint()

    async def report(self) -> None:
        """Each agent says once a second what it has done, until cancelled."""
        for version in itertools.count(1):
            for agent in [] if self.is_paused else self.agents:
                agent.status = _status(agent.status.slots_total, version)
                agent.report = _report(version)
                self.dispatcher.update(agent)
                await trio.sleep(1 / len(self.agents))
            await trio.sleep(0.1)


def _report(version: int) -> Report:
    stats = EngineStats(
        passes=40 * version,
        prompt_tokens=2000 * version,
        cached_tokens=3000 * version,
        drawn_tokens=900 * version,
        busy_ms=950.25 * version,
        cells_total=262_144,
        cells_used=100_000 + version,
    )
    return Report("serving", "d" * 64, None, "m" * 32, 1.0, None, engine=attrs.asdict(stats))


def _status(slots: int, version: int) -> SlotAggregatedStatusSnapshot:
    return SlotAggregatedStatusSnapshot(
        desired_slots_total=slots,
        download_current=0,
        download_filename=None,
        download_indeterminate=True,
        download_total=0,
        issues=(),
        model_path="/models/Qwen3-30B-A3B-Q4_K_M.gguf",
        slots_processing=0,
        slots_total=slots,
        state_application_status=AgentStateApplicationStatus.APPLIED,
        uses_chat_template_override=False,
        version=version,
    )


# ----------------------------------------------------------------------------- what it costs


@attrs.define(eq=False)
class Steps(trio.abc.Instrument):
    """Processor time of the steps of tasks, by what they are for; garbage collections apart, which
    are in whatever step they happen."""

    spent_s: dict[str, float] = attrs.field(factory=dict)
    longest_s: dict[str, float] = attrs.field(factory=dict)
    _began_s: float = 0.0
    _collected_s: float = 0.0
    """In this step."""
    _collecting_since_s: float = 0.0

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """One of ``gc.callbacks``."""
        if phase == "start":
            self._collecting_since_s = time.thread_time()
            return
        took_s = time.thread_time() - self._collecting_since_s
        self._collected_s += took_s
        self._add(f"collection of generation {info['generation']}", took_s)

    def _add(self, name: str, took_s: float) -> None:
        self.spent_s[name] = self.spent_s.get(name, 0.0) + took_s
        self.longest_s[name] = max(self.longest_s.get(name, 0.0), took_s)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._collected_s = 0.0
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._began_s:
            return  # it began before this was asked for
        self._add(_kind(task.name), time.thread_time() - self._began_s - self._collected_s)


def _kind(name: str) -> str:
    if name == "event feed":
        return "feed"
    return "load" if name in {"work", "report"} or name.startswith("request ") else "streams"


@attrs.frozen
class Measured:
    """What this process took of a core, all of it and what watching took; and its longest step."""

    share: float
    watching: float
    longest_s: float


async def measured(seconds: float, words: str, feed: EventFeed, played: Played) -> Measured:
    """What this process does for so long; printed, too."""
    steps, events, seq = Steps(), played.events, feed.document.seq
    trio.lowlevel.add_instrument(steps)
    gc.callbacks.append(steps.on_collection)
    cpu_s, began_s = time.process_time(), trio.current_time()
    await trio.sleep(seconds)
    took_s = trio.current_time() - began_s
    share = (time.process_time() - cpu_s) / took_s
    trio.lowlevel.remove_instrument(steps)
    gc.callbacks.remove(steps.on_collection)
    shares = ", ".join(
        f"{name} {100 * steps.spent_s[name] / took_s:.2f} % (longest {1000 * longest_s:.2f} ms)"
        for name, longest_s in sorted(steps.longest_s.items())
    )
    events_per_s = (played.events - events) / took_s
    news_per_s = (feed.document.seq - seq) / took_s
    print(
        f"{words}: {100 * share:.1f} % of a core, {events_per_s:.0f} events/s, "
        f"{news_per_s:.2f} looks/s with news; {shares}",
        flush=True,
    )
    names = ("feed", "streams")
    return Measured(
        share,
        sum(steps.spent_s.get(name, 0.0) for name in names) / took_s,
        max(steps.longest_s.get(name, 0.0) for name in names),
    )


def recording_us(observer: MetricsObserver, played: Played, rounds: int = 20_000) -> float:
    """What recording the figures of one delivered step costs, in microseconds."""
    request = played.requests[-1]
    step = Results("a", "GeneratedToken", [{"ContentToken": "a"}], [1])
    return (
        min(timeit.repeat(lambda: observer.delivered(request, step, 0.0), number=rounds, repeat=3))
        / rounds
        * 1e6
    )


# -------------------------------------------------------------------------------- the watchers


async def read_streams(port: int, number: int) -> None:
    """Watch until standard input ends; then one line: what each got, and one document."""
    counts: list[tuple[int, int]] = [(0, 0)] * number
    shown: dict[str, dict[str, Any]] = {}

    async def watch(place: int) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /api/v2/events HTTP/1.1\r\nHost: x\r\n\r\n")
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        rest = b""
        while data := await stream.receive_some(1_000_000):
            parser.receive_data(data)
            while (body := parser.next_event()) is not h11.NEED_DATA:
                if isinstance(body, h11.Data):
                    *lines, rest = (rest + bytes(body.data)).split(b"\n")
                    events = [line[6:] for line in lines if line.startswith(b"data: ")]
                    number, size = counts[place]
                    counts[place] = (number + len(events), size + len(body.data))
                    for event in events if place == 0 else ():
                        apply(json.loads(event))

    def apply(event: dict[str, Any]) -> None:
        if event["full"]:
            shown.clear()
            shown.update(event["set"])
        for topic, keys in event["gone"].items():
            for key in keys:
                shown[topic].pop(key, None)
        for topic, values in event["set"].items():
            shown[topic] |= values
        last["seq"] = event["seq"]

    last = {"seq": 0}
    async with trio.open_nursery() as nursery:
        for place in range(number):
            nursery.start_soon(watch, place)
        line = await trio.to_thread.run_sync(sys.stdin.readline)
        with trio.move_on_after(10):
            while last["seq"] < int(line):  # noqa: ASYNC110  # as it is read
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    print(json.dumps({"counts": counts, "seq": last["seq"], "shown": shown}))


# ------------------------------------------------------------------------------------ the run


async def run(options: argparse.Namespace) -> int:
    dispatcher = Dispatcher(DispatchLimits(max_buffered=1000, item_timeout_s=math.inf))
    activity = RequestActivity()
    metrics = MetricsHistory(lambda: dispatcher.statistics().slots_total)
    observer = MetricsObserver(metrics, activity.finished)
    dispatcher.observers = Observers((activity, observer))
    keeper = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    feed = event_feed(dispatcher, activity, keeper, LoopLag(), NoRollouts(), metrics, {})
    router = Router()
    EventRoutes(feed, trio.Event()).add_to(router)
    played = Played(dispatcher)
    async with trio.open_nursery() as nursery:
        dispatcher.open(agents=nursery, requests=nursery)
        for _ in range(options.agents):
            played.join(options.slots)
        for _ in range(options.agents * options.slots):
            played.arrive()
            await trio.lowlevel.checkpoint()
        for _ in range(MAX_FINISHED):
            played.end()
            played.arrive()
            await trio.lowlevel.checkpoint()
        print(f"{len(activity.in_flight)} requests in {options.agents} agents' slots")
        print(f"a delivered step is recorded in {recording_us(observer, played):.2f} us")
        freeze_heap()  # as the daemon does; the fleet that is played here is not the subject
        nursery.start_soon(feed.run, name="event feed")
        nursery.start_soon(played.work, options.events, name="work")
        nursery.start_soon(played.report, name="report")
        await trio.sleep(2)
        without = await measured(options.seconds, "nobody watches", feed, played)
        server = HttpServer(router, name="feed", limits=HttpLimits())
        serve = partial(server.serve, listen("127.0.0.1:0"), connections=nursery)
        (address,) = await nursery.start(serve, name="listener")
        watchers = subprocess.Popen(  # noqa: ASYNC220
            [
                *(sys.executable, __file__),
                *("--read", address.rpartition(":")[2], str(options.watchers)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        while feed.watchers < options.watchers:  # noqa: ASYNC110  # they begin
            await trio.sleep(0.1)
        await trio.sleep(5)
        words = f"{options.watchers} watch"
        watched = await measured(options.seconds, words, feed, played)
        played.is_paused = True
        await trio.sleep(BUCKET_S + ENDED_S + 2 * LONGEST_PAUSE_S)  # nothing changes any more
        newest = f"{feed.document.seq}\n".encode()
        document = json.loads(feed.document.full(feed.names).partition(b"data: ")[2])
        output, _ = await trio.to_thread.run_sync(watchers.communicate, newest)
        got = json.loads(output)
        is_whole = (got["seq"], got["shown"]) == (document["seq"], document["set"])
        played.is_paused = False
        events = [number for number, _ in got["counts"]]
        print(
            f"events of a watcher: {min(events)} to {max(events)}, "
            f"{got['counts'][0][1] / 1e6:.0f} MB to each"
        )
        sizes = {topic: len(keys) for topic, keys in got["shown"].items()}
        words = "what the feed has" if is_whole else "NOT what the feed has"
        print(f"the document of one, at event {got['seq']}, is {words}: {sizes}")
        await trio.sleep(LINGER_S + LONGEST_PAUSE_S)
        again = await measured(options.seconds, "nobody watches any more", feed, played)
        cost = watched.share - (without.share + again.share) / 2
        print(
            f"{options.watchers} watchers cost {100 * watched.watching:.1f} % of a core by their "
            f"own steps, {100 * cost:.1f} % by the difference of all"
        )
        nursery.cancel_scope.cancel()
    is_slow = watched.watching > MOST_SHARE or watched.longest_s > MOST_STEP_S
    return int(is_slow or not is_whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--events", type=int, default=2000, help="of requests, a second")
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--read", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        trio.run(read_streams, *options.read)
        return 0
    configure_logs(level="warning")
    return trio.run(run, options)


if __name__ == "__main__":
    sys.exit(main())

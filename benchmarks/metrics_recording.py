"""What metrics cost: a token that is recorded, and a scrape of a large fleet.

Tokens: the dispatcher delivers steps of one token, with the records of requests alone and with the
measures behind them in turns; each figure is the lowest of ``--rounds``, because whatever else
the machine does only adds. At 20,000 tokens a second, 0.5 us a token is 1 % of a core.

Scrape: 500 agents with 16 slots and 20 deployments, all that they report, in both formats: size,
processor time, and the longest that the event loop had to wait for a piece. Fails if a token costs
more than 0.5 us, or a piece more than 5 ms.
Usage: ``python benchmarks/metrics_recording.py [--rounds 40] [--requests 100] [--steps 100]``.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from pathlib import Path

import attrs
import structlog
import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shell"))

from dispatch_world import DONE, WORK, World

from paddler_trio.balancer.activity.measures.agent_measures import AgentMeasures
from paddler_trio.balancer.activity.measures.balancer_measures import BalancerMeasures
from paddler_trio.balancer.activity.measures.request_measures import RequestMeasures
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.telemetry.exposition import Exposition
from paddler_trio.wire.engine.engine_pipe import EngineStats
from paddler_trio.wire.trio.fit_messages import DeviceMemory, MemoryInForce
from paddler_trio.wire.trio.trio_link import Report

SLOTS = 16
BATCH = 50
"""Requests between two turns of their tasks."""
AGENTS = 500
DEPLOYMENTS = 20
MOST_TOKEN_US = 0.5
MOST_PIECE_MS = 5.0
TOKENS_A_SECOND = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    plain: list[tuple[float, float]] = []
    measured: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        plain.append(trio.run(one_round, False, options.requests, options.steps))
        measured.append(trio.run(one_round, True, options.requests, options.steps))
    costs_us = []
    for number, what in enumerate(("a request", "a token")):
        without = min(figures[number] for figures in plain)
        with_them = min(figures[number] for figures in measured)
        costs_us.append(with_them - without)
        print(
            f"{what:10} {without:8.2f} us without metrics, {with_them:8.2f} us with: "
            f"{with_them - without:6.2f} us more"
        )
    token_us = costs_us[1]
    share = token_us * TOKENS_A_SECOND / 1e6
    print(f"{TOKENS_A_SECOND} tokens a second: {share:.2%} of a core")
    pieces_ms = [trio.run(one_scrape, openmetrics) for openmetrics in (False, True)]
    failed = token_us > MOST_TOKEN_US or max(pieces_ms) > MOST_PIECE_MS
    print("TOO MUCH" if failed else "within the limits")
    return int(failed)


def measures_of(dispatcher: Dispatcher, activity: RequestActivity) -> BalancerMeasures:
    keeper = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    requests = RequestMeasures(
        activity.finished, dispatcher.pools.serves, AgentMeasures(lambda: dispatcher.agents)
    )
    measures = BalancerMeasures(
        dispatcher,
        FleetController(keeper, dispatcher),
        requests,
        InputBudget(),
        LoopLag(),
    )
    dispatcher.observers = Observers((activity, requests))
    return measures


async def one_round(is_measured: bool, requests: int, steps: int) -> tuple[float, float]:
    """Microseconds for a request without its steps, and for a step."""
    dispatcher = Dispatcher(DispatchLimits(max_buffered=SLOTS))
    activity = RequestActivity()
    dispatcher.observers = Observers((activity,))
    if is_measured:
        measures_of(dispatcher, activity)
    requests_s = steps_s = 0.0
    async with trio.open_nursery() as nursery:
        dispatcher.open(agents=nursery, requests=nursery)
        peer = World(dispatcher, nursery).agent(slots=SLOTS)
        gc.collect()
        gc.disable()
        for number in range(requests):
            began_s = time.thread_time()
            request = dispatcher.submit(f"r{number}", WORK, client="app")
            lease = request.lease
            assert lease is not None
            lease.deliver("GeneratedToken", [{"ContentToken": "a"}], ends=False, tokens=[1])
            first_s = time.thread_time()
            for _ in range(steps):
                lease.deliver("GeneratedToken", [{"ContentToken": "a"}], ends=False, tokens=[1])
            last_s = time.thread_time()
            lease.deliver("GeneratedToken", [DONE], ends=True, tokens=[])
            requests_s += time.thread_time() - last_s + first_s - began_s
            steps_s += last_s - first_s
            peer.frames.receive_nowait()
            if number % BATCH == 0:
                await trio.lowlevel.checkpoint()
        gc.enable()
        nursery.cancel_scope.cancel()
    return requests_s / requests * 1e6, steps_s / (requests * steps) * 1e6


def reported() -> Report:
    """All that an agent reports while it serves."""
    stats = EngineStats(cells_total=8192, cells_used=4000, cells_resident=1000, last_sequences=4)
    device = DeviceMemory(
        device="CUDA0", predicted=10**10, actual=10**10, weights=9 * 10**9, kv=10**9, compute=10**8
    )
    memory = MemoryInForce(context_size=8192, n_gpu_layers=99, chosen=(), devices=(device,))
    engine = {**attrs.asdict(stats), "restarts": 1, "restarts_crash": 1}
    return Report("serving", "s", "s", "m", None, None, engine=engine, memory=memory, load_s=3.0)


async def one_scrape(openmetrics: bool) -> float:
    """The longest piece in milliseconds."""
    dispatcher = Dispatcher(DispatchLimits())
    activity = RequestActivity()
    measures = measures_of(dispatcher, activity)
    async with trio.open_nursery() as nursery:
        dispatcher.open(agents=nursery, requests=nursery)
        world = World(dispatcher, nursery)
        for _ in range(AGENTS):
            agent = world.agent(slots=SLOTS).connection
            agent.report = reported()
            dispatcher.update(agent)
        for number in range(DEPLOYMENTS):
            for histogram in (
                measures.requests.duration,
                measures.requests.ttft,
                measures.requests.between_tokens,
            ):
                histogram.of(f"deployment-{number}").add(0.2)
        waits_ms: list[float] = []

        async def watch() -> None:
            while True:
                began_s = time.perf_counter()
                await trio.lowlevel.checkpoint()
                waits_ms.append((time.perf_counter() - began_s) * 1000)

        nursery.start_soon(watch)
        gc.collect()
        for _ in range(2):  # what came before is in none of the pieces
            await trio.lowlevel.checkpoint()
        waits_ms.clear()
        exposition = Exposition("paddler_", measures.collect)
        began_s = time.thread_time()
        text = await exposition.text(openmetrics=openmetrics)
        took_s = time.thread_time() - began_s
        again_s = time.thread_time()
        assert await exposition.text(openmetrics=openmetrics) == text
        again_us = (time.thread_time() - again_s) * 1e6
        nursery.cancel_scope.cancel()
    lines = text.count(b"\n")
    kind = "OpenMetrics" if openmetrics else "Prometheus"
    size = f"{lines} lines, {len(text) / 1024:.0f} KiB"
    print(
        f"{kind}: {AGENTS} agents, {size}, {took_s * 1000:.0f} ms "
        f"of the processor in {len(waits_ms)} pieces; the longest {max(waits_ms):.2f} ms, the "
        f"median {sorted(waits_ms)[len(waits_ms) // 2]:.2f} ms; within a second {again_us:.0f} us"
    )
    return max(waits_ms)


if __name__ == "__main__":
    sys.exit(main())

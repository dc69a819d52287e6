"""What the records of requests cost: the dispatcher with and without its observer, in one run.

A request is submitted, gets a slot of a played agent, and is answered in ``--steps`` steps of one
token. Rounds alternate between a dispatcher without an observer and one with
``RequestActivity``; each line is the lowest of ``--rounds``, because whatever else the machine does
only adds: microseconds of the processor for a request without its steps, and for a step. The last
line is the records alone, for the four phases of one request again and again, all in the cache.
Usage: ``python benchmarks/request_records.py [--rounds 40] [--requests 100] [--steps 100]``.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import timeit
from pathlib import Path

import structlog
import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shell"))

from dispatch_world import DONE, WORK, World

from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Buffered, Ended, Leased, Phase, Streaming
from paddler_trio.nursery_tree.request_endings import Completed

SLOTS = 16
BATCH = 50
"""Requests between two turns of their tasks."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    plain: list[tuple[float, float]] = []
    recorded: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        plain.append(trio.run(one_round, False, options.requests, options.steps))
        recorded.append(trio.run(one_round, True, options.requests, options.steps))
    for number, what in enumerate(("a request", "a step")):
        without = min(figures[number] for figures in plain)
        with_them = min(figures[number] for figures in recorded)
        print(
            f"{what:10} {without:8.2f} us without records, {with_them:8.2f} us with: "
            f"{with_them - without:6.2f} us more"
        )
    alone_us = min(trio.run(records_alone) for _ in range(5))
    print(f"the records of four phases alone: {alone_us:.2f} us")
    return 0


async def records_alone() -> float:
    """Microseconds for what is recorded of an arrival, a grant, a first result and an end."""
    dispatcher = Dispatcher(DispatchLimits(max_buffered=SLOTS))
    async with trio.open_nursery() as nursery:
        dispatcher.open(agents=nursery, requests=nursery)
        World(dispatcher, nursery).agent(slots=SLOTS)
        request = dispatcher.submit("r", WORK, client="app")
        lease, activity = request.lease, RequestActivity()
        assert lease is not None
        buffered = Buffered(0.0, 0.0)
        later = Leased(lease), Streaming(lease), Ended(Completed())

        def four_phases() -> None:
            left: Phase = buffered
            request.phase = left
            activity.arrived(request)
            for phase in later:
                request.phase = phase
                activity.moved(request, left)
                left = phase

        took_s = min(timeit.repeat(four_phases, number=300, repeat=40)) / 300
        nursery.cancel_scope.cancel()
    return took_s * 1e6


async def one_round(is_recorded: bool, requests: int, steps: int) -> tuple[float, float]:
    """Microseconds for a request without its steps, and for a step."""
    dispatcher = Dispatcher(DispatchLimits(max_buffered=SLOTS))
    if is_recorded:
        dispatcher.observers = Observers((RequestActivity(),))
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


if __name__ == "__main__":
    sys.exit(main())

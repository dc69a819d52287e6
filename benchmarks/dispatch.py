"""What one request costs the slot ledger, however many agents there are and however many wait.

One request, from arrival to end: it is taken into the queue, its position is asked for, another one
ends, and the first that waits is granted its slot. Each line is a size; the time is the median of
``--rounds`` batches, in microseconds a request; the ratio is to the smallest size. The reference
ledger of the tests, which looks at everything, is timed beside it where that takes no minutes.
With ``--users`` each client names so many in turn.
Usage: ``python benchmarks/dispatch.py [--rounds 7] [--requests 2000] [--users 0]``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "scheduler" / "dispatch"))

from reference_ledger import ReferenceLedger

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Granted
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger

SLOTS = 16
CLIENTS = 1000
MOST_LOOKS = 2_000_000
"""Agents times waiting requests that the reference is timed with."""

Ledger: TypeAlias = SlotLedger | ReferenceLedger


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="batches of requests")
    parser.add_argument("--requests", type=int, default=2000, help="in a batch")
    parser.add_argument("--users", type=int, default=0, help="of each client")
    options = parser.parse_args()
    set_users(options.users)
    print("   agents   waiting   flat us   ratio   reference us   join and leave us")
    base_us = 0.0
    for agents in (1, 10, 100, 1000, 5000):
        for waiting in (10, 1000, 100_000):
            flat_us = request_us(SlotLedger, agents, waiting, options.rounds, options.requests)
            base_us = base_us or flat_us
            reference = ""
            if agents * waiting <= MOST_LOOKS:
                few = max(1, min(options.requests, 200_000 // (agents + waiting)))
                reference = f"{request_us(ReferenceLedger, agents, waiting, 3, few):12.1f}"
            change_us = join_and_leave_us(agents, waiting)
            print(
                f"{agents:9,} {waiting:9,} {flat_us:9.1f} {flat_us / base_us:7.2f}   "
                f"{reference:>12} {change_us:19.1f}",
                flush=True,
            )
    return 0


def filled(kind: type[Ledger], agents: int, waiting: int) -> tuple[Ledger, list[RequestKey], int]:
    """A ledger with every slot taken and a queue; who holds slots, and the next arrival number."""
    ledger = kind(max_buffered=waiting + 1)
    for number in range(1, agents + 1):
        ledger.join(AgentKey(number))
        ledger.update(AgentKey(number), slots_total=SLOTS, accepting=True, kind="m", revision="r")
    holding = [RequestKey(number) for number in range(1, agents * SLOTS + 1)]
    for key in holding:
        assert isinstance(ledger.ask(key, client=client_of(key), user=user_of(key)), Granted)
    first = agents * SLOTS + 1
    for number in range(first, first + waiting):
        ledger.ask(RequestKey(number), client=client_of(number), user=user_of(number))
    return ledger, holding, first + waiting


_USERS = 0


def set_users(users: int) -> None:
    global _USERS
    _USERS = users


def user_of(number: int) -> str:
    return f"user {number // CLIENTS % _USERS}" if _USERS else ""


def client_of(number: int) -> str:
    return f"client {number % CLIENTS}"


def request_us(kind: type[Ledger], agents: int, waiting: int, rounds: int, requests: int) -> float:
    """Microseconds a request, the median of the batches."""
    ledger, holding, arrival = filled(kind, agents, waiting)
    times = []
    place = 0
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        began_s = time.perf_counter()
        for _ in range(requests):
            key = RequestKey(arrival)
            ledger.ask(key, client=client_of(arrival), user=user_of(arrival))
            ledger.position(key)
            place = (place + 7) % len(holding)
            (granted,) = ledger.end(holding[place])
            holding[place] = granted.request
            arrival += 1
        times.append((time.perf_counter() - began_s) / requests * 1e6)
    gc.enable()
    return statistics.median(times)


def join_and_leave_us(agents: int, waiting: int) -> float:
    """Microseconds for an agent without slots to join, report and leave."""
    ledger, _, _ = filled(SlotLedger, agents, waiting)
    times = []
    for number in range(agents + 1, agents + 200):
        began_s = time.perf_counter()
        ledger.join(AgentKey(number))
        ledger.update(AgentKey(number), slots_total=0, accepting=True, kind="m", revision="r")
        ledger.leave(AgentKey(number))
        times.append((time.perf_counter() - began_s) * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())

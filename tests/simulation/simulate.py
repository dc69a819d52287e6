"""Run many simulations: ``python tests/simulation/simulate.py --seeds 10000 [--start N]``.

Prints seeds per second as it goes. The first failure ends it with status 1, the seed, what was
broken, and the end of the trace; running that seed again shows the same.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from dice import draw
from sim_balancer import run
from world import World

TRACE_TAIL_LINES = 40
REPORT_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    options = parser.parse_args()
    began_s = reported_s = time.perf_counter()
    for count, seed in enumerate(range(options.start, options.start + options.seeds), 1):
        if not _passes(seed, whole_trace=options.trace):
            return 1
        now_s = time.perf_counter()
        if now_s - reported_s > REPORT_EVERY_S or count == options.seeds:
            reported_s = now_s
            print(f"{count} seeds, {count / (now_s - began_s):.1f} seeds/s", flush=True)
    return 0


def _passes(seed: int, *, whole_trace: bool) -> bool:
    world = World(draw(seed))
    try:
        run(world)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # its failures are no Exceptions
        traceback.print_exception(error)
        print(f"\nseed {seed} ({world.scenario.temper}) failed; the end of its trace:")
        print("\n".join(world.trace if whole_trace else world.trace[-TRACE_TAIL_LINES:]))
        return False
    if whole_trace:
        print("\n".join(world.trace))
    return True


if __name__ == "__main__":
    sys.exit(main())

"""What clients get of a fleet that share it, in virtual time: the ledger and the placement of the
balancer, engines that only take the time of real ones.

Two clients each keep so many requests waiting or running, one with long prompts, one with short
ones. Printed is the part of all slot seconds that each has, and when the first tokens of the short
ones come, with a turn for each request, and with turns by what requests cost. The exit status is 1
if a share is not within a tenth of a half. Usage: ``python benchmarks/fair_shares.py [--seeds 3]``.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.virtual.virtual_engine import BLOCK_TOKENS, EngineSpeed, VirtualPrompt
from paddler_trio.scheduler.virtual.virtual_fleet import Outcome, Turn, VirtualFleet

LONG, SHORT = "long", "short"
ENGINES: Final = [(4, EngineSpeed())] * 2
FROM_S, UNTIL_S = 120.0, 720.0
"""What is looked at: nothing was measured when it began."""


@attrs.frozen
class Kind:
    """A client's requests, all alike but for the length of the answers.

    Args:
      at_once: requests that it has in the queue and in slots together.
    """

    prompt_tokens: int
    answer_tokens: tuple[int, int]
    at_once: int = 16


SCENARIOS = {
    "8,000 and 50 tokens, answers alike": {
        LONG: Kind(8000, (50, 150)),
        SHORT: Kind(50, (50, 150)),
    },
    "answers of 400 and of 20 tokens": {LONG: Kind(200, (200, 600)), SHORT: Kind(200, (5, 35))},
    "8,000 tokens by 40 requests at once, 50 by 9": {
        LONG: Kind(8000, (50, 150), 40),
        SHORT: Kind(50, (5, 150), 9),
    },
}


def backlog(dice: random.Random, client: str, kind: Kind) -> list[tuple[float, Turn]]:
    """Chains of requests, each of which is asked when the one before is answered."""
    arrivals = []
    for _ in range(kind.at_once):
        turn: Turn | None = None
        for _ in range(int(UNTIL_S)):
            hashes = tuple(dice.getrandbits(60) for _ in range(kind.prompt_tokens // BLOCK_TOKENS))
            prompt = VirtualPrompt(hashes, kind.prompt_tokens)
            turn = Turn(prompt, hashes, dice.randint(*kind.answer_tokens), 0.0, client, turn)
        assert turn is not None
        arrivals.append((dice.random(), turn))
    return arrivals


def play(kinds: dict[str, Kind], seed: int, *, is_by_work: bool) -> list[Outcome]:
    dice = random.Random(seed)
    arrivals = [each for client, kind in kinds.items() for each in backlog(dice, client, kind)]
    fleet = VirtualFleet(ENGINES, is_by_work=is_by_work)
    return fleet.run(sorted(arrivals, key=lambda each: each[0]), UNTIL_S)


def slot_s(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The seconds in slots of each client, within the time that is looked at."""
    seconds = defaultdict[str, float](float)
    for each in outcomes:
        if each.agent is not None:
            began_s = max(FROM_S, each.arrived_s + each.waited_s)
            ended_s = UNTIL_S if each.ended_s is None else each.ended_s
            seconds[each.turn.client] += max(0.0, ended_s - began_s)
    return seconds


def ttft_p95_s(outcomes: Sequence[Outcome], client: str) -> float:
    times = sorted(
        each.ttft_s
        for each in outcomes
        if each.turn.client == client and each.ttft_s is not None and each.arrived_s >= FROM_S
    )
    return times[int(0.95 * (len(times) - 1))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="rounds of each scenario")
    options = parser.parse_args()
    is_good = True
    for name, kinds in SCENARIOS.items():
        print(name)
        for is_by_work, way in ((False, "a turn a request"), (True, "by what they cost")):
            shares, times = [], []
            for seed in range(options.seeds):
                outcomes = play(kinds, seed, is_by_work=is_by_work)
                seconds = slot_s(outcomes)
                shares.append(seconds[SHORT] / sum(seconds.values()))
                times.append([ttft_p95_s(outcomes, client) for client in (SHORT, LONG)])
            is_good &= not is_by_work or all(0.45 <= each <= 0.55 for each in shares)
            print(
                f"  {way:17} share of the short ones {' '.join(f'{s:.3f}' for s in shares)}; TTFT "
                f"p95 {' '.join(f'{short:.2f}' for short, _ in times)} s, of the long ones "
                f"{' '.join(f'{long:.2f}' for _, long in times)} s"
            )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

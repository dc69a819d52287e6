"""What placement by prefix is worth, in virtual time: the deciders of the balancer, engines that
only take the time of real ones.

Each scenario is played with placement by load, by prediction from what was granted and reported,
and by prediction with exact digests, as if every engine told of each block that comes and goes;
computed prompt tokens are compared with an oracle that computes everything once. Seeds are played
in turn and their requests are taken together. The exit status is 1 if a goal is missed.

With ``--sweep`` the tenants come at rates from 0.3 to 0.95 of what the fleet could answer if it
computed everything once and never waited; beside an oracle's tokens, times are compared with those
of placement by load. ``--first-seed 1000`` plays rounds that nothing was tuned with.
Usage: ``python benchmarks/placement.py [--seeds 3] [--first-seed 0] [--only NAME] [--sweep]``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import attrs

from paddler_trio.scheduler.virtual.virtual_engine import (
    BLOCK_TOKENS,
    EngineSpeed,
    VirtualPrompt,
)
from paddler_trio.scheduler.virtual.virtual_fleet import Outcome, Turn, VirtualFleet

Arrivals = list[tuple[float, Turn]]
Engines = list[tuple[int, EngineSpeed]]


@attrs.frozen
class Scenario:
    engines: Engines
    make: Callable[[random.Random], Arrivals]


@attrs.frozen
class Figures:
    """Of one way to place; times in seconds."""

    requests: int
    computed: int
    oracle: int
    reusable: int
    reused: int
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tokens_per_s: float


def blocks(tokens: int, name: object, before: Sequence[int] = ()) -> list[int]:
    """The chain of a text of so many tokens that follows ``before``."""
    start = before[-1] if before else 0
    return list(
        accumulate(
            range(max(0, tokens) // BLOCK_TOKENS),
            lambda last, number: hash((last, name, number)),
            initial=hash((start, name)),
        )
    )[1:]


def chat(
    dice: random.Random, system: list[int], name: object, turns: int, client: str, pause_s: float
) -> Turn:
    """A conversation behind this system prompt."""
    parts = list[tuple[list[int], int, int]]()
    chain, tokens = list(system), BLOCK_TOKENS * len(system)
    for number in range(turns):
        asked, answered = dice.randint(40, 160), dice.randint(60, 200)
        tokens += asked
        prompt = chain + blocks(tokens - BLOCK_TOKENS * len(chain), (name, number, "q"), chain)
        tokens_then = tokens + answered
        rest = tokens_then - BLOCK_TOKENS * len(prompt)
        then = prompt + blocks(rest, (name, number, "a"), prompt)
        parts.append((prompt, tokens, answered))
        chain, tokens = then, tokens_then
    turn: Turn | None = None
    for place in range(turns - 1, -1, -1):
        prompt, size, answered = parts[place]
        then = parts[place + 1][0] if turn is not None else prompt
        then = then[: (size + answered) // BLOCK_TOKENS]
        pause = dice.expovariate(1 / pause_s) if place else 0.0
        turn = Turn(VirtualPrompt(tuple(prompt), size), tuple(then), answered, pause, client, turn)
    assert turn is not None
    return turn


def tenants(dice: random.Random, every_s: float = 1.3) -> Arrivals:
    """100 tenants with system prompts of 2,000 tokens, chats of 10 turns; a chat begins about
    ``every_s``."""
    systems = [blocks(2000, ("system", number)) for number in range(100)]
    arrivals, at_s = Arrivals(), 0.0
    for number in range(600):
        at_s += dice.expovariate(1 / every_s)
        tenant = dice.randrange(100)
        turn = chat(dice, systems[tenant], ("chat", number), 10, f"tenant {tenant}", 8.0)
        arrivals.append((at_s, turn))
    return arrivals


def nothing_shared(dice: random.Random) -> Arrivals:
    arrivals, at_s = Arrivals(), 0.0
    for number in range(2000):
        at_s += dice.expovariate(1 / 0.17)
        size = dice.randint(200, 2000)
        prompt = tuple(blocks(size, ("own", number)))
        arrivals.append((at_s, Turn(VirtualPrompt(prompt, size), prompt, dice.randint(50, 250))))
    return arrivals


def hot(dice: random.Random) -> Arrivals:
    """Half of all requests begin with the same 2,000 tokens."""
    shared = blocks(2000, "hot")
    arrivals, at_s = Arrivals(), 0.0
    for number in range(2500):
        at_s += dice.expovariate(1 / 0.12)
        if dice.random() < 0.5:
            size = 2000 + dice.randint(20, 200)
            prompt = tuple(shared + blocks(size - 64 * len(shared), ("rest", number), shared))
        else:
            size = dice.randint(200, 2000)
            prompt = tuple(blocks(size, ("own", number)))
        arrivals.append((at_s, Turn(VirtualPrompt(prompt, size), prompt, dice.randint(50, 250))))
    return arrivals


def half_speed(dice: random.Random) -> Arrivals:
    arrivals, at_s = Arrivals(), 0.0
    for number in range(1500):
        at_s += dice.expovariate(1 / 1.1)
        size = dice.randint(200, 2000)
        prompt = tuple(blocks(size, ("own", number)))
        arrivals.append((at_s, Turn(VirtualPrompt(prompt, size), prompt, dice.randint(50, 200))))
    return arrivals


SPEED = EngineSpeed(cache_tokens=131_072)
SCENARIOS = {
    "tenants": Scenario([(8, SPEED)] * 8, tenants),
    "nothing shared": Scenario([(8, SPEED)] * 8, nothing_shared),
    "one at half speed": Scenario([(4, SPEED)] * 3 + [(4, SPEED.slowed(2.0))], half_speed),
    "hot prefix": Scenario([(8, SPEED)] * 8, hot),
}
RATES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.95)
WAYS = {"load": (False, False), "guess": (True, False), "exact": (True, True)}


def play(scenario: Scenario, way: str, seeds: range) -> Figures:
    outcomes = list[Outcome]()
    computed = oracle = reusable = 0
    rates = list[float]()
    for seed in seeds:
        arrivals = scenario.make(random.Random(seed))
        is_warm, is_exact = WAYS[way]
        fleet = VirtualFleet(scenario.engines, is_warm=is_warm, is_exact=is_exact)
        these = fleet.run(arrivals)
        computed += fleet.computed_tokens
        known = set[int]()
        for each in these:
            prompt = each.turn.prompt
            there = next(
                (n for n, block in enumerate(prompt.hashes) if block not in known),
                len(prompt.hashes),
            )
            oracle += prompt.tokens - min(BLOCK_TOKENS * there, prompt.tokens - 1)
            reusable += min(BLOCK_TOKENS * there, prompt.tokens - 1)
            known.update(prompt.hashes, each.turn.then)
        outcomes += these
        rates.append(sum(each.turn.answer_tokens for each in these) / fleet.now_s)
    times = sorted(each.ttft_s for each in outcomes if each.ttft_s is not None)
    assert len(times) == len(outcomes), "a request has no answer"
    return Figures(
        len(outcomes),
        computed,
        oracle,
        reusable,
        sum(each.cached for each in outcomes),
        percentile(times, 0.5),
        percentile(times, 0.9),
        percentile(times, 0.99),
        round(statistics.mean(rates), 1),
    )


def percentile(times: Sequence[float], part: float) -> float:
    """Of times in order."""
    return round(times[int(part * (len(times) - 1))], 4)


def static_split_p99(scenario: Scenario, seeds: range) -> float:
    """The best of all ways to give the hot prefix to some of the agents, and the rest to others."""
    best = float("inf")
    for num in range(1, len(scenario.engines)):
        times = list[float]()
        for seed in seeds:
            arrivals = scenario.make(random.Random(seed))
            first = next(each.prompt.hashes[0] for _, each in arrivals if is_hot(each))
            for ours, engines in (
                (True, scenario.engines[:num]),
                (False, scenario.engines[num:]),
            ):
                part = [each for each in arrivals if (each[1].prompt.hashes[0] == first) is ours]
                fleet = VirtualFleet(engines, is_warm=False)
                times += [each.ttft_s or 0.0 for each in fleet.run(part)]
        times.sort()
        best = min(best, percentile(times, 0.99))
    return best


def is_hot(turn: Turn) -> bool:
    return turn.prompt.hashes[0] == blocks(64, "hot")[0]


def goals(name: str, of: dict[str, Figures], scenario: Scenario, seeds: range) -> dict[str, float]:
    """Each figure divided by its goal: 1 or less is good."""
    load, guess = of["load"], of["guess"]
    if name == "tenants":
        return {
            "computed / oracle, of 1.1": guess.computed / guess.oracle / 1.1,
            "TTFT p90 / by load, of 0.25": guess.ttft_p90 / load.ttft_p90 / 0.25,
        }
    if name == "nothing shared":
        return {
            "by load / tokens/s, of 1/0.98": load.tokens_per_s / guess.tokens_per_s * 0.98,
            "TTFT p50 / by load, of 1/0.98": guess.ttft_p50 / load.ttft_p50 * 0.98,
            "TTFT p99 / by load, of 1/0.98": guess.ttft_p99 / load.ttft_p99 * 0.98,
        }
    if name == "one at half speed":
        return {"TTFT p99 / by load, of 0.6": guess.ttft_p99 / load.ttft_p99 / 0.6}
    split = static_split_p99(scenario, seeds)
    return {"TTFT p99 / best static split, of 1.2": guess.ttft_p99 / split / 1.2}


def sweep(seeds: range) -> bool:
    """Print a table of the tenants at rates up to saturation; False if a goal is missed."""
    engines: Engines = [(8, SPEED)] * 8
    full_pass_s = SPEED.pass_s + 8 * SPEED.token_s
    answers_s = 10 * 130 * full_pass_s / 8
    prompts_s = (10 * 100 + 2000 * 100 / 600) / SPEED.tokens_per_s
    least_s = (answers_s + prompts_s) / len(engines)
    is_good = True
    print(f"saturation: a chat every {least_s:.2f} s; seeds {seeds.start} to {seeds.stop - 1}")
    print("rate  way    computed/oracle  TTFT p50     p90     p99 s  tokens/s")
    for part in RATES:
        scenario = Scenario(engines, partial(tenants, every_s=least_s / part))
        of = {way: play(scenario, way, seeds) for way in ("load", "guess")}
        for way, each in of.items():
            print(
                f"{part:4.2f}  {way:5}  {each.computed / each.oracle:15.2f}  {each.ttft_p50:8.3f} "
                f"{each.ttft_p90:7.3f} {each.ttft_p99:7.3f}    {each.tokens_per_s:7.1f}",
                flush=True,
            )
        is_good &= of["guess"].computed <= 1.1 * of["guess"].oracle
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="rounds of each scenario")
    parser.add_argument("--only", default="", help="one scenario")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sweep", action="store_true", help="tenants at rates up to saturation")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.sweep:
        return 0 if sweep(seeds) else 1
    is_good, all_of = True, {}
    for name, scenario in SCENARIOS.items():
        if options.only not in name:
            continue
        of = {way: play(scenario, way, seeds) for way in WAYS}
        judged = goals(name, of, scenario, seeds)
        is_good &= all(each <= 1.0 for each in judged.values())
        all_of[name] = {way: attrs.asdict(figures) for way, figures in of.items()}
        if options.json:
            continue
        print(f"{name}: {of['load'].requests} requests")
        for way, each in of.items():
            print(
                f"  {way:6} computed {each.computed:9,} ({each.computed / each.oracle:5.2f} of an "
                f"oracle's), reused {each.reused / max(1, each.reusable):5.2f}, TTFT "
                f"{each.ttft_p50:7.3f} {each.ttft_p90:7.3f} {each.ttft_p99:7.3f} s, "
                f"{each.tokens_per_s:7.1f} tokens/s"
            )
        for goal, part in judged.items():
            print(f"  {'good' if part <= 1 else 'MISSED':6} {goal}: {part:.2f} of the goal")
    if options.json:
        print(json.dumps(all_of, indent=1))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

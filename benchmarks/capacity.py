"""How well a time to the first token is predicted: arrivals are played to three real agents, and
replayed in virtual time with the speeds that were measured before.

A fleet of three agents of two slots with the bundled model first answers one request at a time, one
at each agent, and then as much as it can: that is its saturation, and so speeds are measured. Then
requests come at random at parts of that rate; what the balancer recorded of their arrivals is
replayed, as ``paddler-trio capacity`` would. The exit status is 1 if the 95th percentile of one
level is predicted worse than ``--goal``.
Usage: ``python benchmarks/capacity.py [--seconds 40] [--goal 0.15] [--seed 1] [--model FILE]``.
With the bundled model, whose tokens take half a millisecond, balancer and clients have a good part
of the processors; with a larger one the engines have nearly all.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))

from fleet import PATIENT, Fleet, serving

from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.scheduler.capacity.capacity import Question, Replayed, Site, replay
from paddler_trio.scheduler.capacity.replayed_arrivals import arrivals_in
from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed

AGENTS, SLOTS = 3, 2
LEVELS = (0.5, 0.9, 1.2)
CELLS = 8192
WORDS = ("sea", "sun", "rain", "wind", "side", "set", "light", "house", "stone", "water")
LIMIT_S = 180.0
QUEUE = 10_000


@attrs.frozen
class Ask:
    """One request: a prompt that no other begins like, and how long its answer is."""

    prompt: str
    tokens: int

    @classmethod
    def made(cls, dice: random.Random, most_tokens: int) -> Ask:
        """Make one with an answer of a third of ``most_tokens`` at least."""
        words = " ".join(dice.choices(WORDS, k=dice.randint(20, 200)))
        tokens = dice.randint(most_tokens // 3, most_tokens)
        return cls(f"{dice.getrandbits(60):x} {words}", tokens)


async def first_token_s(client: httpx.AsyncClient, ask: Ask) -> float:
    """Have it answered whole; return the seconds to the first piece of text."""
    began_s = time.perf_counter()
    body = {
        "prompt": ask.prompt,
        "n_predict": ask.tokens,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    found_s = math.inf
    async with client.stream("POST", "/completion", json=body) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_raw():  # comments tell of the place in the queue
            if found_s == math.inf and b"data: " in piece:
                found_s = time.perf_counter() - began_s
    return found_s


async def saturate(url: str, clients: int, seconds: float, seed: int, most_tokens: int) -> float:
    """Let so many clients ask one after the other; return the requests a second, without the first
    third of the time, in which slots fill."""
    done = 0
    dice = random.Random(seed)
    async with new_client(url) as client:
        began_s = time.perf_counter()
        until_s = began_s + seconds

        async def worker() -> None:
            nonlocal done
            while time.perf_counter() < until_s:
                await first_token_s(client, Ask.made(dice, most_tokens))
                done += began_s + seconds / 3 <= time.perf_counter() < until_s

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(worker)
    return done / (seconds * 2 / 3)


async def play(url: str, asks: Sequence[tuple[float, Ask]]) -> list[float]:
    """Let requests come at their times; return their times to the first token."""
    times = list[float]()
    async with new_client(url) as client, trio.open_nursery() as nursery:

        async def one(ask: Ask) -> None:
            times.append(await first_token_s(client, ask))

        start_s = trio.current_time()
        for at_s, ask in asks:
            await trio.sleep_until(start_s + at_s)
            nursery.start_soon(one, ask)
    return times


def new_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False)


def measured(fleet: Fleet) -> list[Site]:
    """The agents with their speeds, as the balancer knows them now."""
    answer = httpx.post(
        f"{fleet.management_url}/api/v2/capacity",
        json={"p95_ttft_s": 3600, "arrivals": [[0, 1, 1]]},
        timeout=LIMIT_S,
        trust_env=False,
    )
    answer.raise_for_status()
    return [
        Site(name=each["name"], slots=each["slots"], speed=EngineSpeed(**each["speed"]))
        for each in answer.json()["sites"]
    ]


def recorded(fleet: Fleet, last_s: float) -> list[Any]:
    answer = httpx.get(
        f"{fleet.management_url}/api/v2/capacity/arrivals",
        params={"last": f"{math.ceil(last_s)}s"},
        timeout=LIMIT_S,
        trust_env=False,
    )
    answer.raise_for_status()
    rows: list[Any] = answer.json()["rows"]
    return rows


def predicted(sites: Sequence[Site], rows: list[Any]) -> Replayed:
    question = Question(agents=sites, target_s=1.0, max_buffered=QUEUE, patience_s=1e5)
    return replay(question, arrivals_in(rows))


def percentile(times: Sequence[float], part: float) -> float:
    return sorted(times)[max(0, math.ceil(part * len(times)) - 1)]


def level(
    fleet: Fleet, part: float, rate: float, seconds: float, seed: int, most_tokens: int
) -> dict[str, float]:
    """Play one level; return its figures, times in seconds."""
    dice = random.Random(seed)
    asks, at_s = list[tuple[float, Ask]](), 0.0
    while (at_s := at_s + dice.expovariate(part * rate)) < seconds:
        asks.append((at_s, Ask.made(dice, most_tokens)))
    before = measured(fleet)
    trio.run(trio.sleep, 2.0)  # the arrivals of this level are told from others by the second
    began_s = time.perf_counter()
    times = trio.run(play, fleet.inference_url, asks)
    rows = recorded(fleet, time.perf_counter() - began_s + 0.5)
    assert len(rows) == len(asks) == len(times), f"{len(rows)} of {len(asks)} are recorded"
    figures = {"of saturation": part, "requests": float(len(asks))}
    for name, sites in (("before", before), ("meanwhile", measured(fleet))):
        found = predicted(sites, rows)
        figures[f"p50 with speeds of {name}"] = found.ttft_p50_s or math.inf
        figures[f"p95 with speeds of {name}"] = found.ttft_p95_s or math.inf
    figures["p50 real"], figures["p95 real"] = percentile(times, 0.5), percentile(times, 0.95)
    figures["error"] = abs(figures["p95 with speeds of before"] / figures["p95 real"] - 1)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each level")
    parser.add_argument("--goal", type=float, default=0.15, help="largest error of a p95")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="a GGUF file")
    parser.add_argument("--most-tokens", type=int, default=300, help="of the longest answer")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    all_of = list[dict[str, float]]()
    balancer = [*PATIENT, f"--max-buffered-requests={QUEUE}"]
    with Fleet.start(agents=AGENTS, slots=SLOTS, model=None, balancer_options=balancer) as fleet:
        fleet.desire(options.model.absolute(), context_size=CELLS)
        fleet.wait_until(lambda view: serving(view, AGENTS), nobody_ends=True)
        # one agent busy, one request at each, then all slots
        for clients in (1, AGENTS, 2 * AGENTS * SLOTS):
            url, seconds = fleet.inference_url, options.seconds / 2
            asked = clients, seconds, options.seed, options.most_tokens
            rate = trio.run(saturate, url, *asked)
        for site in () if options.json else measured(fleet):
            print(f"{site.name}: {describe(site.speed)}", flush=True)
        for number, part in enumerate(LEVELS, 1):
            seed = 1000 * options.seed + number
            figures = level(fleet, part, rate, options.seconds, seed, options.most_tokens)
            all_of.append(figures)
            if not options.json:
                print(
                    f"{part:.1f} of {rate:.2f} requests/s, {figures['requests']:.0f} requests: p95 "
                    f"{figures['p95 with speeds of before']:.3f} s predicted "
                    f"({figures['p95 with speeds of meanwhile']:.3f} with the speeds of that time)"
                    f", {figures['p95 real']:.3f} s real, error {figures['error']:.1%}; p50 "
                    f"{figures['p50 with speeds of before']:.3f} and {figures['p50 real']:.3f} s",
                    flush=True,
                )
    if options.json:
        print(json.dumps(all_of, indent=1))
    return 0 if all(each["error"] <= options.goal for each in all_of) else 1


def describe(speed: EngineSpeed) -> str:
    return (
        f"{speed.tokens_per_s:.0f} prompt tokens/s, {1000 * speed.pass_s:.2f} ms a pass and "
        f"{1000 * speed.token_s:.2f} ms for each token in it, {1000 * speed.lag_s:.1f} ms beside; "
        f"{speed.slowing:.0%} slower for each other agent that is busy"
    )


if __name__ == "__main__":
    sys.exit(main())

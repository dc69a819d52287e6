"""How much of what conversations repeat is reused, in a fleet of real agents.

A balancer, three agents of two slots, nine conversations of six turns, of which four are answered
at a time; whoever waited longest is next. Reusable is what a turn before computed of the same
conversation, prompt and answer; reused is what the answers say was cached of it. Exit status 1
below ``--goal``.
Usage: ``python benchmarks/placement_fleet.py [--rounds 1] [--goal 0.9]``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import httpx
import trio

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))

from fleet import Fleet, serving

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

AGENTS, SLOTS = 3, 2
CONVERSATIONS, TURNS, AT_A_TIME = 9, 6, 4
WORDS = [f"{first}{then}" for first in ("sea", "sun", "rain", "wind") for then in ("side", "set")]
LIMIT_S = 120.0
CELLS = 8192


@attrs.define
class Conversation:
    """``known``: the tokens of its last prompt and answer."""

    name: int
    dice: random.Random
    messages: list[dict[str, str]] = attrs.field(factory=list)
    known: int = 0
    turns: int = 0

    def asks(self) -> None:
        words = " ".join(self.dice.choices(WORDS, k=60 if self.messages else 200))
        self.messages.append({"role": "user", "content": f"{self.name} {words}"})


@attrs.define
class Tally:
    prompt: int = 0
    reusable: int = 0
    reused: int = 0
    ttft_s: list[float] = attrs.field(factory=list)


async def turn(client: httpx.AsyncClient, each: Conversation, tally: Tally) -> None:
    each.asks()
    began_s = time.perf_counter()
    response = await client.post(
        "/v1/chat/completions",
        json={"model": "default", "messages": each.messages, "max_tokens": 24, "temperature": 0},
    )
    tally.ttft_s.append(time.perf_counter() - began_s)
    response.raise_for_status()
    answer = response.json()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    tally.prompt += usage["prompt_tokens"]
    tally.reusable += min(each.known, usage["prompt_tokens"])
    tally.reused += min(each.known, cached)
    each.messages.append(
        {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""}
    )
    each.known = usage["prompt_tokens"] + usage["completion_tokens"]
    each.turns += 1


async def talk(url: str, seed: int) -> Tally:
    tally = Tally()
    waiting = [Conversation(n, random.Random(100 * seed + n)) for n in range(CONVERSATIONS)]
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:

        async def worker() -> None:
            while waiting:
                each = waiting.pop(0)
                await turn(client, each, tally)
                if each.turns < TURNS:
                    waiting.append(each)

        async with trio.open_nursery() as nursery:
            for _ in range(AT_A_TIME):
                nursery.start_soon(worker)
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="fleets, one after the other")
    parser.add_argument("--goal", type=float, default=0.9, help="of reusable tokens")
    options = parser.parse_args(arguments)
    parts = []
    for seed in range(options.rounds):
        with Fleet.start(agents=AGENTS, slots=SLOTS, model=None) as fleet:
            fleet.desire(BUNDLED_MODEL, context_size=CELLS)
            fleet.wait_until(lambda view: serving(view, AGENTS), nobody_ends=True)
            tally = trio.run(talk, fleet.inference_url, seed)
        parts.append(tally.reused / tally.reusable)
        print(
            f"{len(tally.ttft_s)} requests, {tally.prompt} prompt tokens, {tally.reusable} of them "
            f"reusable, {parts[-1]:.3f} of these reused; median answer "
            f"{statistics.median(tally.ttft_s):.3f} s",
            flush=True,
        )
    print(f"median {statistics.median(parts):.3f}, goal {options.goal}")
    return 0 if statistics.median(parts) >= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())

"""Whose cells a request takes inside an agent, beside an oracle that knows what will be asked.

Conversations behind shared system prompts take turns in an engine of some slots: the deciders of
``scheduler/batching`` say which stream serves each turn and what is lost for it, and the prompt
tokens that they leave to compute are compared with those of an oracle. With *split* cells (each
slot has its own) the oracle has as many whole texts as there are slots, and gives up the one whose
conversation goes on last (Belady). With *unified* cells it has as many as fit and as there are
streams, what they begin with alike counted once. Nothing is kept in host memory on either side.
Usage: ``python benchmarks/slot_cells.py [--seeds 3]``.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator

import attrs

from paddler_trio.processes.engine.llama.context_shape import count_streams
from paddler_trio.scheduler.batching.batch_plan import PrefillBudget
from paddler_trio.scheduler.batching.cells import SplitCells, UnifiedCells
from paddler_trio.scheduler.batching.prefixes import common_prefix
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams

SLOTS = 8
CELLS = 2048
"""Of each slot, or an eighth of a pool."""
TURNS = 8
SYSTEMS = 4
SYSTEM_TOKENS = 300
MAX_TOKENS = 16


@attrs.frozen
class Ask:
    """A turn: its prompt, and the text that it is with its answer."""

    chat: int
    prompt: list[int]
    text: list[int]


def asks(dice: random.Random, chats: int) -> list[Ask]:
    """So many conversations at a time, one after the other in the place of each that ends."""
    systems = [[dice.randrange(1000) for _ in range(SYSTEM_TOKENS)] for _ in range(SYSTEMS)]
    going = [(number, 0, dice.choice(systems)) for number in range(chats)]
    number, found = chats, list[Ask]()
    while len(found) < 60 * chats:
        place = dice.randrange(chats)
        chat, turn, text = going[place]
        prompt = text + [dice.randrange(1000) for _ in range(dice.randint(20, 120))]
        answered = prompt + [dice.randrange(1000) for _ in range(dice.randint(2, MAX_TOKENS))]
        found.append(Ask(chat, prompt, answered))
        going[place] = chat, turn + 1, answered
        if turn + 1 == TURNS:
            going[place] = number, 0, dice.choice(systems)
            number += 1
    return found


def computed_here(asked: list[Ask], *, is_unified: bool, at_once: int) -> int:
    """Return the prompt tokens that an engine computes; so many requests run at a time."""
    num_streams = count_streams(SLOTS, unified=is_unified)
    cells = UnifiedCells(num_streams, SLOTS * CELLS) if is_unified else SplitCells(SLOTS, CELLS)
    streams, computed = Streams(SLOTS, cells, num_streams), 0
    running = list[tuple[Sequence, Ask]]()
    for key, ask in enumerate(asked):
        if len(running) == at_once:
            sequence, ended = running.pop(0)
            for token in ended.text[len(ended.prompt) :]:
                sequence.tokens.append(token)
                a_pass(streams)
            streams.end(sequence.key)
        sequence = Sequence(key, list(ask.prompt), len(ask.prompt))
        streams.enqueue(sequence)
        placement = streams.start_next()
        assert placement is not None, "there is a free slot"
        computed += sequence.num_missing
        running.append((sequence, ask))
        a_pass(streams)
    return computed


def a_pass(streams: Streams) -> None:
    """Compute all that is missing."""
    budget = PrefillBudget(SLOTS * CELLS)
    streams.make_room(budget)
    streams.commit(streams.plan(token_budget=SLOTS * CELLS, prefill_budget=budget))


def computed_by_oracle(asked: list[Ask], *, is_unified: bool, at_once: int) -> int:
    """Return the prompt tokens that are computed by who knows all that comes."""
    next_of, kept, computed = next_asks(asked), dict[int, list[int]](), 0
    running = list[Ask]()
    for number, ask in enumerate(asked):
        if len(running) == at_once:
            ended = running.pop(0)
            kept[ended.chat] = ended.text
        tokens = ask.prompt
        shared = max((common_prefix(tokens, e, len(tokens) - 1) for e in kept.values()), default=0)
        computed += len(tokens) - shared
        kept[ask.chat] = tokens
        running.append(ask)
        busy = {each.chat for each in running}
        while not fits(kept, is_unified=is_unified):
            idle = [chat for chat in kept if chat not in busy]
            del kept[max(idle, key=lambda chat: next_after(next_of[chat], number))]
    return computed


def fits(kept: dict[int, list[int]], *, is_unified: bool) -> bool:
    if not is_unified or len(kept) > count_streams(SLOTS, unified=True):
        return len(kept) <= SLOTS
    systems = {tuple(text[:SYSTEM_TOKENS]) for text in kept.values()}
    own = sum(len(text) + MAX_TOKENS - SYSTEM_TOKENS for text in kept.values())
    return own + SYSTEM_TOKENS * len(systems) <= SLOTS * CELLS


def next_asks(asked: list[Ask]) -> dict[int, list[int]]:
    places = dict[int, list[int]]()
    for number, ask in enumerate(asked):
        places.setdefault(ask.chat, []).append(number)
    return places


def next_after(places: list[int], number: int) -> float:
    return next((place for place in places if place > number), float("inf"))


def rows(seeds: int) -> Iterator[str]:
    for is_unified in (False, True):
        for chats in (6, 12, 24):
            for at_once in (2, 6):
                here = oracle = whole = 0
                for seed in range(seeds):
                    asked = asks(random.Random(seed), chats)
                    here += computed_here(asked, is_unified=is_unified, at_once=at_once)
                    oracle += computed_by_oracle(asked, is_unified=is_unified, at_once=at_once)
                    whole += sum(len(each.prompt) for each in asked)
                kind = "unified" if is_unified else "split"
                yield (
                    f"{kind:8} {chats:3} chats, {at_once} at once: {here / oracle:5.2f} of the "
                    f"oracle's tokens; reused {1 - here / whole:.2f}, {1 - oracle / whole:.2f}"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    for row in rows(parser.parse_args().seeds):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

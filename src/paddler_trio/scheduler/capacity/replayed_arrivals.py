"""Arrivals of requests, as times and lengths, and as what a fleet in virtual time replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Final

import attrs

from paddler_trio.scheduler.virtual.virtual_engine import BLOCK_TOKENS, VirtualPrompt
from paddler_trio.scheduler.virtual.virtual_fleet import Turn

MAX_ARRIVALS: Final = 20_000
"""One replay has at most so many."""
MAX_TOKENS: Final = 1_048_576
"""A prompt, or an answer, has at most so many."""
MAX_SPAN_S: Final = 7 * 86_400
MAX_BLOCKS: Final = 4_000_000
"""All prompts of a replay that begin as others do have at most so many."""
FIELDS: Final = (
    "at_s",
    "prompt_tokens",
    "answer_tokens",
    "client",
    "shares_with",
    "shared_tokens",
)


@attrs.frozen
class Arrival:
    """One request.

    Args:
      at_s: on any clock.
      client: a number that stands for whom it was.
      shares_with: the row of an earlier one that its prompt begins like, -1 for none; it need not
        be among the rows, so those that share with one missing row begin alike.
      shared_tokens: how many tokens that beginning has, the answer of that one included.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    client: int = 0
    shares_with: int = -1
    shared_tokens: int = 0

    def row(self) -> tuple[float, ...]:
        return attrs.astuple(self)


def arrivals_in(rows: Sequence[object]) -> list[Arrival]:
    """Read arrivals, of which the first three fields must be there; ValueError names the row, the
    field and the limit."""
    if not 1 <= len(rows) <= MAX_ARRIVALS:
        raise ValueError(f"{len(rows)} arrivals, must be 1 to {MAX_ARRIVALS}")
    found = list[Arrival]()
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not 3 <= len(row) <= len(FIELDS):
            raise ValueError(f"row {number} must be a list of {', '.join(FIELDS)}")
        for name, value in zip(FIELDS, row, strict=False):
            least, most = _LIMITS[name]
            is_number = type(value) is int or (type(value) is float and name == "at_s")
            if not is_number or not least <= value <= most:
                raise ValueError(
                    f"{name} of row {number} is {value!r:.40}, must be a number from {least} to "
                    f"{most}"
                )
        found.append(Arrival(*row))
    found_s = [each.at_s for each in found]
    if max(found_s) - min(found_s) > MAX_SPAN_S:
        raise ValueError(f"the arrivals span more than {MAX_SPAN_S} s")
    return found


def turns_of(arrivals: Sequence[Arrival], at: float = 1.0) -> list[tuple[float, Turn]]:
    """Return what a fleet in virtual time replays, in the order of time from 0 s on.

    Args:
      at: so many times as fast as they came.

    Errors:
      ValueError: shared beginnings of more than ``MAX_BLOCKS`` blocks.
    """
    chains = _Chains()
    for each in arrivals:
        if each.shared_tokens >= BLOCK_TOKENS and each.shares_with >= 0:
            chains.shared.add(each.shares_with)
    numbered = sorted(enumerate(arrivals), key=lambda each: each[1].at_s)
    start_s = numbered[0][1].at_s if numbered else 0.0
    turns = list[tuple[float, Turn]]()
    for number, each in numbered:
        then = chains.of(number, each)
        prompt = VirtualPrompt(then[: each.prompt_tokens // BLOCK_TOKENS], each.prompt_tokens)
        turn = Turn(prompt, then, each.answer_tokens, client=str(each.client))
        turns.append(((each.at_s - start_s) / at, turn))
    return turns


@attrs.define
class _Chains:
    """The blocks of prompts and answers; ``shared``: the rows that others begin like."""

    shared: set[int] = attrs.field(factory=set)
    _known: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    _numbers: count[int] = attrs.field(factory=lambda: count(1))
    _num_blocks: int = 0

    def of(self, number: int, arrival: Arrival) -> tuple[int, ...]:
        """Return the blocks of a prompt and its answer; none of one that nothing is shared of."""
        own = self._known.get(number, ())
        depth = min(arrival.shared_tokens, arrival.prompt_tokens) // BLOCK_TOKENS
        if depth and arrival.shares_with >= 0:
            before = self._grown(self._known.get(arrival.shares_with, ()), depth)
            self._known[arrival.shares_with] = before
            own = before[:depth]
        elif number not in self.shared:
            return ()
        tokens = arrival.prompt_tokens + arrival.answer_tokens
        own = self._grown(own, tokens // BLOCK_TOKENS)
        if number in self.shared:
            self._known[number] = own
        return own

    def _grown(self, chain: tuple[int, ...], size: int) -> tuple[int, ...]:
        missing = max(0, size - len(chain))
        self._num_blocks += max(size, len(chain))
        if self._num_blocks > MAX_BLOCKS:
            raise ValueError(
                f"prompts that begin alike have more than {MAX_BLOCKS} blocks of {BLOCK_TOKENS} "
                "tokens: replay fewer requests"
            )
        return chain + tuple([next(self._numbers) for _ in range(missing)]) if missing else chain


_LIMITS: Final = {
    "at_s": (-math.inf, math.inf),
    "prompt_tokens": (1, MAX_TOKENS),
    "answer_tokens": (1, MAX_TOKENS),
    "client": (0, 2**31),
    "shares_with": (-1, 2**63),
    "shared_tokens": (0, MAX_TOKENS),
}

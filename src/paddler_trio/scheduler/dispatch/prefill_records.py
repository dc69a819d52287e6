"""The records of placement: what was measured of agents, and which prompts they were given."""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

import attrs

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey

TIE_S: Final = 0.01
"""Times that differ by less are the same."""
_WEIGHT: Final = 0.2
_TOKENS_PER_BYTE: Final = 0.25
_TOKENS_PER_S: Final = 1000.0
_SLOT_S: Final = 4.0


class Prompt(Protocol):
    """The beginning of a prompt as hashes of blocks, see ``wire/prompt_blocks.py``."""

    @property
    def hashes(self) -> tuple[int, ...]: ...

    @property
    def size_bytes(self) -> int: ...

    def covered_bytes(self, num_blocks: int) -> int: ...


@attrs.define
class Average:
    """A moving average; ``value`` is what is believed as long as nothing was measured."""

    value: float
    is_measured: bool = False

    def add(self, measured: float) -> None:
        weight = _WEIGHT if self.is_measured else 1.0
        self.value += weight * (measured - self.value)
        self.is_measured = True


@attrs.define
class Fleet:
    """The agents of one deployment, and what was measured of all of them."""

    salt: int
    agents: dict[AgentKey, None] = attrs.field(factory=dict)
    tokens_per_byte: Average = attrs.field(factory=lambda: Average(_TOKENS_PER_BYTE))
    tokens_per_s: Average = attrs.field(factory=lambda: Average(_TOKENS_PER_S))
    slot_s: Average = attrs.field(factory=lambda: Average(_SLOT_S))
    num_held: int = 0
    """Requests that wait for a slot of one agent and no other."""


@attrs.define
class AgentRecord:
    """The record of an agent: how fast it is, and what it works on."""

    label: str
    fleet: Fleet
    speed: Average = attrs.field(factory=lambda: Average(0.0))
    """Prompt tokens a second."""
    base_s: Average = attrs.field(factory=lambda: Average(0.0))
    """What the first token takes however short the prompt."""
    slot_s: Average = attrs.field(factory=lambda: Average(0.0))
    since_s: dict[RequestKey, float] = attrs.field(factory=dict)
    """Who has a slot, and since when."""
    missing: dict[RequestKey, float] = attrs.field(factory=dict)
    """The prompt tokens that are to be computed for those that have no token yet."""
    num_held: int = 0
    """Requests that wait for a slot of this agent and no other."""

    @property
    def tokens_per_s(self) -> float:
        return (self.speed if self.speed.is_measured else self.fleet.tokens_per_s).value

    def before(self, missing: float) -> float:
        """Return the tokens for which a prompt of which so many are missing and the other ones wait
        for each other: engines compute the shortest first."""
        return sum([min(each, missing) for each in self.missing.values()])

    def wait_s(self) -> float:
        """Return when a slot is expected to be free."""
        slot_s = (self.slot_s if self.slot_s.is_measured else self.fleet.slot_s).value
        return max(TIE_S, (1 + self.num_held) * slot_s / max(1, len(self.since_s)))


@attrs.define
class Asked:
    """A request that has not ended."""

    prompt: Prompt
    hashes: tuple[int, ...]
    fleet: Fleet
    has_held: bool = False
    held_for: AgentKey | None = None
    expected: int = 0
    """Blocks that are believed to be where it was given to."""
    most: int = 0
    """Blocks that one of the agents was believed to have."""
    missed: str = "slower"
    """Why it was not given to that one."""
    before: float = 0.0
    """Tokens that were to be computed there before its own."""


@attrs.define
class PrefixCounts:
    """Prompt tokens of all requests that were served: those that an agent was believed to have,
    those that the chosen one had, and the others by why they were computed again."""

    reusable: int = 0
    reused: int = 0
    missed: Counter[str] = attrs.field(factory=Counter)

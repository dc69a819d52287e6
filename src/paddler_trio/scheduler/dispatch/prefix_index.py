"""Remember which agent has computed the beginnings of which prompts: a hint, which may be wrong or
gone at any time, and never more.

A prompt is a chain of hashes of its blocks, each of all text up to its end, so equal hashes are
equal beginnings and an agent's part is a set of hashes. What an agent was given last is remembered
longest, and the end of a prompt is forgotten before its beginning: a part has no hash without those
before it, and how much of a prompt is there takes a few looks to find.

An agent forgets, too, and does not say what. A part has as many blocks as its agent was seen to
keep: what was there is reason to grow, and what should have been there and was not, to shrink.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.placement import AgentKey

ENTRY_BYTES: Final = 320
"""What one block of one agent takes, measured."""
DEFAULT_BYTES: Final = 64 * 1024 * 1024
MAX_FOUND: Final = 8
"""Agents that are considered for what they have."""
SHRINKS_TO: Final = 0.9
"""The part of what is remembered of an agent that is kept when it turns out to have less."""
GROWS_BY: Final = 1.005
MIN_LIMIT: Final = 16


@attrs.define
class _Part:
    """The blocks of one agent, the one that is forgotten next first."""

    blocks: OrderedDict[int, None] = attrs.field(factory=OrderedDict)
    limit: float = float("inf")


@attrs.define(eq=False)
class PrefixIndex:
    """See the module docstring.

    Args:
      most_bytes: of all parts together.
    """

    most_bytes: int = DEFAULT_BYTES
    num_blocks: int = attrs.field(default=0, init=False)
    _parts: OrderedDict[AgentKey, _Part] = attrs.field(factory=OrderedDict, init=False)
    """The one that was given nothing for longest first."""
    _holders: dict[int, AgentKey | dict[AgentKey, None]] = attrs.field(factory=dict, init=False)
    """Who has each block: usually one, the last one last."""

    def __repr__(self) -> str:
        return f"<PrefixIndex of {self.num_blocks} blocks of {len(self._parts)} agents>"

    @property
    def size_bytes(self) -> int:
        """Return what all parts take."""
        return self.num_blocks * ENTRY_BYTES

    def find(self, hashes: Sequence[int]) -> dict[AgentKey, int]:
        """Return agents that have a beginning of this prompt, and how many blocks of it: those that
        have most first, at most ``MAX_FOUND``."""
        found: dict[AgentKey, int] = {}
        deepest = self.deepest(hashes)
        most = min(MAX_FOUND, _number(self._holders[hashes[0]])) if deepest else 0
        for depth in range(deepest, 0, -1):
            if len(found) == most:
                break
            holders = self._holders[hashes[depth - 1]]
            if len(found) < _number(holders):  # else those that have more of it
                for agent in reversed(holders) if isinstance(holders, dict) else (holders,):
                    if len(found) < most:
                        found.setdefault(agent, depth)
        return found

    def deepest(self, hashes: Sequence[int]) -> int:
        """Return how many blocks of this prompt the agent has that has most of it."""
        low, high = 0, len(hashes)
        while low < high:  # whoever has a block has those before it
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._holders:
                low = middle
            else:
                high = middle - 1
        return low

    def put(self, agent: AgentKey, hashes: Sequence[int]) -> None:
        """Note that the agent has this prompt from now on."""
        part = self._parts.get(agent)
        if part is None:
            part = self._parts[agent] = _Part()
        blocks, holders = part.blocks, self._holders
        for each in reversed(hashes):
            if each in blocks:
                blocks.move_to_end(each)
                continue
            blocks[each] = None
            self.num_blocks += 1
            others = holders.setdefault(each, agent)
            if isinstance(others, dict):
                others[agent] = None
            elif others != agent:
                holders[each] = {others: None, agent: None}
        self._parts.move_to_end(agent)
        self._trim(agent, part, part.limit)
        while self.size_bytes > self.most_bytes:
            self._forget_some()

    def has_kept(self, agent: AgentKey) -> None:
        """Note that what was looked for at the agent was there: it may keep more than is known."""
        part = self._parts.get(agent)
        if part is not None:
            part.limit *= GROWS_BY

    def has_lost(self, agent: AgentKey) -> None:
        """Note that the agent gave up what it had: it keeps less than is remembered of it, and what
        it was given longest ago is gone."""
        part = self._parts.get(agent)
        if part is not None:
            part.limit = max(MIN_LIMIT, SHRINKS_TO * len(part.blocks))
            self._trim(agent, part, part.limit)

    def drop(self, agent: AgentKey) -> None:
        """Note that the agent is gone, or begins anew with nothing."""
        part = self._parts.pop(agent, None)
        for each in () if part is None else part.blocks:
            self._forget(agent, each)

    def depth(self, agent: AgentKey, hashes: Sequence[int]) -> int:
        """Return how many blocks of this prompt the agent has."""
        part = self._parts.get(agent)
        low, high = 0, 0 if part is None else len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if part is not None and hashes[middle - 1] in part.blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _forget_some(self) -> None:
        """Forget an eighth of the agent that was given nothing for longest."""
        agent, part = next(iter(self._parts.items()))
        self._trim(agent, part, len(part.blocks) * 7 // 8)
        if not part.blocks:
            del self._parts[agent]

    def _trim(self, agent: AgentKey, part: _Part, limit: float) -> None:
        while len(part.blocks) > limit:
            each, _ = part.blocks.popitem(last=False)
            self._forget(agent, each)

    def _forget(self, agent: AgentKey, block: int) -> None:
        self.num_blocks -= 1
        holders = self._holders[block]
        if not isinstance(holders, dict):
            del self._holders[block]
            return
        del holders[agent]
        if len(holders) == 1:
            (self._holders[block],) = holders


def _number(holders: AgentKey | dict[AgentKey, None]) -> int:
    return len(holders) if isinstance(holders, dict) else 1

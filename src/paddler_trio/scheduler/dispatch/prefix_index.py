"""Remember which agent has computed the beginnings of which prompts: a hint, which may be wrong or
gone at any time, and never more.

A prompt is a chain of hashes of its blocks, each of all text up to its end, so equal hashes are
equal beginnings. What prompts have in common is kept once: a tree of pieces, each a run of blocks
between two places where prompts part. So a prompt costs by the places where others left it, and not
by its blocks. An agent has a piece from its beginning on, and all of what is before it.

What an agent was given last is remembered longest, and the end of a prompt is forgotten before its
beginning.

An agent forgets, too, and does not say what. A part has as many blocks as its agent was seen to
keep: what was there is reason to grow, and what should have been there and was not, to shrink.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.placement import AgentKey

BLOCK_BYTES: Final = 64
"""One block takes so many, measured."""
PIECE_BYTES: Final = 800
"""A piece takes so many beside its blocks, for each agent that has it; measured."""
DEFAULT_BYTES: Final = 64 * 1024 * 1024
MAX_FOUND: Final = 8
"""Agents that are considered for what they have."""
SHRINKS_TO: Final = 0.9
"""The part of what is remembered of an agent that is kept when it turns out to have less."""
GROWS_BY: Final = 1.005
MIN_LIMIT: Final = 16


@attrs.define(eq=False)
class _Piece:
    """Blocks that follow each other, and what follows them.

    Args:
      holders: how many of the blocks each agent has, the last one last.
    """

    blocks: tuple[int, ...]
    before: _Piece | None
    after: dict[int, _Piece] = attrs.field(factory=dict)
    """The pieces that follow, by the first block of each."""
    holders: dict[AgentKey, int] = attrs.field(factory=dict)
    num_after: dict[AgentKey, int] = attrs.field(factory=dict)
    """The number of the pieces after it that an agent has, if any."""


@attrs.define
class _Part:
    """The prompts that one agent has.

    Args:
      ends: the pieces that nothing of its follows, the one that is forgotten next first. There may
        be others among them, which are not forgotten before what follows them.
    """

    ends: OrderedDict[_Piece, None] = attrs.field(factory=OrderedDict)
    num_blocks: int = 0
    limit: float = float("inf")


@attrs.define(eq=False)
class PrefixIndex:
    """See the module docstring.

    Args:
      most_bytes: of all parts together.
    """

    most_bytes: int = DEFAULT_BYTES
    num_blocks: int = attrs.field(default=0, init=False)
    """Those of all agents; one of two agents counts twice."""
    _num_held: int = attrs.field(default=0, init=False)
    """Pieces of all agents."""
    _parts: OrderedDict[AgentKey, _Part] = attrs.field(factory=OrderedDict, init=False)
    """The one that was given nothing for longest first."""
    _first: dict[int, _Piece] = attrs.field(factory=dict, init=False)
    """Those with the beginnings of prompts, by their first blocks."""

    def __repr__(self) -> str:
        return f"<PrefixIndex of {self.num_blocks} blocks of {len(self._parts)} agents>"

    @property
    def size_bytes(self) -> int:
        """Return what all parts take."""
        return self._num_held * PIECE_BYTES + self.num_blocks * BLOCK_BYTES

    def find(self, hashes: tuple[int, ...]) -> dict[AgentKey, int]:
        """Return agents that have a beginning of this prompt, and how many blocks of it: those that
        have most first, at most ``MAX_FOUND``."""
        found: dict[AgentKey, int] = {}
        for piece, start, shared in reversed(self._path(hashes)):
            for agent in reversed(piece.holders):
                if len(found) == MAX_FOUND:
                    break
                if agent not in found:
                    found[agent] = start + min(shared, piece.holders[agent])
        if len(found) < 2:
            return found
        return dict(sorted(found.items(), key=lambda each: each[1], reverse=True))

    def deepest(self, hashes: tuple[int, ...]) -> int:
        """Return how many blocks of this prompt the agent has that has most of it."""
        path = self._path(hashes)
        if not path:
            return 0
        piece, start, shared = path[-1]
        return start + min(shared, max(piece.holders.values()))

    def depth(self, agent: AgentKey, hashes: tuple[int, ...]) -> int:
        """Return how many blocks of this prompt the agent has."""
        for piece, start, shared in reversed(self._path(hashes)):
            if agent in piece.holders:
                return start + min(shared, piece.holders[agent])
        return 0

    def put(self, agent: AgentKey, hashes: tuple[int, ...]) -> int:
        """Note that the agent has this prompt from now on; return how many of its blocks it had."""
        if not hashes:
            return 0
        part = self._parts.get(agent)
        if part is None:
            part = self._parts[agent] = _Part()
        self._parts.move_to_end(agent)
        had, last, end = 0, None, 0
        for piece, start, shared in self._path(hashes):
            end = start + shared
            if shared < len(piece.blocks) and end < len(hashes):
                piece = self._parted(piece, shared)
            has = piece.holders.get(agent, 0)
            had += min(has, shared)
            self._hold(part, piece, agent, max(has, shared))
            last = piece
        if end < len(hashes):
            last = self._append(part, last, agent, hashes[end:])
        if last is not None:
            part.ends[last] = None
            part.ends.move_to_end(last)
        self._trim(agent, part, part.limit)
        while self.size_bytes > self.most_bytes:
            self._forget_some()
        return had

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
            part.limit = max(MIN_LIMIT, SHRINKS_TO * part.num_blocks)
            self._trim(agent, part, part.limit)

    def drop(self, agent: AgentKey) -> None:
        """Note that the agent is gone, or begins anew with nothing."""
        part = self._parts.pop(agent, None)
        if part is not None:
            self._trim(agent, part, 0)

    # -------------------------------------------------------------- private

    def _path(self, hashes: tuple[int, ...]) -> list[tuple[_Piece, int, int]]:
        """Return the pieces that this prompt goes along: of each the place where it begins, and how
        many of its blocks are the prompt's, all but in the last."""
        path, start, pieces = list[tuple[_Piece, int, int]](), 0, self._first
        while start < len(hashes):
            piece = pieces.get(hashes[start])
            if piece is None:
                break
            blocks = piece.blocks
            part = hashes[start : start + len(blocks)]
            if part != blocks:
                path.append((piece, start, _shared(part, blocks)))
                break
            path.append((piece, start, len(blocks)))
            start += len(blocks)
            pieces = piece.after
        return path

    def _hold(self, part: _Part, piece: _Piece, agent: AgentKey, number: int) -> None:
        """Note that the agent has so many blocks of a piece, and used them last."""
        has = piece.holders.pop(agent, 0)
        piece.holders[agent] = number
        part.num_blocks += number - has
        self.num_blocks += number - has
        if not has:
            self._num_held += 1
            if piece.before is not None:
                num_after = piece.before.num_after
                num_after[agent] = num_after.get(agent, 0) + 1

    def _append(
        self, part: _Part, last: _Piece | None, agent: AgentKey, blocks: tuple[int, ...]
    ) -> _Piece:
        """Note what an agent has after this piece, or at the beginning; nobody else has it."""
        if last is not None and not last.after and len(last.holders) == 1:
            last.blocks += blocks
            self._hold(part, last, agent, len(last.blocks))
            return last
        piece = _Piece(blocks, last)
        (self._first if last is None else last.after)[blocks[0]] = piece
        self._hold(part, piece, agent, len(blocks))
        return piece

    def _parted(self, piece: _Piece, number: int) -> _Piece:
        """Return the piece of the first blocks of this one, which keeps the others if any agent has
        them."""
        if max(piece.holders.values()) <= number:
            piece.blocks = piece.blocks[:number]
            return piece
        first = _Piece(piece.blocks[:number], piece.before, {piece.blocks[number]: piece})
        (self._first if piece.before is None else piece.before.after)[first.blocks[0]] = first
        piece.blocks, piece.before = piece.blocks[number:], first
        for agent, has in list(piece.holders.items()):
            first.holders[agent] = min(has, number)
            if has > number:
                piece.holders[agent] = has - number
                first.num_after[agent] = 1
                self._num_held += 1
            else:
                del piece.holders[agent]
                ends = self._parts[agent].ends
                ends.pop(piece, None)
                ends[first] = None
        return first

    def _forget_some(self) -> None:
        """Forget an eighth of the agent that was given nothing for longest."""
        agent, part = next(iter(self._parts.items()))
        self._trim(agent, part, part.num_blocks * 7 // 8)
        if not part.num_blocks:
            del self._parts[agent]

    def _trim(self, agent: AgentKey, part: _Part, limit: float) -> None:
        while part.num_blocks > limit:
            piece = next(iter(part.ends))
            if agent in piece.num_after:
                del part.ends[piece]
                continue
            has = piece.holders[agent]
            lost = min(has, math.ceil(part.num_blocks - limit))
            part.num_blocks -= lost
            self.num_blocks -= lost
            if lost < has:
                piece.holders[agent] = has - lost
                if len(piece.holders) == 1:
                    piece.blocks = piece.blocks[: has - lost]
            else:
                self._forget(agent, part, piece)

    def _forget(self, agent: AgentKey, part: _Part, piece: _Piece) -> None:
        """Note that an agent has nothing of a piece any more; it had nothing after it."""
        del part.ends[piece], piece.holders[agent]
        self._num_held -= 1
        before = piece.before
        if not piece.holders:
            del (self._first if before is None else before.after)[piece.blocks[0]]
        if before is None:
            return
        before.num_after[agent] -= 1
        if not before.num_after[agent]:
            del before.num_after[agent]
            if before not in part.ends:
                part.ends[before] = None
                part.ends.move_to_end(before, last=False)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many first blocks are the same; once two differ, all after them do."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low

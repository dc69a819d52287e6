"""Know what stands in each stream of the KV cache, and which of it serves a prompt.

Idle tokens are given up from the ends of the least valuable streams: what is long and was used
lately is worth most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs

from paddler_trio.scheduler.batching.cells import Cells
from paddler_trio.scheduler.batching.image_tokens import whole_images
from paddler_trio.scheduler.batching.prefixes import MemoryRules, common_prefix
from paddler_trio.scheduler.batching.sequences import AdapterScales, Sequence

WORTH_WAITING = 64
"""Tokens a sequence would have to compute itself, for which it waits until another has."""
WORTH_COPYING = 24
"""Copying moves a whole stream's cells; fewer tokens than this are computed as quickly."""
WORTH_STORING = 64
"""Tokens that are copied to host memory, if there is room, before their cells are used again."""
_SAVED_AHEAD = 1 / 4
"""A part of the slots: as many streams as may be replaced at once find what they held saved."""
GAP_COST = 256
"""The price of a hole between running streams of a pass, in tokens: llama.cpp computes only
neighbouring streams together."""


@attrs.define(eq=False)
class Stream:
    """One of llama.cpp's sequences: ``tokens[:length]`` are in the cache, oldest first."""

    id: int
    tokens: list[int] = attrs.field(factory=list)
    length: int = 0
    salt: str | None = None
    owner: Sequence | None = None
    last_used: int = 0
    is_saved: bool = True
    """What it holds was copied to host memory, is nothing, or is not wanted there."""

    def __repr__(self) -> str:
        owner = "idle" if self.owner is None else f"sequence {self.owner.key}"
        return f"<Stream {self.id}: {owner}, {self.length} tokens, last used {self.last_used}>"


@attrs.frozen
class Resident:
    """Tokens that stand in a stream, under their salt."""

    stream: int
    tokens: list[int]
    salt: str


@attrs.frozen
class Cut:
    """An order to the engine: only the first ``length`` tokens of ``stream`` stay."""

    stream: int
    length: int


@attrs.frozen
class Match:
    """A stream that has the beginning of a sequence, and how many tokens of it."""

    stream: Stream
    length: int

    @property
    def is_idle(self) -> bool:
        return self.stream.owner is None


@attrs.define
class ResidentTokens:
    """The tokens in all streams of one engine.

    Args:
      arrivals: sequences that came so far; by their number what is in a stream ages.
    """

    cells: Cells
    rules: MemoryRules
    first_position: Callable[[int], int]
    streams: list[Stream]
    arrivals: int = 0

    def idle(self) -> list[Stream]:
        """Return the streams that no sequence runs in."""
        return [stream for stream in self.streams if stream.owner is None]

    @property
    def num_resident(self) -> int:
        """Tokens in the cache that no running sequence owns; shared ones counted each time."""
        return sum(stream.length for stream in self.idle())

    def best_match(self, sequence: Sequence) -> Match | None:
        """Return the stream that has most of the sequence's tokens; one token is left to
        compute."""
        if sequence.salt is None:
            return None
        best: Match | None = None
        for stream in self.streams:
            if stream.salt != sequence.salt or stream.length == 0:
                continue
            limit = min(stream.length, sequence.num_tokens - 1)
            shared = common_prefix(sequence.tokens, stream.tokens, limit)
            if self.rules.whole_images:
                shared = whole_images(sequence.tokens, shared)
            if shared == 0 or (best is not None and shared < best.length):
                continue
            shared = self.rules.usable(
                shared, length=stream.length, first_position=self.first_position(stream.id)
            )
            if shared and (
                best is None or (shared, stream.owner is None) > (best.length, best.is_idle)
            ):
                best = Match(stream, shared)
        return best

    def longest_shared(self, sequence: Sequence) -> int:
        """Return how many of the sequence's tokens another prompt begins with, whether they can
        serve or not."""
        return max(
            (
                common_prefix(sequence.tokens, stream.tokens, sequence.num_prompt_tokens)
                for stream in self.streams
                if stream.salt == sequence.salt
            ),
            default=0,
        )

    def leader(self, sequence: Sequence, match: Match | None) -> tuple[Sequence, int] | None:
        """Return a running sequence whose prompt, once computed, would serve much better."""
        if sequence.salt is None or not self.rules.is_cut_anywhere:
            return None
        best, found = (0 if match is None else match.length) + WORTH_WAITING, None
        for stream in self.streams:
            leader = stream.owner
            if leader is None or stream.salt != sequence.salt:
                continue
            if leader.num_computed >= leader.num_prompt_tokens:
                continue
            limit = min(leader.num_prompt_tokens, sequence.num_tokens - 1)
            shared = common_prefix(sequence.tokens, leader.tokens, limit)
            if shared >= best and shared > leader.num_computed:
                best, found = shared, (leader, shared)
        return found

    def target(self, match: Match | None, adapters: AdapterScales) -> Stream:
        """Return the idle stream whose use costs least: what is lost of it, the copy, a hole left
        between those with the same adapters."""
        busy, others = set[int](), set[int]()
        for stream in self.streams:
            if stream.owner is not None:
                (busy if stream.owner.adapters == adapters else others).add(stream.id)

        def cost(stream: Stream) -> tuple[float, int]:
            lost = stream.length
            extra = 0.0
            if match is not None and match.stream is stream:
                lost -= match.length
            elif match is not None:
                extra += WORTH_COPYING
            if busy and not self.cells.is_pooled and not {stream.id - 1, stream.id + 1} & busy:
                extra += GAP_COST
            elif others and not busy:  # there is room for more of its kind beside it
                extra -= min(abs(stream.id - other) for other in others)
            return lost * self._freshness(stream) + extra, stream.id

        return min(self.idle(), key=cost)

    def give(self, stream: Stream, sequence: Sequence, kept: int) -> None:
        """Let a sequence run in a stream that has ``kept`` of its tokens."""
        stream.owner = sequence
        stream.tokens = sequence.tokens
        stream.length = kept
        stream.salt = sequence.salt
        stream.is_saved = sequence.salt is None
        self.touch(stream)

    def release(self, stream: Stream) -> None:
        """Let the sequence of a stream go; its tokens stay, or are cut if they have no salt."""
        stream.owner = None
        stream.tokens = stream.tokens[: stream.length]
        self.touch(stream)
        self.cut(stream, 0 if stream.salt is None else stream.length)

    def touch(self, stream: Stream) -> None:
        """Note that a stream is used now."""
        stream.last_used = self.arrivals

    def cut(self, stream: Stream, length: int) -> None:
        """Keep only the first ``length`` tokens of a stream."""
        stream.length = min(stream.length, length)
        self.cells.trim(stream.id, stream.length)

    def evictable(self, match: Match | None) -> int:
        """Return how many cells only idle streams hold, without those the match needs."""
        total = 0
        for stream in self.streams:
            if stream.owner is None:
                kept = match.length if match is not None and match.stream is stream else 0
                total += self.cells.freed_by(stream.id, kept)
        return total

    def evict(self, count: int) -> list[Cut]:
        """Free up to ``count`` cells of idle streams, from the ends of the least valuable."""
        cuts: list[Cut] = []
        for stream in self._by_value():
            if count <= 0:
                break
            length = max(0, stream.length - count) if self.rules.can_trim else 0
            while length > 0 and self.cells.freed_by(stream.id, length) < count:
                length = max(0, length - count)
            if self.rules.whole_images:
                length = whole_images(stream.tokens, length)
            before = self.cells.num_free
            self.cut(stream, length)
            count -= self.cells.num_free - before
            cuts.append(Cut(stream.id, length))
        return cuts

    def next_unsaved(self, slots: int, *, all_idle: bool) -> Resident | None:
        """Return what to copy to host memory next: of idle streams those that are replaced soon, or
        all of them; the least valuable first, since it is replaced first."""
        if not [stream for stream in self.idle() if not stream.is_saved]:
            return None  # as between nearly all passes
        idle = sorted(self.idle(), key=self._value)
        if not all_idle:
            idle = idle[: math.ceil(_SAVED_AHEAD * slots)]
        for stream in idle:
            if not stream.is_saved and stream.length >= WORTH_STORING and stream.salt is not None:
                return Resident(stream.id, stream.tokens[: stream.length], stream.salt)
        return None

    def saved(self, resident: Resident) -> None:
        """Note that it was copied, or is not to be."""
        self.streams[resident.stream].is_saved = True

    def _freshness(self, stream: Stream) -> float:
        """Return 1 for what was used last, and half after as many sequences as there are streams:
        what takes turns is worth nearly the same, and what is out of turn soon nothing."""
        turns = (self.arrivals - stream.last_used) / len(self.streams)
        return 1.0 / (1 + turns * turns)

    def _by_value(self) -> Iterable[Stream]:
        """Return idle streams that hold something, the least valuable first."""
        return sorted((stream for stream in self.idle() if stream.length), key=self._value)

    def _value(self, stream: Stream) -> float:
        return stream.length * self._freshness(stream)

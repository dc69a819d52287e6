"""Decide which sequence runs in which stream of the KV cache, and what stays there afterwards.

A stream whose sequence ended keeps its tokens until the room is needed. A new sequence takes what
is already computed of its prompt: in place, if the stream that has it is idle and nothing of value
is lost, or as a copy, also from a stream that is running. If a running sequence is about to compute
the same beginning, the new one waits for it instead of computing it again.

When cells run out, idle tokens go first, the least valuable of them; then the youngest sequence is
preempted with everything it has sampled, and resumes when there is room. The oldest always goes on.

``plan`` reads, ``commit`` writes, and commit happens only after llama.cpp computed the pass, so a
failed pass leaves a state that can simply be planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from paddler_trio.scheduler.batching.adapter_turns import AdapterTurns
from paddler_trio.scheduler.batching.batch_plan import PrefillBudget, ScheduledChunk, plan_batch
from paddler_trio.scheduler.batching.cells import Cells
from paddler_trio.scheduler.batching.checkpoints import checkpoint_places
from paddler_trio.scheduler.batching.image_tokens import is_image, run_length
from paddler_trio.scheduler.batching.prefixes import MemoryRules
from paddler_trio.scheduler.batching.resident_tokens import (
    WORTH_COPYING,
    Cut,
    Match,
    Resident,
    ResidentTokens,
    Stream,
)
from paddler_trio.scheduler.batching.sequences import Sequence

HEADROOM = 8
"""Cells for each running sequence to grow into before another is let in."""


@attrs.frozen
class Placement:
    """A sequence got a stream. The engine keeps ``kept`` tokens of ``source``: the same stream,
    which is then cut, another one, which is copied, or none (None), and the stream is emptied."""

    sequence: Sequence
    stream: int
    source: int | None
    kept: int


@attrs.define
class Streams:
    """All sequences of one engine.

    Args:
      slots: how many may run at a time, >= 1.
      cells: their accounts; its streams may be more than ``slots``, to keep more prefixes.
      num_streams: llama.cpp's number of sequences, >= slots.
      rules: what the model's memory allows.
      first_position: the oldest position of a stream that is still in the cache.
      keeps_checkpoints: what is in the cache in the middle of a prompt can be kept elsewhere.
    """

    slots: int
    cells: Cells
    num_streams: int
    rules: MemoryRules = attrs.field(factory=MemoryRules)
    first_position: Callable[[int], int] = attrs.field(default=lambda _: 0)
    keeps_checkpoints: bool = False
    turns: AdapterTurns = attrs.field(factory=AdapterTurns, init=False)
    preemptions: int = attrs.field(default=0, init=False)
    _preempted: list[int] = attrs.field(factory=list, init=False)
    """Keys of those that were preempted since the last report."""
    _resident: ResidentTokens = attrs.field(init=False)
    _waiting: list[Sequence] = attrs.field(factory=list, init=False)
    """Sequences in the order of arrival."""
    _running: dict[int, Sequence] = attrs.field(factory=dict, init=False)
    _leaders: dict[int, tuple[Sequence, int]] = attrs.field(factory=dict, init=False)
    """The sequence that a waiting one waits for, and until how many tokens of it are computed."""
    _turn: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        streams = [Stream(number) for number in range(self.num_streams)]
        self._resident = ResidentTokens(self.cells, self.rules, self.first_position, streams)

    def __repr__(self) -> str:
        return (
            f"<Streams: {len(self._running)} of {self.slots} slots running, "
            f"{len(self._waiting)} waiting, {self.num_resident} tokens resident, {self.cells!r}>"
        )

    # ------------------------------------------------------------ arrival

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence for a stream."""
        assert sequence.key not in self._running, f"sequence {sequence.key} runs already"
        self._resident.arrivals += 1
        sequence.arrival = self._resident.arrivals
        self._waiting.append(sequence)

    def start_next(self) -> Placement | None:
        """Give a stream to the first waiting sequence that may begin now.

        One that waits for a leader is passed over; one that waits for cells is not, so that a long
        one is not starved.
        """
        for sequence in self._waiting:
            if len(self._running) >= self.slots or self._must_wait(sequence):
                continue
            match = self._resident.best_match(sequence)
            leader = self._resident.leader(sequence, match)
            if leader is not None:
                self._leaders[sequence.key] = leader
                continue
            if not self._has_room(sequence, match):
                return None
            self._waiting.remove(sequence)
            return self._place(sequence, match)
        return None

    def lost_prefix(self, sequence: Sequence) -> None:
        """Note that llama.cpp could not keep the tokens of the placement: the stream is empty."""
        stream = self._stream_of(sequence)
        self._resident.cut(stream, 0)
        sequence.num_computed = 0
        if sequence.num_cached is not None:
            sequence.num_cached = 0

    def found_prefix(self, sequence: Sequence, length: int) -> None:
        """Note that ``length`` tokens of it were put into its empty stream from elsewhere."""
        stream = self._stream_of(sequence)
        assert stream.length == 0, "the stream is not empty"
        self.cells.grow(stream.id, length)
        stream.length = sequence.num_computed = length
        sequence.num_cached = min(length, sequence.num_prompt_tokens)

    def make_room_for_prefix(
        self, sequence: Sequence, *, length: int, size: int
    ) -> list[Cut] | None:
        """Free cells before ``size`` tokens, of which the sequence needs the first ``length``, are
        put into its stream from elsewhere.

        Returns:
          What the engine must cut; None, and nothing was cut, if they do not fit or cost others
          more than the sequence gains.
        """
        stream = self._stream_of(sequence)
        if not self.cells.is_pooled:
            return []
        missing = size - self.cells.num_free - self.cells.freed_by(stream.id, 0)
        for_nothing = size - sequence.num_tokens  # cells of others, for tokens that are cut again
        if missing > 0 and for_nothing > length - sequence.num_computed:
            return None
        return None if missing > self._resident.evictable(None) else self._resident.evict(missing)

    # --------------------------------------------------------------- passes

    def make_room(self, prefill_budget: PrefillBudget) -> list[Cut]:
        """Free cells before a pass over one pool: for every sequence that generates, and for one in
        any case. For prompts idle tokens are given up, but no sequence is preempted.

        Returns:
          What the engine must cut, in order. Preempted sequences wait again.
        """
        cuts: list[Cut] = []
        self.fit_drafts()
        if not self.cells.is_pooled:
            return cuts
        while self._running:
            generating = sum(1 + len(s.drafts) for s in self.running if s.is_generating)
            oldest = min(self._running.values(), key=lambda other: other.arrival)
            wanted = max(1, generating + self._indivisible(oldest))
            cuts += self._resident.evict(wanted - self.cells.num_free)
            if self.cells.num_free >= wanted:
                break
            if any(sequence.drafts for sequence in self._running.values()):
                for sequence in self._running.values():
                    sequence.drafts = []
                continue
            if len(self._running) == 1:
                break
            cuts.append(self._preempt(max(self._running.values(), key=lambda other: other.arrival)))
        largest = max(map(self._indivisible, self._running.values()), default=0)
        needed = max(min(prefill_budget.tokens, self.num_missing), largest)
        return cuts + self._resident.evict(needed - self.cells.num_free)

    def fit_drafts(self) -> None:
        """Drop drafts, before a pass, that no stream has a cell for."""
        for sequence in self._running.values():
            if sequence.drafts:
                del sequence.drafts[max(0, self.cells.capacity - sequence.num_tokens) :]

    def plan(
        self, *, token_budget: int, prefill_budget: PrefillBudget
    ) -> tuple[ScheduledChunk, ...]:
        """Return the next pass; changes nothing that matters if it is never run."""
        self._turn += 1
        return self._plan(self.members, token_budget, prefill_budget)

    def plan_generating(self, *, token_budget: int) -> tuple[ScheduledChunk, ...]:
        """Return the first part of a pass that comes in two: without prompts."""
        self._turn += 1
        generating = [s for s in self.members if s.is_generating]
        return self._plan(generating, token_budget, None) if generating else ()

    def plan_prompts(
        self, *, token_budget: int, prefill_budget: PrefillBudget
    ) -> tuple[ScheduledChunk, ...]:
        """Return its second part: prompts, also of sequences that came meanwhile."""
        ingesting = [s for s in self.members if not s.is_generating]
        return self._plan(ingesting, token_budget, prefill_budget)

    def commit(self, chunks: tuple[ScheduledChunk, ...]) -> None:
        """Note that llama.cpp computed these chunks: their tokens are in the cache."""
        for chunk in chunks:
            sequence = chunk.sequence
            assert sequence.num_computed == chunk.start, "a chunk was committed twice"
            stream = self._stream_of(sequence)
            self.cells.grow(stream.id, chunk.count + len(chunk.drafts))
            sequence.num_computed += chunk.count
            stream.length = sequence.num_computed

    def accept_draft(self, sequence: Sequence) -> None:
        """Note that the newest token is the next draft, which was computed already."""
        sequence.num_computed += 1
        self._stream_of(sequence).length = sequence.num_computed

    def drop_drafts(self, sequence: Sequence) -> Cut:
        """Forget what was computed beyond the accepted tokens."""
        sequence.drafts = []
        stream = self._stream_of(sequence)
        self.cells.trim(stream.id, stream.length)
        return Cut(stream.id, stream.length)

    def end(self, key: int) -> Cut | None:
        """Forget a sequence. If it ran, its tokens stay in the cache for others, or are cut if it
        has no salt: the result is what stays."""
        self._leaders.pop(key, None)
        sequence = self._running.pop(key, None)
        if sequence is None:
            self._waiting = [other for other in self._waiting if other.key != key]
            return None
        stream = self._stream_of(sequence)
        self._release(sequence)
        return Cut(stream.id, stream.length)

    # ------------------------------------------------------- host memory

    def next_unsaved(self, *, all_idle: bool) -> Resident | None:
        """Return what to copy to host memory next; see :meth:`ResidentTokens.next_unsaved`."""
        return self._resident.next_unsaved(self.slots, all_idle=all_idle)

    def saved(self, resident: Resident) -> None:
        """Note that it was copied, or is not to be."""
        self._resident.saved(resident)

    # ------------------------------------------------------------ questions

    @property
    def num_resident(self) -> int:
        return self._resident.num_resident

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running.values())

    @property
    def members(self) -> list[Sequence]:
        """Those running whose turn it is."""
        return self.turns.members(self._running.values())

    @property
    def num_generating(self) -> int:
        return sum([sequence.is_generating for sequence in self._running.values()])

    @property
    def has_prompts(self) -> bool:
        """Return whether one whose turn it is has more to compute than its newest token."""
        return not all(sequence.is_generating for sequence in self.members)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_missing(self) -> int:
        return sum([sequence.num_missing for sequence in self._running.values()])

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # -------------------------------------------------------------- private

    def _plan(
        self, sequences: Iterable[Sequence], token_budget: int, prefill_budget: PrefillBudget | None
    ) -> tuple[ScheduledChunk, ...]:
        free_cells = None
        if self.cells.is_pooled:
            free_cells = self.cells.num_free
            token_budget = min(token_budget, free_cells)
            if token_budget == 0:
                return ()
        return plan_batch(
            sequences,
            token_budget=token_budget,
            prefill_budget=prefill_budget,
            turn=self._turn,
            whole_images=self.rules.whole_images,
            free_cells=free_cells,
        )

    def _stream_of(self, sequence: Sequence) -> Stream:
        assert sequence.stream is not None, f"sequence {sequence.key} has no stream"
        return self._resident.streams[sequence.stream]

    def _indivisible(self, sequence: Sequence) -> int:
        """Return how many tokens it must compute in one pass next: an image, or 0 for no such
        thing."""
        start = sequence.num_computed
        is_past = start >= sequence.num_tokens
        if not self.rules.whole_images or is_past or not is_image(sequence.tokens[start]):
            return 0
        return run_length(sequence.tokens, start, sequence.num_missing)

    def _must_wait(self, sequence: Sequence) -> bool:
        """Return whether the sequence's leader is still computing what both begin with."""
        if sequence.key not in self._leaders:
            return False
        leader, length = self._leaders[sequence.key]
        if leader.key in self._running and leader.num_computed < length:
            return True
        del self._leaders[sequence.key]
        return False

    def _has_room(self, sequence: Sequence, match: Match | None) -> bool:
        """Return whether a pool has cells for what the sequence must compute, beside what others
        were promised."""
        if not self.cells.is_pooled or not self._running:
            return True
        promised = sum(other.num_missing for other in self._running.values())
        needed = sequence.num_tokens - (0 if match is None else match.length)
        headroom = HEADROOM * (len(self._running) + 1)
        return needed + headroom + promised <= self.cells.num_free + self._resident.evictable(match)

    def _place(self, sequence: Sequence, match: Match | None) -> Placement:
        if match is not None and not match.is_idle and match.length < WORTH_COPYING:
            match = None
        target = self._resident.target(match, sequence.adapters)
        source, kept = (None, 0) if match is None else (match.stream.id, match.length)
        if self.keeps_checkpoints and sequence.salt is not None:
            sequence.checkpoints = checkpoint_places(
                sequence.tokens,
                sequence.num_prompt_tokens,
                start=kept,
                parted=self._resident.longest_shared(sequence),
            )
        if source == target.id:
            self._resident.cut(target, kept)
        else:
            self._resident.cut(target, 0)
            if source is not None:
                self.cells.copy(source, target.id, kept)
                self._resident.touch(self._resident.streams[source])
        self._resident.give(target, sequence, kept)
        sequence.stream = target.id
        sequence.num_computed = kept
        if sequence.num_cached is None:
            sequence.num_cached = min(kept, sequence.num_prompt_tokens)
        self._running[sequence.key] = sequence
        return Placement(sequence, target.id, source, kept)

    def _release(self, sequence: Sequence) -> None:
        self._resident.release(self._stream_of(sequence))
        sequence.stream = None

    def take_preempted(self) -> list[int]:
        """Return the keys of the sequences that were preempted since the last call."""
        keys, self._preempted = self._preempted, []
        return keys

    def _preempt(self, sequence: Sequence) -> Cut:
        """Preempt a sequence: it keeps its place in the queue; its tokens stay while their cells
        are not needed."""
        stream = self._stream_of(sequence)
        del self._running[sequence.key]
        self._release(sequence)
        sequence.num_computed = 0
        sequence.drafts = []
        self.preemptions += 1
        sequence.num_preemptions += 1
        self._preempted.append(sequence.key)
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda other: other.arrival)
        return Cut(stream.id, stream.length)

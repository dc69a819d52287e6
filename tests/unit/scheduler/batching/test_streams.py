"""Streams against a pretended llama.cpp that remembers which token stands in which cell.

Whatever is reused, copied, cut, evicted, preempted or drafted: every token of a sequence was
sampled after exactly its own tokens, computed once each, in order.
"""

from __future__ import annotations

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from paddler_trio.scheduler.batching.batch_plan import PrefillBudget
from paddler_trio.scheduler.batching.cells import SplitCells, UnifiedCells
from paddler_trio.scheduler.batching.prefixes import MemoryRules
from paddler_trio.scheduler.batching.resident_tokens import WORTH_STORING, Cut
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Placement, Streams

CELLS = 48
SLOTS = 3
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
"""Few different tokens, so that prefixes are shared all the time."""


def next_token(tokens: list[int]) -> int:
    """What the pretended model samples: a function of everything before."""
    return (sum(tokens) * 7 + len(tokens)) % 3


class StreamsMachine(RuleBasedStateMachine):
    unified = False
    memory = MemoryRules()

    def __init__(self) -> None:
        super().__init__()
        num_streams = SLOTS + 3 if self.unified else SLOTS
        self.cells = (UnifiedCells if self.unified else SplitCells)(num_streams, CELLS)
        self.streams = Streams(SLOTS, self.cells, num_streams, self.memory)
        self.cache: list[list[int]] = [[] for _ in range(num_streams)]
        self.live: dict[int, Sequence] = {}
        self.salts: list[str | None] = [None] * num_streams
        """Under which salt the tokens of each stream were computed."""
        self.keys = 0

    # ------------------------------------------------------------------ rules

    @rule(
        prompt=PROMPTS,
        sampled=st.integers(0, 3),
        more=st.integers(1, 30),
        salt=st.sampled_from(["", "", "", "tenant", None]),
    )
    def arrive(self, prompt: list[int], sampled: int, more: int, salt: str | None) -> None:
        self.keys += 1
        tokens = list(prompt)
        for _ in range(sampled):
            tokens.append(next_token(tokens))
        sequence = Sequence(self.keys, tokens, len(prompt), sampled + more, salt)
        self.live[sequence.key] = sequence
        self.streams.enqueue(sequence)

    @rule(
        fails=st.booleans(),
        tokens=st.integers(1, 24),
        refuses=st.booleans(),
        stored=st.integers(0, CELLS),
    )
    def run_a_pass(self, fails: bool, tokens: int, refuses: bool, stored: int) -> None:
        prefill_budget = PrefillBudget(tokens)
        while (placement := self.streams.start_next()) is not None:
            if not self._restore(placement, stored, refuses=refuses):
                self._settle(placement, refuses=refuses)
        for sequence in self.streams.running:
            if self.memory.can_trim and sequence.is_generating and sequence.key % 2:
                right = next_token(sequence.tokens)
                sequence.drafts = [right, (right + sequence.num_tokens) % 3]
        self._cut(self.streams.make_room(prefill_budget))
        if self.unified:
            chunks = self.streams.plan(token_budget=24, prefill_budget=prefill_budget)
        else:
            chunks = (
                *self.streams.plan_generating(token_budget=24),
                *self.streams.plan_prompts(token_budget=24, prefill_budget=prefill_budget),
            )
        if self.streams.running:
            assert chunks, "somebody runs and nothing is computed"
        if fails:
            return  # nothing was committed: the same work is planned again
        for chunk in chunks:
            sequence = chunk.sequence
            assert sequence.stream is not None
            cache = self.cache[sequence.stream]
            assert cache == sequence.tokens[: chunk.start], "computed after other tokens"
            cache += sequence.tokens[chunk.start : chunk.start + chunk.count]
            cache += chunk.drafts
            self.salts[sequence.stream] = sequence.salt
        self.streams.commit(chunks)
        for chunk in chunks:
            if chunk.wants_logits:
                self._draw(chunk.sequence, chunk.drafts)

    @rule(all_idle=st.booleans())
    def save(self, all_idle: bool) -> None:
        resident = self.streams.next_unsaved(all_idle=all_idle)
        if resident is None:
            return
        stream = resident.stream
        assert stream not in {sequence.stream for sequence in self.live.values()}, "it is in use"
        assert resident.salt == self.salts[stream]
        assert resident.tokens == self.cache[stream][: len(resident.tokens)]
        self.streams.saved(resident)
        again = self.streams.next_unsaved(all_idle=True)
        assert again is None or again.stream != stream, "saved twice"

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0, 100))
    def stop(self, choice: int) -> None:
        self._end(sorted(self.live)[choice % len(self.live)])

    # -------------------------------------------------------------- llama.cpp

    def _restore(self, placement: Placement, size: int, *, refuses: bool) -> bool:
        """So many of its tokens, and what followed them once, were stored elsewhere."""
        sequence = placement.sequence
        length = min(size, sequence.num_tokens - 1)
        if sequence.salt is None or length <= placement.kept:
            return False
        others = [len(cache) for cache in self.cache]
        cuts = self.streams.make_room_for_prefix(sequence, length=length, size=size)
        if cuts is None:
            return False
        self._cut(cuts)
        if self.unified:
            lost = sum(others) - sum(len(cache) for cache in self.cache)
            assert lost == 0 or size - sequence.num_tokens <= length - placement.kept
        self.streams.lost_prefix(sequence)
        self.cache[placement.stream] = []
        assert not self.unified or self.cells.num_free >= size, "llama.cpp puts all of it there"
        if not refuses:
            self.streams.found_prefix(sequence, length)
            self.cache[placement.stream] = sequence.tokens[:length]
        self.salts[placement.stream] = sequence.salt
        assert self.cache[placement.stream] == sequence.tokens[: sequence.num_computed]
        return True

    def _settle(self, placement: Placement, *, refuses: bool) -> None:
        sequence = placement.sequence
        if placement.source is None:
            self.cache[placement.stream] = []
        else:
            assert self.salts[placement.source] == sequence.salt, "shared across salts"
            assert sequence.salt is not None, "shared with nobody, and yet taken"
            kept = self.cache[placement.source][: placement.kept]
            assert len(kept) == placement.kept
            if placement.source != placement.stream:
                assert self.memory.can_trim or len(self.cache[placement.source]) == len(kept)
            self.cache[placement.stream] = list(kept)
            if refuses:
                self.cache[placement.stream] = []
                self.streams.lost_prefix(sequence)
        self.salts[placement.stream] = sequence.salt
        assert self.cache[placement.stream] == sequence.tokens[: sequence.num_computed]
        assert sequence.num_computed < sequence.num_tokens, "nothing left to sample from"

    def _cut(self, cuts: list[Cut]) -> None:
        for cut in cuts:
            if not self.memory.can_trim:
                assert cut.length in (0, len(self.cache[cut.stream])), "a state was cut"
            del self.cache[cut.stream][cut.length :]

    def _draw(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        accepted = 0
        while True:
            sequence.tokens.append(token := next_token(sequence.tokens))
            if sequence.num_sampled >= sequence.max_tokens or sequence.is_out_of_cells(CELLS):
                self._end(sequence.key)
                return
            if accepted == len(drafts) or drafts[accepted] != token:
                break
            self.streams.accept_draft(sequence)
            accepted += 1
        if drafts:
            self._cut([self.streams.drop_drafts(sequence)])

    def _end(self, key: int) -> None:
        sequence = self.live.pop(key)
        cut = self.streams.end(key)
        if cut is not None:
            self._cut([cut])
        tokens = sequence.tokens
        for place in range(sequence.num_prompt_tokens, len(tokens)):
            assert tokens[place] == next_token(tokens[:place]), "a token was sampled out of place"

    # ------------------------------------------------------------- invariants

    @invariant()
    def books_agree_with_the_cache(self) -> None:
        running = {sequence.stream: sequence for sequence in self.streams.running}
        assert len(running) <= SLOTS
        assert set(self.live) >= {sequence.key for sequence in running.values()}
        assert self.streams.is_idle == (not self.live)
        for stream, cache in enumerate(self.cache):
            assert self.cells.length(stream) == len(cache), f"cells of stream {stream}"
            assert len(cache) <= CELLS
            if stream in running:
                assert cache == running[stream].tokens[: running[stream].num_computed]

    @invariant()
    def no_more_cells_than_there_are(self) -> None:
        assert self.cells.num_free >= 0
        if not self.unified:
            assert self.cells.num_used == sum(map(len, self.cache))
        else:
            assert self.cells.num_used <= sum(map(len, self.cache))
            assert self.cells.num_used + self.cells.num_free == CELLS

    @invariant()
    def what_a_cut_frees_is_known_before(self) -> None:
        for stream, cache in enumerate(self.cache):
            for length in {0, len(cache) // 2, len(cache)}:
                alone = copy.deepcopy(self.cells)
                alone.trim(stream, length)
                freed = alone.num_free - self.cells.num_free
                assert self.cells.freed_by(stream, length) == freed

    def teardown(self) -> None:
        """The oldest is never preempted for good: every sequence comes to an end."""
        for _ in range(4000):
            if not self.live:
                break
            self.run_a_pass(False, 16, False, 0)
        assert not self.live, "somebody starved"


class UnifiedMachine(StreamsMachine):
    unified = True


class StatefulMachine(StreamsMachine):
    """A recurrent model: what is computed cannot be cut."""

    memory = MemoryRules(can_trim=False)


TestSplit = StreamsMachine.TestCase
TestUnified = UnifiedMachine.TestCase
TestStateful = StatefulMachine.TestCase
MANY = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestSplit.settings = TestUnified.settings = TestStateful.settings = MANY


def _run(streams: Streams, passes: int = 1, budget: int = 512) -> None:
    for _ in range(passes):
        while streams.start_next() is not None:
            pass
        streams.make_room(PrefillBudget(budget))
        chunks = streams.plan(token_budget=budget, prefill_budget=PrefillBudget(budget))
        streams.commit(chunks)
        for chunk in chunks:
            if chunk.wants_logits:
                chunk.sequence.tokens.append(1)


def _streams(slots: int = 4, cells: int = 1024) -> Streams:
    return Streams(slots, SplitCells(slots, cells), slots)


def test_a_finished_sequence_serves_the_next_turn_of_its_conversation() -> None:
    streams = _streams()
    first = Sequence(1, list(range(100)), 100)
    streams.enqueue(first)
    _run(streams, 10)
    streams.end(1)
    second = Sequence(2, [*first.tokens, 5, 6, 7], len(first.tokens) + 3)
    streams.enqueue(second)
    placement = streams.start_next()
    assert placement is not None
    assert placement.source == placement.stream, "in place"
    assert placement.kept == first.num_computed
    assert second.num_cached == placement.kept


def test_sequences_with_the_same_adapters_are_neighbours() -> None:
    streams = _streams(slots=8)
    a, b = ((0, 1.0),), ((1, 1.0),)
    for key in range(8):
        tokens = [100 * key + place for place in range(20)]
        streams.enqueue(Sequence(key, tokens, 20, salt=f"{key}", adapters=(a, b)[key % 2]))
    while streams.start_next() is not None:
        pass
    places = {
        each: sorted(
            s.stream for s in streams.running if s.adapters == each and s.stream is not None
        )
        for each in (a, b)
    }
    assert places == {a: [0, 1, 2, 3], b: [4, 5, 6, 7]}


def test_a_running_sequence_is_copied_and_one_about_to_compute_the_same_is_waited_for() -> None:
    streams = _streams()
    system = list(range(500))
    for key in (1, 2, 3):
        streams.enqueue(Sequence(key, [*system, 1000 + key], 501))
    first = streams.start_next()
    assert first is not None
    assert first.source is None
    assert streams.start_next() is None, "the others wait for the first to compute their beginning"
    _run(streams, 2)
    second, third = streams.running[1:]
    assert second.num_cached == third.num_cached == 500


def test_nobody_waits_for_a_leader_that_is_gone() -> None:
    streams = _streams()
    streams.enqueue(Sequence(1, list(range(500)), 500))
    streams.enqueue(Sequence(2, [*range(400), 9], 401))
    assert streams.start_next() is not None
    assert streams.start_next() is None
    streams.end(1)
    placement = streams.start_next()
    assert placement is not None
    assert placement.sequence.key == 2


def test_the_least_valuable_stream_is_given_up() -> None:
    streams = _streams(slots=2)
    for key, length in ((1, 600), (2, 50)):
        streams.enqueue(Sequence(key, [key] * length, length))
        _run(streams, 2)
        streams.end(key)
    streams.enqueue(Sequence(3, [3] * 10, 10))
    placement = streams.start_next()
    assert placement is not None
    assert placement.source is None
    streams.enqueue(Sequence(4, [1] * 300 + [8], 301))
    placement = streams.start_next()
    assert placement is not None
    assert placement.kept == 300


def test_the_youngest_is_preempted_when_a_pool_is_full_and_resumes_later() -> None:
    streams = Streams(2, UnifiedCells(4, 100), 4)
    streams.enqueue(Sequence(1, [1] * 30, 30, 65))
    streams.enqueue(Sequence(2, [2] * 30, 30, 40))
    ended: list[tuple[int, int]] = []
    for _ in range(300):
        _run(streams)
        for sequence in streams.running:
            if sequence.num_sampled >= sequence.max_tokens:
                ended.append((sequence.key, sequence.num_preemptions))
                streams.end(sequence.key)
        if streams.is_idle:
            break
    assert ended == [(1, 0), (2, 1)]
    assert streams.preemptions == 1
    assert streams.take_preempted() == [2]
    assert streams.take_preempted() == []


def _answered(streams: Streams, key: int, length: int, salt: str | None = "") -> None:
    streams.enqueue(Sequence(key, [key] * length, length, salt=salt))
    _run(streams, 2)
    streams.end(key)


def test_what_is_replaced_next_is_saved_first_and_each_content_once() -> None:
    streams = _streams(slots=4)
    for key, length in ((1, 600), (2, 300), (3, 400)):
        _answered(streams, key, length)
    assert streams.next_unsaved(all_idle=False) is None, "the stream used next holds nothing"
    _answered(streams, 4, 500)
    saved = []
    while (resident := streams.next_unsaved(all_idle=True)) is not None:
        saved.append(resident.tokens[0])
        streams.saved(resident)
    assert sorted(saved) == [1, 2, 3, 4]
    streams.enqueue(Sequence(5, [5] * 10, 10))
    placement = streams.start_next()
    assert placement is not None
    assert saved[0] == {0: 1, 1: 2, 2: 3, 3: 4}[placement.stream], "it went first"


def test_what_is_not_worth_saving_is_left_where_it_is() -> None:
    streams = _streams(slots=3)
    _answered(streams, 1, WORTH_STORING - 10)
    _answered(streams, 2, 500, salt=None)
    streams.enqueue(Sequence(3, [3] * 500, 500))
    _run(streams, 2)
    assert streams.next_unsaved(all_idle=True) is None, "short, of nobody, or in use"


def test_who_arrives_while_others_generate_is_planned_in_the_same_pass() -> None:
    streams = _streams()
    streams.enqueue(Sequence(1, [1] * 50, 50))
    _run(streams)
    (generating,) = streams.plan_generating(token_budget=512)
    streams.commit((generating,))
    generating.sequence.tokens.append(1)
    streams.enqueue(Sequence(2, [2] * 70, 70))
    assert streams.start_next() is not None
    (prompt,) = streams.plan_prompts(token_budget=512, prefill_budget=PrefillBudget(100))
    assert (prompt.sequence.key, prompt.count) == (2, 70)

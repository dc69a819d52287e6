"""A prompt stops at its checkpoints, each exactly once, however its passes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.batch_plan import PrefillBudget
from paddler_trio.scheduler.batching.cells import SplitCells
from paddler_trio.scheduler.batching.checkpoints import (
    BEFORE_END,
    WORTH_KEEPING,
    checkpoint_places,
)
from paddler_trio.scheduler.batching.image_tokens import image_tokens, is_image
from paddler_trio.scheduler.batching.prefixes import MemoryRules
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams

UNCUTTABLE = MemoryRules(can_trim=False)


@given(
    words=st.lists(st.integers(0, 300), max_size=4),
    images=st.lists(st.integers(1, 90), max_size=3),
    start=st.integers(0, 400),
    parted=st.integers(0, 900),
    sampled=st.integers(0, 5),
)
def test_places_are_within_the_prompt_worth_it_and_never_in_an_image(
    words: list[int], images: list[int], start: int, parted: int, sampled: int
) -> None:
    tokens: list[int] = [1]
    for number, count in enumerate(words):
        tokens += [2] * count
        if number < len(images):
            tokens += image_tokens(bytes([number]), images[number])
    prompt = len(tokens)
    tokens += [3] * sampled
    places = checkpoint_places(tokens, prompt, start=start, parted=min(parted, prompt))
    assert places == sorted(set(places))
    for place in places:
        assert start + WORTH_KEEPING <= place < prompt
        assert place in (parted, prompt - BEFORE_END)
        assert not is_image(tokens[place - 1])
        assert not is_image(tokens[place])


@given(
    size=st.integers(1, 700),
    shared=st.integers(0, 700),
    budget=st.integers(1, 300),
    others=st.integers(0, 2),
)
def test_no_pass_goes_beyond_a_checkpoint_and_every_one_is_met(
    size: int, shared: int, budget: int, others: int
) -> None:
    streams = Streams(4, SplitCells(4, 1024), 4, UNCUTTABLE, lambda _: 0, keeps_checkpoints=True)
    for key in range(others):
        streams.enqueue(Sequence(key, [7] * min(shared, size) + [8 + key] * 20, 20))
    sequence = Sequence(9, [7] * size, size)
    streams.enqueue(sequence)
    while streams.start_next() is not None:
        pass
    expected = [size - BEFORE_END] if size - BEFORE_END >= WORTH_KEEPING else []
    common = min(shared, size)
    if others and WORTH_KEEPING <= common < size:
        expected = sorted({*expected, common})
    assert sequence.checkpoints == expected
    ends = []
    while sequence.num_missing:
        chunks = streams.plan(token_budget=budget, prefill_budget=PrefillBudget(budget))
        streams.commit(chunks)
        ends += [s.start + s.count for s in chunks if s.sequence is sequence]
    assert set(expected) <= set(ends)
    assert ends[-1] == size


def test_a_sequence_without_salt_keeps_nothing() -> None:
    streams = Streams(1, SplitCells(1, 1024), 1, UNCUTTABLE, keeps_checkpoints=True)
    streams.enqueue(Sequence(1, [7] * 500, 500, salt=None))
    assert streams.start_next() is not None
    assert streams.running[0].checkpoints == []


def test_a_memory_that_is_cut_anywhere_needs_none() -> None:
    streams = Streams(1, SplitCells(1, 1024), 1)
    streams.enqueue(Sequence(1, [7] * 500, 500))
    assert streams.start_next() is not None
    assert streams.running[0].checkpoints == []

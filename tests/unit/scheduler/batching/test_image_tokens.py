"""Images as runs of negative numbers, and passes that never mix or cut them."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.batch_plan import PrefillBudget, plan_batch
from paddler_trio.scheduler.batching.cells import SplitCells, UnifiedCells
from paddler_trio.scheduler.batching.image_tokens import (
    image_of,
    image_tokens,
    is_image,
    num_words,
    place_of,
    run_length,
    whole_images,
)
from paddler_trio.scheduler.batching.prefixes import MemoryRules
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams

N_BATCH = 32


def shown(name: int, count: int) -> list[int]:
    return image_tokens(hashlib.sha256(b"%d" % name).digest(), count)


words = st.lists(st.integers(0, 3), max_size=40)
SIZES = (N_BATCH, 7, 20, 1)
images = st.integers(0, 3).map(lambda name: shown(name, SIZES[name]))
prompts = st.lists(words | images, max_size=6).map(
    lambda parts: [token for part in parts for token in part] + [0]
)


@given(name=st.integers(), count=st.integers(1, 500))
def test_an_image_knows_itself_and_its_places(name: int, count: int) -> None:
    tokens = shown(name, count)
    assert all(is_image(token) for token in tokens)
    assert {image_of(token) for token in tokens} == {image_of(tokens[0])}
    assert [place_of(token) for token in tokens] == list(range(count))
    assert image_of(shown(name + 1, 1)[0]) != image_of(tokens[0])


@given(prompt=prompts)
def test_runs_are_of_words_or_of_one_image_and_leave_nothing_out(prompt: list[int]) -> None:
    start = 0
    while start < len(prompt):
        count = run_length(prompt, start, N_BATCH)
        run = prompt[start : start + count]
        assert 1 <= count <= N_BATCH
        assert len({is_image(token) for token in run}) == 1
        if is_image(run[0]):
            assert len({image_of(token) for token in run}) == 1
            assert [place_of(token) - place_of(run[0]) for token in run] == list(range(count))
        start += count
    assert num_words(prompt) == sum(token >= 0 for token in prompt)


@given(prompt=prompts, data=st.data())
def test_a_cut_in_an_image_moves_to_its_beginning(prompt: list[int], data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(prompt)))
    kept = whole_images(prompt, length)
    assert kept <= length
    if kept < length:
        assert place_of(prompt[kept]) == 0
        assert image_of(prompt[kept]) == image_of(prompt[length])
    elif kept < len(prompt) and is_image(prompt[kept]):
        assert place_of(prompt[kept]) == 0


@given(
    given_prompts=st.lists(prompts, min_size=1, max_size=12),
    whole=st.booleans(),
    pooled=st.booleans(),
    budget=st.integers(1, N_BATCH),
    answer=st.integers(1, 40),
)
def test_every_prompt_with_images_is_computed_in_good_chunks(
    given_prompts: list[list[int]], whole: bool, pooled: bool, budget: int, answer: int
) -> None:
    """No sequence starves, no chunk mixes, no whole image is cut, and no cell is used twice."""
    cells = max(len(prompt) for prompt in given_prompts) + 8
    layout = UnifiedCells(5, cells) if pooled else SplitCells(5, cells)
    streams = Streams(5, layout, 5, MemoryRules(whole_images=whole))
    for key, prompt in enumerate(given_prompts):
        streams.enqueue(Sequence(key, list(prompt), len(prompt)))
    for _ in range(4000):
        if streams.is_idle:
            break
        while streams.start_next() is not None:
            pass
        streams.make_room(PrefillBudget(budget))
        chunks = streams.plan(token_budget=N_BATCH, prefill_budget=PrefillBudget(budget))
        assert chunks, "somebody runs and nobody computes"
        for chunk in chunks:
            run = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
            assert run_length(run, 0, len(run)) == len(run)
            if whole and is_image(run[0]):
                assert place_of(run[0]) == 0
                after = chunk.sequence.tokens[chunk.start + chunk.count :]
                assert not after or not is_image(after[0]) or place_of(after[0]) == 0
        streams.commit(chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.num_missing == 0:
                sequence.tokens.append(1)
                if sequence.num_sampled >= answer or sequence.is_out_of_cells(cells):
                    streams.end(sequence.key)
    assert streams.is_idle, "somebody was never computed"


def test_one_whole_image_a_pass_may_exceed_the_budget_but_not_the_cells() -> None:
    first, second = (Sequence(key, [*shown(key, 20), 0], 21) for key in (1, 2))
    plan = plan_batch(
        [first, second], token_budget=32, prefill_budget=PrefillBudget(8), whole_images=True
    )
    assert [(chunk.sequence.key, chunk.count) for chunk in plan] == [(1, 20)]
    assert not plan_batch(
        [first], token_budget=16, prefill_budget=PrefillBudget(8), whole_images=True, free_cells=16
    )

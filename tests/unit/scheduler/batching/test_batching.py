"""The engine's plans: nothing twice, nothing skipped, nobody starved, the budget held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.engine.decode_calls import part
from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.batch_plan import (
    EARLIEST_EVERY,
    TILE,
    PrefillBudget,
    ScheduledChunk,
    divide_prefill_budget,
    plan_batch,
)
from paddler_trio.scheduler.batching.sequences import Sequence


def sequence_of(key: int, prompt: int, sampled: int, computed: int) -> Sequence:
    made = Sequence(key, [7] * (prompt + sampled), prompt)
    made.num_computed = computed
    return made


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence]:
    found = []
    for key in range(draw(st.integers(0, 12))):
        prompt = draw(st.integers(1, 400))
        sampled = draw(st.integers(0, 20))
        computed = draw(st.integers(0, prompt + sampled - (1 if sampled else 0)))
        made = sequence_of(key, prompt, sampled, computed)
        made.drafts = draw(st.lists(st.integers(0, 9), max_size=4))
        found.append(made)
    return found


BUDGETS = st.builds(PrefillBudget, st.integers(0, 300), st.booleans())


@given(sequences(), st.integers(1, 300), st.integers(0, 100), st.none() | BUDGETS)
def test_a_plan_holds_its_budgets_and_puts_decoding_first(
    views: list[Sequence], budget: int, turn: int, prefill_budget: PrefillBudget | None
) -> None:
    chunks = plan_batch(views, token_budget=budget, prefill_budget=prefill_budget, turn=turn)
    assert sum(chunk.count + len(chunk.drafts) for chunk in chunks) <= budget
    assert len({chunk.sequence.key for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        assert chunk.start == chunk.sequence.num_computed
        assert 1 <= chunk.count <= chunk.sequence.num_missing
        assert list(chunk.drafts) == chunk.sequence.drafts[: len(chunk.drafts)]
        assert not chunk.drafts or chunk.sequence.is_generating
    generating = [view for view in views if view.is_generating]
    planned = [chunk.sequence for chunk in chunks if chunk.sequence.is_generating]
    assert len(planned) == min(len(generating), budget)
    prompts = [chunk for chunk in chunks if not chunk.sequence.is_generating]
    if prefill_budget is not None:
        assert sum(chunk.count for chunk in prompts) <= prefill_budget.tokens
    if prefill_budget is None and any(view.num_missing for view in views):
        assert chunks, "there was work and nothing was planned"


@given(
    st.lists(st.integers(0, 500), max_size=10),
    st.integers(0, 800),
    st.integers(0, 9),
)
def test_short_prompts_go_first_and_parts_are_whole_tiles(
    wants: list[int], budget: int, turn: int
) -> None:
    chunks = divide_prefill_budget(wants, budget, turn=turn)
    assert sum(chunks) <= budget
    assert all(0 <= chunk <= want for chunk, want in zip(chunks, wants, strict=True))
    hungry = [index for index, want in enumerate(wants) if want]
    if not hungry or not budget:
        assert not any(chunks)
        return
    earliest_first = turn % EARLIEST_EVERY == 0
    first = hungry[0] if earliest_first else min(hungry, key=lambda index: wants[index])
    assert chunks[first], "the first one got nothing"
    for index in hungry:
        if chunks[index] < wants[index]:
            assert chunks[index] % TILE == 0 or budget < TILE
            longer = [o for o in hungry if wants[o] > wants[index] and o != first]
            assert not any(chunks[other] for other in longer), "a longer one went first"
    left = budget - sum(chunks)
    for index in hungry:
        assert chunks[index] == wants[index] or left < TILE, "room was wasted"


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    long = sequence_of(1, 1000, 0, 0)
    for turn in range(1, 100):
        short = sequence_of(1 + turn, 60, 0, 0)
        for chunk in plan_batch(
            [long, short], token_budget=512, prefill_budget=PrefillBudget(64), turn=turn
        ):
            chunk.sequence.num_computed += chunk.count
        if long.num_missing == 0:
            break
    assert turn <= EARLIEST_EVERY * (1 + 1000 // 64)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=6), st.integers(450, 2048))
def test_prompts_in_step_come_to_their_ends_in_one_pass(wants: list[int], n_batch: int) -> None:
    prompts = [sequence_of(key, want, 0, 0) for key, want in enumerate(wants)]
    budget = PrefillBudget(n_batch, in_step=True)
    for turn in range(60):
        chunks = plan_batch(prompts, token_budget=n_batch, prefill_budget=budget, turn=turn)
        assert chunks
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        if any(prompt.num_missing == 0 for prompt in prompts):
            break
    left = sum(prompt.num_missing for prompt in prompts)
    assert left == 0 or len(wants) * 2 * TILE > n_batch, "somebody was finished early"


@given(sequences(), st.integers(1, 600))
def test_calls_of_a_pass_compute_every_chunk_once_and_the_short_prompts_first(
    views: list[Sequence], call_tokens: int
) -> None:
    chunks = plan_batch(views, token_budget=4096)
    calls = part(chunks, is_unified=False, call_tokens=call_tokens)
    assert all(calls)
    assert sorted(_keys(sum(calls, ()))) == sorted(_keys(chunks))
    prompts = [call for call in calls if not call[0].sequence.is_generating]
    order = [(not call[0].wants_logits, call[0].count) for call in prompts]
    assert order == sorted(order), "the short ones first, parts last"
    for call in prompts:
        assert {chunk.count for chunk in call} == {call[0].count}, "llama.cpp would part them"
        assert len(call) == 1 or sum(chunk.count for chunk in call) <= call_tokens
    assert len(part(chunks, is_unified=True, call_tokens=1)) <= 1


def _keys(chunks: tuple[ScheduledChunk, ...]) -> list[int]:
    return [chunk.sequence.key for chunk in chunks]


@given(st.integers(2, 20), st.integers(1, 8))
def test_more_generating_sequences_than_budget_take_turns(count: int, budget: int) -> None:
    views = [sequence_of(key, 5, 1, 5) for key in range(count)]
    rounds = 3 * count
    got = dict.fromkeys(range(count), 0)
    for turn in range(rounds):
        for chunk in plan_batch(views, token_budget=budget, turn=turn):
            got[chunk.sequence.key] += 1
    assert min(got.values()) > 0, "a stream starved"
    assert max(got.values()) - min(got.values()) <= budget + 1


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    def reason(prompt: int, sampled: int = 0, wanted: int = 5) -> str | None:
        refused = refusal(
            num_prompt_tokens=prompt, max_tokens=wanted, cells=512, num_sampled=sampled
        )
        return None if refused is None else refused.reason

    assert reason(512) is None
    assert reason(512, wanted=0) is None
    assert "the prompt is empty" in (reason(0) or "")
    assert "513 tokens" in (reason(513) or "")
    assert "512 tokens" in (reason(513) or "")
    assert "514 tokens" in (reason(510, sampled=4) or "")
    assert "max_tokens is -1" in (reason(10, wanted=-1) or "")
    assert "5 tokens were sampled already" in (reason(10, sampled=5) or "")


def test_an_answer_ends_where_its_cells_end() -> None:
    assert not sequence_of(1, 10, 4, 10).is_out_of_cells(cells=100)
    assert not sequence_of(1, 10, 2, 10).is_out_of_cells(cells=12)
    assert sequence_of(1, 10, 3, 10).is_out_of_cells(cells=12)

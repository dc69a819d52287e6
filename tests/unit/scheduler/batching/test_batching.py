"""The engine's plans: nothing twice, nothing skipped, nobody starved, the budget held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.batch_plan import plan_batch, prompt_shares
from paddler_trio.scheduler.batching.sequences import Sequence


def sequence_of(key: int, prompt: int, drawn: int, computed: int) -> Sequence:
    made = Sequence(key, [7] * (prompt + drawn), prompt)
    made.num_computed = computed
    return made


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence]:
    found = []
    for key in range(draw(st.integers(0, 12))):
        prompt = draw(st.integers(1, 400))
        drawn = draw(st.integers(0, 20))
        computed = draw(st.integers(0, prompt + drawn - (1 if drawn else 0)))
        made = sequence_of(key, prompt, drawn, computed)
        made.drafts = draw(st.lists(st.integers(0, 9), max_size=4))
        found.append(made)
    return found


@given(sequences(), st.integers(1, 300), st.integers(0, 100), st.none() | st.integers(0, 300))
def test_a_plan_holds_its_budgets_and_puts_decoding_first(
    views: list[Sequence], budget: int, turn: int, prompt_budget: int | None
) -> None:
    shares = plan_batch(views, token_budget=budget, prompt_budget=prompt_budget, turn=turn)
    assert sum(share.count + len(share.drafts) for share in shares) <= budget
    assert len({share.sequence.key for share in shares}) == len(shares)
    for share in shares:
        assert share.start == share.sequence.num_computed
        assert 1 <= share.count <= share.sequence.num_missing
        assert list(share.drafts) == share.sequence.drafts[: len(share.drafts)]
        assert not share.drafts or share.sequence.is_generating
    generating = [view for view in views if view.is_generating]
    planned = [share.sequence for share in shares if share.sequence.is_generating]
    assert len(planned) == min(len(generating), budget)
    prompts = sum(share.count for share in shares if not share.sequence.is_generating)
    assert prompt_budget is None or prompts <= prompt_budget
    if prompt_budget is None and any(view.num_missing for view in views):
        assert shares, "there was work and nothing was planned"


@given(st.lists(st.integers(0, 500), max_size=10), st.integers(0, 800))
def test_short_prompts_go_first_and_the_earliest_is_not_starved(
    wants: list[int], budget: int
) -> None:
    shares = prompt_shares(wants, budget)
    assert sum(shares) == min(budget, sum(wants))
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    hungry = [index for index, want in enumerate(wants) if want]
    for index in hungry[1:]:
        if shares[index] < wants[index]:
            longer = [other for other in hungry[1:] if wants[other] > wants[index]]
            assert not any(shares[other] for other in longer), "a longer one went first"
    if hungry:
        assert shares[hungry[0]] >= min(wants[hungry[0]], budget / 4)


@given(st.integers(2, 20), st.integers(1, 8))
def test_more_generating_sequences_than_budget_take_turns(count: int, budget: int) -> None:
    views = [sequence_of(key, 5, 1, 5) for key in range(count)]
    rounds = 3 * count
    got = dict.fromkeys(range(count), 0)
    for turn in range(rounds):
        for share in plan_batch(views, token_budget=budget, turn=turn):
            got[share.sequence.key] += 1
    assert min(got.values()) > 0, "a stream starved"
    assert max(got.values()) - min(got.values()) <= budget + 1


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    def reason(prompt: int, drawn: int = 0, wanted: int = 5) -> str | None:
        refused = refusal(num_prompt_tokens=prompt, max_tokens=wanted, cells=512, num_drawn=drawn)
        return None if refused is None else refused.reason

    assert reason(512) is None
    assert reason(512, wanted=0) is None
    assert "the prompt is empty" in (reason(0) or "")
    assert "513 tokens" in (reason(513) or "")
    assert "512 tokens" in (reason(513) or "")
    assert "514 tokens" in (reason(510, drawn=4) or "")
    assert "max_tokens is -1" in (reason(10, wanted=-1) or "")
    assert "5 tokens were drawn already" in (reason(10, drawn=5) or "")


def test_an_answer_ends_where_its_cells_end() -> None:
    assert not sequence_of(1, 10, 4, 10).drawn_out(cells=100)
    assert not sequence_of(1, 10, 2, 10).drawn_out(cells=12)
    assert sequence_of(1, 10, 3, 10).drawn_out(cells=12)

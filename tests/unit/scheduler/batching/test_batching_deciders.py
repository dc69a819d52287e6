"""Prefill budget, prefixes, stored prefixes, drafts and the reasoning limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.anticipation import Anticipation
from paddler_trio.scheduler.batching.batch_plan import PrefillBudget
from paddler_trio.scheduler.batching.drafts import Drafting, guess_next
from paddler_trio.scheduler.batching.prefill_controller import (
    FIRST_CHUNK,
    SMALLEST_CHUNK,
    PrefillController,
)
from paddler_trio.scheduler.batching.prefix_store import PrefixStore
from paddler_trio.scheduler.batching.prefixes import MemoryRules, common_prefix
from paddler_trio.scheduler.batching.reasoning_limit import ReasoningLimit

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 200))
def test_a_common_prefix_is_what_one_would_count(
    shared: list[int], a: list[int], b: list[int], limit: int
) -> None:
    left, right = shared * 5 + a, shared * 5 + b
    counted = 0
    while counted < min(len(left), len(right), limit) and left[counted] == right[counted]:
        counted += 1
    assert common_prefix(left, right, limit) == counted


def test_a_memory_serves_only_what_it_still_has() -> None:
    assert MemoryRules().usable(3, length=10, first_position=0) == 3
    recurrent = MemoryRules(can_trim=False)
    assert recurrent.usable(9, length=10, first_position=0) == 0
    assert recurrent.usable(10, length=10, first_position=9) == 10
    sliding = MemoryRules(window=4)
    assert sliding.usable(8, length=10, first_position=4) == 8
    assert sliding.usable(8, length=10, first_position=5) == 0
    assert sliding.usable(2, length=10, first_position=0) == 2


def _measured(
    prefill_controller: PrefillController, *, generating: int, alone_ms: float, token_ms: float
) -> PrefillController:
    for _ in range(30):
        prefill_controller.measured(generating=generating, prompt_tokens=0, pass_ms=alone_ms)
        prefill_controller.measured(generating=0, prompt_tokens=100, pass_ms=100 * token_ms)
    return prefill_controller


def test_a_pass_with_prompts_is_sized_to_stay_under_its_target() -> None:
    prefill_controller = PrefillController(target_ms=100)
    assert prefill_controller.prefill_budget(3, limit=2048) == PrefillBudget(FIRST_CHUNK)
    _measured(prefill_controller, generating=3, alone_ms=20, token_ms=0.4)
    budget = prefill_controller.prefill_budget(3, limit=2048)
    assert 190 <= budget.tokens <= 210
    assert prefill_controller.prefill_budget(3, limit=50).tokens == 50
    _measured(prefill_controller, generating=8, alone_ms=150, token_ms=0.4)
    assert prefill_controller.prefill_budget(8, limit=2048).tokens == SMALLEST_CHUNK, (
        "a prompt never starves"
    )


def test_prompts_without_generation_beside_them_keep_in_step_unless_it_takes_long() -> None:
    prefill_controller = PrefillController()
    assert prefill_controller.prefill_budget(
        0, limit=2048, ingesting=3, missing=900
    ) == PrefillBudget(512)
    _measured(prefill_controller, generating=1, alone_ms=10, token_ms=1)
    assert prefill_controller.prefill_budget(0, limit=2048) == PrefillBudget(512), (
        "a prompt that is alone comes in parts"
    )
    budget = prefill_controller.prefill_budget(0, limit=2048, ingesting=3, missing=1900)
    assert budget == PrefillBudget(2048, in_step=True)
    budget = prefill_controller.prefill_budget(0, limit=2048, ingesting=3, missing=2100)
    assert budget == PrefillBudget(400), "the short ones go first"


def test_the_controller_chooses_its_target_from_what_a_pass_takes_alone() -> None:
    def chunk(alone_ms: float) -> int:
        prefill_controller = _measured(
            PrefillController(), generating=2, alone_ms=alone_ms, token_ms=1
        )
        return prefill_controller.prefill_budget(2, limit=4096).tokens

    assert 130 <= chunk(30) <= 140, "five and a half times 30 ms, at 1 ms a token"
    assert 75 <= chunk(1) <= 80, "shorter passes would only cost"


def test_a_first_token_waits_for_others_that_would_make_it_pause() -> None:
    assert PrefillController().is_short(10**6), "nothing was measured"
    prefill_controller = _measured(PrefillController(), generating=1, alone_ms=9, token_ms=1)
    assert prefill_controller.is_short(140)
    assert not prefill_controller.is_short(160)


def test_prompts_come_in_calls_that_are_worth_it() -> None:
    assert PrefillController().call_tokens() == FIRST_CHUNK
    assert (
        _measured(PrefillController(), generating=1, alone_ms=9, token_ms=1).call_tokens()
        == FIRST_CHUNK
    )
    assert (
        _measured(PrefillController(), generating=1, alone_ms=9, token_ms=0.1).call_tokens() == 800
    )


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 500), st.floats(0.01, 900))))
def test_a_controller_never_starves_prompts_nor_passes_its_limit(
    passes: list[tuple[int, int, float]],
) -> None:
    prefill_controller = PrefillController()
    for generating, prompt_tokens, pass_ms in passes:
        prefill_controller.measured(
            generating=generating, prompt_tokens=prompt_tokens, pass_ms=pass_ms
        )
        budget = prefill_controller.prefill_budget(generating, limit=512, unit=256)
        assert SMALLEST_CHUNK <= budget.tokens <= 512
        assert prefill_controller.call_tokens() >= FIRST_CHUNK


@given(
    st.lists(st.tuples(TOKENS.filter(bool), st.sampled_from("ab"), st.integers(1, 60))),
    TOKENS.filter(bool),
    st.integers(0, 100),
)
def test_stored_prefixes_hold_their_budget_and_serve_only_their_salt(
    offers: list[tuple[list[int], str, int]], tokens: list[int], ready: int
) -> None:
    store = PrefixStore(budget_bytes=100)
    store.ready_bytes = ready
    memory: list[tuple[list[int], str] | None] = [None] * 100
    """What was copied last to each byte."""
    for offered, salt, num_bytes in offers:
        if not store.is_ready_for(num_bytes):
            store.ready_bytes = min(100, store.ready_bytes + num_bytes)
        if store.is_ready_for(num_bytes) and store.wants(offered, salt, num_bytes):
            offset = store.add(offered, salt, num_bytes)
            assert offset + num_bytes <= store.ready_bytes
            memory[offset : offset + num_bytes] = [(offered, salt)] * num_bytes
            assert store.keeps(offered, salt)
        assert store.num_bytes <= store.ready_bytes
    kept = {
        tuple(stored)
        for stored, salt in filter(None, memory)
        if salt == "a" and store.keeps(stored, salt)
    }
    found = store.find(tokens, "a", better_than=0)
    best = max((common_prefix(list(k), tokens, len(tokens) - 1) for k in kept), default=0)
    assert (0 if found is None else found.length) == best
    if found is not None:
        copied = memory[found.offset : found.offset + found.num_bytes]
        assert all(byte == copied[0] for byte in copied), "something was copied over it"
        assert copied[0] is not None
        stored, salt = copied[0]
        assert salt == "a"
        assert len(stored) == found.size
        assert stored[: found.length] == tokens[: found.length]
    assert store.find(tokens, None, better_than=0) is None


def test_the_store_grows_before_anything_goes() -> None:
    store = PrefixStore(budget_bytes=100)
    store.ready_bytes = 40
    assert store.wants([1], "", 40)
    assert store.add([1], "", 40) == 0
    assert not store.is_ready_for(40)
    store.ready_bytes = 100
    assert store.add([2], "", 40) == 40
    assert store.is_ready_for(40), "no more memory will ever be ready"
    assert store.add([3], "", 40) == 0
    assert not store.keeps([1], "")
    assert store.keeps([2], "")


def test_storing_becomes_rare_while_nothing_stored_is_of_use() -> None:
    store = PrefixStore(budget_bytes=10**6)
    stored = 0
    for number in range(400):
        if store.wants([number, 1, 2], "", 10):
            store.add([number, 1, 2], "", 10)
            stored += 1
    assert 60 < stored < 100
    assert store.find([0, 1, 2, 3], "", better_than=0) is not None
    assert sum(store.wants([n, 7], "", 10) for n in range(16)) == 16, "it is of use again"


def test_what_does_not_fit_the_store_is_not_wanted() -> None:
    store = PrefixStore(budget_bytes=10)
    assert not store.wants([1, 2], "", 11)
    assert store.wants([1, 2], "", 10)
    store.add([1, 2, 3], "", 10)
    assert not store.wants([1, 2], "", 5), "the stored one begins with it"
    assert store.wants([1, 2], "other", 5)


def test_guesses_repeat_what_followed_before() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 9, 2, 3, 4]
    assert guess_next(text, count=3) == [5, 6, 9]
    assert guess_next([1, 2, 3], count=3) == []
    assert guess_next(text, count=0) == []
    assert guess_next([7] * 10, count=4) == [7]


@given(TOKENS, st.integers(1, 8))
def test_a_guess_has_stood_in_the_text(tokens: list[int], count: int) -> None:
    guess = guess_next(tokens, count=count)
    assert len(guess) <= count
    if guess:
        joined = ",".join(map(str, tokens))
        assert ",".join(map(str, tokens[-2:] + guess)) in joined


def test_wrong_guesses_make_pauses() -> None:
    drafting = Drafting(4)
    text = [1, 2, 3, 1, 2]
    assert drafting.guess(text) == [3, 1, 2]
    drafting.judged(3, 3)
    assert drafting.guess(text)
    for _ in range(6):
        drafting.judged(3, 0)
    pauses = 0
    while not drafting.guess(text):
        pauses += 1
    assert 10 < pauses < 100
    assert (drafting.num_drafted, drafting.num_accepted) == (21, 3)


def _reasoned(limit: ReasoningLimit, wanted: list[int]) -> list[int]:
    sampled = []
    for token in wanted:
        forced = limit.forced()
        sampled.append(token if forced is None else forced)
        limit.sampled(sampled[-1])
    return sampled


def test_reasoning_is_closed_after_its_budget() -> None:
    limit = ReasoningLimit(3, (), (8, 9), is_open=True)
    assert _reasoned(limit, [1, 2, 3, 4, 5, 6, 7]) == [1, 2, 3, 8, 9, 6, 7]


def test_a_closing_marker_that_was_put_off_comes_next() -> None:
    limit = ReasoningLimit(1, (), (8, 9), is_open=True)
    limit.sampled(1)
    assert limit.forced() == 8
    limit.sampled(2)
    assert limit.forced() == 8
    limit.sampled(8)
    assert limit.forced() == 9
    limit.sampled(9)
    assert limit.forced() is None


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    limit = ReasoningLimit(5, (7,), (8, 9), is_open=False)
    sampled = [1, 1, 1, 1, 1, 1, 7, 1, 1, 8, 9, 1, 1, 1, 1, 1, 7, 1, 1, 1, 1, 1, 1]
    assert _reasoned(limit, sampled) == sampled


def test_reasoning_that_begins_later_is_counted_from_there() -> None:
    limit = ReasoningLimit(2, (7, 7), (9,), is_open=False)
    assert _reasoned(limit, [1, 1, 1, 7, 7, 2, 2, 2, 2]) == [1, 1, 1, 7, 7, 2, 2, 9, 2]
    assert _reasoned(ReasoningLimit(0, (), (9,), is_open=True), [1, 2]) == [9, 2]


def test_what_cannot_be_cut_is_stored_at_every_length() -> None:
    for rules, wanted in ((MemoryRules(), False), (MemoryRules(can_trim=False), True)):
        store = PrefixStore(budget_bytes=1000, rules=rules)
        store.add([1, 2, 3, 4], "", 10)
        assert not store.wants([1, 2, 3, 4], "", 10)
        assert store.wants([1, 2, 3], "", 10) == wanted
        assert store.wants([1, 2, 5], "", 10)


def test_a_pass_waits_for_successors_where_they_come_and_rarely_where_they_do_not() -> None:
    anticipation = Anticipation()
    assert anticipation.wait_s(4) == 0, "a pass is over sooner"
    assert anticipation.wait_s(20) == 0.005
    assert anticipation.wait_s(400) == 0.01
    waits = 0
    for _ in range(640):
        if anticipation.wait_s(20):
            waits += 1
            anticipation.waited(came=False)
    assert 20 <= waits <= 26
    while not anticipation.wait_s(20):
        pass
    anticipation.waited(came=True)
    assert all(anticipation.wait_s(20) for _ in range(10))

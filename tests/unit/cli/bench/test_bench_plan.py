"""The order of runs, what is asked in them, and the bounds of all that."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.workloads import Sizes, Workload, asks, text_of
from paddler_trio.errors import ConfigurationError

PLANS = st.builds(
    BenchPlan,
    workloads=st.lists(st.sampled_from(Workload), min_size=1, unique=True).map(tuple),
    concurrencies=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True).map(tuple),
    rounds=st.integers(1, 5),
    requests=st.integers(1, 5),
    num_targets=st.integers(1, 2),
)
SIZES = Sizes(prompt_words=9, prefix_words=30, long_words=40, max_tokens=5)


@given(PLANS)
def test_every_combination_has_one_run(plan: BenchPlan) -> None:
    found = Counter((t.workload, t.concurrency, t.round, t.target) for t in plan.runs)
    assert set(found.values()) == {1}
    levels = len(plan.workloads) * len(plan.concurrencies) * plan.rounds
    assert len(found) == levels * plan.num_targets
    assert [run.number for run in plan.runs] == list(range(len(found)))
    assert plan.num_requests == sum(plan.num_requests_of(run) for run in plan.runs)


@given(PLANS)
def test_targets_meet_each_occasion_next_to_each_other_and_take_turns_to_be_first(
    plan: BenchPlan,
) -> None:
    firsts = []
    for _, group in groupby(plan.runs, key=lambda run: run.occasion):
        pair = list(group)
        assert sorted(run.target for run in pair) == list(range(plan.num_targets))
        assert len({(run.workload, run.concurrency, run.round) for run in pair}) == 1
        firsts.append(pair[0].target)
    counts = Counter(firsts)
    assert max(counts.values()) - min(counts[n] for n in range(plan.num_targets)) <= 1


def test_the_longest_time_is_that_of_all_turns_unless_everything_is_bounded_before() -> None:
    plan = BenchPlan(
        concurrencies=(1, 2), rounds=3, run_s=10, timeout_s=5, num_targets=2, max_s=1e4
    )
    assert plan.longest_s == 2 * 5 + 12 * 15
    assert BenchPlan().longest_s == 600


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"concurrencies": ()}, "must have 1 to 16 numbers"),
        ({"concurrencies": (1, 0)}, "1,0 has 0, and must have numbers from 1 to 1024"),
        ({"concurrencies": (2048,)}, "has 2048"),
        ({"concurrencies": (2, 2)}, "each number once"),
        ({"workloads": (Workload.plain, Workload.plain)}, "each workload once"),
        ({"concurrencies": (1000,), "requests": 101}, "these are 202000 requests, and 200000"),
        ({"sizes": Sizes(max_tokens=100_000)}, "tokens are more than 8000000 tokens"),
    ],
)
def test_what_is_too_much_is_refused_with_what_to_lower(wrong: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        BenchPlan(**wrong)


@given(st.integers(1, 100), st.randoms(use_true_random=False))
def test_a_text_has_as_many_words_as_it_should(words: int, random: Random) -> None:
    assert len(text_of(words, random).split()) == words


def texts(workload: Workload, *, seed: int = 1, target: int = 0, occasion: int = 0) -> list[str]:
    found = asks(workload, SIZES, seed=seed, target=target, occasion=occasion, count=16)
    return [ask.text for ask in found]


@given(st.sampled_from(Workload), st.integers(0, 2**32 - 1))
def test_a_seed_makes_the_same_prompts_again(workload: Workload, seed: int) -> None:
    assert texts(workload, seed=seed) == texts(workload, seed=seed)
    assert texts(workload, seed=seed) != texts(workload, seed=seed + 1)


@pytest.mark.parametrize("workload", [Workload.plain, Workload.mixed])
def test_no_prompt_begins_like_another_one_of_any_turn_or_target(workload: Workload) -> None:
    found = [
        text.split()[0]
        for target in range(2)
        for occasion in range(5)
        for text in texts(workload, target=target, occasion=occasion)
    ]
    assert len(set(found)) == len(found)


def test_prompts_with_a_prefix_share_it_in_all_turns_against_a_target_and_not_with_another() -> (
    None
):
    found = texts(Workload.prefix) + texts(Workload.prefix, occasion=3)
    prefixes = {text.partition("\n\n")[0] for text in found}
    assert len(prefixes) == 1
    assert len(prefixes.pop().split()) == SIZES.prefix_words
    assert len({text.partition("\n\n")[2] for text in found}) == len(found)
    assert texts(Workload.prefix, target=1)[0].split()[0] != found[0].split()[0]


@given(st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_one_prompt_in_four_is_long_at_the_same_places_for_both_targets(
    seed: int, occasion: int
) -> None:
    kinds = []
    for target in range(2):
        found = list(
            asks(Workload.mixed, SIZES, seed=seed, target=target, occasion=occasion, count=16)
        )
        kinds.append([ask.kind for ask in found])
        for ask in found:
            words = SIZES.long_words if ask.kind == "long" else SIZES.prompt_words
            assert len(ask.text.split()) == words
    assert kinds[0] == kinds[1]
    for start in range(0, 16, 4):
        assert kinds[0][start : start + 4].count("long") == 1


def test_plain_prompts_are_of_one_length_and_one_length_of_answer() -> None:
    found = list(asks(Workload.plain, SIZES, seed=3, target=0, occasion=0, count=7))
    assert [len(ask.text.split()) for ask in found] == [9] * 7
    assert {ask.max_tokens for ask in found} == {5}

"""Replays of arrivals in virtual time, and what is said of them."""

from __future__ import annotations

import random
import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.processes.capacity.capacity_question import REFUSED, answered, asked
from paddler_trio.scheduler.capacity.capacity import (
    Question,
    Site,
    answer,
    holds,
    percentile,
    replay,
)
from paddler_trio.scheduler.capacity.replayed_arrivals import (
    BLOCK_TOKENS,
    MAX_ARRIVALS,
    Arrival,
    arrivals_in,
    turns_of,
)
from paddler_trio.scheduler.capacity.speeds import (
    ENOUGH,
    MAX_SAMPLES,
    Sample,
    SpeedSamples,
    slowing_of,
    speed_of,
    speeds_of,
)
from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed
from paddler_trio.scheduler.virtual.virtual_fleet import StoppedError
from paddler_trio.wire.json_text import loads

SPEED = EngineSpeed(budget=None, lag_s=0.005)
SEVERAL = settings(max_examples=30, deadline=None)


def fleet_of(agents: int, slots: int = 2, **more: object) -> Question:
    sites = [Site(name=f"a{n}", slots=slots, speed=SPEED) for n in range(agents)]
    return attrs.evolve(Question(agents=sites, target_s=1.0), **more)


def steady(number: int, every_s: float, prompt: int = 300, tokens: int = 40) -> list[Arrival]:
    return [Arrival(every_s * n, prompt, tokens) for n in range(number)]


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 60),
        st.integers(1, 3000),
        st.integers(1, 60),
        st.integers(0, 3),
        st.integers(-1, 30),
        st.integers(0, 3000),
    ),
    min_size=1,
    max_size=60,
)


# ------------------------------------------------------------------------------------- replays


@SEVERAL
@given(ARRIVALS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([0, 3, 1000]))
def test_nothing_is_lost_and_the_same_comes_of_the_same(
    arrivals: list[Arrival], agents: int, slots: int, buffered: int
) -> None:
    question = fleet_of(agents, slots, max_buffered=buffered, patience_s=2.0, target_s=1e-6)
    found = replay(question, arrivals)
    assert found == replay(question, arrivals)
    assert found.requests == len(arrivals)
    assert found.breaks is not None
    assert sum(found.breaks.counts.values()) == len(arrivals)  # no first token is that early
    assert found.answered >= 1
    assert 0.0 <= found.busy <= 1.0 + 1e-9


@SEVERAL
@given(st.integers(0, 2**32), st.integers(1, 3), st.floats(0.05, 2.0))
def test_with_more_agents_no_fewer_are_answered(seed: int, agents: int, every_s: float) -> None:
    """Prompts that begin like no other: what is where changes nothing."""
    dice = random.Random(seed)
    arrivals = [Arrival(every_s * n, dice.randint(50, 800), dice.randint(5, 50)) for n in range(60)]
    few, more = (
        replay(fleet_of(each, max_buffered=5, patience_s=1.0, target_s=1e-6), arrivals)
        for each in (agents, 2 * agents)
    )
    assert more.answered >= few.answered
    assert (more.ttft_p95_s or 1e9) <= (few.ttft_p95_s or 1e9) * 1.1 + 0.05


@SEVERAL
@given(ARRIVALS, st.floats(0.05, 5.0))
def test_whether_it_holds_is_the_same_where_hopeless_replays_are_broken_off(
    arrivals: list[Arrival], target_s: float
) -> None:
    arrivals = 20 * arrivals
    question = fleet_of(1, target_s=target_s, patience_s=3.0)
    assert holds(question, arrivals, lambda: True) == replay(question, arrivals).holds


def test_a_wait_that_is_too_long_and_a_full_queue_are_told_apart() -> None:
    crowd = steady(30, 0.0)
    full = replay(fleet_of(1, 1, max_buffered=4), crowd)
    assert full.breaks is not None
    assert full.breaks.kind == "queue full"
    assert full.breaks.counts["queue full"] == 25
    waits = replay(fleet_of(1, 1, max_buffered=100, patience_s=3.0), crowd)
    assert waits.breaks is not None
    assert waits.breaks.kind == "waits"
    assert waits.answered < 30
    slow = replay(fleet_of(8, 2, target_s=0.3), steady(5, 10.0, prompt=3000))
    assert slow.breaks is not None
    assert slow.breaks.kind == "first token"
    assert slow.breaks.counts == {"first token": 5}


def test_what_begins_alike_is_computed_once() -> None:
    arrivals = [Arrival(0.0, 2000, 10)]
    arrivals += [Arrival(5.0 * n, 2000, 10, 0, 0, 1990) for n in range(1, 10)]
    alone = [attrs.evolve(each, shares_with=-1, shared_tokens=0) for each in arrivals]
    shared, single = (replay(fleet_of(3), each).ttft_p50_s for each in (arrivals, alone))
    assert shared is not None
    assert single is not None
    assert shared < 0.2 * single


def test_those_that_share_with_one_that_is_not_there_begin_alike() -> None:
    turns = turns_of([Arrival(n, 640, 10, 0, 77, 320) for n in range(3)])
    hashes = [set(turn.prompt.hashes) for _, turn in turns]
    assert len(hashes[0] & hashes[1] & hashes[2]) == 320 // BLOCK_TOKENS
    assert all(len(each) == 640 // BLOCK_TOKENS for each in hashes)


# ------------------------------------------------------------------------------------- answers


def test_what_would_hold_does_hold_and_a_little_less_does_not() -> None:
    arrivals = steady(120, 0.4)
    question = fleet_of(1, 1, max_buffered=1000, patience_s=1000.0)
    found = answer(question, arrivals)
    assert not found.replayed.holds
    assert found.is_whole
    slots, agents, at = found.slots_that_do, found.agents_that_do, found.at_that_holds
    assert slots is not None
    assert agents is not None
    assert at is not None
    for change, less in (
        ({"slots": slots}, {"slots": slots - 1}),
        ({"more_agents": agents}, {"more_agents": agents - 1}),
        ({"at": at}, {"at": at + 0.1}),
    ):
        assert replay(attrs.evolve(question, **change), arrivals).holds
        assert not replay(attrs.evolve(question, **less), arrivals).holds


def test_a_fleet_that_holds_is_asked_how_much_more_it_bears() -> None:
    found = answer(fleet_of(2), steady(80, 1.0))
    assert found.replayed.holds
    assert found.at_that_holds is not None
    assert found.at_that_holds >= 1.5
    assert (found.slots_that_do, found.agents_that_do) == (None, None)


def test_time_that_is_over_is_said_and_what_was_found_is_kept() -> None:
    looks = iter(range(10_000))
    found = answer(fleet_of(1, 1), steady(120, 0.4), lambda: next(looks) < 3)
    assert not found.is_whole
    assert found.replayed.requests == 120
    with pytest.raises(StoppedError):
        answer(fleet_of(1, 1), steady(120, 0.4), lambda: False)


def test_a_question_goes_between_processes_as_json() -> None:
    question, arrivals = fleet_of(2), steady(40, 0.5)
    status, said = answered(asked(question, arrivals), 1.0, lambda: True)
    assert status == 0
    found = loads(said)
    assert isinstance(found, dict)
    assert found["replayed"] == attrs.asdict(replay(question, arrivals))
    status, said = answered(asked(question, arrivals), 1.5, lambda: False)
    assert status == REFUSED
    assert said.startswith(b"the replay of 40 requests on 2 agents takes longer than 1.5 s")


# -------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "0 arrivals, must be 1 to 20000"),
        ([[0, 1, 1]] * (MAX_ARRIVALS + 1), "20001 arrivals"),
        ([[0, 1]], "row 0 must be a list of at_s, prompt_tokens"),
        ([[0, 1, 1], [0, 0, 1]], "prompt_tokens of row 1 is 0, must be a number from 1 to 1048576"),
        ([[0, 1, True]], "answer_tokens of row 0 is True"),
        ([["x", 1, 1]], "at_s of row 0 is 'x'"),
        ([[float("nan"), 1, 1]], "at_s of row 0 is nan"),
        ([[0, 1, 1], [1e9, 1, 1]], "the arrivals span more than 604800 s"),
    ],
)
def test_bad_arrivals_are_named(rows: list[object], what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)):
        arrivals_in(rows)


def test_too_many_blocks_are_refused_in_no_time() -> None:
    rows = [Arrival(n, 1_048_576, 1, 0, 0, 1_048_576 if n else 0) for n in range(1000)]
    with pytest.raises(ValueError, match="have more than 4000000 blocks"):
        turns_of(rows)


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(0, 10))
def test_a_percentile_counts_those_without_a_time_last(times: list[float], without: int) -> None:
    times = sorted(times)
    found = percentile(times, 0.95, len(times) + without)
    if found is None:
        assert len(times) < 0.95 * (len(times) + without) or not times
    else:
        assert sum(each <= found for each in times) >= 0.95 * (len(times) + without) - 1e-9


# -------------------------------------------------------------------------------------- speeds


@SEVERAL
@given(
    st.floats(100, 50_000), st.floats(0.001, 0.1), st.floats(0.0001, 0.02), st.integers(0, 2**32)
)
def test_speeds_are_found_again_in_what_they_cause(
    tokens_per_s: float, pass_s: float, token_s: float, seed: int
) -> None:
    dice, samples = random.Random(seed), SpeedSamples()
    for _ in range(200):
        together, tokens, prompts = dice.uniform(1, 6), dice.randint(10, 200), dice.randint(0, 999)
        took_s = tokens * (pass_s + token_s * together) + prompts / tokens_per_s
        samples.add_answer(tokens=tokens, together=together, prompt_tokens=prompts, took_s=took_s)
        computed = dice.randint(100, 4000)
        samples.add_prompt(
            tokens=computed,
            passes=1.0,
            together=0.0,
            took_s=pass_s + computed / tokens_per_s,
            lag_s=0.01,
        )
    speed = speed_of(samples.all(), 1000)
    assert speed is not None
    for tokens, together, prompts in ((100, 1, 0), (100, 3, 500), (100, 6, 500), (1, 1, 2000)):
        took_s, found_s = (
            tokens * (a_pass_s + a_token_s * together) + prompts / per_s
            for a_pass_s, a_token_s, per_s in (
                (pass_s, token_s, tokens_per_s),
                (speed.pass_s, speed.token_s, speed.tokens_per_s),
            )
        )
        assert found_s == pytest.approx(took_s, rel=0.1)
    assert speed.lag_s == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("slowing", [0.0, 0.3])
def test_agents_that_slow_each_other_are_known_from_those_that_do_not(slowing: float) -> None:
    dice, samples = random.Random(3), SpeedSamples()
    for _ in range(100):
        others, together = dice.uniform(0, 2), dice.uniform(1, 4)
        factor = (1 + slowing * others) * dice.uniform(0.9, 1.1)
        samples.add_answer(
            tokens=100,
            together=together,
            prompt_tokens=0,
            took_s=factor * (1 + together),
            others=others,
        )
        samples.add_prompt(
            tokens=1000, passes=1.0, together=0.0, took_s=factor * 0.5, others=others
        )
    assert slowing_of(samples.all()) == pytest.approx(slowing, abs=0.11 if slowing else 0.0)
    speeds, _ = speeds_of([(samples.all(), 1)])
    assert speeds is not None
    assert speeds[0].slowing == slowing_of(samples.all())
    assert speeds[0].pass_s + 2 * speeds[0].token_s == pytest.approx(0.03, rel=0.1)


def test_slowed_agents_are_replayed_so_and_new_ones_have_machines_of_their_own() -> None:
    arrivals = steady(40, 0.5)
    sharing = attrs.evolve(SPEED, slowing=0.5)
    sites = [Site(name=f"a{n}", slots=2, speed=sharing) for n in range(3)]
    alone, shared = (
        replay(attrs.evolve(fleet_of(3), agents=each, target_s=1e-6), arrivals).ttft_p95_s
        for each in (fleet_of(3).agents, sites)
    )
    assert alone is not None
    assert shared is not None
    assert shared > 1.1 * alone
    added = attrs.evolve(fleet_of(3), agents=sites, more_agents=2).sites()
    assert [site.speed.slowing for site in added] == [0.5, 0.5, 0.5, 0.0, 0.0]


def test_of_answers_that_were_alone_half_is_the_pass_s() -> None:
    samples = SpeedSamples()
    for _ in range(20):
        samples.add_answer(tokens=100, together=1.0, prompt_tokens=0, took_s=2.0)
        samples.add_prompt(tokens=1000, passes=1.0, together=0.0, took_s=1.0)
    speed = speed_of(samples.all(), 1)
    assert speed is not None
    assert speed.pass_s + speed.token_s == pytest.approx(0.02, rel=0.02)
    assert speed.token_s == pytest.approx(0.01, rel=0.1)


def test_an_agent_with_few_samples_is_as_the_others() -> None:
    def measured(times: int, factor: float) -> list[Sample]:
        samples = SpeedSamples()
        for _ in range(times):
            samples.add_answer(tokens=100, together=1.0, prompt_tokens=0, took_s=2.0 * factor)
            samples.add_prompt(tokens=1000, passes=1.0, together=0.0, took_s=factor)
        return samples.all()

    many = 4 * ENOUGH
    speeds, _ = speeds_of([(measured(many, 1.0), 1), (measured(many, 2.0), 1), ([], 1)])
    assert speeds is not None
    assert speeds[0].tokens_per_s == pytest.approx(2 * speeds[1].tokens_per_s, rel=0.05)
    assert speeds[1].tokens_per_s < speeds[2].tokens_per_s < speeds[0].tokens_per_s
    assert speeds_of([([], 1)]) == (None, 0.0)


def test_the_newest_samples_count() -> None:
    samples = SpeedSamples()
    for number in range(3 * MAX_SAMPLES):
        samples.add_answer(tokens=1 + number, together=1.0, prompt_tokens=0, took_s=1.0)
    found = [each.passes for each in samples.all()]
    assert found == list(range(2 * MAX_SAMPLES + 1, 3 * MAX_SAMPLES + 1))

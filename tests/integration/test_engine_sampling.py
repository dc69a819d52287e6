"""No number and no text of a :class:`Sampling` ends an engine or makes it large."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from engine_client import DICE, GREEDY, LOAD, STORY, Engine, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES, Sampling, sampling_problem

SPARE_BYTES = 512 * 1024 * 1024
"""So much more may a sampling make an engine map: threads reserve much that they never touch."""
EDGES = [0, 1, -1, 2, 2**31 - 1, -(2**31), 2**31, 2**63, 1e-45, 0.5, 3.4e38, -3.4e38, 1e308]
WINDOWS = [-1, 0, 1, 64, 2**31 - 1]
WHOLE = {field.name for field in attrs.fields(Sampling) if field.type in (int, "int")}


@pytest.fixture(scope="module")
def engine(vocabulary: Vocabulary) -> Iterator[Engine]:
    with running(vocabulary) as engine:
        engine.load(LOAD)
        engine.start(1, STORY, sampling=DICE, max_tokens=4)
        engine.until_ended(1)
        limit = mapped_bytes(engine) + SPARE_BYTES
        resource.prlimit(engine.process.pid, resource.RLIMIT_AS, (limit, limit))
        yield engine


def mapped_bytes(engine: Engine) -> int:
    pages = int(Path(f"/proc/{engine.process.pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def next_key(engine: Engine) -> int:
    return max(engine.endings) + 1


def sampled(engine: Engine, sampling: Sampling, **more: object) -> list[int]:
    key = next_key(engine)
    engine.start(key, STORY, sampling=sampling, **more)  # type: ignore[arg-type]
    engine.until_ended(key)
    assert engine.endings[key].reason in ("length", "stop"), engine.endings[key]
    return engine.sampled[key]


def numbers(name: str) -> st.SearchStrategy[float]:
    """In range, its ends among them."""
    if name == "seed":
        return st.sampled_from([0, 2**32 - 1])
    low, high = PARAMETERS[name].low, PARAMETERS[name].high
    if name in WHOLE:
        edges = sorted({int(low), int(high)} | {each for each in WINDOWS if low <= each <= high})
        return st.one_of(st.sampled_from(edges), st.integers(int(low), int(high)))
    edge = st.sampled_from([low, high, max(low, 1e-45)])
    return st.one_of(edge, st.floats(low, high))


def odd_numbers(name: str) -> st.SearchStrategy[float]:
    """Anything the pipe carries."""
    if name in WHOLE:
        return st.sampled_from([edge for edge in EDGES if isinstance(edge, int)])
    return st.sampled_from([*map(float, EDGES), math.nan, math.inf, -math.inf])


def samplings(n_vocab: int, *, is_odd: bool) -> st.SearchStrategy[Sampling]:
    """A few fields away from the usual at a time."""
    number = odd_numbers if is_odd else numbers
    fields = {name: number(name) for name in [*PARAMETERS, "seed"]}
    biases = [-math.inf, -3.4e38, 3.4e38, *([math.nan, math.inf] if is_odd else [])]
    tokens = st.integers(-1, n_vocab) if is_odd else st.integers(0, n_vocab - 1)
    stages = [*STAGES, "unknown"] if is_odd else list(STAGES)
    fields |= {
        "samplers": st.lists(st.sampled_from(stages), max_size=9, unique=not is_odd),
        "dry_sequence_breakers": st.lists(st.text(max_size=8), max_size=20 if is_odd else 8),
        "penalize_prompt": st.booleans(),
        "ignore_eos": st.booleans(),
        "logit_bias": st.one_of(
            st.dictionaries(tokens, st.sampled_from(biases)),
            st.just(dict.fromkeys(range(n_vocab), -math.inf)),
        ),
    }
    changes = st.sets(st.sampled_from(sorted(fields)), max_size=8).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in sorted(names)})
    )
    usual = attrs.evolve(DICE, dry_multiplier=0.8)
    return st.builds(
        lambda base, more: attrs.evolve(base, **more), st.sampled_from([usual, GREEDY]), changes
    )


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_in_range_is_answered(engine: Engine, data: st.DataObject) -> None:
    n_vocab = engine.vocabulary.n_tokens
    sampling = data.draw(samplings(n_vocab, is_odd=False))
    logprobs = data.draw(st.sampled_from([-1, 0, 128]))
    assert sampling_problem(sampling, n_vocab=n_vocab, logprobs=logprobs) is None
    sampled(engine, sampling, max_tokens=3, logprobs=logprobs)


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_out_of_range_costs_its_own_request(
    engine: Engine, data: st.DataObject
) -> None:
    n_vocab = engine.vocabulary.n_tokens
    sampling = data.draw(samplings(n_vocab, is_odd=True))
    logprobs = data.draw(st.sampled_from([-1, -2, 129, 2**31 - 1]))
    problem = sampling_problem(sampling, n_vocab=n_vocab, logprobs=logprobs)
    if problem is None:
        sampled(engine, sampling, max_tokens=3, logprobs=logprobs)
        return
    key = next_key(engine)
    engine.start(key, STORY, sampling=sampling, max_tokens=3, logprobs=logprobs)
    engine.until_ended(key)
    assert (engine.endings[key].reason, engine.endings[key].detail) == ("refused", problem)


@pytest.mark.parametrize("penalize_prompt", [False, True])
@pytest.mark.parametrize("name", ["penalty_last_n", "dry_penalty_last_n"])
def test_a_window_beyond_the_context_means_the_whole_context(
    engine: Engine, name: str, penalize_prompt: bool
) -> None:
    base = attrs.evolve(
        DICE, dry_multiplier=0.8, dry_penalty_last_n=-1, penalize_prompt=penalize_prompt
    )
    cells = LOAD.context_size // LOAD.slots
    answers = [
        sampled(engine, attrs.evolve(base, **{name: window}))
        for window in (-1, cells, cells + 1, 2**31 - 1)
    ]
    assert answers == [answers[0]] * 4

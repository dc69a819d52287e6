"""A shortlist samples what the whole vocabulary would: with llama.cpp's own samplers."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling import shortlist
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.processes.engine.sampling.sampler_chain import stages_of
from paddler_trio.processes.engine.sampling.shortlist import Shortlist, candidates_needed
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.sampler_stages import STAGES
from samplings import GREEDY
from written_grammars import gbnf

PLAIN = attrs.evolve(GREEDY, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, penalty_last_n=-1)


@pytest.fixture(scope="module")
def llama() -> Llama:
    return Llama.load(
        str(BUNDLED_MODEL), n_gpu_layers=0, progress=lambda _: None, settings=EngineSettings()
    )


@pytest.fixture(autouse=True)
def small_vocabularies_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist, "WORTH_A_SHORTLIST", 1)


def logits_of(seed: int, size: int, spread: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(64, 5000),
    spread=st.floats(0.001, 30),
    needed=st.integers(1, 60),
    lowered=st.sets(st.integers(0, 63), max_size=40),
    rounds=st.integers(1, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shortlist_is_the_top_and_long_enough(
    seed: int, size: int, spread: float, needed: int, lowered: set[int], rounds: int
) -> None:
    some = Shortlist(needed, lowered)
    for number in range(rounds):
        logits = logits_of(seed + number, size, spread)
        found = some.of(logits)
        if found is None:
            continue
        assert needed + len(lowered) <= len(found) <= size // 4
        others = np.delete(logits, found)
        assert logits[found].min() > others.max()


def test_it_is_found_for_logits_as_models_have_them() -> None:
    some = Shortlist(40)
    found = [some.of(logits_of(seed, 150_000, 3.0)) for seed in range(30)]
    assert all(few is not None for few in found)
    assert all(len(few) < 2000 for few in found[10:] if few is not None), "it learns how far to go"


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
        "top_k": st.integers(1, 80),
        "top_p": st.floats(0.3, 1.0),
        "min_p": st.floats(0.0, 0.3),
        "typical_p": st.floats(0.3, 1.0),
        "xtc_probability": st.sampled_from([0.0, 1.0]),
        "penalty_repeat": st.floats(1.0, 2.0),
        "penalty_presence": st.floats(0.0, 2.0),
        "penalty_frequency": st.floats(0.0, 1.0),
        "penalty_last_n": st.sampled_from([-1, 0, 4, 64]),
        "dry_multiplier": st.sampled_from([0.0, 2.0]),
        "dry_allowed_length": st.just(1),
        "dynatemp_range": st.sampled_from([0.0, 0.5]),
        "logit_bias": st.dictionaries(
            st.just(7) | st.integers(0, 1500), st.floats(-200, 0) | st.just(-math.inf), max_size=3
        ),
        "ignore_eos": st.booleans(),
        "samplers": st.just([name for name in STAGES if name != "top_p"]),
    },
)


@given(
    changes=CHANGES,
    seed=st.integers(0, 10_000),
    spread=st.floats(0.5, 8),
    certainty=st.sampled_from([6, 40]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
def test_the_same_tokens_are_sampled(
    llama: Llama, changes: dict[str, object], seed: int, spread: float, certainty: float
) -> None:
    sampling = attrs.evolve(PLAIN, seed=seed, **changes)
    whole, short = (
        Sampler.build(llama, sampling, None, cells=64, prompt=[1, 2, 3]) for _ in range(2)
    )
    if whole.is_plain:
        return
    assert short._shortlist is not None
    met = 0
    for position in range(12):
        logits = logits_of(seed + position, llama.n_vocab, spread)
        # some that are sampled again and again, so that penalties and biases matter
        logits[[7, *llama.end_tokens]] += certainty * spread
        few = short._shortlist.of(logits)
        whole._reseed(position)
        token = whole._selected(logits)
        if few is not None:
            met += 1
            short._reseed(position)
            assert short._selected(logits, few) == token
        whole._accept(token)
        short._accept(token)
    whole.close()
    short.close()
    assert met or sampling.top_k > 30, "the shortlist was never used"


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 0},
        {"penalty_repeat": 0.9},
        {"penalty_presence": -0.1},
        {"penalty_frequency": -0.1},
        {"logit_bias": {5: 1.0}},
        {"top_n_sigma": 1.0},
        {"mirostat": 2},
        {"samplers": ["top_p", "top_k"]},
        {"samplers": ["temperature", "top_k"], "temperature": 0.5},
        {"samplers": ["xtc", "top_k"], "xtc_probability": 0.5},
    ],
)
def test_what_raises_a_logit_or_looks_at_all_of_them_needs_all(changes: dict[str, object]) -> None:
    sampling = attrs.evolve(PLAIN, **changes)
    assert candidates_needed(sampling, stages_of(sampling)) is None


@attrs.define
class SampledToken:
    """The model, with logits of ours."""

    llama: Llama
    current: np.ndarray

    def logits(self, _: int) -> np.ndarray:
        return self.current

    def __getattr__(self, name: str) -> object:
        return getattr(self.llama, name)


@pytest.mark.parametrize("words", ['"a" | "b"', "[a-z ]", "[^0-9]"])
def test_a_grammar_masks_all_tokens_when_the_short_ones_do_not_fit(
    llama: Llama, words: str
) -> None:
    grammar = gbnf(f"root ::= ({words})*")
    whole, short = (Sampler.build(llama, PLAIN, grammar, cells=64) for _ in range(2))
    assert short._shortlist is not None
    whole._shortlist = None
    for position in range(30):
        sampled = SampledToken(llama, logits_of(position, llama.n_vocab, 2.0))
        for sampler in (whole, short):
            sampler._llama = sampled
        token = whole.sample(0, position=position)
        assert short.sample(0, position=position) == token
    whole.close()
    short.close()

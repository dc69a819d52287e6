"""The most likely tokens of a row of logits, found without sorting a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.engine.sampling.shortlist import best_of


@given(
    logits=st.lists(st.sampled_from([-np.inf, -3.0, 0.0, 0.5, 7.0]), min_size=1, max_size=2000),
    count=st.integers(0, 130),
)
def test_they_are_those_of_a_stable_sort(logits: list[float], count: int) -> None:
    row = np.array(logits, dtype=np.float32)
    expected = np.argsort(-row, kind="stable")[:count].tolist()
    assert best_of(row, count).tolist() == expected


@pytest.mark.parametrize("n_vocab", [1, 50, 801, 32_000, 151_936])
@pytest.mark.parametrize("count", [0, 1, 20, 100, 128])
def test_whatever_the_vocabulary_has(n_vocab: int, count: int) -> None:
    row = np.random.default_rng(n_vocab).normal(size=n_vocab).astype(np.float32)
    assert best_of(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()

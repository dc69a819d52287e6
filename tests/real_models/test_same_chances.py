"""What is sampled: each chain of samplers leaves the tokens, and the chances, that llama-server's
leaves, and the answers are drawn with those chances."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from side_by_side import Pair, require, side_by_side
from trained_models import SMOLLM2

PROMPT = "The weather today is"
DRAWS = 2000
AT_A_TIME = 16
LEAST_EXPECTED = 5.0
"""Draws below which tokens are counted together: the test is about large numbers."""
LEAST_CHANCE = 1e-5
"""Of being this far from what is right by chance; seeds are fixed, so it is so always or never."""
NEAR = 0.004
"""Of probabilities: logits of batches of other shapes differ by thousandths."""
FREE: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

CHAINS: dict[str, dict[str, Any]] = {
    "temperature": FREE | {"temperature": 0.7},
    "dynamic temperature": FREE | {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5, "top_k": 50},
    "top_k": FREE | {"top_k": 12},
    "top_p": FREE | {"top_p": 0.6},
    "min_p": FREE | {"min_p": 0.1},
    "typical_p": FREE | {"typical_p": 0.5},
    "top_n_sigma": FREE | {"top_n_sigma": 1.2},
    "min_keep": FREE | {"top_p": 0.01, "min_keep": 3},
    "penalties": FREE | {"top_k": 30, "repeat_penalty": 1.5, "presence_penalty": 1.0},
    "dry": FREE | {"top_k": 30, "dry_multiplier": 1.5, "dry_allowed_length": 1},
    "bias": FREE | {"top_k": 30, "logit_bias": [[" going", 3.0], [" not", -2.0]]},
    "usual": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "another order": FREE
    | {"temperature": 2.0, "top_p": 0.7, "samplers": ["temperature", "top_p"], "top_k": 20},
}
"""Those that leave the same tokens at each draw."""
RANDOM_CHAINS: dict[str, dict[str, Any]] = {
    "xtc": FREE | {"top_k": 30, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "mirostat": FREE | {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.1},
    "mirostat 2": FREE | {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.1},
    "adaptive_p": FREE
    | {"min_p": 0.02, "adaptive_target": 0.3, "samplers": ["min_p", "temperature", "adaptive_p"]},
}
"""Those that choose anew what they leave, or choose the token themselves."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Many places, so that draws are computed together."""
    with side_by_side(require(SMOLLM2), context=256, slots=AT_A_TIME) as pair:
        yield pair


def shares(body: dict[str, Any]) -> dict[int, float]:
    (entry,) = body["completion_probabilities"]
    return {each["id"]: each["prob"] for each in entry["top_probs"]}


def draws(server: httpx.Client, chain: dict[str, Any], number: int = DRAWS) -> Counter[int]:
    """What was sampled with the seeds from 1 on, as many at a time as there are places."""
    counted: Counter[int] = Counter()
    for seed in range(1, number, AT_A_TIME):
        asked = {"prompt": PROMPT, "n_predict": 1, "n_probs": 1, "seed": seed, **chain}
        answer = server.post("/completion", json=asked | {"n_cmpl": AT_A_TIME})
        for body in answer.raise_for_status().json():
            (entry,) = body["completion_probabilities"]
            counted[entry["id"]] += 1
    return counted


def chance(statistic: float, degrees: int) -> float:
    """How likely chi-squared is at least this (Wilson and Hilferty's approximation)."""
    if degrees == 0:
        return 1.0
    spread = 2 / (9 * degrees)
    normal = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))


def fit(counted: Counter[int], expected: dict[int, float]) -> float:
    """How likely these draws are, or ones farther off, if the chances are those."""
    total = counted.total()
    cells = {token: share * total for token, share in expected.items()}
    common = {token for token, number in cells.items() if number >= LEAST_EXPECTED}
    pairs = [(counted[token], cells[token]) for token in common]
    rest = total - sum(cells[token] for token in common)
    if rest >= LEAST_EXPECTED:
        pairs.append((sum(n for token, n in counted.items() if token not in common), rest))
    return chance(sum((n - e) ** 2 / e for n, e in pairs), len(pairs) - 1)


def same_source(one: Counter[int], other: Counter[int]) -> float:
    """How likely two sets of as many draws differ as much as these, if the chances are equal."""
    tokens = {token for token in one | other if one[token] + other[token] >= 2 * LEAST_EXPECTED}
    cells = [(one[token], other[token]) for token in tokens]
    rest = tuple(sum(n for t, n in each.items() if t not in tokens) for each in (one, other))
    if sum(rest) >= 2 * LEAST_EXPECTED:
        cells.append((rest[0], rest[1]))
    return chance(sum((a - b) ** 2 / (a + b) for a, b in cells), len(cells) - 1)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_leaves_the_same_tokens_with_the_same_chances(pair: Pair, name: str) -> None:
    asked = {"prompt": PROMPT, "n_predict": 1, "n_probs": 100, "post_sampling_probs": True}
    ours, theirs = map(shares, pair.ask("/completion", **asked, **CHAINS[name]))
    for token in ours.keys() | theirs.keys():
        if len(ours) < 100 and len(theirs) < 100:
            assert ours.get(token, 0) == pytest.approx(theirs.get(token, 0), abs=NEAR)
        elif token in ours and token in theirs:
            assert ours[token] == pytest.approx(theirs[token], abs=NEAR)
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()), abs=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_answers_are_drawn_with_these_chances(pair: Pair, name: str) -> None:
    chain = CHAINS[name]
    asked = {"prompt": PROMPT, "n_predict": 1, "n_probs": 1000, "post_sampling_probs": True}
    expected = shares(pair.theirs.post("/completion", json=asked | chain).json())
    assert fit(draws(pair.ours, chain), expected) > LEAST_CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM_CHAINS)
def test_random_chains_draw_as_llama_servers_do(pair: Pair, name: str) -> None:
    chain = RANDOM_CHAINS[name]
    assert same_source(draws(pair.ours, chain), draws(pair.theirs, chain)) > LEAST_CHANCE


def test_the_judge_finds_chances_that_are_wrong() -> None:
    right = Counter({1: 1000, 2: 600, 3: 400})
    assert fit(right, {1: 0.5, 2: 0.3, 3: 0.2}) > 0.99
    assert fit(right, {1: 0.45, 2: 0.35, 3: 0.2}) < LEAST_CHANCE
    assert same_source(right, Counter({1: 1010, 2: 590, 3: 400})) > 0.5
    assert same_source(right, Counter({1: 850, 2: 750, 3: 400})) < LEAST_CHANCE
    assert chance(18.31, 10) == pytest.approx(0.05, abs=0.002)  # of the tables of the distribution

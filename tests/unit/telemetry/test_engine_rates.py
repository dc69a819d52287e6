"""Rates are differences of counts over seconds, whatever an agent counts."""

from __future__ import annotations

import pytest

from paddler_trio.telemetry.engine_rates import WINDOW_S, EngineRates


def engine(prompt: object, drawn: object, cached: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "drawn_tokens": drawn, "cached_tokens": cached, "passes": 3}


def test_rates_are_of_the_last_seconds() -> None:
    rates = EngineRates()
    assert rates.view() is None
    for number in range(41):  # 20 s: fast at first, then slow
        fast, slow = min(number, 20), max(0, number - 20)
        rates.sample(100 + number / 2, engine(50 * fast + 5 * slow, 100 * fast + 10 * slow, 0))
    assert rates.view() == {
        "prompt_tokens_per_s": 10.0,
        "generated_tokens_per_s": 20.0,
        "cached_ratio": 0.0,
    }
    rates.sample(120 + WINDOW_S, engine(1100, 2200, 0))  # and then nothing
    rates.sample(120 + 2 * WINDOW_S, engine(1100, 2200, 0))
    assert rates.view() == {
        "prompt_tokens_per_s": 0.0,
        "generated_tokens_per_s": 0.0,
        "cached_ratio": None,
    }


def test_samples_that_come_too_soon_are_none_and_embeddings_count_as_prompts() -> None:
    rates = EngineRates()
    rates.sample(1, {"prompt_tokens": 10, "embedding_tokens": 10})
    rates.sample(1.1, engine(1e6, 1e6, 1e6))
    assert rates.view() is None
    rates.sample(2, {"prompt_tokens": 10, "embedding_tokens": 40, "cached_tokens": 90})
    assert rates.view() == {
        "prompt_tokens_per_s": 30.0,
        "generated_tokens_per_s": 0.0,
        "cached_ratio": 0.75,
    }


def test_another_engine_begins_anew() -> None:
    rates = EngineRates()
    rates.sample(1, engine(1000, 1000, 1000))
    rates.sample(2, engine(10, 10, 10))
    assert rates.view() is None
    rates.sample(3, None)
    assert rates.view() is None


@pytest.mark.parametrize("strange", [10**400, -5, True, "many", None])
def test_a_count_that_is_none_does_not_count(strange: object) -> None:
    rates = EngineRates()
    rates.sample(1, engine(strange, 0, 0))
    rates.sample(2, engine(strange, 4, 0))
    view = rates.view()
    assert view is not None
    assert view["generated_tokens_per_s"] == 4.0

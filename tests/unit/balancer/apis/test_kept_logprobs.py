"""Log probabilities take a fraction of what their objects do, and come back as they were."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.answers.kept_logprobs import KeptLogprobs
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import STRICT
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_request import read_chat
from paddler_trio.balancer.apis.openai.completion_request import (
    read_completion,
    read_llama_completion,
)
from paddler_trio.wire.json_text import (
    RUN_VALUES,
    Items,
    dumps,
    dumps_in_runs,
    dumps_within,
    is_long,
)

LIMITS = ApiLimits()


def number_of(token: int, logprob: float) -> dict[str, object]:
    text = f" word {token}"
    return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}


numbers = st.builds(number_of, st.integers(0, 40), st.floats(-1e9, 0.0))
entries = st.builds(
    lambda sampled, top: {**sampled, "top": top}, numbers, st.lists(numbers, max_size=9)
)


@given(st.lists(st.lists(entries, max_size=5), max_size=30))
def test_what_is_kept_comes_back(steps: list[list[dict[str, object]]]) -> None:
    kept = KeptLogprobs()
    for step in steps:
        kept.add(step)
    given_ = [entry for step in steps for entry in step]
    assert list(kept) == given_
    assert len(kept) == len(given_)
    assert list(kept.sampled()) == [entry["logprob"] for entry in given_]
    written = kept.written(lambda entry: entry)
    assert is_long(written) == kept.is_long
    assert dumps_in_runs({"a": written}) == dumps({"a": written}) == dumps({"a": given_})


@given(st.lists(st.integers() | st.text(max_size=9) | st.lists(st.integers()), max_size=20))
def test_items_are_written_as_a_list_is(values: list[object]) -> None:
    for size in (len(values), 10_000):
        assert dumps_in_runs(Items(lambda: values, size)) == dumps(values)
        nested = [1, {"a": Items(lambda: iter(values), size)}]
        assert dumps_in_runs(nested) == dumps(nested) == dumps([1, {"a": values}])


@given(st.lists(st.text(max_size=9), max_size=20), st.integers(0, 200))
def test_what_is_longer_than_wanted_is_not_written(values: list[str], most: int) -> None:
    whole = dumps(values)
    assert dumps_within(values, most) == (whole if len(whole) <= most else None)


def test_of_what_is_too_long_nearly_nothing_is_made() -> None:
    made: list[int] = []

    def items() -> Iterator[str]:
        for number in range(10_000):
            made.append(number)
            yield "a" * 1000

    assert dumps_within(Items(items, 20_000), 100_000) is None
    assert len(made) <= RUN_VALUES + 1


def test_a_token_with_a_hundred_alternatives_takes_what_is_counted() -> None:
    kept = KeptLogprobs()
    text = json.dumps({**number_of(0, -0.5), "top": [number_of(n, -1.5) for n in range(100)]})
    kept.add([json.loads(text)])
    counted_before = kept.held_bytes
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(1000):
        kept.add([json.loads(text)])
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = kept.held_bytes - counted_before
    assert counted == 1000 * (101 * 12 + 4)
    assert 0.9 * counted < taken < 1.3 * counted
    assert kept.is_long


@pytest.mark.parametrize(
    ("read", "field", "body"),
    [
        (read_llama_completion, "n_probs", {"n": 32, "n_predict": 400, "n_probs": 100}),
        (
            read_llama_completion,
            "n_probs",
            {"prompt": ["a"] * 64, "n": 32, "n_predict": 400, "n_probs": 100},
        ),
        (read_completion, "logprobs", {"best_of": 32, "n": 1, "max_tokens": 9999, "logprobs": 20}),
        (read_completion, "n", {"best_of": 32, "n": 2, "max_tokens": 99_999}),
        (
            read_chat,
            "top_logprobs",
            {"n": 32, "max_tokens": 9999, "logprobs": True, "top_logprobs": 20},
        ),
    ],
)
def test_choices_times_tokens_times_alternatives_have_a_limit(
    read: object, field: str, body: dict[str, object]
) -> None:
    assert callable(read)
    asked = {"messages": [{"role": "user", "content": "a"}]} if read is read_chat else {}
    asked = asked or {"prompt": "Once"}
    with pytest.raises(ApiError) as refused:
        read({**asked, **body}, LIMITS, STRICT)
    assert (refused.value.status, refused.value.param) == (400, field)
    assert "max_logprobs" in refused.value.message
    assert str(LIMITS.max_logprobs) in refused.value.message


@pytest.mark.parametrize("n", [1, 8])
def test_honest_numbers_pass(n: int) -> None:
    body = {"prompt": "Once", "n": n, "n_probs": 20, "n_predict": 6000}
    assert read_llama_completion(body, LIMITS, STRICT).n == n

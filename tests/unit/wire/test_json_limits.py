"""Counting JSON before it is decoded, and writing it in runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire import json_limits, json_text
from paddler_trio.wire.json_limits import (
    SLICE_BYTES,
    JsonCount,
    JsonLimitError,
    JsonLimits,
    bound_of,
    check_count,
    count_of,
    decoded_bytes,
)
from paddler_trio.wire.json_text import beginning_of, dumps, dumps_in_runs, is_long, loads

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text('\\",:[]{}ab'), inner),
    max_leaves=30,
)
TRICKY = st.text('\\",:[]{}aé\U0001f600')


def containers_in(value: object) -> Iterator[object]:
    if isinstance(value, list | dict):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers_in(item)


def values_in(value: object) -> int:
    """Scalars, containers and names."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


def texts_in(value: object) -> Iterator[str]:
    """Those that are values; names are short."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


HALVES = ["\\ud83d", "\\ude00", "\\uDBFF", "\\\\", "\\u00e9", "\\ud7ff", "\\n", "a", "u", "ud83d"]
SHORT = st.sampled_from([1, 2, 7, 64])


@contextmanager
def sliced(size: int) -> Iterator[None]:
    """Slices so short that everything stands across the end of one."""
    with (
        patch.multiple(json_limits, SLICE_BYTES=size),
        patch.multiple(json_text, RUN_CHARS=size, RUN_VALUES=size, SLICE_BYTES=size),
    ):
        yield


@given(
    size=SHORT,
    value=VALUES | st.lists(TRICKY) | st.dictionaries(TRICKY, TRICKY),
    ascii_only=st.booleans(),
)
def test_a_count_is_what_is_there(size: int, value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="replace")
    with sliced(size):
        exact, bound = count_of(text), bound_of(text)
    containers = list(containers_in(value))
    empty = sum(not container for container in containers)
    assert exact.containers == len(containers)
    assert exact.values == values_in(value) + empty  # an empty one counts as if it held one
    assert bound.values >= exact.values
    assert bound.containers >= exact.containers


@given(size=SHORT, value=VALUES)
def test_writing_in_runs_writes_the_same(size: int, value: object) -> None:
    with sliced(size):
        try:
            whole = dumps(value)
        except WireError:
            with pytest.raises(WireError):
                dumps_in_runs(value)
        else:
            assert dumps_in_runs(value) == whole


@given(size=SHORT, value=VALUES)
def test_what_is_written_at_once_is_no_more_than_a_run(size: int, value: object) -> None:
    members = sum(len(each) for each in containers_in(value))
    chars = sum(len(text) for text in texts_in(value))
    with sliced(size):
        if not is_long(value):
            assert members <= size
            assert chars <= size + members * max(1, size // 64)
        elif members <= size:
            assert chars > 0


@given(size=SHORT, value=VALUES, num_chars=st.integers(0, 50))
def test_a_beginning_is_that_of_the_whole(size: int, value: object, num_chars: int) -> None:
    try:
        whole = dumps(value).decode()
    except WireError:
        return  # half a surrogate pair may stand behind it
    with sliced(size):
        assert beginning_of(value, num_chars) == whole[:num_chars]


def test_of_a_long_value_only_the_beginning_is_written() -> None:
    class Untouched:
        """Nothing that JSON knows."""

    with pytest.raises(WireError):
        dumps([1] * 100_000 + [Untouched()])
    assert beginning_of([1] * 100_000 + [Untouched()], 5) == "[1,1,"


def test_a_value_is_long_however_deep_the_long_part_is() -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert is_long({"choices": [{"logprobs": {"content": [entry] * 1000}}]})
    assert is_long({"choices": [{"message": {"content": "a" * 300_000}}]})
    assert not is_long({"choices": [{"logprobs": {"content": [entry] * 100}}]})


@example(size=64, parts=["\\\\", "ud83d", "\\ude00"])
@given(size=SHORT, parts=st.lists(st.sampled_from(HALVES)))
def test_half_a_surrogate_pair_is_found_wherever_it_stands(size: int, parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    value = json.loads(text)
    with sliced(size):
        try:
            value.encode()
        except UnicodeEncodeError:
            with pytest.raises(WireError, match="not Unicode"):
                loads(text)
        else:
            assert loads(text) == value


def test_what_is_over_a_limit_is_refused_with_its_name() -> None:
    limits = JsonLimits(max_values=10, max_containers=3)
    assert check_count(b"[1,2,3,4,5,6,7,8]", limits).values == 9
    with pytest.raises(JsonLimitError, match=r"max_values is 10"):
        check_count(b"[1,2,3,4,5,6,7,8,9,10]", limits)
    with pytest.raises(JsonLimitError, match=r"4 objects and arrays.*max_containers is 3"):
        check_count(b'[[],{},{"a":1}]', limits)


@given(size=SHORT, value=VALUES, most=st.integers(0, 12), most_containers=st.integers(0, 4))
def test_a_count_that_may_end_early_refuses_the_same(
    size: int, value: object, most: int, most_containers: int
) -> None:
    text = json.dumps(value).encode()
    limits = JsonLimits(max_values=most, max_containers=most_containers)
    with sliced(size):
        whole = count_of(text)
        if whole.within(limits):
            assert check_count(text, limits).within(limits)
        else:
            with pytest.raises(JsonLimitError):
                check_count(text, limits)


@pytest.mark.parametrize("unit", [b"[],", b"1,", b'{"a":1},'])
def test_of_a_text_over_a_limit_no_more_is_counted_than_that_takes(unit: bytes) -> None:
    limits = JsonLimits(max_values=1000, max_containers=100)
    text = b"[" + unit * 1_000_000 + b"0]"
    for count in (bound_of(text, limits), count_of(text, limits)):
        assert not count.within(limits)
        assert count.values <= limits.max_values + SLICE_BYTES


def test_commas_and_brackets_in_texts_count_for_nothing() -> None:
    limits = JsonLimits(max_values=10, max_containers=3)
    prose = json.dumps(["{[(,:)]}" * 5000, 'a \\" , \\\\'] * 2).encode()
    assert check_count(prose, limits) == JsonCount(5, 1, is_exact=True)
    assert decoded_bytes(prose, limits) < len(prose) + 1000


def test_nothing_is_decoded_of_a_text_over_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_DECODER", None)
    with pytest.raises(JsonLimitError):
        loads(b"[" + b"[]," * 200_000 + b"[]]")


@pytest.mark.parametrize("number", ["1" * 301, "0." + "1" * 2000, "1e" + "0" * 2000 + "1"])
def test_a_number_may_be_so_long_and_no_longer(number: str) -> None:
    with pytest.raises(WireError, match="number"):
        loads(number)


def test_the_longest_double_is_read() -> None:
    assert loads("0." + format(5e-324, ".1074f")[2:]) == 5e-324

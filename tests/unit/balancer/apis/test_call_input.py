"""Inputs of calls: of whole arguments, of a name twice, and of what was cut off."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.anthropic.call_input import input_of

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ('{"vars": {"A": 1, "A": 2}}', {"vars": {"A": 2}}),
        ('{"a": 1, "b": "two', {"a": 1, "b": "two"}),
        ('{"a": [1, {"b": 2}, {"c', {"a": [1, {"b": 2}, {}]}),
        ('{"a": tr', {}),
        ('{"a": 1, "b": "x\\', {"a": 1}),
        ("[1]", {}),
        ("no JSON", {}),
        ('{"a": NaN}', {}),
        ('{"a": "\\ud800"}', {}),
    ],
)
def test_the_input_is_an_object_of_what_is_whole(arguments: str, expected: object) -> None:
    assert input_of(arguments) == expected


@given(st.dictionaries(st.text(max_size=4), VALUES), st.data())
def test_what_is_cut_off_loses_no_whole_value_and_invents_no_name(
    value: dict[str, Any], data: st.DataObject
) -> None:
    written = json.dumps(value)
    assert input_of(written) == value
    begun = input_of(written[: data.draw(st.integers(0, len(written)))])
    names = list(value)
    assert list(begun) == names[: len(begun)]
    for name in names[: len(begun)][:-1]:
        assert begun[name] == value[name]


@pytest.mark.parametrize("unit", ["[", '{"a":', '"a",', "\\"])
def test_it_takes_little_time(unit: str) -> None:
    began_s = time.process_time()
    assert isinstance(input_of('{"a": ' + unit * 20_000), dict)
    assert time.process_time() - began_s < 2

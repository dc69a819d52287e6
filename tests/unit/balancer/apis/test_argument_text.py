"""What is complete of the arguments of a call, whatever became of their text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.anthropic.anthropic_routes import _input_of
from paddler_trio.balancer.apis.argument_text import members_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"vars": {"A": 1, "A": 2}}', {"vars": {"A": 2}}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"path": "m.txt", "text": "on', {"path": "m.txt"}),
        ('{"path": "m.txt", "lines": 12', {"path": "m.txt"}),
        ('{"path": {"a": [1', {}),
        ("{", {}),
        ("", {}),
        (" {} ", {}),
        ('{"a": NaN}', {}),
        ('{"a": "\\ud800"}', {}),
        ("Bern, please", {"arguments": "Bern, please"}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_the_input_of_a_message_is_what_its_stream_gives(
    text: str, expected: dict[str, object]
) -> None:
    assert _input_of(text) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_a_cut_never_invents_a_member(value: dict[str, object]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert members_of(text) == value
    for length in range(len(text)):
        assert members_of(text[:length]).items() <= value.items()

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import JSON_VALUES

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import canonical, dumps, loads
from paddler_trio.wire.json_text import MAX_DEPTH


@given(JSON_VALUES)
def test_what_is_written_reads_back_the_same(value: object) -> None:
    again = loads(dumps(value))
    assert again == value
    assert repr(again) == repr(value)  # 1, 1.0 and true are equal, but not the same


@given(JSON_VALUES)
def test_text_and_bytes_read_alike_and_canonical_text_is_the_same_value(value: object) -> None:
    assert loads(dumps(value).decode()) == loads(dumps(value)) == loads(canonical(value))


def test_writing_is_compact_and_keeps_text_readable() -> None:
    assert dumps({"b": [1, "zażółć 🦀"], "a": None}) == '{"b":[1,"zażółć 🦀"],"a":null}'.encode()
    assert canonical({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}'


def test_escaped_surrogate_pairs_are_one_character() -> None:
    assert loads(rb'"\ud83e\udd80"') == "🦀"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b'{"a":1,"b":2,"a":3}', "duplicate field 'a'"),
        (b'[{"a":{"x":1,"x":1}}]', "duplicate field 'x'"),
        (b"[NaN]", "NaN"),
        (b"-Infinity", "-Infinity"),
        (b"1e400", "out of range: 1e400"),
        (b'{"a":-1e999}', "out of range"),
        (b"9" * 301, "an integer of 301 digits"),
        (b"9" * 5000, "an integer of 5000 digits"),
        (rb'"\ud83e"', "not Unicode: surrogates"),
        (rb'{"\udd80":1}', "not Unicode: surrogates"),
        ('"\ud83e"', "not Unicode: surrogates"),
        (b'"\xff"', "not UTF-8: invalid start byte at byte 1"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xef\xbb\xbf1", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b'"a\nb"', "not valid JSON"),
        (b"01", "not valid JSON"),
    ],
)
def test_text_a_peer_would_refuse_is_refused(text: bytes | str, complaint: str) -> None:
    with pytest.raises(WireError) as caught:
        loads(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_limited_to_what_still_fits_into_an_envelope(opening: str, closing: str) -> None:
    deepest = opening * MAX_DEPTH + "1" + closing * MAX_DEPTH
    assert json.loads(deepest) == loads(deepest)
    sibling = f"[{deepest[len(opening) : -len(closing)]},[]]"  # as deep, with more brackets
    assert json.loads(sibling) == loads(sibling)
    with pytest.raises(WireError, match="nested deeper than 120 levels"):
        loads(opening + deepest + closing)
    with pytest.raises(WireError, match="nested deeper than 120 levels"):
        loads(opening * 100_000 + "1" + closing * 100_000)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert loads(b"[" + b"[]," * 5000 + b"[]]") == [[]] * 5001
    assert loads(dumps("[{" * 5000)) == "[{" * 5000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"a": object()}, {1j: 1}])
def test_what_json_cannot_say_is_not_written(value: object) -> None:
    with pytest.raises(WireError):
        dumps(value)


def test_a_value_too_deep_to_write_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(WireError, match="nested deeper"):
        dumps(value)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_arbitrary_bytes_either_read_or_are_a_wire_error(data: bytes) -> None:
    try:
        value = loads(data)
    except WireError:
        return
    assert loads(dumps(value)) == value

"""Shapes read exactly what they describe, and tables refuse by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import Field, Record, accepted, refused
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_fields import chat_record
from paddler_trio.balancer.apis.openai.completion_request import (
    completion_record,
    llama_completion_record,
)
from paddler_trio.balancer.apis.openai.embeddings import embeddings_record
from paddler_trio.balancer.apis.openapi_document import closed
from paddler_trio.balancer.apis.shapes import (
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    Number,
    OneOf,
    PairOf,
    Shape,
    Tagged,
    Text,
)

LIMITS = ApiLimits()
ROOT = Path(__file__).parents[4]
NUMBERS = st.one_of(
    st.integers(-5, 5), st.floats(-5, 5, allow_nan=False), st.sampled_from([0.0, 2.0, -1.0])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4), st.sampled_from(["a", "b"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["kind", "a", "b", "n", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
RECORD = Record(
    "thing",
    (
        Field("n", Integer(0, 3), "A number.", is_required=True),
        Field("a", Either((Text(2), ListOf(Text(2), 0, 2))), "Texts."),
        accepted("b", Flag(), "No matter."),
        refused("x", "not here", neutral=(0, False)),
    ),
)
SHAPES: list[Shape] = [
    Flag(),
    Integer(),
    Integer(-1, 2),
    Number(-1.5, 2),
    Text(),
    Text(2, least_chars=1),
    OneOf(("a", "b")),
    ListOf(Integer(0), 1, 2),
    PairOf(Integer(), Either((Number(), Flag()))),
    FreeObject(Number(), 1),
    FreeObject(most_name_chars=1),
    Either((Integer(0), Text(1), ListOf(Flag()))),
    RECORD,
    Tagged(
        "kind",
        {
            "a": Record("a", (Field("kind", OneOf(("a",)), "It.", is_required=True),)),
            "b": Record(
                "b",
                (
                    Field("kind", OneOf(("b",)), "It.", is_required=True),
                    Field("n", Integer(), "A number."),
                ),
            ),
        },
    ),
]


def complaint(shape: Shape, value: object) -> ApiError | None:
    try:
        shape.read(value, "it")
    except ApiError as error:
        return error
    return None


@given(st.sampled_from(SHAPES), JSON)
@example(SHAPES[-1], {"kind": "a", "a": None})
def test_a_shape_reads_exactly_what_its_schema_says(shape: Shape, value: object) -> None:
    schema: Any = closed(shape.schema())  # a strict reader takes no other members
    error = complaint(shape, value)
    assert (error is None) == Draft202012Validator(schema).is_valid(value), schema
    if error is not None:
        assert error.status == 400
        assert error.param is not None
        assert error.param.startswith("it")
        assert error.param in error.message


@pytest.mark.parametrize(
    "record",
    [
        chat_record(LIMITS),
        completion_record(LIMITS),
        llama_completion_record(LIMITS),
        embeddings_record(LIMITS),
    ],
    ids=lambda record: record.name,
)
def test_every_body_has_a_valid_schema(record: Record) -> None:
    schema: Any = json.loads(json.dumps(record.schema()))
    Draft202012Validator.check_schema(schema)
    for field in record:
        assert field.note, field.name


def test_errors_say_the_path_the_value_and_the_limit() -> None:
    with pytest.raises(ApiError) as told:
        RECORD.read({"n": 4}, "")
    assert told.value.message == "n is 4, must be a whole number from 0 to 3"
    with pytest.raises(ApiError) as told:
        RECORD.read({"n": 1, "a": ["x", "long"]}, "inner")
    assert told.value.param == "inner.a[1]"
    assert "4 characters, the limit is 2" in told.value.message


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ApiError) as told:
        RECORD.read({"n": 1, "nix": None}, "")
    assert (told.value.param, told.value.code) == ("nix", "unknown_parameter")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ApiError) as told:
        RECORD.read({"n": None}, "")
    assert (told.value.param, told.value.code) == ("n", "missing_required_parameter")


def test_a_refused_field_may_ask_for_nothing() -> None:
    assert RECORD.read({"n": 1, "x": 0}, "") == {"n": 1}
    for wish in (1, True, "", []):
        with pytest.raises(ApiError) as told:
            RECORD.read({"n": 1, "x": wish}, "")
        assert (told.value.param, told.value.code) == ("x", "unsupported_parameter")


def test_aliases_must_agree() -> None:
    record = Record("r", (Field("a", Integer(), "It.", aliases=("b",)),))
    assert record.read({"b": 2}, "") == {"a": 2}
    assert record.read({"a": 2, "b": 2.0}, "") == {"a": 2}
    with pytest.raises(ApiError, match="a and b say different things"):
        record.read({"a": 2, "b": 3}, "")


def test_limits_are_set_by_name() -> None:
    limits = ApiLimits.parse(["max_messages=3", "keep_alive_s=0.5"])
    assert (limits.max_messages, limits.keep_alive_s) == (3, 0.5)
    body = {"messages": [{"role": "user", "content": "hi"}] * 4}
    with pytest.raises(ApiError, match="messages has 4 entries, the limit max_messages is 3"):
        chat_record(limits).read(body, "")


@pytest.mark.thorough
def test_the_page_is_what_the_tables_say_today() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "document_openai.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"

"""Schemas of strangers as JSON Schema 2020-12."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from odd_schemas import odd_schemas
from paddler_trio.language.grammars.patterns import TEXT_FORMATS
from paddler_trio.language.grammars.schema_numbers import INTEGER_FORMATS, NUMBER_FORMATS
from paddler_trio.wire.json_schema import KNOWN_FORMATS, MAX_DEPTH, lawful_schema

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("given", "expected", "lost"),
    [
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}, []),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}, []),
        ({"exclusiveMaximum": True}, {}, []),
        ({"minimum": "3"}, {}, ["minimum"]),
        (
            {"items": [{"type": "integer"}, TEXT], "additionalItems": False},
            {"prefixItems": [{"type": "integer"}, TEXT], "items": False},
            [],
        ),
        ({"items": []}, {}, []),
        ({"type": "any"}, {}, []),
        ({"type": ["str", None]}, {"type": ["string", "null"]}, []),
        ({"type": "OBJECT"}, {"type": "object"}, []),
        ({"type": "widget"}, {}, ["type"]),
        ({"type": None, "title": None, "enum": None, "default": None}, {"default": None}, []),
        ({"properties": None, "required": None}, {}, []),
        ({"properties": [], "required": "a"}, {}, ["properties", "required"]),
        ({"properties": {"a": None}}, {"properties": {"a": True}}, ["properties.a"]),
        (
            {"properties": {"a": {**TEXT, "required": True}, "b": {"required": False}}},
            {"properties": {"a": TEXT, "b": {}}, "required": ["a"]},
            [],
        ),
        ({"required": True}, {}, []),
        ({"enum": []}, {}, ["enum"]),
        ({"allOf": [], "anyOf": {}}, {}, ["allOf", "anyOf"]),
        ({"minLength": -1, "maxLength": 2.0}, {"maxLength": 2.0}, ["minLength"]),
        ({"pattern": 5, "format": ["date"]}, {}, ["pattern", "format"]),
        ({"multipleOf": 0}, {}, ["multipleOf"]),
        ({"divisibleBy": 2}, {"multipleOf": 2}, []),
        (
            {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
            [],
        ),
        ({"$schema": "https://json-schema.org/draft-07/schema#", "type": "object"},
         {"type": "object"}, []),
        ({"properties": {"v": {"$schema": "x", **TEXT}}}, {"properties": {"v": TEXT}}, []),
        ({"properties": {"id": TEXT, "$ref": TEXT, "type": TEXT}},
         {"properties": {"id": TEXT, "$ref": TEXT, "type": TEXT}}, []),
        ({"const": None, "examples": "a"}, {"const": None}, []),
        ({"not": {"type": "widget"}, "if": {"enum": []}}, {}, ["not.type", "if.enum"]),
    ],
)  # fmt: skip
def test_what_has_a_meaning_is_written_as_the_newest_draft_has_it(
    given: Any, expected: Any, lost: list[str]
) -> None:
    lawful = lawful_schema(given)
    assert lawful.schema == expected
    assert [f"{path}.{key}".strip(".") for path, key in lawful.lost] == lost


ADDRESS = "https://s.example/a.json"


@pytest.mark.parametrize(
    "given",
    [
        {"$id": ADDRESS, "properties": {"v": {"$ref": f"{ADDRESS}#/$defs/k"}},
         "$defs": {"k": TEXT}},
        {"$id": ADDRESS, "properties": {"v": {"$ref": "#/$defs/k"}}, "$defs": {"k": TEXT}},
        {"id": ADDRESS, "properties": {"v": {"$ref": "a.json#/definitions/k"}},
         "definitions": {"k": TEXT}},
        {"properties": {"v": {"$ref": "k.json"}}, "$defs": {"k": {"$id": "k.json", **TEXT}}},
        {"$id": ADDRESS, "properties": {"v": {"$ref": "/k.json"}},
         "$defs": {"k": {"$id": "https://s.example/k.json", **TEXT}}},
        {"properties": {"v": {"$ref": "#k"}}, "$defs": {"x": {"$anchor": "k", **TEXT}}},
        {"properties": {"v": {"$ref": "#k"}}, "definitions": {"x": {"id": "#k", **TEXT}}},
        {"properties": {"v": {"$ref": "#/components/schemas/k"}},
         "components": {"schemas": {"k": {"type": "str"}}}},
        {"properties": {"v": {"$ref": "#/$defs/k", "$defs": {"k": TEXT}}}},
        {"properties": {"v": {"$ref": "#/properties/w/items/0"}, "w": {"items": [TEXT]}}},
        {"properties": {"v": {"$dynamicRef": "#k"}},
         "$defs": {"x": {"$dynamicAnchor": "k", **TEXT}}},
        {"properties": {"v": {"$ref": "#/$defs/a~1b%25 c"}}, "$defs": {"a/b% c": TEXT}},
    ],
)  # fmt: skip
def test_references_lead_to_where_they_did(given: Any) -> None:
    lawful = lawful_schema(given)
    assert lawful.lost == []
    judge = Draft202012Validator(lawful.schema)
    assert judge.is_valid({"v": "a"})
    assert not judge.is_valid({"v": 1})


@pytest.mark.parametrize(
    "reference", ["https://other.example/b.json", "#/$defs/none", "http://[", 5, "#none"]
)
def test_a_reference_to_nothing_is_left_out(reference: object) -> None:
    lawful = lawful_schema({"properties": {"v": {"$ref": reference, **TEXT}}})
    assert lawful.schema == {"properties": {"v": TEXT}}
    assert lawful.lost == [("properties.v", "$ref")]


@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, TEXT]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"not": {"$ref": "#"}}]},
    ],
)
def test_a_reference_that_leads_back_without_a_value_is_left_out(given: Any) -> None:
    lawful = lawful_schema(given)
    assert {key for _, key in lawful.lost} == {"$ref"}
    assert Draft202012Validator(lawful.schema).is_valid({}), "it forbids no more than before"


def test_schemas_may_contain_themselves() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}
    lawful = lawful_schema(tree)
    assert (lawful.schema, lawful.lost) == (tree, [])


def test_what_no_grammar_can_hold_an_answer_to_is_noted_and_stays() -> None:
    odd = {
        "properties": {
            "a": {"not": TEXT},
            "b": {"uniqueItems": True},
            "c": {"format": "iri"},
            "d": {"pattern": "^(?!x)"},
            "e": {"multipleOf": 1e-12, "minimum": 10**30, "maximum": 10**30},
            "g": {"multipleOf": 0.01, "maximum": 10**12, "maxLength": 60_000},
            "h": {"maxLength": 70_000},
            "i": {"properties": dict.fromkeys("abcde", TEXT), "minProperties": 2},
            "j": {"properties": dict.fromkeys("abcde", TEXT), "maxProperties": 5},
            "f": {"uniqueItems": True, "maxItems": 1, "format": "date", "pattern": "^a+$"},
        }
    }
    lawful = lawful_schema(odd)
    assert (lawful.schema, lawful.lost) == (odd, [])
    assert [f"{path}.{key}" for path, key in lawful.unbound] == [
        "properties.a.not", "properties.b.uniqueItems", "properties.c.format",
        "properties.d.pattern", "properties.e.multipleOf", "properties.e.minimum",
        "properties.h.maxLength", "properties.i.minProperties",
    ]  # fmt: skip


def test_the_formats_are_those_that_grammars_know() -> None:
    assert TEXT_FORMATS.keys() | INTEGER_FORMATS.keys() | NUMBER_FORMATS == KNOWN_FORMATS


def test_what_is_nested_beyond_the_limit_may_be_anything() -> None:
    deep: Any = TEXT
    for _ in range(MAX_DEPTH + 5):
        deep = {"items": deep}
    lawful = lawful_schema(deep)
    assert len(lawful.lost) == 1
    Draft202012Validator.check_schema(lawful.schema)


@given(odd_schemas(), st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers()))
def test_whatever_was_given_is_a_schema_then_and_stays_one(given: Any, value: object) -> None:
    lawful = lawful_schema(given)
    Draft202012Validator.check_schema(lawful.schema)
    again = lawful_schema(lawful.schema)
    assert (again.schema, again.lost) == (lawful.schema, [])
    for error in Draft202012Validator(lawful.schema).iter_errors(value):
        assert error.message, "every reference leads somewhere"


@pytest.mark.parametrize(
    "given",
    [
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)}},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 1}
        | {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"} for _ in range(5000)]}}},
        {"properties": {f"p{n}": {"$ref": "#/$defs/none"} for n in range(5000)}},
        {"$id": "http://a/" + "b/" * 500, "allOf": [{"$id": f"c{n}/"} for n in range(2000)]},
    ],
    ids=["a chain", "cycles", "lost", "addresses"],
)
def test_it_is_linear_in_the_size_of_the_schema(given: Any) -> None:
    began_s = time.process_time()
    lawful_schema(given)
    assert time.process_time() - began_s < 2

"""Validation of arguments is bounded, whatever they are; ordinary ones do not notice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paddler_trio.language import tool_schemas
from paddler_trio.language.tool_schemas import (
    MAX_REMEMBERED,
    MAX_UNIQUE_ITEMS,
    JsonSchema,
    ToolSchema,
    ToolSchemaError,
)

pytestmark = pytest.mark.thorough


def findings(items: JsonSchema, values: list[object], **more: object) -> list[str]:
    array = {"type": "array", "items": items, **more}
    schema: Mapping[str, object] = {"type": "object", "properties": {"a": array}}
    return ToolSchema("f", schema).findings({"a": values})


@pytest.mark.parametrize(
    ("items", "values"),
    [
        ({"anyOf": [{"const": n} for n in range(1000)]}, [999] * 1000),
        ({"oneOf": [{"const": n} for n in range(1000)]}, [999] * 1000),
        ({"enum": list(range(20_000))}, [19_999] * 200),
        ({"properties": {f"p{n}": {} for n in range(2000)}}, [{}] * 1500),
        ({"contains": {"const": 1}}, [[*range(2, 1000), 1]] * 20),
        ({"allOf": [{"const": [[1] * 1000]}] * 25}, [[[1] * 1000]] * 20),
        ({"allOf": [{"not": {"enum": [[[1] * 1000, 2]]}}] * 25}, [[[1] * 1000, 1]] * 20),
        ({"allOf": [{"uniqueItems": True}] * 5}, [[{"x": n} for n in range(200)]]),
        ({"anyOf": [{"type": "string"}] * 200}, [[[1] * 1000]]),
        ({"anyOf": [{"type": "integer"}] * 800}, ["x" * 100_000]),
    ],
    ids=[
        "anyOf",
        "oneOf",
        "enum",
        "properties",
        "contains",
        "equal lists",
        "unequal lists",
        "unique items",
        "lists in errors",
        "texts in errors",
    ],
)
def test_what_takes_too_many_comparisons_is_given_up(
    items: JsonSchema, values: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a fifth of the limit, and of what would reach it: nothing that costs is left uncounted."""
    monkeypatch.setattr(tool_schemas, "MAX_COMPARISONS", tool_schemas.MAX_COMPARISONS // 5)
    *_, finding = findings(items, values)
    assert "comparisons" in finding


def test_long_ordinary_arguments_are_validated_to_the_end() -> None:
    properties = {"x": {"type": "integer"}, "y": {"enum": ["a", "b"]}}
    items = {"type": "object", "required": ["x", "y"], "properties": properties}
    values: list[object] = [{"x": n, "y": "a"} for n in range(2000)]
    assert findings(items, values) == []
    (finding,) = findings(items, [*values, {"x": 1, "y": "c"}])
    assert "$.a[2000].y" in finding


def test_only_the_items_of_short_arrays_are_compared_with_each_other() -> None:
    twice: list[object] = [{"x": 1}, {"x": 1}]
    distinct: list[object] = [{"x": n} for n in range(MAX_UNIQUE_ITEMS - 1)]
    assert findings({}, distinct, uniqueItems=True) == []
    assert len(findings({}, [*distinct, {"x": 1}], uniqueItems=True)) == 1
    assert findings({}, [*distinct, *twice], uniqueItems=True) == []
    assert len(findings({}, [{"x": [1] * 900}] * 2, uniqueItems=True)) == 1
    assert findings({}, [{"x": [1] * 2000}] * 2, uniqueItems=True) == []


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({"allOf": [{"$ref": "#/properties/x/allOf/y"}]}, 1),
        ({"enum": ["a"], "$ref": "#/properties/x/enum/0"}, 1),
        ({"const": {"type": 5}, "$ref": "#/properties/x/const"}, 1),
        ({"multipleOf": 0.5}, 10**400),
        ({"multipleOf": 10**400}, 1.5),
    ],
    ids=["no index", "no schema", "no type", "long number", "long factor"],
)
def test_what_the_library_cannot_apply_is_a_finding(rules: JsonSchema, value: object) -> None:
    """Whatever is raised in the agent's event loop ends the agent, with all its answers."""
    schema = ToolSchema("f", {"type": "object", "properties": {"x": rules}})
    *_, finding = schema.findings({"x": value})
    assert finding.startswith("tool 'f': schema cannot be applied: ")


def test_each_validation_has_the_whole_limit() -> None:
    items = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"enum": ["a", "b"]}}}
    array = {"type": "array", "items": items}
    schema = ToolSchema("f", {"type": "object", "properties": {"a": array}})
    values = [{"x": n, "y": "a"} for n in range(2000)]
    assert [schema.findings({"a": values}) for _ in range(8)] == [[]] * 8


def test_validating_a_call_makes_no_validator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the class took a hundred times as long as judging a small call with it."""
    first, second = (ToolSchema(name, {"required": ["a"]}) for name in "fg")
    assert first.findings({"a": 1}) == []
    monkeypatch.delattr("paddler_trio.language.tool_schemas.extend")
    assert first.findings({"a": 2}) == second.findings({"a": 3}) == []
    (finding,) = second.findings({})
    assert "'a' is a required property" in finding


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schema has been met before."""
    monkeypatch.setattr(tool_schemas, "_SOUND", {})


@pytest.mark.usefixtures("fresh")
def test_a_schema_that_was_found_sound_is_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checking takes some hundred times as long as knowing it again."""
    schema = {"required": ["a"], "properties": {"a": {"type": "integer"}}}
    first = ToolSchema("f", schema)
    monkeypatch.delattr("paddler_trio.language.tool_schemas._refusals_of")
    second = ToolSchema("g", dict(schema))
    (finding,) = second.findings({"a": "b"})
    assert finding == first.findings({"a": "b"})[0].replace("'f'", "'g'")
    with pytest.raises(NameError):
        ToolSchema("f", {**schema, "required": ["b"]})


@pytest.mark.usefixtures("fresh")
def test_what_is_no_schema_is_refused_each_time() -> None:
    draft_4 = "http://json-schema.org/draft-04/schema#"
    sound = {"$schema": draft_4, "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}}
    ToolSchema("f", sound)
    for _ in range(2):
        with pytest.raises(ToolSchemaError, match="not a JSON Schema"):
            ToolSchema("f", {"properties": sound["properties"]})  # another draft
        with pytest.raises(ToolSchemaError, match="not a JSON Schema"):
            ToolSchema("f", {"type": 1})


@pytest.mark.usefixtures("fresh")
def test_so_many_schemas_are_remembered_and_those_met_last() -> None:
    for number in range(MAX_REMEMBERED + 10):
        ToolSchema("f", {"const": number})
        ToolSchema("f", {})
    assert len(tool_schemas._SOUND) == MAX_REMEMBERED
    before = [*tool_schemas._SOUND]
    ToolSchema("f", {})
    ToolSchema("f", {"const": 0})
    assert [*tool_schemas._SOUND][:-1] == before[1:]

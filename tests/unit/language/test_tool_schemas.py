"""Validation of arguments is bounded, whatever they are; ordinary ones do not notice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paddler_trio.language import tool_schemas
from paddler_trio.language.tool_schemas import (
    MAX_UNIQUE_ITEMS,
    JsonSchema,
    ToolSchema,
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
        ({"multipleOf": 0.5}, 10**400),
        ({"multipleOf": 10**400}, 1.5),
    ],
    ids=["long number", "long factor"],
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

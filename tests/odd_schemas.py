"""JSON Schemas as no specification has them, drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_KEYWORDS = [
    "type", "properties", "required", "items", "additionalProperties", "additionalItems", "enum",
    "const", "default", "minimum", "exclusiveMinimum", "maxLength", "pattern", "format", "$ref",
    "$id", "id", "$schema", "$anchor", "$defs", "definitions", "dependencies", "allOf", "anyOf",
    "oneOf", "not", "if", "then", "prefixItems", "uniqueItems", "multipleOf", "patternProperties",
    "dependentRequired", "dependentSchemas", "examples", "title", "nullable", "x-other",
    "$dynamicRef", "propertyNames", "contentSchema", "$comment", "deprecated", "divisibleBy",
]  # fmt: skip
_WORDS = st.sampled_from(
    ["a", "string", "int", "#", "#/$defs/a", "#/definitions/a", "#a", "a.json", "any", ""]
)
_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*_KEYWORDS, "a", "b"]), inner, max_size=4)
    ),
    max_leaves=25,
)


def odd_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Objects with keywords of every draft, whose values are anything."""
    return st.dictionaries(st.sampled_from(_KEYWORDS), _ODD, max_size=6)

"""References and ``allOf`` resolved: one plain schema for what stands at one place.

Also whether two schemas can fit the same value, which ``oneOf`` forbids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote

from paddler_trio.language.grammars.schema_merging import (
    KINDS,
    Schema,
    SchemaError,
    all_of,
    rules_of,
    types_in,
)

_MAX_MERGES = 5000
_MAX_ONE_OF = 100
_REFUSED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip


class Resolver:
    """The places of one document."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._merges = 0

    def target(self, reference: object, path: str) -> tuple[object, str]:
        """What ``$ref`` leads to, and the reference; SchemaError if it leads nowhere here."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(path, f"$ref: {reference!r} does not start with '#/'")
        here = self._document
        for part in reference[1:].split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(here, Mapping) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
                here = here[int(key)]
            else:
                raise SchemaError(path, f"$ref: {reference!r} does not exist")
        return here, reference

    def merged(self, schema: object, path: str, seen: tuple[str, ...] = ()) -> object:
        """``schema`` with ``$ref`` and ``allOf`` at its top replaced by what they ask for.

        Raises:
          SchemaError: no schema expresses it exactly; NothingMatchesError: nothing fits it.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SchemaError(path, "a schema is an object, true or false")
        self._merges += 1
        if self._merges > _MAX_MERGES:
            raise SchemaError(path, f"more than {_MAX_MERGES} schemas to be merged")
        rules = checked(schema, path)
        parts: list[object] = []
        if "$ref" in rules:
            target, pointer = self.target(rules.pop("$ref"), path)
            if pointer in seen:
                raise SchemaError(path, f"$ref: {pointer!r} refers to itself without an end")
            parts.append(self.merged(target, pointer, (*seen, pointer)))
        branches = rules.pop("allOf", [])
        assert isinstance(branches, list), "checked above"
        for index, branch in enumerate(branches):
            parts.append(self.merged(branch, f"{path}.allOf[{index}]", seen))
        result: object = rules or True
        for part in parts:
            result = all_of(result, part, path)
        return result

    def check_one_of(self, branches: list[object], path: str) -> None:
        """Refuse branches of which two may fit the same value: a grammar cannot forbid that."""
        if len(branches) > _MAX_ONE_OF:
            raise SchemaError(path, f"oneOf: {len(branches)}, the limit is {_MAX_ONE_OF}")
        merged = [self.merged(b, f"{path}.oneOf[{i}]") for i, b in enumerate(branches)]
        for i, one in enumerate(merged):
            for j in range(i):
                if not self._are_apart(merged[j], one, path, 4):
                    reason = f"oneOf: number {j} and number {i} may fit the same value"
                    raise SchemaError(path, f"{reason}: use anyOf, or tell them apart by a const")

    def _are_apart(self, one: object, other: object, path: str, depth: int) -> bool:
        if one is False or other is False:
            return True
        if not isinstance(one, Mapping) or not isinstance(other, Mapping) or depth == 0:
            return False
        for here, there in ((one, other), (other, one)):
            for key in ("anyOf", "oneOf"):
                if isinstance(branches := here.get(key), list):
                    return all(
                        self._are_apart(self.merged(branch, path), there, path, depth - 1)
                        for branch in branches
                    )
        if (values := _values_of(one)) is not None and (others := _values_of(other)) is not None:
            return not values & others
        common = _kinds_of(one, path) & _kinds_of(other, path)
        if common == {"object"}:
            return self._objects_are_apart(one, other, path, depth)
        return not common

    def _objects_are_apart(self, one: Schema, other: Schema, path: str, depth: int) -> bool:
        for here, there in ((one, other), (other, one)):
            required = here.get("required", [])
            mine, theirs = here.get("properties", {}), there.get("properties", {})
            if not (isinstance(required, list) and isinstance(mine, Mapping)):
                continue
            if not isinstance(theirs, Mapping):
                continue
            for name in filter(lambda name: isinstance(name, str), required):
                if name not in theirs:
                    if there.get("additionalProperties") is False:
                        return "patternProperties" not in there
                elif name in mine and self._are_apart(
                    self.merged(mine[name], path), self.merged(theirs[name], path), path, depth - 1
                ):
                    return True
        return False


def checked(schema: Schema, path: str) -> dict[str, object]:
    """The rules of a schema; SchemaError names what no grammar can express."""
    rules = rules_of(schema)
    for key in _REFUSED:
        if key in rules:
            raise SchemaError(path, f"{key}: cannot be expressed in a grammar")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems", "enum"):
        if key in rules and (not isinstance(rules[key], list) or not rules[key]):
            raise SchemaError(path, f"{key}: has to be a list that is not empty")
    return rules


def canonical(value: object) -> str:
    """Equal texts for equal JSON values; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, dict):
        items = sorted((key, canonical(item)) for key, item in value.items())
        return "{" + ",".join(f"{json.dumps(key)}:{item}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value)


def kinds_of_value(value: object) -> frozenset[str]:
    """The ``type`` names that a JSON value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _values_of(schema: Schema) -> frozenset[str] | None:
    """The values of ``enum`` or ``const``, as texts."""
    if "const" in schema:
        return frozenset({canonical(schema["const"])})
    values = schema.get("enum")
    return frozenset(map(canonical, values)) if isinstance(values, list) else None


def _kinds_of(schema: Schema, path: str) -> frozenset[str]:
    """The types that may fit, an integer being a number too.

    A schema without a type fits every type by the standard, whatever we would write for it.
    """
    kinds = set(types_in(schema["type"], path) if "type" in schema else KINDS)
    for key in ("const", "enum"):
        if key in schema:
            values = schema[key] if key == "enum" else [schema[key]]
            assert isinstance(values, list), "const is one value, enum a list"
            kinds &= {kind for value in values for kind in kinds_of_value(value)}
    if kinds & {"integer", "number"}:
        kinds = (kinds - {"integer"}) | {"number"}
    return frozenset(kinds)

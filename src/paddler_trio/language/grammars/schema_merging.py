"""Several JSON Schemas that all have to hold, as one.

A grammar reads a text once, so references, ``allOf``, and keywords beside ``$ref`` or ``anyOf`` are
merged into one schema before anything is written. What cannot be merged exactly is refused, and so
are two schemas of a ``oneOf`` that may fit the same value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeAlias, cast
from urllib.parse import unquote

import attrs

from paddler_trio.language.answers.typed_values import json_types
from paddler_trio.language.grammars.lark import GrammarError, Work

Schema: TypeAlias = Mapping[str, object]

ANNOTATIONS = frozenset(
    {
        "$anchor", "$comment", "$defs", "$id", "$schema", "$vocabulary", "contentEncoding",
        "contentMediaType", "contentSchema", "default", "definitions", "deprecated", "description",
        "discriminator", "example", "examples", "externalDocs", "id", "readOnly", "strict", "title",
        "writeOnly", "xml",
    }
)  # fmt: skip
"""Keywords that allow and forbid nothing."""

MAX_ALTERNATIVES = 4096
"""Of two ``anyOf`` that both have to hold: each with each is one."""

_GREATEST = frozenset({"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"})
_LEAST = frozenset({"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"})


class SchemaError(GrammarError):
    """A schema that no grammar can express; ``path`` is the place of the problem.

    The ``reason`` begins with the keywords that make it, which ``keywords`` has.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.keywords = reason.partition(":")[0].split(", ")


class NothingMatchesError(SchemaError):
    """No value fits this part of a schema."""


_GOES_WITH = {
    "properties": ("required", "additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("items",),
    **dict.fromkeys(("$ref", "allOf", "anyOf", "oneOf"), ("unevaluatedProperties",)),
}
"""What would forbid more without the keyword than with it."""
_GIVEN_UP = ("oneOf", "allOf", "anyOf", "$ref", *_GOES_WITH)
"""The keywords that bring others along, of which one may be what cannot be expressed."""


def relaxed(schema: Schema, error: SchemaError) -> Schema | None:
    """The schema without what ``error`` is about, which allows more; None if nothing is left."""
    given = [key for key in error.keywords if key in schema]
    if given == ["oneOf"] and "anyOf" not in schema:
        rest = {key: value for key, value in schema.items() if key != "oneOf"}
        return {**rest, "anyOf": schema["oneOf"]}
    given = given or [key for key in _GIVEN_UP if key in schema][:1] or sorted(rules_of(schema))[:1]
    dropped = {*given, *(other for key in given for other in _GOES_WITH.get(key, ()))}
    lesser = {key: value for key, value in schema.items() if key not in dropped}
    return lesser if len(lesser) < len(schema) else None


def rules_of(schema: Schema) -> dict[str, object]:
    """A schema without its annotations."""
    return {key: value for key, value in schema.items() if key not in ANNOTATIONS}


def _all_of(one: object, other: object, path: str, work: Work) -> object:
    """One schema for what both allow; neither has ``$ref`` or ``allOf`` at its top.

    Raises:
      SchemaError: no schema expresses it exactly; NothingMatchesError: nothing fits both.
    """
    if one is False or other is False:
        return False
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return other if one is True else one
    _spend(work, len(one) + len(other), path)
    merged = rules_of(one)
    for key, value in rules_of(other).items():
        if key in _ABOUT_PROPERTIES or (key in _ABOUT_ITEMS and not _ABOUT_ITEMS.isdisjoint(one)):
            continue
        merged[key] = _both(key, merged[key], value, path, work) if key in merged else value
    if any(key in one or key in other for key in _ABOUT_PROPERTIES):
        merged.update(_properties_of_both(one, other, path, work))
    if not (_ABOUT_ITEMS.isdisjoint(one) or _ABOUT_ITEMS.isdisjoint(other)):
        for key in _ABOUT_ITEMS:
            merged.pop(key, None)
        merged.update(_items_of_both(one, other, path, work))
    return merged


def _both(key: str, one: object, other: object, path: str, work: Work) -> object:
    _spend(work, _length(one) + _length(other), path)
    if _same(one, other, path, work):
        return one
    if key == "type":
        return _types_of_both(one, other, path)
    if key == "multipleOf" and isinstance(one, int) and isinstance(other, int):
        return math.lcm(one, other)
    if key == "pattern":
        return [*patterns_in(one, path), *patterns_in(other, path)]
    if key == "enum" and isinstance(one, list) and isinstance(other, list):
        allowed = set(map(canonical, other))
        return [value for value in one if canonical(value) in allowed]
    if key == "const":
        if canonical(one) == canonical(other):
            return one
        raise NothingMatchesError(path, "const: two different values are asked for")
    if key == "required" and isinstance(one, list) and isinstance(other, list):
        known = set(map(_canonical, one))
        return [*one, *(name for name in other if _canonical(name) not in known)]
    if {type(one), type(other)} <= {int, float}:
        numbers = cast("list[float]", [one, other])
        if key in _GREATEST:
            return max(numbers)
        if key in _LEAST:
            return min(numbers)
    if key == "propertyNames":
        return {"allOf": [one, other]}
    if key in ("anyOf", "oneOf") and isinstance(one, list) and isinstance(other, list):
        if key == "oneOf":
            raise SchemaError(path, "oneOf: two of them beside each other cannot be expressed")
        if len(one) * len(other) > MAX_ALTERNATIVES:
            raise SchemaError(
                path,
                f"{key}: {len(one)} alternatives beside {len(other)} others make "
                f"{len(one) * len(other)}, the limit is {MAX_ALTERNATIVES}",
            )
        return [{"allOf": [a, b]} for a in one for b in other]
    if key == "nullable":
        return one is True and other is True
    raise SchemaError(path, f"{key}: two different values beside each other cannot be expressed")


_ABOUT_PROPERTIES = ("properties", "additionalProperties")


def _properties_of_both(one: Schema, other: Schema, path: str, work: Work) -> dict[str, object]:
    for schema in (one, other):
        if "patternProperties" in schema:
            reason = "patternProperties: beside other keywords about properties"
            raise SchemaError(path, f"{reason} it cannot be expressed")
    declared = [_declared(schema, path) for schema in (one, other)]
    _spend(work, sum(map(len, declared)), path)
    rest = [schema.get("additionalProperties") for schema in (one, other)]
    merged: dict[str, object] = {}
    if "properties" in one or "properties" in other:
        # Where a side does not name a property, it is one of its additional properties.
        merged["properties"] = {
            name: _of_sides(
                [here.get(name, others) for here, others in zip(declared, rest, strict=True)]
            )
            for name in {**declared[0], **declared[1]}
        }
    if rest != [None, None]:
        merged["additionalProperties"] = _of_sides(rest)
    return merged


_ABOUT_ITEMS = frozenset({"prefixItems", "items", "additionalItems"})


def _items_of_both(one: Schema, other: Schema, path: str, work: Work) -> dict[str, object]:
    """``items`` is about what stands behind the ``prefixItems`` beside it, and behind no others."""
    sides = [items_of(schema) for schema in (one, other)]
    _spend(work, sum(len(prefix) for prefix, _ in sides), path)
    merged: dict[str, object] = {}
    if length := max(len(prefix) for prefix, _ in sides):
        merged["prefixItems"] = [
            _of_sides([prefix[i] if i < len(prefix) else rest for prefix, rest in sides])
            for i in range(length)
        ]
    rest = [rest for _, rest in sides]
    if rest != [None, None]:
        merged["items"] = _of_sides(rest)
    return merged


def items_of(schema: Schema) -> tuple[list[object], object]:
    """The schemas of an array's first items, and that of all others; None if nothing is said."""
    prefix, items = schema.get("prefixItems", []), schema.get("items")
    if isinstance(items, list):  # before 2020-12
        prefix, items = items, schema.get("additionalItems")
    assert isinstance(prefix, list), "checked when the schema was read"
    return prefix, items


def _of_sides(sides: list[object]) -> object:
    """One schema for two; None allows everything."""
    given = [side for side in sides if side is not None and side is not True]
    if any(side is False for side in given):
        return False
    if len(given) == 2:
        return {"allOf": given}
    return given[0] if given else True


def _declared(schema: Schema, path: str) -> Mapping[str, object]:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise SchemaError(path, "properties: is no object")
    return properties


def types_in(value: object, path: str) -> list[str]:
    """The ``type`` keyword as a list of names."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in KINDS:
            raise SchemaError(path, f"type: {_shown(name)} is no type of JSON")
    return list(dict.fromkeys(names))


KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def patterns_in(value: object, path: str) -> list[str]:
    """The ``pattern`` keyword as a list: of several schemas, each has one."""
    patterns = value if isinstance(value, list) else [value]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise SchemaError(path, "pattern: has to be a text")
    return [pattern for pattern in patterns if isinstance(pattern, str)]


def _types_of_both(one: object, other: object, path: str) -> list[str]:
    first, second = types_in(one, path), types_in(other, path)
    common = [name for name in first if name in second]
    if "integer" not in common and any(
        "integer" in a and "number" in b for a, b in ((first, second), (second, first))
    ):
        common.append("integer")
    if not common:
        raise NothingMatchesError(path, "type: no type is left")
    return common


def _same(one: object, other: object, path: str, work: Work) -> bool:
    """Equal as JSON values: 1 and true are not."""
    if type(one) is not type(other):
        return False
    here, there = _canonical(one), _canonical(other)
    _spend(work, (len(here) + len(there)) // _CHARS_IN_A_STEP, path)
    return here == there


_CHARS_IN_A_STEP = 64


def _spend(work: Work, steps: int, path: str) -> None:
    try:
        work.spend(steps)
    except GrammarError as error:
        raise SchemaError(path, str(error)) from error


def _length(value: object) -> int:
    return len(value) if isinstance(value, list | Mapping) else 1


def _canonical(value: object) -> str:
    """Equal for equal JSON values only; 1 and true, and 1 and 1.0, differ."""
    return json.dumps(value, sort_keys=True)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


_MAX_MERGES = 5000
_MAX_ONE_OF = 100
_REFUSED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip


@attrs.define(eq=False)
class Resolver:
    """The places of one document."""

    _document: object
    _work: Work
    _merges: int = attrs.field(default=0, init=False)
    _values: dict[int, tuple[list[object], frozenset[str]]] = attrs.field(factory=dict, init=False)
    """Of each ``enum`` by its id, which stays its own: in a ``oneOf`` each meets all others."""
    _parts: dict[int, tuple[object, object]] = attrs.field(factory=dict, init=False)
    """Of the branches of a ``oneOf``, and what they are merged, by their ids."""

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
        parts = [part for part in parts if part is not True]
        if len(parts) + bool(rules) > 1 and any(
            isinstance(part, Mapping) and _UNEVALUATED in part for part in parts
        ):
            reason = "beside anyOf, in one of several schemas, it cannot be expressed"
            raise SchemaError(path, f"{_UNEVALUATED}: {reason}")
        result: object = rules or True
        for part in parts:
            result = self.both(result, part, path)
        if _UNEVALUATED in rules and isinstance(result, Mapping):
            return _evaluated(result)
        return result

    def both(self, one: object, other: object, path: str) -> object:
        """One schema for what two allow that were merged; errors as of ``merged``."""
        return _all_of(one, other, path, self._work)

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
                        self._are_apart(self._merged_once(branch, path), there, path, depth - 1)
                        for branch in branches
                    )
        _spend(self._work, 1, path)
        values, others = self._values_of(one), self._values_of(other)
        if values is not None and others is not None:
            _spend(self._work, min(len(values), len(others)) // 8, path)
            return values.isdisjoint(others)
        common = _kinds_of(one, path) & _kinds_of(other, path)
        if common == {"object"}:
            return self._objects_are_apart(one, other, path, depth)
        return not common

    def _merged_once(self, schema: object, path: str) -> object:
        """As ``merged``: a part of one branch meets those of all others."""
        if id(schema) not in self._parts:
            self._parts[id(schema)] = schema, self.merged(schema, path)
        return self._parts[id(schema)][1]

    def _values_of(self, schema: Schema) -> frozenset[str] | None:
        """The values of ``enum`` or ``const``, as texts."""
        if "const" in schema:
            return frozenset({canonical(schema["const"])})
        values = schema.get("enum")
        if not isinstance(values, list):
            return None
        if id(values) not in self._values:
            self._values[id(values)] = values, frozenset(map(canonical, values))
        return self._values[id(values)][1]

    def _objects_are_apart(self, one: Schema, other: Schema, path: str, depth: int) -> bool:
        for here, there in ((one, other), (other, one)):
            required = here.get("required", [])
            mine, theirs = here.get("properties", {}), there.get("properties", {})
            if not (isinstance(required, list) and isinstance(mine, Mapping)):
                continue
            if not isinstance(theirs, Mapping):
                continue
            _spend(self._work, len(required) // 4, path)
            names = [name for name in required if isinstance(name, str)]
            # what tells them apart is looked at first, wherever it stands
            for name in sorted(names, key=lambda name: not _has_values(mine.get(name))):
                if name not in theirs:
                    if there.get("additionalProperties") is False:
                        return "patternProperties" not in there
                elif name in mine and self._are_apart(
                    self._merged_once(mine[name], path),
                    self._merged_once(theirs[name], path),
                    path,
                    depth - 1,
                ):
                    return True
        return False


def _has_values(schema: object) -> bool:
    return isinstance(schema, Mapping) and ("const" in schema or "enum" in schema)


_UNEVALUATED = "unevaluatedProperties"


def _evaluated(schema: Schema) -> Schema:
    """With ``additionalProperties`` for ``unevaluatedProperties``, unless branches name more: what
    the schemas beside this one name is not evaluated by it."""
    if "anyOf" in schema or "oneOf" in schema:
        return schema
    rules = dict(schema)
    further = rules.pop(_UNEVALUATED)
    rules.setdefault("additionalProperties", further)
    return rules


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


def _kinds_of(schema: Schema, path: str) -> frozenset[str]:
    """The types that may fit, an integer being a number too.

    A schema without a type fits every type by the standard, whatever we would write for it.
    """
    kinds = set(types_in(schema["type"], path) if "type" in schema else KINDS)
    for key in ("const", "enum"):
        if key in schema:
            values = schema[key] if key == "enum" else [schema[key]]
            assert isinstance(values, list), "const is one value, enum a list"
            kinds &= {kind for value in values for kind in json_types(value)}
    if kinds & {"integer", "number"}:
        kinds = (kinds - {"integer"}) | {"number"}
    return frozenset(kinds)

"""Arrays and objects of a schema as GBNF.

An object is written as a chain: each link has the properties that may come next, so the grammar
grows with the number of properties and not with their combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from paddler_trio.language.grammars.gbnf_writer import GrammarWriter
from paddler_trio.language.grammars.schema_merging import (
    NothingMatchesError,
    Schema,
    SchemaError,
    items_of,
)
from paddler_trio.language.grammars.string_schemas import Place, count_of

MAX_PROPERTIES = 2000


class Parts(Place, Protocol):
    """Where arrays and objects are written: what stands inside them, and between its parts."""

    @property
    def blanks(self) -> str: ...
    def value(self, schema: object, path: str, /) -> str: ...
    def key(self, name: str, /) -> str: ...
    def any_key(self, names: list[str], /) -> str: ...


# ------------------------------------------------------------------------------- arrays


def write_array(rules: Schema, path: str, parts: Parts) -> str:
    """The rule for an array; SchemaError if it cannot be expressed, or no array fits."""
    prefix, items = items_of(rules)
    least = count_of(rules, "minItems", path)
    most = count_of(rules, "maxItems", path)
    if rules.get("uniqueItems") is True and (most is None or most > 1):
        raise SchemaError(path, "uniqueItems: cannot be expressed in a grammar")
    firsts: list[str] = []
    for index, schema in enumerate(prefix):
        try:
            firsts.append(parts.value(schema, f"{path}[{index}]"))
        except NothingMatchesError:
            most = min(index, index if most is None else most)
            break
    if least is None:
        least = len(firsts) if most is None else min(len(firsts), most)
    item: str | None = None
    if most is None or most > len(firsts):
        try:
            more = items if items is not None else not prefix
            item = parts.value(more, f"{path}.items")
        except NothingMatchesError:
            most = len(firsts)
    if most is not None and least > most:
        raise NothingMatchesError(path, f"minItems: {least} items are asked for, {most} can fit")
    return _array_of(firsts, item, least, most, parts)


def _array_of(
    firsts: list[str], item: str | None, least: int, most: int | None, parts: Parts
) -> str:
    grammar, blanks = parts.grammar, parts.blanks
    firsts = firsts if most is None else firsts[:most]
    rest = ""
    if item is not None:
        following = grammar.rule(f'"," {blanks} {item}', "item")
        first = 1 if not firsts else 0
        done = len(firsts) + first
        rest = grammar.counted(
            following, max(0, least - done), None if most is None else max(0, most - done)
        )
        if first:
            rest = f"{item} {rest}"
    for index in reversed(range(len(firsts))):
        comma = f'"," {blanks} ' if index else ""
        inner = f"{comma}{firsts[index]} {rest}".rstrip()
        rest = inner if index < least or index == 0 else f"({inner})?"
    if not rest:
        return grammar.rule('"[" "]"', "array")
    inside = f"{rest} {blanks}" if least else f"({rest} {blanks})?"
    return grammar.rule(f'"[" {blanks} {inside} "]"', "array")


# ------------------------------------------------------------------------------- objects


def write_object(rules: Schema, path: str, parts: Parts) -> str:
    """The rule for an object; SchemaError if it cannot be expressed, or no object fits."""
    declared, required, further = _shape(rules, path)
    names = list(declared)
    pairs: list[tuple[str, bool]] = []
    for name, schema in declared.items():
        try:
            rule = parts.value(schema, f"{path}.{name}")
        except NothingMatchesError:
            if name in required:
                raise
            continue
        key = f'{parts.key(name)} ":" {parts.blanks}'
        pairs.append((parts.grammar.rule(f"{key} {rule}", "pair"), name in required))
    extra = _extra(rules, further, names, path, parts)
    least = count_of(rules, "minProperties", path) or 0
    most = count_of(rules, "maxProperties", path)
    if least > max(1, len(required)):
        raise SchemaError(path, f"minProperties: {least} cannot be expressed in a grammar")
    if most is not None:  # a grammar counts no pairs that may be left out: as if all were there
        most -= len(pairs)
        if most < 0:
            reason = f"{most + len(pairs)} beside {len(pairs)} properties"
            raise SchemaError(path, f"maxProperties: {reason} cannot be expressed in a grammar")
        if most == 0:
            extra = None
    if not pairs and extra is None:
        if least:
            raise NothingMatchesError(path, "minProperties: no property can be there")
        return parts.grammar.rule('"{" "}"', "object")
    return _object_of(pairs, extra, most, parts, is_filled=least > 0)


def _object_of(
    pairs: list[tuple[str, bool]],
    extra: str | None,
    most_extra: int | None,
    parts: Parts,
    *,
    is_filled: bool,
) -> str:
    grammar, blanks = parts.grammar, parts.blanks
    some = after = ""
    if extra is not None:
        following = grammar.rule(f'"," {blanks} {extra}', "more")
        after = grammar.counted(following, 0, most_extra)
        behind_one = None if most_extra is None else most_extra - 1
        some = f"{extra} {grammar.counted(following, 0, behind_one)}"
    some, may_end = chained(pairs, f'"," {blanks}', grammar, some=some, after=after)
    inside = f"({some} {blanks})?" if may_end and not is_filled else f"{some} {blanks}"
    return grammar.rule(f'"{{" {blanks} {inside} "}}"', "object")


def chained(
    pairs: list[tuple[str, bool]],
    separator: str,
    grammar: GrammarWriter,
    *,
    some: str = "",
    after: str = "",
) -> tuple[str, bool]:
    """A rule for pairs in their order, each with whether it is required; and whether none is.

    Args:
      some, after: what may stand in the place of all pairs, and behind them.
    """
    may_end = True
    for pair, is_required in reversed(pairs):
        ways = [f"{pair} {after}".rstrip()]
        if some and not is_required:
            ways.append(some)
        may_end = may_end and not is_required
        some = grammar.rule(" | ".join(ways), "some")
        following = f"{separator} {some}".lstrip()
        after = grammar.rule(f"({following})?" if may_end else following, "after")
    return some, may_end


def _shape(rules: Schema, path: str) -> tuple[dict[str, object], frozenset[str], object]:
    """The properties that are named, those that must be there, and what others have to be."""
    declared = rules.get("properties", {})
    required = rules.get("required", [])
    further = rules.get("additionalProperties")
    if not isinstance(declared, Mapping):
        raise SchemaError(path, "properties: has to be an object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise SchemaError(path, "required: has to be a list of names")
    unevaluated = rules.get("unevaluatedProperties")
    if not (unevaluated is None or isinstance(unevaluated, bool)):
        raise SchemaError(path, "unevaluatedProperties: cannot be expressed in a grammar")
    if further is None and unevaluated is False:
        further = False
    properties = dict(declared)
    for name in required:
        if name in properties:
            continue
        if "patternProperties" in rules:
            raise SchemaError(path, f"required: {name!r} beside patternProperties")
        if further is False:
            raise NothingMatchesError(path, f"required: {name!r} is not allowed to be there")
        properties[name] = True if further is None else further
    if len(properties) > MAX_PROPERTIES:
        reason = f"properties: {len(properties)}, the limit is {MAX_PROPERTIES}"
        raise SchemaError(path, reason)
    if properties and rules.get("propertyNames", True) is not True:
        raise SchemaError(path, "propertyNames: beside properties it cannot be expressed")
    if further is None and not rules.keys() & {"properties", "required", "patternProperties"}:
        further = True
    return properties, frozenset(required), further


def _extra(rules: Schema, further: object, names: list[str], path: str, parts: Parts) -> str | None:
    """The rule for a property that is not named, key and value; None if there may be none."""
    patterns = rules.get("patternProperties")
    key_rules = rules.get("propertyNames")
    if patterns is not None:
        if not isinstance(patterns, Mapping):
            raise SchemaError(path, "patternProperties: has to be an object")
        if names or len(patterns) != 1 or further not in (None, False) or key_rules is not None:
            reason = "patternProperties: only one pattern, with no other keyword about properties"
            raise SchemaError(path, f"{reason}, can be expressed")
        ((pattern, further),) = patterns.items()
        key_rules = {"pattern": pattern}
    if further is None or further is False:
        return None
    try:
        value = parts.value(further, f"{path}.additionalProperties")
        if key_rules is None or key_rules is True:
            key = parts.any_key(names)
        else:  # a key is a string, also where its schema has no type
            strings = {"allOf": [{"type": "string"}, key_rules]}
            key = parts.value(strings, f"{path}.propertyNames")
    except NothingMatchesError:
        return None
    return parts.grammar.rule(f'{key} ":" {parts.blanks} {value}', "extra")

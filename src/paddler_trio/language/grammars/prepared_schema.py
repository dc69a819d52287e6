"""Parts of a schema as the library is given it, and what is asked of all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from paddler_trio.language.grammars.lark import GrammarError
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, Schema, SchemaError
from paddler_trio.wire.json_schema import MAX_COUNT, MAX_FREE_NAMES

Rules: TypeAlias = dict[str, object]
"""Keywords of a schema, and their values."""
Prepared: TypeAlias = Rules | bool
"""A schema for the library."""
MAX_PROPERTIES = 2000


def shape_of(rules: Schema, path: str) -> tuple[Rules, frozenset[str], object]:
    """The properties that are named, those that must be there, and what others have to be."""
    declared = rules.get("properties", {})
    required = rules.get("required", [])
    further = rules.get("additionalProperties")
    if not isinstance(declared, Mapping):
        raise SchemaError(path, "properties: has to be an object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise SchemaError(path, "required: has to be a list of names")
    unevaluated = rules.get("unevaluatedProperties")
    if further is None:
        further = unevaluated
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


def counted(
    prepared: Rules,
    counts: Mapping[str, int],
    num_required: int,
    *,
    is_open: bool,
    path: str,
) -> Prepared:
    """Return an object that has so many properties; SchemaError if the library cannot count them.

    It counts where all that are named are there: of a few that need not be, each choice is one way.
    """
    properties = prepared["properties"]
    assert isinstance(properties, dict), "it was prepared so"
    least, most = counts.get("minProperties", 0), counts.get("maxProperties")
    if most is not None and least > most:
        raise NothingMatchesError(path, f"minProperties, maxProperties: {least} is over {most}")
    if most is not None and most < num_required:
        raise NothingMatchesError(path, f"maxProperties: {num_required} are required")
    required = prepared["required"]
    assert isinstance(required, list), "it was prepared so"
    free = [name for name in properties if name not in required]
    if not is_open and least - num_required <= 1 and most in (None, num_required + 1):
        return {**prepared, **counts}
    if len(free) > MAX_FREE_NAMES:
        reason = f"beside {len(free)} properties that need not be there"
        raise SchemaError(path, f"{', '.join(counts)}: {reason}, cannot be expressed")
    ways: list[Prepared] = []
    for choice in range(2 ** len(free)):
        absent = {name for place, name in enumerate(free) if not choice >> place & 1}
        present = [name for name in properties if name not in absent]
        if least <= len(present) + (least if is_open else 0) and (
            most is None or len(present) <= most
        ):
            shown = {name: name not in absent and part for name, part in properties.items()}
            ways.append({**prepared, "properties": shown, "required": present, **counts})
    if not ways:
        raise NothingMatchesError(path, f"minProperties: {least} cannot be there")
    return any_of(ways)


def count_of(rules: Schema, key: str, path: str) -> int | None:
    """A keyword that counts, within the limits; None if it is not there."""
    value = rules.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SchemaError(path, f"{key}: has to be a count")
    if value > MAX_COUNT:
        raise SchemaError(path, f"{key}: {value} is more than {MAX_COUNT}")
    return value


def any_of(ways: list[Prepared]) -> Prepared:
    if True in ways:
        return True
    written = {json.dumps(way, sort_keys=True): way for way in ways}
    return ways[0] if len(written) == 1 else {"anyOf": list(written.values())}


def quoted(text: object) -> str:
    return re.sub(r"[^\w\s]", lambda found: f"\\x{{{ord(found[0]):x}}}", str(text))


def possible(
    makers: Iterable[Callable[[], Prepared]],
) -> tuple[list[Prepared], NothingMatchesError | None]:
    """Return what those made that something can match, and the last problem of the others."""
    ways: list[Prepared] = []
    problem: NothingMatchesError | None = None
    for make in makers:
        try:
            ways.append(make())
        except NothingMatchesError as error:
            problem = error
    return ways, problem


def used(prepared: Prepared, definitions: Mapping[str, Prepared]) -> list[str]:
    """Return the names of the definitions that are needed."""
    used: dict[str, None] = {}
    waiting: list[object] = [prepared]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            reference = here.get("$ref")
            if isinstance(reference, str) and (name := reference[8:]) not in used:
                used[name] = None
                waiting.append(definitions[name])
            waiting += [each for key, each in here.items() if key not in ("enum", "required")]
        elif isinstance(here, list):
            waiting += here
    return list(used)


def refuse_endless(prepared: Prepared, definitions: Mapping[str, Prepared]) -> None:
    """Refuse definitions in which a text can begin that can never end."""
    open_names = used(prepared, definitions)
    ended: set[str] = set()
    while True:
        left = []
        for name in reversed(open_names):  # what a definition needs mostly comes behind it
            if _ends(definitions[name], ended):
                ended.add(name)
            else:
                left.append(name)
        if not left:
            return
        if len(left) == len(open_names):
            raise GrammarError("it contains itself in a way that no finite text fits")
        open_names = left[::-1]


def _ends(schema: object, ended: set[str]) -> bool:
    """Return whether a value of the schema can end, if those of the definitions ``ended`` do."""
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema:
        return schema["$ref"][8:] in ended
    if "anyOf" in schema:
        return any(_ends(branch, ended) for branch in schema["anyOf"])
    if "allOf" in schema:
        return all(_ends(branch, ended) for branch in schema["allOf"])
    needed = [schema["properties"][name] for name in schema.get("required", ())]
    if least := schema.get("minItems", 0):
        firsts = schema.get("prefixItems", [])
        needed += [*firsts[:least], *([schema["items"]] if least > len(firsts) else [])]
    return all(_ends(each, ended) for each in needed)

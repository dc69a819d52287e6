"""Translate the values of single keywords in schemas of strangers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urljoin

_COUNTS = frozenset(
    {
        "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
        "minContains", "maxContains",
    }
)  # fmt: skip
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_TEXTS = frozenset(
    {"$comment", "title", "description", "pattern", "format", "contentEncoding", "contentMediaType"}
)
_FLAGS = frozenset({"uniqueItems", "deprecated", "readOnly", "writeOnly"})

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_OTHER_TYPES = {
    "int": "integer", "long": "integer", "int32": "integer", "int64": "integer",
    "float": "number", "double": "number", "decimal": "number", "num": "number",
    "str": "string", "text": "string", "bool": "boolean", "dict": "object", "map": "object",
    "list": "array", "tuple": "array", "set": "array", "none": "null", "nil": "null",
}  # fmt: skip
"""Names of types in other languages."""
_ANY_TYPES = frozenset({"any", "unknown", "mixed"})


NOTHING, ANYTHING = object(), object()
"""A value without a meaning, and one that allows everything: both are left out."""


def _type(value: object) -> object:
    names: list[str] = []
    for each in value if isinstance(value, list) else [value]:
        name = "null" if each is None else each
        if not isinstance(name, str):
            return NOTHING
        name = name if name in TYPES else _OTHER_TYPES.get(name.lower(), name.lower())
        if name in _ANY_TYPES:
            return ANYTHING
        if name not in TYPES:
            return NOTHING
        names.append(name)
    if not names:
        return NOTHING
    return list(dict.fromkeys(names)) if isinstance(value, list) else names[0]


def _count(value: object) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        return NOTHING
    return value if isinstance(value, int) or value.is_integer() else NOTHING


def _number(value: object) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NOTHING
    return value if isinstance(value, int) or math.isfinite(value) else NOTHING


def _step(value: object) -> object:
    number = _number(value)
    return number if number is NOTHING or number > 0 else NOTHING  # type: ignore[operator]


def _text(value: object) -> object:
    return value if isinstance(value, str) else NOTHING


def _flag(value: object) -> object:
    return value if isinstance(value, bool) else NOTHING


def _names(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return NOTHING
    return list(dict.fromkeys(value))


def _names_by_name(value: object) -> object:
    if not isinstance(value, dict):
        return NOTHING
    kept = {name: _names(each) for name, each in value.items()}
    return {name: each for name, each in kept.items() if each is not NOTHING} or NOTHING


def _choices(value: object) -> object:
    return value if isinstance(value, list) and value else NOTHING


def _examples(value: object) -> object:
    return value if isinstance(value, list) else ANYTHING


CHECKS: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_FLAGS, _flag),
    "multipleOf": _step,
    "type": _type,
    "enum": _choices,
    "examples": _examples,
    "required": _names,
    "dependentRequired": _names_by_name,
}
"""What becomes of a keyword's value."""


def places_of(node: object, pointer: str) -> dict[int, str]:
    """Pointers to all objects inside ``node``, itself included, by their ids."""
    places: dict[int, str] = {}
    waiting = [(node, pointer)]
    while waiting:
        each, where = waiting.pop()
        if isinstance(each, dict):
            places[id(each)] = where
            waiting += [(inner, f"{where}/{escaped(key)}") for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, f"{where}/{index}") for index, inner in enumerate(each)]
    return places


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def at(node: object, pointer: str) -> object:
    """Return what a JSON pointer leads to; None for nothing."""
    if not pointer.startswith("/"):
        return None
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # an address that is none
        return reference


def last_name(reference: str) -> str:
    name = unquote(reference.rpartition("/")[2].rpartition("#")[2])
    return name.replace("~1", "/").replace("~0", "~")

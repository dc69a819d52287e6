"""Values that formats without quotes write as bare text, typed by the tool's schema.

What may only be a string stays the text it is, and can be passed on while it is written. Anything
else is JSON (or Python's spelling of it) where it reads as such and a schema allows it, else text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from paddler_trio.language.answers.literals import parse_json, parse_literal
from paddler_trio.language.answers.streamed_json import mended_json

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_DEPTH = 16
_MAX_VISITS = 500


@attrs.frozen
class Expected:
    """A schema expects something of a value: any of ``rules`` may hold, without them anything."""

    rules: tuple[Mapping[str, object], ...]
    root: Mapping[str, object]

    @property
    def types(self) -> frozenset[str]:
        """The JSON types that the value may have."""
        visits = iter(range(_MAX_VISITS))
        found = (_types(rules, self.root, 0, visits) for rules in self.rules)
        return frozenset[str]().union(*found) or ANY

    def member(self, key: str) -> Expected:
        """The schema's rules for the property ``key``, if the value is an object."""
        tables = (rules.get("properties") for rules in self._spread())
        found = (table.get(key) for table in tables if isinstance(table, Mapping))
        return self._of(found)

    def item(self) -> Expected:
        """The schema's rules for every item, if the value is an array."""
        return self._of(rules.get("items") for rules in self._spread())

    def _of(self, found: Iterable[object]) -> Expected:
        return Expected(tuple(rules for rules in found if isinstance(rules, Mapping)), self.root)

    def _spread(self) -> list[Mapping[str, object]]:
        """The rules, and those they are put together from."""
        spread = list(self.rules)
        for rules in spread:  # grows on the way
            reference = rules.get("$ref")
            options = [_resolved(reference, self.root)] if isinstance(reference, str) else []
            for keyword in ("anyOf", "oneOf", "allOf"):
                listed = rules.get(keyword)
                options += listed if isinstance(listed, list | tuple) else ()
            left = _MAX_VISITS - len(spread)
            spread += [option for option in options if isinstance(option, Mapping)][:left]
        return spread


def expected_of(schema: Mapping[str, object], key: str) -> Expected:
    """Return what the schema of a tool's parameters expects of one of them."""
    return Expected((schema,), schema).member(key)


def _types(
    rules: object, root: Mapping[str, object], depth: int, visits: Iterator[int]
) -> frozenset[str]:
    if not isinstance(rules, Mapping) or depth > _MAX_DEPTH or next(visits, None) is None:
        return ANY
    found = _declared(rules)
    for keyword in ("anyOf", "oneOf"):
        options = rules.get(keyword)
        if isinstance(options, list | tuple) and options:
            found &= frozenset[str]().union(
                *(_types(option, root, depth + 1, visits) for option in options)
            )
    every = rules.get("allOf")
    for option in every if isinstance(every, list | tuple) else ():
        found &= _types(option, root, depth + 1, visits)
    reference = rules.get("$ref")
    if isinstance(reference, str):
        found &= _types(_resolved(reference, root), root, depth + 1, visits)
    return found or ANY


def _declared(rules: Mapping[str, object]) -> frozenset[str]:
    declared = rules.get("type")
    if isinstance(declared, str) and declared in ANY:
        return frozenset({declared})
    if isinstance(declared, list | tuple):
        names = frozenset(name for name in declared if isinstance(name, str)) & ANY
        return names or ANY
    values = rules.get("enum", [rules["const"]] if "const" in rules else None)
    if isinstance(values, list | tuple) and values:
        return frozenset(name for value in values for name in json_types(value))
    if "properties" in rules or "additionalProperties" in rules:
        return frozenset({"object"})
    return ANY


def _resolved(reference: str, root: Mapping[str, object]) -> Mapping[str, object] | None:
    node: object = root
    if not reference.startswith("#"):
        return None
    for part in reference.removeprefix("#").split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        node = node.get(step) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def json_types(value: object) -> frozenset[str]:
    """The names JSON Schema has for the type of ``value``."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case None:
            return frozenset({"null"})
        case Mapping():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def json_of(text: str, types: frozenset[str], *, quoted: bool = False) -> str:
    """The JSON text of a value written as ``text``.

    Where no text is allowed quotes around a value are read away, and what reads as JSON stays JSON
    even if it is of another type.

    Args:
      quoted: texts are written in JSON's quotes.
    """
    if types != {"string"} or quoted:
        stripped = text.strip()
        is_no_text = "string" not in types
        readers: tuple[Callable[[str], str], ...] = (_as_it_is, mended_json, _as_python)
        for reader in readers:
            try:
                written = reader(stripped)
            except (ValueError, RecursionError):
                continue
            value = parse_json(written)
            if not isinstance(value, str) and (is_no_text or json_types(value) & types):
                return written
            if isinstance(value, str) and reader is not _as_python and is_no_text:
                return json_of(value, types)
            if isinstance(value, str) and reader is not _as_python and (quoted or types == ANY):
                return written
    return json.dumps(text, ensure_ascii=False)


def _as_it_is(text: str) -> str:
    """JSON stays as the model wrote it, with the digits it wrote; ValueError."""
    parse_json(text)
    return text


def _as_python(text: str) -> str:
    return json.dumps(parse_literal(text), ensure_ascii=False)


@attrs.define(eq=False)
class TextValue:
    """A string value, passed on as pieces of its JSON text; the quotes are included.

    If it ``may_be_laid_out``, one line break at its beginning is layout, and so is then one at its
    end.
    """

    _sink: Callable[[str], object]
    _may_be_laid_out: bool = attrs.field(kw_only=True)
    _started: bool = attrs.field(default=False, init=False)
    _is_laid_out: bool = attrs.field(default=False, init=False)
    _held_back: str = attrs.field(default="", init=False)

    def feed(self, text: str) -> None:
        """More of the value."""
        if not text:
            return
        if not self._started:
            self._started = True
            self._sink('"')
            self._is_laid_out = text.startswith("\n") and self._may_be_laid_out
            text = text.removeprefix("\n") if self._is_laid_out else text
        text = self._held_back + text
        self._held_back = "\n" if self._is_laid_out and text.endswith("\n") else ""
        text = text.removesuffix("\n") if self._held_back else text
        if text:
            self._sink(json.dumps(text, ensure_ascii=False)[1:-1])

    def end(self) -> None:
        """The value is complete."""
        self._sink('"' if self._started else '""')


def without_layout(text: str) -> str:
    """A value without the line breaks that are layout, as :class:`TextValue` passes it on."""
    if text.startswith("\n"):
        return text[1:].removesuffix("\n")
    return text

"""Values in the notations of models that write no JSON: Python's literals, and Gemma's objects.

[True, {"k": None}]                Python: JSON with other words
{theme:<|"|>dark<|"|>,count:3}     Gemma: bare keys, texts in a quote token, nothing escaped
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.language.grammars.lark import (
    LarkWriter,
    either,
    joined,
    literal,
    optional,
    regex,
)
from paddler_trio.language.grammars.patterns import (
    text_of_length,
    text_with,
    texts_without,
)
from paddler_trio.language.grammars.prepared_schema import count_of, shape_of
from paddler_trio.language.grammars.schema_merging import (
    NothingMatchesError,
    Schema,
    SchemaError,
    items_of,
)
from paddler_trio.language.grammars.schema_preparation import SchemaPreparation

BARE_KEY = "[A-Za-z_][A-Za-z0-9_]{0,63}"
"""A key that needs no quotes, as an expression."""


@attrs.define(eq=False)
class Notation:
    """Writes the values of one tool's schema.

    Args:
      words: how true, false and nothing are written.
      quote: a token that quotes texts, between bare keys; "" where texts and keys are JSON's.
    """

    writer: LarkWriter
    schemas: SchemaPreparation
    words: tuple[str, str, str] = ("true", "false", "null")
    quote: str = ""
    _known: dict[int, tuple[object, str]] = attrs.field(factory=dict, init=False)
    _any: str = attrs.field(default="", init=False)

    @property
    def blanks(self) -> str:
        """Return what may stand between parts: nothing where keys are bare."""
        return '""' if self.quote else r'(" " | /\n[ \t]{0,24}/)?'

    def value(self, schema: object, path: str) -> str:
        """Return the rule for the values that fit ``schema``.

        Raises:
          SchemaError: it cannot be expressed; NothingMatchesError: no value fits.
        """
        if schema is True or schema == {}:
            return self.anything()
        known = self._known.get(id(schema))
        if known is not None:
            return known[1]
        name = self.writer.reserve()  # a schema may contain itself
        self._known[id(schema)] = schema, name
        target = schema
        if isinstance(schema, Mapping) and schema.keys() == {"$ref"}:
            target, _ = self.schemas.resolve(schema["$ref"], path)
            body = self.value(target, path)
        else:
            ways, problem = [], None
            for part in self.schemas.plain(schema, path):
                try:
                    ways.append(self._plain(part, path))
                except NothingMatchesError as error:
                    problem = error
            if not ways:
                del self._known[id(schema)]
                raise problem or NothingMatchesError(path, "no value fits")
            body = " | ".join(dict.fromkeys(ways))
        self.writer.define(name, body)
        return name

    def _plain(self, rules: Schema, path: str) -> str:
        """Return a rule for a schema of one type."""
        if isinstance(values := rules.get("enum"), list):
            return either([self.constant(value) for value in values])
        match rules.get("type"):
            case None:
                return self.anything()
            case "null":
                return literal(self.words[2])
            case "boolean":
                return either([literal(word) for word in self.words[:2]])
            case "string":
                return self.text(rules, path)
            case "array":
                return self._array(rules, path)
            case "object":
                return self.object(rules, path)
            case _:
                return self.writer.rule(self.schemas.grammar(self.schemas.value(rules, path)))

    def text(self, rules: Schema, path: str) -> str:
        """Return the rule for a string."""
        if not self.quote:
            return self.writer.rule(self.schemas.grammar(self.schemas.value(rules, path)))
        body = quoted_text(self.schemas, rules, path, self.quote, self.quote)
        return self.writer.terminal(body)

    def constant(self, value: object) -> str:
        """Return what writes one value."""
        match value:
            case True | False | None:
                return literal(self.words[(True, False, None).index(value)])
            case str() if self.quote:
                if self.quote in value or any(text in value for text in self.schemas.avoided):
                    reason = f"enum: {value!r} cannot be written in this model's calls"
                    raise SchemaError("$", reason)
                return literal(f"{self.quote}{value}{self.quote}")
            case dict():
                parts = [
                    joined(literal(self.key(name)), self.blanks, self.constant(item))
                    for name, item in value.items()
                ]
                return self.bracketed("{", self._listed(parts), "}")
            case list():
                return self.bracketed("[", self._listed(map(self.constant, value)), "]")
            case _:
                return self.writer.rule(self.schemas.grammar({"enum": [value]}))

    def key(self, name: str) -> str:
        """Return a key and what follows it; SchemaError if it cannot be written."""
        if not self.quote:
            return json.dumps(name, ensure_ascii=False) + ":"
        if not is_bare_key(name):
            raise SchemaError("$", f"properties: {name!r} cannot be a key in this model's calls")
        return f"{name}:"

    def bracketed(self, opening: str, inner: str, closing: str) -> str:
        """Return a rule for parts in brackets."""
        blanks = self.blanks if inner != '""' else '""'
        return self.writer.rule(joined(literal(opening), blanks, inner, blanks, literal(closing)))

    def _listed(self, parts: Iterable[str]) -> str:
        comma = f'"," {self.blanks}'
        return joined(
            *(part if not index else joined(comma, part) for index, part in enumerate(parts))
        )

    def _array(self, rules: Schema, path: str) -> str:
        prefix, items = items_of(rules)
        if prefix or rules.get("uniqueItems") is True:
            key = "prefixItems" if prefix else "uniqueItems"
            raise SchemaError(path, f"{key}: cannot be expressed in this model's calls")
        least = count_of(rules, "minItems", path) or 0
        most = count_of(rules, "maxItems", path)
        if most is not None and least > most:
            raise NothingMatchesError(path, f"minItems: {least} is over {most}")
        if most == 0:
            return literal("[]")
        item = self.value(True if items is None else items, f"{path}.items")
        following = joined('","', self.blanks, item)
        upper = "" if most is None else most - 1
        inner = joined(item, f"({following}){{{max(0, least - 1)},{upper}}}")
        return self.bracketed("[", inner if least else optional(inner), "]")

    def object(self, rules: Schema, path: str) -> str:
        """Return the rule for an object."""
        declared, required, further = shape_of(rules, path)
        for key in ("patternProperties", "propertyNames", "minProperties", "maxProperties"):
            if key in rules:
                raise SchemaError(path, f"{key}: cannot be expressed in this model's calls")
        pairs: list[tuple[str, bool]] = []
        for name, schema in declared.items():
            try:
                value = self.value(schema, f"{path}.{name}")
            except NothingMatchesError:
                if name in required:
                    raise
                continue
            pair = joined(literal(self.key(name)), self.blanks, value)
            pairs.append((self.writer.rule(pair), name in required))
        if further not in (None, False) and not pairs:
            pair = joined(self._any_key(), '":"', self.blanks, self.value(further, path))
            inner = optional(f'{pair} ("," {joined(self.blanks, pair)})*')
        else:
            inner = chained(pairs, joined('","', self.blanks), self.writer)
        return self.bracketed("{", inner, "}")

    def anything(self) -> str:
        """Return the rule for any value."""
        if not self._any:
            self._any = self.writer.reserve()
            ways = [
                self.object({"additionalProperties": True}, "$"),
                self._array({}, "$"),
                self.text({"type": "string"}, "$"),
                self.writer.rule(self.schemas.grammar({"type": "number"})),
                *map(literal, self.words),
            ]
            self.writer.define(self._any, " | ".join(ways))
        return self._any

    def _any_key(self) -> str:
        if self.quote:
            return self.writer.terminal(regex(BARE_KEY))
        return self.text({"type": "string"}, "$")


def chained(pairs: list[tuple[str, bool]], separator: str, writer: LarkWriter) -> str:
    """Return pairs in their order with a separator between them; those that are not required may
    be left out. The grammar grows with their number, and not with their combinations."""
    behind_others = behind_none = '""'
    for pair, is_required in reversed(pairs):
        following = joined(separator, pair)
        first = joined(pair, behind_others)
        if not is_required:
            first = f"{first} | {behind_none}"
            following = optional(following)
        behind_none = writer.rule(first)
        behind_others = writer.rule(joined(following, behind_others))
    return behind_none


def quoted_text(
    schemas: SchemaPreparation,
    rules: Schema,
    path: str,
    before: str,
    after: str,
    *,
    also: str = "",
) -> str:
    """Return a terminal for a text as it is, between ``before`` and ``after``, which it lacks.

    The end is a part of the terminal: a lexer that took as much as it can would take it as well.
    ``also``: a further part of a terminal that the text has to fit.
    """
    avoided = [after, *schemas.avoided]
    parts = [regex(pattern) for pattern in texts_without(avoided)]
    parts += [f"({text_with(pattern)})" for pattern in schemas.patterns(rules, path)]
    least, most = schemas.lengths(rules, path)
    if least or most is not None:
        parts.append(text_of_length(least, most))
    parts += [f"({also})"] if also else []
    text = parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"
    return joined(literal(before) if before else "", text, literal(after))


def is_bare_key(name: str) -> bool:
    """Return whether a key needs no quotes."""
    return name.isascii() and name.isidentifier() and len(name) <= 64

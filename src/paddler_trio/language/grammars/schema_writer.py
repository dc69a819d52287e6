"""JSON Schema as GBNF: every text of the grammar is JSON that fits the schema.

A grammar may allow less than its schema, never more:

* properties come in the order of the schema; where some are named, further ones are only written
  if ``additionalProperties`` or ``patternProperties`` allow them;
* arrays with ``prefixItems`` have all of those unless ``minItems`` is less, and further items
  only where ``items`` allows them;
* a schema without ``type`` means the types that its other keywords are about;
* between the parts of arrays and objects stands at most a blank, or a line end and an indentation,
  so that a model may write readable JSON but cannot write blanks for ever;
* integers have no fraction, and numbers at most 16 digits on either side of the point.

What cannot be expressed that way (``not``, ``uniqueItems``, ``if`` ...) is refused by name.

Source:
  JSON Schema 2020-12 and earlier drafts, where they differ only in names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import partial

import attrs

from paddler_trio.language.answers.typed_values import json_types
from paddler_trio.language.grammars.container_schemas import write_array, write_object
from paddler_trio.language.grammars.gbnf_writer import GrammarError, GrammarWriter, literal
from paddler_trio.language.grammars.number_schemas import Bounds, NoNumberError, integer, number
from paddler_trio.language.grammars.schema_merging import (
    KINDS,
    NothingMatchesError,
    Resolver,
    Schema,
    SchemaError,
    canonical,
    checked,
    relaxed,
    types_in,
)
from paddler_trio.language.grammars.string_schemas import (
    INTEGER_FORMATS,
    NUMBER_FORMATS,
    TEXT_FORMATS,
    json_key,
    json_string,
)

MAX_DEPTH = 64
MAX_ALTERNATIVES = 2000

BLANKS = '(" " | "\\n" [ \\t]{0,24})?'

_KEYWORDS_OF = {
    "object": frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties",
            "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties",
        }
    ),
    "array": frozenset(
        {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}
    ),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
}  # fmt: skip


@attrs.define(eq=False)
class SchemaWriter:
    """Turns the parts of a schema, ``document``, into rules of one grammar.

    Args:
      avoided: texts that no string may contain as they are, such as what ends a tool call.
      null_where_nullable: OpenAPI's ``nullable``, which JSON Schema lacks, adds null.
      words: how true, false and nothing are written.
      is_lenient: what cannot be expressed is left out, so that more is allowed, and not refused.
    """

    grammar: GrammarWriter
    _document: object
    avoided: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    words: tuple[str, str, str] = attrs.field(default=("true", "false", "null"), kw_only=True)
    _null_where_nullable: bool = attrs.field(default=False, kw_only=True)
    is_lenient: bool = attrs.field(default=False, kw_only=True)
    blanks: str = attrs.field(init=False)
    _resolver: Resolver = attrs.field(init=False)
    _known: dict[int, str] = attrs.field(factory=dict, init=False)
    _kept: list[object] = attrs.field(factory=list, init=False)
    """Schemas that were merged: their ids must stay theirs."""
    _references: dict[str, str] = attrs.field(factory=dict, init=False)
    _waiting: list[tuple[str, object, str]] = attrs.field(factory=list, init=False)
    _depth: int = attrs.field(default=0, init=False)
    _any: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._resolver = Resolver(self._document, self.grammar.work)
        self.blanks = self.grammar.rule(BLANKS, "ws")

    def document(self) -> str:
        """The rule for the whole document; SchemaError, or GrammarError if it grows too large."""
        return self.value(self._document, "$")

    # ------------------------------------------------------------------------ any schema

    def value(self, schema: object, path: str) -> str:
        """The name of the rule for the values that fit ``schema``.

        Raises:
          SchemaError: it cannot be expressed; NothingMatchesError: no value fits.
          GrammarError: it grows too large.
        """
        if schema is True or schema == {}:
            return self.anything()
        if schema is False:
            raise NothingMatchesError(path, "false: no value fits")
        if not isinstance(schema, Mapping):
            raise SchemaError(path, "a schema is an object, true or false")
        known = self._known.get(id(schema))
        if known is not None:
            return known
        with self._nested(path):
            name = self._written_leniently(schema, path)
        self._known[id(schema)] = name
        self._kept.append(schema)
        while self._waiting and self._depth == 0:
            rule, target, pointer = self._waiting.pop()
            self._depth = 1
            try:
                self.grammar.define(rule, self.value(target, pointer))
            finally:
                self._depth = 0
        return name

    def _written_leniently(self, schema: Schema, path: str) -> str:
        while True:
            try:
                return self._written(schema, path)
            except NothingMatchesError:
                raise
            except SchemaError as error:
                lesser = relaxed(schema, error) if self.is_lenient else None
                if lesser is None:
                    raise
                schema = lesser
                self._kept.append(schema)

    @contextmanager
    def _nested(self, path: str) -> Iterator[None]:
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise SchemaError(path, f"nested too deeply, the limit is {MAX_DEPTH}")
            yield
        finally:
            self._depth -= 1

    def _written(self, schema: Schema, path: str) -> str:
        rules = checked(schema, path)
        reference = rules.pop("$ref", None)
        if not rules:
            return self.anything() if reference is None else self._reference(reference, path)
        if reference is not None or "allOf" in rules:
            return self.value(self._resolver.merged(schema, path), path)
        for key in ("anyOf", "oneOf"):
            if key in rules:
                return self._either(key, rules, path)
        ways = self._ways(rules, path)
        if self._null_where_nullable and rules.get("nullable") is True:
            ways.append(literal(self.words[2]))
        is_rule = len(ways) == 1 and ways[0][0].isalpha()
        return ways[0] if is_rule else self._rule(ways, path)

    def _rule(self, ways: Iterable[str], path: str) -> str:
        return self.grammar.rule(" | ".join(dict.fromkeys(ways)), path.rpartition(".")[2])

    def _reference(self, reference: object, path: str) -> str:
        target, pointer = self._resolver.target(reference, path)
        if pointer not in self._references:
            # Known before it is written: a schema may contain itself.
            name = self._references[pointer] = self.grammar.reserve(pointer.rpartition("/")[2])
            if self._depth > MAX_DEPTH // 2:
                # A long chain of references is no nesting: this one is written at the end.
                self._waiting.append((name, target, pointer))
                return name
            try:
                self.grammar.define(name, self.value(target, pointer))
            except NothingMatchesError:
                del self._references[pointer]
                raise
        return self._references[pointer]

    def _either(self, key: str, rules: dict[str, object], path: str) -> str:
        branches = rules.pop(key)
        assert isinstance(branches, list), "checked when the schema was read"
        if len(branches) > MAX_ALTERNATIVES:
            raise SchemaError(path, f"{key}: {len(branches)}, the limit is {MAX_ALTERNATIVES}")
        if rules:
            # What stands beside it holds for every branch.
            branches = [
                self._resolver.both(
                    rules, self._resolver.merged(branch, f"{path}.{key}[{index}]"), path
                )
                for index, branch in enumerate(branches)
            ]
        if key == "oneOf":
            self._resolver.check_one_of(branches, path)
        ways, problem = _possible(
            partial(self.value, branch, f"{path}.{key}[{index}]")
            for index, branch in enumerate(branches)
        )
        if not ways:
            raise NothingMatchesError(path, f"{key}: nothing fits any of them") from problem
        return self._rule(ways, path)

    def plain(self, schema: object, path: str) -> list[Schema]:
        """The schemas, each of one type, of which a value fits one if it fits ``schema``.

        Raises:
          SchemaError: it cannot be taken apart that way.
        """
        with self._nested(path):
            whole = self._resolver.merged(schema, path)
            if not isinstance(whole, Mapping):
                return [{}] if whole is True else []
            rules = dict(whole)
            for key in ("anyOf", "oneOf"):
                if isinstance(branches := rules.pop(key, None), list):
                    if key == "oneOf":
                        self._resolver.check_one_of(branches, path)
                    whole = {k: rules.pop(k) for k in ("unevaluatedProperties",) if k in rules}
                    return [
                        part
                        for branch in branches
                        for part in self.plain({**whole, "allOf": [rules or True, branch]}, path)
                    ]
            if "const" in rules or "enum" in rules:
                values = rules["enum"] if "enum" in rules else [rules["const"]]
                assert isinstance(values, list), "an enum is a list"
                return [{**rules, "enum": [value], "type": _kind(value)} for value in values]
            if "type" not in rules and not any(
                keys & rules.keys() for keys in _KEYWORDS_OF.values()
            ):
                return [rules]
            return [{**rules, "type": kind} for kind in self._types(rules, path)]

    # ------------------------------------------------------------------- one plain schema

    def _ways(self, rules: dict[str, object], path: str) -> list[str]:
        """GBNF alternatives for a schema of nothing but a type and its keywords."""
        if "const" in rules or "enum" in rules:
            return self._values(rules, path)
        makers: dict[str, Callable[[dict[str, object], str], str]] = {
            "null": lambda _rules, _path: literal(self.words[2]),
            "boolean": lambda _rules, _path: f'("{self.words[0]}" | "{self.words[1]}")',
            "integer": partial(self._number, make=integer),
            "number": partial(self._number, make=number),
            "string": self.text,
            "array": lambda rules, path: write_array(rules, path, self),
            "object": lambda rules, path: write_object(rules, path, self),
        }
        names = self._types(rules, path)
        if "number" in names and "integer" in names:
            names.remove("integer")
        ways, problem = _possible(partial(makers[name], rules, path) for name in names)
        if not ways:
            raise problem or NothingMatchesError(path, "no type is left")
        return ways

    def _types(self, rules: dict[str, object], path: str) -> list[str]:
        if "type" in rules:
            return types_in(rules["type"], path)
        meant = [kind for kind, keys in _KEYWORDS_OF.items() if not keys.isdisjoint(rules)]
        if meant == ["string"] and rules.keys() & _KEYWORDS_OF["string"] == {"format"}:
            name = str(rules["format"])
            if name in INTEGER_FORMATS:
                return ["integer"]
            if name in NUMBER_FORMATS:
                return ["number"]
        return meant or [kind for kind in KINDS if kind != "integer"]

    def _values(self, rules: dict[str, object], path: str) -> list[str]:
        values = rules["enum"] if "enum" in rules else [rules["const"]]
        if not isinstance(values, list) or not values:
            raise SchemaError(path, "enum: has to be a list that is not empty")
        if len(values) > MAX_ALTERNATIVES:
            raise SchemaError(path, f"enum: {len(values)}, the limit is {MAX_ALTERNATIVES}")
        beside = rules.keys() - {"enum", "const", "type", "nullable"}
        for keys in _KEYWORDS_OF.values():
            if judged := beside & keys:
                word = min(judged)
                raise SchemaError(path, f"{word}: beside enum or const it cannot be expressed")
        if "enum" in rules and "const" in rules:
            wanted = canonical(rules["const"])
            values = [value for value in values if canonical(value) == wanted]
        if "type" in rules:
            allowed = set(types_in(rules["type"], path))
            values = [value for value in values if allowed & json_types(value)]
        ways = [self._constant(value, path) for value in values]
        if not ways:
            raise NothingMatchesError(path, "enum: no value has the type")
        return ways

    def _constant(self, value: object, path: str) -> str:
        match value:
            case True | False | None:
                return literal(self.words[(True, False, None).index(value)])
            case dict():
                parts = [
                    f'{self.key(key)} ":" {self.blanks} {self._constant(item, path)}'
                    for key, item in value.items()
                ]
                return self.bracketed("{", parts, "}")
            case list():
                return self.bracketed("[", [self._constant(item, path) for item in value], "]")
            case _:
                return self.quoted(value)

    def bracketed(self, opening: str, parts: list[str], closing: str) -> str:
        """GBNF for these parts in brackets, with commas and blanks between them."""
        if not parts:
            return literal(opening + closing)
        inner = f' "," {self.blanks} '.join(parts)
        return f"{literal(opening)} {self.blanks} {inner} {self.blanks} {literal(closing)}"

    def _number(
        self, rules: Schema, path: str, *, make: Callable[[Bounds, GrammarWriter], str]
    ) -> str:
        step = rules.get("multipleOf")
        if step is not None:
            if step != 1 or step is True:
                raise SchemaError(path, f"multipleOf: {step} cannot be expressed in a grammar")
            make = integer
        named = rules.get("format")
        low: int | None = None
        high: int | None = None
        if isinstance(named, str) and named in INTEGER_FORMATS:
            low, high = INTEGER_FORMATS[named]
        elif named is not None and str(named) not in NUMBER_FORMATS | TEXT_FORMATS.keys():
            raise SchemaError(path, f"format: {named!r} is not known")
        least, excludes_least = _bound(rules, "minimum", "exclusiveMinimum", low, max, path)
        most, excludes_most = _bound(rules, "maximum", "exclusiveMaximum", high, min, path)
        try:
            return make(Bounds(least, most, excludes_least, excludes_most), self.grammar)
        except NoNumberError as error:
            raise NothingMatchesError(path, f"minimum, maximum: {error}") from error
        except GrammarError as error:
            bounds = ", ".join(sorted(key for key in _KEYWORDS_OF["number"] if key in rules))
            raise SchemaError(path, f"{bounds}: {error}") from error

    def text(self, rules: Schema, path: str) -> str:
        """The rule for a string; SchemaError."""
        return json_string(rules, path, self)

    def any_key(self, names: list[str]) -> str:
        """The rule for a key that is none of ``names``."""
        return json_key(names, self)

    def key(self, name: str) -> str:
        """GBNF for a key."""
        return self.quoted(name)

    def any_object(self) -> str:
        """The rule for any JSON object."""
        blanks, value = self.blanks, self.anything()
        pair = self.grammar.rule(f'{self.any_key([])} ":" {blanks} {value}', "pair")
        some = f'({pair} ("," {blanks} {pair})* {blanks})?'
        return self.grammar.rule(f'"{{" {blanks} {some} "}}"', "object")

    def anything(self) -> str:
        """The rule for any JSON value."""
        if self._any is None:
            self._any = self.grammar.reserve("any")
            blanks = self.blanks
            text = self.text({}, "$")
            items = f'({self._any} ("," {blanks} {self._any})* {blanks})?'
            ways = [
                self.any_object(),
                self.grammar.rule(f'"[" {blanks} {items} "]"', "array"),
                text,
                number(Bounds(), self.grammar),
                *map(literal, self.words),
            ]
            self.grammar.define(self._any, " | ".join(ways))
        return self._any

    def quoted(self, value: object) -> str:
        """GBNF for a text, a number or a key as JSON, free of the texts to avoid."""
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
            written.encode()
        except UnicodeEncodeError:
            written = json.dumps(value)  # half a surrogate pair only exists as an escape
        except ValueError as error:
            raise SchemaError("$", f"{value} is no number of JSON") from error
        if isinstance(value, str):
            for text in self.avoided:
                written = written.replace(text, f"\\u{ord(text[0]):04x}{text[1:]}")
        return literal(written)


def _possible(
    makers: Iterable[Callable[[], str]],
) -> tuple[list[str], NothingMatchesError | None]:
    """What those made that something can match, and the last problem of the others."""
    ways: list[str] = []
    problem: NothingMatchesError | None = None
    for make in makers:
        try:
            ways.append(make())
        except NothingMatchesError as error:
            problem = error
    return ways, problem


def _kind(value: object) -> str:
    kinds = json_types(value)
    return "number" if "number" in kinds else min(kinds)


def _bound(
    rules: Schema,
    name: str,
    exclusive: str,
    given: int | None,
    tighter: Callable[[Decimal, Decimal], Decimal],
    path: str,
) -> tuple[Decimal | None, bool]:
    """The tightest bound on one side, and whether it is excluded itself."""
    bound = None if given is None else Decimal(given)
    is_excluded = False
    for key in (name, exclusive):
        value = rules.get(key)
        if value is None or (key == exclusive and isinstance(value, bool)):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SchemaError(path, f"{key}: has to be a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise SchemaError(path, f"{key}: {value} is no number of JSON")
        number_here = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
        if bound is None or bound == number_here or tighter(bound, number_here) == number_here:
            is_excluded = key == exclusive
            bound = number_here
    if rules.get(exclusive) is True and bound is not None:  # draft 4
        is_excluded = True
    return bound, is_excluded

"""JSON Schema as llguidance's ``%json`` is given it, so that an answer is bound as we promise.

The library reads a schema as the specification does. What is written here says more, and never
allows more than the schema:

* properties come in the order of the schema; where some are named, further ones are only written
  if ``additionalProperties`` or ``patternProperties`` allow them, and no name is hidden by escapes;
* arrays with ``prefixItems`` have all of those unless ``minItems`` is less, and further items
  only where ``items`` allows them;
* a schema without ``type`` means the types that its other keywords are about;
* formats are patterns of ours, so that dates are real and addresses have an end;
* between the parts of arrays and objects stands at most a blank, or a line end and an indentation,
  so that a model may write readable JSON but cannot write blanks for ever;
* integers have no fraction and fit 64 bits; bounds that no double has are moved inwards.

What cannot be expressed (``not``, ``uniqueItems``, ``if`` ...) is refused by name, or left out.

Source:
  JSON Schema 2020-12 and earlier drafts, where they differ only in names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import attrs

from paddler_trio.language.answers.typed_values import json_types
from paddler_trio.language.grammars.lark import GrammarError, Work
from paddler_trio.language.grammars.patterns import TEXT_FORMATS, alternatives_of, texts_without
from paddler_trio.language.grammars.prepared_schema import (
    Prepared,
    Rules,
    any_of,
    count_of,
    counted,
    possible,
    quoted,
    refuse_endless,
    shape_of,
    used,
)
from paddler_trio.language.grammars.schema_merging import (
    KINDS,
    NothingMatchesError,
    Resolver,
    Schema,
    SchemaError,
    canonical,
    checked,
    items_of,
    patterns_in,
    relaxed,
    types_in,
)
from paddler_trio.language.grammars.schema_numbers import (
    INTEGER_FORMATS,
    NUMBER_FORMATS,
    prepared_number,
)
from paddler_trio.wire.json_schema import ANSWER_SCHEMA

Made = TypeVar("Made")

MAX_DEPTH = 64
MAX_PLACE_CHARS = 160
MAX_ALTERNATIVES = 2000
BLANKS = r"( |\n[ \t]{0,24})"

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
class SchemaPreparation:
    """Prepares the parts of a schema, ``document``.

    Args:
      avoided: texts that no string may contain, such as what ends a tool call.
      null_where_nullable: OpenAPI's ``nullable``, which JSON Schema lacks, adds null.
      is_lenient: what cannot be expressed is left out, so that more is allowed, and not refused.
      place: what the schema is of a request, as it is reported what was left out.
    """

    work: Work
    _document: object
    avoided: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    _null_where_nullable: bool = attrs.field(default=False, kw_only=True)
    is_lenient: bool = attrs.field(default=False, kw_only=True)
    place: str = attrs.field(default=ANSWER_SCHEMA, kw_only=True)
    _resolver: Resolver = attrs.field(init=False)
    _definitions: dict[str, Prepared] = attrs.field(factory=dict, init=False)
    _known: dict[int, tuple[object, Prepared]] = attrs.field(factory=dict, init=False)
    """The results by the id of a schema, which is kept so that the id stays its own."""
    _references: dict[str, str] = attrs.field(factory=dict, init=False)
    """The names of definitions, by their pointers or by what they are for."""
    _waiting: list[tuple[str, object, str]] = attrs.field(factory=list, init=False)
    _depth: int = attrs.field(default=0, init=False)
    _hides_names: bool = attrs.field(default=False, init=False)
    """Somewhere a name that is written with escapes could be one that has another schema."""

    def __attrs_post_init__(self) -> None:
        self._resolver = Resolver(self._document, self.work)

    def grammar(self, prepared: Prepared) -> str:
        """Return Lark for the values that fit what was prepared here; GrammarError."""
        refuse_endless(prepared, self._definitions)
        options: Rules = {
            "whitespace_pattern": BLANKS,
            "coerce_one_of": True,  # those that are told apart by nothing are refused before
            "json_allow_general_unicode_escapes": True,
        }
        if self._hides_names:
            options["json_allowed_escapes"] = 'nrbtf\\"'
        schema = dict(prepared) if isinstance(prepared, dict) else {}
        if names := used(prepared, self._definitions):
            schema["$defs"] = {name: self._definitions[name] for name in names}
        written = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
        try:
            written.encode()
        except UnicodeEncodeError as error:
            raise SchemaError("$", "a name has half a surrogate pair, which is no text") from error
        return f"%json {written}"

    # ------------------------------------------------------------------------ any schema

    def value(self, schema: object, path: str) -> Prepared:
        """Return the schema for the values that fit ``schema``.

        Raises:
          SchemaError: it cannot be expressed; NothingMatchesError: no value fits.
        """
        if schema is True or schema == {}:
            return self.anything()
        if schema is False:
            raise NothingMatchesError(path, "false: no value fits")
        if not isinstance(schema, Mapping):
            raise SchemaError(path, "a schema is an object, true or false")
        if id(schema) in self._known:
            return self._known[id(schema)][1]
        with self._nested(path):
            prepared = self.leniently(schema, lambda lesser: self._prepared(lesser, path))
        self._known[id(schema)] = schema, prepared
        while self._waiting and self._depth == 0:
            name, target, pointer = self._waiting.pop()
            self._depth = 1
            try:
                self._definitions[name] = self.value(target, pointer)
            finally:
                self._depth = 0
        return prepared

    def leniently(self, schema: object, make: Callable[[object], Made]) -> Made:
        """Return what is made of a schema, or of what is left of it without what cannot be
        expressed; SchemaError."""
        while True:
            try:
                return make(schema)
            except NothingMatchesError:
                raise
            except SchemaError as error:
                if not self.is_lenient or not isinstance(schema, Mapping):
                    raise
                lesser = relaxed(schema, error)
                if lesser is None:
                    raise
                inside = re.sub(r"^[$#]?[./]?", "", error.path).replace("/", ".")
                for keyword in sorted(schema.keys() - lesser.keys()):
                    place = ".".join(filter(None, (self.place, inside, keyword)))
                    self.work.unbound.setdefault(place[:MAX_PLACE_CHARS])
                schema = lesser

    @contextmanager
    def _nested(self, path: str) -> Iterator[None]:
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise SchemaError(path, f"nested too deeply, the limit is {MAX_DEPTH}")
            yield
        finally:
            self._depth -= 1

    def _prepared(self, schema: object, path: str) -> Prepared:
        assert isinstance(schema, Mapping), "others are prepared at once"
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
            ways.append({"type": "null"})
        return any_of(ways)

    def _reference(self, reference: object, path: str) -> Prepared:
        target, pointer = self._resolver.target(reference, path)
        if pointer not in self._references:
            # Known before it is prepared: a schema may contain itself.
            name = self._references[pointer] = f"d{len(self._references)}"
            if self._depth > MAX_DEPTH // 2:
                # A long chain of references is no nesting: this one is prepared at the end.
                self._waiting.append((name, target, pointer))
            else:
                try:
                    self._definitions[name] = self.value(target, pointer)
                except NothingMatchesError:
                    del self._references[pointer]
                    raise
        return {"$ref": f"#/$defs/{self._references[pointer]}"}

    def _either(self, key: str, rules: Rules, path: str) -> Prepared:
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
        ways, problem = possible(
            partial(self.value, branch, f"{path}.{key}[{index}]")
            for index, branch in enumerate(branches)
        )
        if not ways:
            raise NothingMatchesError(path, f"{key}: nothing fits any of them") from problem
        return any_of(ways)

    def resolve(self, reference: object, path: str) -> tuple[object, str]:
        """Return what ``$ref`` leads to, and its pointer; SchemaError."""
        return self._resolver.target(reference, path)

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

    def _ways(self, rules: Rules, path: str) -> list[Prepared]:
        """Alternatives for a schema of nothing but a type and its keywords."""
        if "const" in rules or "enum" in rules:
            return [self._values(rules, path)]
        makers: dict[str, Callable[[Rules, str], Prepared]] = {
            "null": lambda _rules, _path: {"type": "null"},
            "boolean": lambda _rules, _path: {"type": "boolean"},
            "integer": partial(self._number, kind="integer"),
            "number": partial(self._number, kind="number"),
            "string": self._text,
            "array": self._array,
            "object": self._object,
        }
        names = self._types(rules, path)
        if "number" in names and "integer" in names:
            names.remove("integer")
        ways, problem = possible(partial(makers[name], rules, path) for name in names)
        if not ways:
            raise problem or NothingMatchesError(path, "no type is left")
        return ways

    def _types(self, rules: Rules, path: str) -> list[str]:
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

    def _values(self, rules: Rules, path: str) -> Prepared:
        values = rules["enum"] if "enum" in rules else [rules["const"]]
        if not isinstance(values, list) or not values:
            raise SchemaError(path, "enum: has to be a list that is not empty")
        if len(values) > MAX_ALTERNATIVES:
            raise SchemaError(path, f"enum: {len(values)}, the limit is {MAX_ALTERNATIVES}")
        if "enum" in rules and "const" in rules:
            wanted = canonical(rules["const"])
            values = [value for value in values if canonical(value) == wanted]
        if "type" in rules:
            allowed = set(types_in(rules["type"], path))
            values = [value for value in values if allowed & json_types(value)]
        if not values:
            raise NothingMatchesError(path, "enum: no value has the type")
        for value in values:
            self._check_constant(value)
        beside = rules.keys() - {"enum", "const", "type", "nullable"}
        judged = [kind for kind, keys in _KEYWORDS_OF.items() if beside & keys]
        if not judged:
            return {"enum": values}
        kept = {key: rules[key] for key in beside}
        others: list[Prepared] = [
            self.value({**kept, "type": kind}, path)
            for kind in dict.fromkeys(min(json_types(value)) for value in values)
        ]
        return {"allOf": [{"enum": values}, any_of(others)]}

    def _check_constant(self, value: object) -> None:
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
            written.encode()
        except ValueError as error:
            raise SchemaError("$", "enum: it has what is no text or number of JSON") from error
        for text in self.avoided:
            if text in written:
                reason = f"enum: {value!r} cannot be written in this model's calls"
                raise SchemaError("$", reason)

    def _number(self, rules: Schema, path: str, *, kind: str) -> Prepared:
        prepared = prepared_number(rules, path, kind=kind)
        if prepared.keys() == {"type"}:
            return prepared
        # The library makes a long expression of a range, each time that it meets one.
        return self._shared(f"n{json.dumps(prepared)}", lambda: prepared)

    def _text(self, rules: Schema, path: str) -> Prepared:
        patterns = self.patterns(rules, path)
        least, most = self.lengths(rules, path)
        counts: Rules = {"minLength": least} if least else {}
        if most is not None:
            counts["maxLength"] = most
        if not patterns and not counts and self.avoided:
            return self._shared("text", lambda: self._pattern_of_all(self._avoiding(), {}))
        return self._pattern_of_all([*patterns, *self._avoiding()], counts)

    def _pattern_of_all(self, patterns: list[str], counts: Rules) -> Prepared:
        schema: Rules = {"type": "string", **counts}
        if len(patterns) == 1:
            schema["pattern"] = patterns[0]
        elif patterns:
            schema["allOf"] = [{"type": "string", "pattern": pattern} for pattern in patterns]
        return schema

    def _avoiding(self) -> list[str]:
        return [f"^(?:{pattern})$" for pattern in texts_without(self.avoided)]

    def patterns(self, rules: Schema, path: str) -> list[str]:
        """Return all patterns that a string has to fit, in the library's syntax; SchemaError."""
        written = []
        for pattern in patterns_in(rules["pattern"], path) if "pattern" in rules else []:
            try:
                ways = alternatives_of(pattern)
            except GrammarError as error:
                raise SchemaError(path, str(error)) from error
            written.append("|".join(way.anchored for way in ways))
        named = rules.get("format")
        if named is None or (
            isinstance(named, str) and named in INTEGER_FORMATS.keys() | NUMBER_FORMATS
        ):
            return written
        if not isinstance(named, str) or named not in TEXT_FORMATS:
            known = ", ".join(sorted(TEXT_FORMATS))
            raise SchemaError(path, f"format: {named!r} is not one of {known}")
        return [*written, f"^(?:{TEXT_FORMATS[named]})$"]

    def lengths(self, rules: Schema, path: str) -> tuple[int, int | None]:
        """Return the least and the most characters of a string; SchemaError."""
        least = count_of(rules, "minLength", path) or 0
        most = count_of(rules, "maxLength", path)
        if most is not None and least > most:
            raise NothingMatchesError(path, f"minLength, maxLength: {least} is more than {most}")
        return least, most

    def anything(self) -> Prepared:
        """Return the schema for any JSON value."""
        if not self.avoided:
            return True
        return self._shared("any", self._anything)

    def _anything(self) -> Prepared:
        any_value = self.anything()  # known already
        return {
            "anyOf": [
                {"type": ["null", "boolean", "number"]},
                self._text({}, "$"),
                {"type": "array", "items": any_value},
                {"type": "object", **self._further(any_value)},
            ]
        }

    def any_object(self) -> Prepared:
        """Return the schema for any JSON object."""
        return {"type": "object", **self._further(self.anything())}

    def _further(self, schema: Prepared) -> Rules:
        """Return what allows any further name."""
        if not self.avoided:
            return {"additionalProperties": schema}
        return {
            "patternProperties": {self._avoiding()[0]: schema},
            "additionalProperties": False,
        }

    def _shared(self, name: str, make: Callable[[], Prepared]) -> Prepared:
        if name not in self._references:
            known = self._references[name] = f"d{len(self._references)}"
            self._definitions[known] = True
            self._definitions[known] = make()
        return {"$ref": f"#/$defs/{self._references[name]}"}

    # ------------------------------------------------------------------ arrays and objects

    def _array(self, rules: Schema, path: str) -> Prepared:
        prefix, items = items_of(rules)
        least = count_of(rules, "minItems", path)
        most = count_of(rules, "maxItems", path)
        if rules.get("uniqueItems") is True and (most is None or most > 1):
            raise SchemaError(path, "uniqueItems: cannot be expressed in a grammar")
        firsts: list[Prepared] = []
        for index, schema in enumerate(prefix):
            try:
                firsts.append(self.value(schema, f"{path}[{index}]"))
            except NothingMatchesError:
                most = min(index, index if most is None else most)
                break
        if least is None:
            least = len(firsts) if most is None else min(len(firsts), most)
        rest: Prepared = False
        if most is None or most > len(firsts):
            try:
                more = items if items is not None else not prefix
                rest = self.value(more, f"{path}.items")
            except NothingMatchesError:
                most = len(firsts)
        if most is not None and least > most:
            reason = f"minItems: {least} items are asked for, {most} can fit"
            raise NothingMatchesError(path, reason)
        prepared: Rules = {"type": "array", "items": rest, "minItems": least}
        if firsts:
            prepared["prefixItems"] = firsts
        return prepared if most is None else {**prepared, "maxItems": most}

    def _object(self, rules: Schema, path: str) -> Prepared:
        declared, required, further = shape_of(rules, path)
        properties: dict[str, Prepared] = {}
        for name, schema in declared.items():
            try:
                properties[name] = self.value(schema, f"{path}.{name}")
            except NothingMatchesError:
                if name in required:
                    raise
                properties[name] = False
        prepared: Rules = {
            "type": "object",
            "properties": properties,
            "required": [name for name in declared if name in required],
            **self._others(rules, further, path),
        }
        least = count_of(rules, "minProperties", path) or 0
        most = count_of(rules, "maxProperties", path)
        is_open = prepared["additionalProperties"] is not False or "patternProperties" in prepared
        self._hides_names = self._hides_names or (is_open and bool(properties))
        counts = {
            key: value
            for key, value in (("minProperties", least), ("maxProperties", most))
            if value is not None
        }
        if least > len(required) or (most is not None and (is_open or most < len(properties))):
            return counted(prepared, counts, len(required), is_open=is_open, path=path)
        return prepared

    def _others(self, rules: Schema, further: object, path: str) -> Rules:
        """Return what further properties have to be, and have to be called."""
        closed: Rules = {"additionalProperties": False}
        patterns = rules.get("patternProperties")
        names = rules.get("propertyNames", True)
        try:
            others = (
                False
                if further in (None, False)
                else self.value(further, f"{path}.additionalProperties")
            )
        except NothingMatchesError:
            others = False
        if patterns is not None:
            if not isinstance(patterns, Mapping):
                raise SchemaError(path, "patternProperties: has to be an object")
            if names is not True:
                raise SchemaError(path, "propertyNames: beside patternProperties")
            return {
                "patternProperties": dict(self._by_pattern(patterns, path)),
                "additionalProperties": others,
            }
        if others is False:
            return closed
        if names is True:
            return self._further(others)
        if names is False:
            return closed
        strings = self.value({"allOf": [{"type": "string"}, names]}, f"{path}.propertyNames")
        if isinstance(strings, dict) and strings.keys() == {"enum"}:
            named = strings["enum"]
            assert isinstance(named, list), "an enum is a list"
            choice = "|".join(map(quoted, named))
            return {"patternProperties": {f"^(?:{choice})$": others}, **closed}
        if not isinstance(strings, dict) or not strings.keys() <= {
            "type",
            "pattern",
            "minLength",
            "maxLength",
        }:
            raise SchemaError(path, "propertyNames: cannot be expressed in a grammar")
        counts = strings.keys() & {"minLength", "maxLength"}
        if counts and "pattern" in strings:
            raise SchemaError(path, "propertyNames: a length beside a pattern")
        length = f"^[\\s\\S]{{{strings.get('minLength', 0)},{strings.get('maxLength', '')}}}$"
        pattern = length if counts else str(strings.get("pattern", "^"))
        return {"patternProperties": {pattern: others}, **closed}

    def _by_pattern(self, patterns: Schema, path: str) -> Iterator[tuple[str, Prepared]]:
        for pattern, schema in patterns.items():
            (written,) = self.patterns({"pattern": pattern}, path)
            try:
                yield written, self.value(schema, f"{path}.patternProperties")
            except NothingMatchesError:
                yield written, False


_NO_FORMATS: Rules = dict.fromkeys(NUMBER_FORMATS)


def _kind(value: object) -> str:
    kinds = json_types(value)
    return "number" if "number" in kinds else min(kinds)

"""Arguments that are written one by one, each key between fixed texts: tags, or Python's ``a=1``.

In tags, a value that can only be a text is written without quotes, any other as JSON. Where a
schema allows texts among other types the reader takes for JSON whatever reads as JSON, so such a
text has to begin with a letter and be none of JSON's and Python's words.

The lexer never goes back: a text without quotes, a word or a name ends with the tag behind it, in
one terminal.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.typed_values import ANY, expected_of
from paddler_trio.language.grammars.lark import either, joined, literal, optional, regex
from paddler_trio.language.grammars.notation import (
    BARE_KEY,
    Notation,
    chained,
    is_bare_key,
    quoted_text,
)
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, SchemaError

_TEXT = frozenset({"string"})
_LOOSE_WORDS = ("true", "false", "null", "True", "False", "None")
_LOOSE_TEXT = rf"/[A-Za-z](?:[\s\S]*\S)?/ & ~/{'|'.join(_LOOSE_WORDS)}/"
"""Blanks at its ends are read away where a value may be JSON."""


@attrs.frozen(kw_only=True)
class Bare:
    """``key=value, key=value``: values are literals."""

    separator: str
    key_end: str


PYTHON = Bare(separator=", ", key_end="=")


@attrs.define
class TaggedArguments:
    """The arguments that a tool takes, in the order of its schema, ``schema``."""

    syntax: TaggedCalls | Bare
    schema: object
    notation: Notation

    def __attrs_post_init__(self) -> None:
        if isinstance(self.syntax, TaggedCalls):
            own = (self.syntax.value_end, *(("<![CDATA[",) if self.syntax.has_cdata else ()))
            schemas = self.notation.schemas
            schemas.avoided = tuple(dict.fromkeys((*own, *schemas.avoided)))

    def written(self) -> str:
        """Return Lark for them.

        Raises:
          SchemaError: they are no object of named properties, or cannot be expressed.
        """
        return self.notation.schemas.leniently(
            {"allOf": [{"type": "object"}, self.schema]}, self._written
        )

    def _written(self, schema: object) -> str:
        parts = self.notation.schemas.plain(schema, "$")
        if len(parts) != 1:
            reason = "anyOf, oneOf: arguments of several shapes cannot be expressed in these calls"
            raise (SchemaError if parts else NothingMatchesError)("$", reason)
        (rules,) = parts
        for key in ("patternProperties", "propertyNames", "enum", "minProperties"):
            if key in rules:
                raise SchemaError("$", f"{key}: cannot be expressed in this model's calls")
        declared = rules.get("properties", {})
        required = rules.get("required", [])
        if not isinstance(declared, Mapping):
            raise SchemaError("$", "properties: has to be an object")
        if not isinstance(required, list) or any(
            not isinstance(name, str) or name not in declared for name in required
        ):
            raise SchemaError("$", "required: has to be a list of properties")
        most = rules.get("maxProperties")
        if isinstance(most, int) and most < len(declared):
            raise SchemaError("$", "maxProperties: cannot be expressed in this model's calls")
        if not declared:
            is_open = "properties" not in rules and rules.get("additionalProperties") is not False
            return joined(self._blank(), self._any_arguments() if is_open else "")
        separator = literal(self.syntax.separator) if isinstance(self.syntax, Bare) else ""
        arguments: list[tuple[str, bool]] = []
        for name, part in declared.items():
            try:
                argument = self.notation.schemas.leniently(
                    part,
                    lambda lesser, name=name: self._argument(name, lesser),  # type: ignore[misc]
                )
                arguments.append((argument, name in required))
            except NothingMatchesError:
                if name in required:
                    raise
        return joined(self._blank(), chained(arguments, separator, self.notation.writer))

    def _argument(self, name: str, schema: object) -> str:
        path = f"$.{name}"
        syntax, notation = self.syntax, self.notation
        if isinstance(syntax, Bare):
            if not is_bare_key(name):
                raise SchemaError(path, f"{name!r} cannot be a key in this model's calls")
            value = notation.value(schema, path)
            return notation.writer.rule(joined(literal(name + syntax.key_end), value))
        if any(text and text in name for text in (syntax.key_end, *notation.schemas.avoided)):
            raise SchemaError(path, f"{name!r} cannot be a key in this model's calls")
        assert isinstance(self.schema, Mapping), "it has properties"
        types = expected_of(self.schema, name).types
        if "string" not in types or types == ANY or syntax.quoted:
            prepared = notation.schemas.value(schema, path)
            written = joined(self._json(prepared), literal(self._end(name)))
            ways = [self._tag(name, "value", written)]
        else:
            ways = self._ways(name, schema, is_text=types == _TEXT)
        if not ways:
            raise NothingMatchesError(path, "no value fits")
        return notation.writer.rule(" | ".join(dict.fromkeys(ways)))

    def _ways(self, name: str, schema: object, *, is_text: bool) -> list[str]:
        """Return tags for the texts that fit a schema, and for its other values."""
        schemas, writer = self.notation.schemas, self.notation.writer
        path, end = f"$.{name}", self._end(name)
        ways = []
        for part in schemas.plain(schema, path):
            kind = part.get("type")
            if kind != "string":
                is_word = kind in ("boolean", "null")
                words = {"boolean": _LOOSE_WORDS[:2], "null": _LOOSE_WORDS[2:3]}
                values = part.get("enum")
                if isinstance(values, list) and is_word:
                    words = {str(kind): tuple(map(_word, values))}
                value = (
                    either([literal(word + end) for word in words[str(kind)]])
                    if is_word
                    else joined(self._json(schemas.value(part, path)), literal(end))
                )
                ways.append(self._tag(name, "value", value))
            elif isinstance(values := part.get("enum"), list):
                written = [
                    literal(value + end) for value in values if self._is_readable(value, is_text)
                ]
                ways += [self._tag(name, "text", value) for value in written]
            else:
                also = "" if is_text else _LOOSE_TEXT
                text = quoted_text(schemas, part, path, "", end, also=also)
                ways.append(self._tag(name, "text", writer.terminal(text)))
        return ways

    def _is_readable(self, value: object, is_text: bool) -> bool:
        """Return whether a text is read as it was written."""
        if not isinstance(value, str) or any(
            text in value for text in self.notation.schemas.avoided
        ):
            raise SchemaError("$", f"enum: {value!r} cannot be written in this model's calls")
        begins = value[:1].isascii() and value[:1].isalpha()
        return is_text or (begins and value == value.strip() and value not in _LOOSE_WORDS)

    def _json(self, prepared: object) -> str:
        assert isinstance(prepared, dict | bool), "it was prepared"
        return self.notation.writer.rule(self.notation.schemas.grammar(prepared))

    def _end(self, name: str) -> str:
        """Return what stands behind the value of an argument."""
        syntax = self.syntax
        assert isinstance(syntax, TaggedCalls), "only tags are written here"
        closing = f"{name}>" if _key_closes(syntax) else ""
        return f"{syntax.value_blank}{syntax.value_end}{closing}"

    def _tag(self, name: str, kind: str, value: str) -> str:
        """Return one argument in tags; ``value`` is Lark for the value and what ends it."""
        return joined(
            literal(f"{self._before_key}{name}"), self._behind_key(kind), value, self._blank()
        )

    @property
    def _before_key(self) -> str:
        assert isinstance(self.syntax, TaggedCalls), "only tags are written here"
        return self.syntax.before_key

    def _behind_key(self, kind: str) -> str:
        syntax = self.syntax
        assert isinstance(syntax, TaggedCalls), "only tags are written here"
        attribute = ""
        if syntax.text_attribute == "type":
            attribute = ' type="string"' if kind == "text" else ' type="object"'
        elif syntax.text_attribute:
            is_text = "true" if kind == "text" else "false"
            attribute = f' {syntax.text_attribute}="{is_text}"'
        tag_is_whole = syntax.key_end.endswith(">") and bool(syntax.before_value)
        return joined(
            literal(f"{syntax.key_end}{attribute}"),
            self._blank() if tag_is_whole else "",
            literal(f"{syntax.before_value}{syntax.value_blank}"),
        )

    def _any_arguments(self) -> str:
        """Return any keys, each with any text or value."""
        notation, syntax = self.notation, self.syntax
        writer = notation.writer
        if isinstance(syntax, Bare):
            key = writer.terminal(f"{regex(BARE_KEY)} {literal(syntax.key_end)}")
            pair = writer.rule(joined(key, notation.anything()))
            return optional(f"{pair} ({literal(syntax.separator)} {pair})*")
        if _key_closes(syntax):
            return ""  # a grammar cannot close a tag by a name that is any text
        if syntax.quoted:
            value = joined(self._json(notation.schemas.anything()), literal(self._end("")))
        else:
            value = writer.terminal(quoted_text(notation.schemas, {}, "$", "", self._end("")))
        key = writer.terminal(f"{literal(syntax.before_key)} {regex(BARE_KEY)}")
        tag = joined(key, self._behind_key("text"), value, self._blank())
        return f"{writer.rule(tag)}*"

    def _blank(self) -> str:
        return '"\\n"?' if isinstance(self.syntax, TaggedCalls) and self.syntax.blank else ""


def _word(value: object) -> str:
    return {True: "true", False: "false", None: "null"}[value]  # type: ignore[index]


def _key_closes(syntax: TaggedCalls) -> bool:
    """Whether every key is a tag of its own, which its name closes."""
    return syntax.value_end.endswith("</")

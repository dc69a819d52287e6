"""Arguments that are written one by one, each key between fixed texts: tags, or Python's ``a=1``.

In tags, a value that can only be a text is written without quotes, any other as JSON. Where a
schema allows texts among other types the reader takes for JSON whatever reads as JSON, so such a
text has to begin with a letter and be none of JSON's and Python's words.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.typed_values import ANY, expected_of
from paddler_trio.language.grammars.container_schemas import chained
from paddler_trio.language.grammars.finite_automaton import (
    Automaton,
    intersection,
    texts_but,
    write,
)
from paddler_trio.language.grammars.gbnf_writer import GrammarWriter, joined, literal
from paddler_trio.language.grammars.regex_automaton import automaton_of
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, SchemaError
from paddler_trio.language.grammars.schema_writer import SchemaWriter
from paddler_trio.language.grammars.string_schemas import bare_text

_TEXT = frozenset({"string"})
BARE_KEYS = automaton_of("[A-Za-z_][A-Za-z0-9_]{0,63}", anchored=True)
"""Keys that need no quotes."""
_LOOSE_WORDS = ["true", "false", "null", "True", "False", "None"]


@attrs.frozen(kw_only=True)
class Bare:
    """``key=value, key=value``: values are literals."""

    separator: str
    key_end: str


PYTHON = Bare(separator=", ", key_end="=")


@attrs.define
class TaggedArguments:
    """The arguments that a tool takes, in the order of its schema, ``schema``.

    ``avoided``: texts that end the section of calls. ``words``: how true, false and nothing are
    written.
    """

    syntax: TaggedCalls | Bare
    schema: object
    avoided: tuple[str, ...]
    grammar: GrammarWriter
    words: tuple[str, str, str] = ("true", "false", "null")
    _schemas: SchemaWriter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        syntax = self.syntax
        own: tuple[str, ...] = (syntax.value_end,) if isinstance(syntax, TaggedCalls) else ()
        own += ("<![CDATA[",) if isinstance(syntax, TaggedCalls) and syntax.has_cdata else ()
        avoided = tuple(dict.fromkeys((*own, *self.avoided)))
        self._schemas = SchemaWriter(self.grammar, self.schema, avoided=avoided, words=self.words)

    def written(self) -> str:
        """GBNF for them.

        Raises:
          SchemaError: they are no object of named properties, or cannot be expressed.
        """
        parts = self._schemas.plain({"allOf": [{"type": "object"}, self.schema]}, "$")
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
            return f"{self._blank()} {self._any_arguments() if is_open else ''}".rstrip()
        return self._chain(declared, frozenset(required))

    def _chain(self, declared: Mapping[str, object], required: frozenset[str]) -> str:
        """Each argument leads to the next; those that are not required may be left out."""
        separator = literal(self.syntax.separator) if isinstance(self.syntax, Bare) else ""
        arguments: list[tuple[str, bool]] = []
        for name, schema in declared.items():
            try:
                arguments.append((self._argument(name, schema), name in required))
            except NothingMatchesError:
                if name in required:
                    raise
        some, may_end = chained(arguments, separator, self.grammar)
        if not some:
            return self._blank()
        return f"{self._blank()} {f'({some})?' if may_end else some}"

    def _argument(self, name: str, schema: object) -> str:
        path = f"$.{name}"
        syntax = self.syntax
        if isinstance(syntax, Bare):
            if not BARE_KEYS.accepts(name):
                raise SchemaError(path, f"{name!r} cannot be a key in this model's calls")
            value = self._schemas.value(schema, path)
            return self.grammar.rule(f"{literal(name + syntax.key_end)} {value}", "argument")
        if any(text and text in name for text in (syntax.key_end, *self._schemas.avoided)):
            raise SchemaError(path, f"{name!r} cannot be a key in this model's calls")
        assert isinstance(self.schema, Mapping), "it has properties"
        types = expected_of(self.schema, name).types
        closing = name if _key_closes(syntax) else ""
        ways: list[str] = []
        if "string" not in types or types == ANY or syntax.quoted:
            ways.append(
                self._tag(literal(name), "value", self._schemas.value(schema, path), closing)
            )
        else:
            texts, others = self._split(schema, path, is_text=types == _TEXT)
            ways += [self._tag(literal(name), "text", text, closing) for text in texts]
            ways += [self._tag(literal(name), "value", other, closing) for other in others]
        if not ways:
            raise NothingMatchesError(path, "no value fits")
        return self.grammar.rule(" | ".join(ways), "argument")

    def _split(self, schema: object, path: str, *, is_text: bool) -> tuple[list[str], list[str]]:
        """Rules for the texts that fit a schema, and for its other values."""
        texts, others = [], []
        for part in self._schemas.plain(schema, path):
            if part.get("type") != "string":
                others.append(self._schemas.value(part, path))
            elif isinstance(values := part.get("enum"), list):
                texts += [literal(value) for value in values if self._is_readable(value, is_text)]
            else:
                readable = self._readable(is_text=is_text)
                texts.append(bare_text(part, path, self._schemas, also=readable))
        return list(dict.fromkeys(texts)), list(dict.fromkeys(others))

    def _is_readable(self, value: object, is_text: bool) -> bool:
        if not isinstance(value, str) or any(text in value for text in self._schemas.avoided):
            raise SchemaError("$", f"enum: {value!r} cannot be written in this model's calls")
        return self._readable(is_text=is_text).accepts(value)

    def _readable(self, *, is_text: bool) -> Automaton:
        """Texts that are read as they were written."""
        assert isinstance(self.syntax, TaggedCalls), "only tags have bare texts"
        if not is_text:
            # Blanks at its ends are read away where a value may be JSON.
            words = automaton_of(r"[A-Za-z](?:[\s\S]*\S)?", anchored=True)
            return intersection(words, texts_but(_LOOSE_WORDS), self.grammar.work)
        return automaton_of(r"[\s\S]*", anchored=True)

    def _tag(self, key: str, kind: str, value: str, closing_key: str = "") -> str:
        """One argument in tags; ``key`` and ``value`` are GBNF."""
        syntax = self.syntax
        assert isinstance(syntax, TaggedCalls), "only tags are written here"
        attribute = ""
        if syntax.text_attribute == "type":
            attribute = ' type="string"' if kind == "text" else ' type="object"'
        elif syntax.text_attribute:
            is_text = "true" if kind == "text" else "false"
            attribute = f' {syntax.text_attribute}="{is_text}"'
        tag_is_whole = syntax.key_end.endswith(">") and bool(syntax.before_value)
        if _key_closes(syntax):
            closing_key += ">"
        return joined(
            literal(syntax.before_key),
            key,
            literal(f"{syntax.key_end}{attribute}"),
            self._blank() if tag_is_whole else "",
            literal(f"{syntax.before_value}{syntax.value_blank}"),
            value,
            literal(f"{syntax.value_blank}{syntax.value_end}{closing_key}"),
            self._blank(),
        )

    def _any_arguments(self) -> str:
        """Any keys, each with any text or value."""
        grammar, syntax = self.grammar, self.syntax
        key = write(BARE_KEYS, grammar, in_json=False, hint="key")
        if isinstance(syntax, Bare):
            value = self._schemas.anything()
            pair = grammar.rule(f"{key} {literal(syntax.key_end)} {value}", "argument")
            return f"({pair} ({literal(syntax.separator)} {pair})*)?"
        if _key_closes(syntax):
            return ""  # a grammar cannot close a tag by a name that is any text
        text = self._schemas.anything() if syntax.quoted else bare_text({}, "$", self._schemas)
        return f"{grammar.rule(self._tag(key, 'text', text), 'argument')}*"

    def _blank(self) -> str:
        return '"\\n"?' if isinstance(self.syntax, TaggedCalls) and self.syntax.blank else '""'


def _key_closes(syntax: TaggedCalls) -> bool:
    """Whether every key is a tag of its own, which its name closes."""
    return syntax.value_end.endswith("</")

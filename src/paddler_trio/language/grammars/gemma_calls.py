"""JSON values as Gemma writes them: bare keys, no blanks, texts in a quote token."""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.language.grammars.finite_automaton import intersection, texts_but, write
from paddler_trio.language.grammars.gbnf_writer import GrammarWriter, literal
from paddler_trio.language.grammars.regex_automaton import automaton_of
from paddler_trio.language.grammars.schema_merging import Schema, SchemaError
from paddler_trio.language.grammars.schema_writer import SchemaWriter
from paddler_trio.language.grammars.string_schemas import bare_text

_KEY = "[A-Za-z_][A-Za-z0-9_]{0,63}"


class QuotedWriter(SchemaWriter):
    """Writes schemas in that notation, in which nothing is escaped."""

    def __init__(
        self,
        writer: GrammarWriter,
        document: object,
        *,
        root: str = "$",
        avoided: Sequence[str] = (),
        quote: str,
    ) -> None:
        """``quote``: the token that quotes texts; no text can contain it."""
        super().__init__(writer, document, root=root, avoided=(*avoided, quote))
        self._quote = quote
        self.blanks = '""'

    def text(self, rules: Schema, path: str) -> str:
        """The rule for a string; SchemaError."""
        quote = literal(self._quote)
        return self.grammar.rule(f"{quote} {bare_text(rules, path, self)} {quote}", "string")

    def key(self, name: str) -> str:
        """GBNF for a key; SchemaError if it cannot be written without quotes."""
        if not automaton_of(_KEY, anchored=True).accepts(name):
            raise SchemaError("$", f"properties: {name!r} cannot be a key in this model's calls")
        return literal(name)

    def any_key(self, names: list[str]) -> str:
        """The rule for a key that is none of ``names``."""
        automaton = automaton_of(_KEY, anchored=True)
        if names:
            automaton = intersection(automaton, texts_but(names))
        return write(automaton, self.grammar, in_json=False, hint="key")

    def quoted(self, value: object) -> str:
        """GBNF for a text or a number."""
        if not isinstance(value, str):
            return super().quoted(value)
        if any(text in value for text in self.avoided):
            raise SchemaError("$", f"enum: {value!r} cannot be written in this model's calls")
        return literal(f"{self._quote}{value}{self._quote}")

"""Grammars that bind an answer: made from what a request asks for, tried before the engine.

Everything here blocks for as long as the work takes and belongs into a preparation
process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from llama_cpp import llama_cpp

from paddler_trio.language.grammars.ambiguity import refuse_ambiguous
from paddler_trio.language.grammars.finite_automaton import one_of, write
from paddler_trio.language.grammars.inspection import MAX_NESTING, LeftRecursionError, inspect
from paddler_trio.language.grammars.regex import automaton_of
from paddler_trio.language.grammars.schema import SchemaWriter
from paddler_trio.language.grammars.writer import MAX_GRAMMAR_CHARS, GrammarError, GrammarWriter
from paddler_trio.language.vocabulary import Vocabulary

__all__ = [
    "MAX_GRAMMAR_CHARS",
    "MAX_NESTING",
    "MAX_SCHEMA_CHARS",
    "SchemaNotConvertibleError",
    "any_json_to_gbnf",
    "check_gbnf",
    "choice_to_gbnf",
    "inspect_gbnf",
    "json_schema_to_gbnf",
    "regex_to_gbnf",
    "schema_to_gbnf",
]

MAX_SCHEMA_CHARS = 256 * 1024
MAX_CHOICES = 2000
MAX_CHOICE_CHARS = 64 * 1024


class SchemaNotConvertibleError(GrammarError):
    """A schema, pattern or choice that no grammar can be made of."""


@lru_cache(maxsize=32)  # an application asks for the same form again and again
def json_schema_to_gbnf(schema_text: str) -> str:
    """GBNF with the root rule ``root`` for documents that fit a JSON Schema.

    Args:
      schema_text: a schema as JSON, at most ``MAX_SCHEMA_CHARS``.

    Raises:
      SchemaNotConvertibleError: not JSON, beyond a limit, or using what grammars lack; the text
        names the keyword and its place.
    """
    if len(schema_text) > MAX_SCHEMA_CHARS:
        message = f"JSON Schema has {len(schema_text)} characters, the limit is {MAX_SCHEMA_CHARS}"
        raise SchemaNotConvertibleError(message)
    try:
        schema: object = json.loads(schema_text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise SchemaNotConvertibleError("JSON Schema is nested too deeply") from error
    except ValueError as error:
        raise SchemaNotConvertibleError(f"JSON Schema is not JSON: {error}") from error
    return schema_to_gbnf(schema)


def schema_to_gbnf(schema: object) -> str:
    """As ``json_schema_to_gbnf``, for a schema that was read already."""
    if not isinstance(schema, dict | bool):
        raise SchemaNotConvertibleError("JSON Schema: $: a schema is an object, true or false")
    writer = GrammarWriter()
    try:
        root = SchemaWriter(writer, schema, null_where_nullable=True).document()
        grammar = writer.text(root)
        refuse_endless(grammar, writer.root)
    except GrammarError as error:
        raise SchemaNotConvertibleError(f"JSON Schema: {error}") from error
    except RecursionError as error:
        raise SchemaNotConvertibleError("JSON Schema is nested too deeply") from error
    return grammar


def regex_to_gbnf(pattern: str) -> str:
    """GBNF for texts that match a regular expression as a whole; SchemaNotConvertibleError."""
    writer = GrammarWriter()
    try:
        automaton = automaton_of(pattern, anchored=True)
        return writer.text(write(automaton, writer, in_json=False, hint="regex"))
    except GrammarError as error:
        raise SchemaNotConvertibleError(str(error)) from error


def choice_to_gbnf(choices: Sequence[str]) -> str:
    """GBNF for exactly one of these texts; SchemaNotConvertibleError."""
    size_chars = sum(map(len, choices))
    if not choices or len(choices) > MAX_CHOICES:
        message = f"choice has {len(choices)} texts, at least 1 and at most {MAX_CHOICES} can be"
        raise SchemaNotConvertibleError(message)
    if size_chars > MAX_CHOICE_CHARS:
        message = f"choice has {size_chars} characters, the limit is {MAX_CHOICE_CHARS}"
        raise SchemaNotConvertibleError(message)
    writer = GrammarWriter()
    try:
        return writer.text(write(one_of(choices), writer, in_json=False, hint="choice"))
    except GrammarError as error:
        raise SchemaNotConvertibleError(f"choice: {error}") from error


def any_json_to_gbnf() -> str:
    """GBNF for any JSON object."""
    writer = GrammarWriter()
    return writer.text(SchemaWriter(writer, {}).any_object())


def refuse_endless(grammar: str, root: str) -> None:
    """GrammarError for a grammar of ours in which a text can begin that can never end."""
    try:
        inspection = inspect(grammar)
    except LeftRecursionError as error:
        raise GrammarError("$ref: it leads back to itself with nothing in between") from error
    if inspection.endless(root):
        raise GrammarError("it contains itself in a way that no finite text fits")


@lru_cache(maxsize=32)
def inspect_gbnf(grammar: str, root: str) -> None:
    """Refuse a grammar from outside that llama.cpp should not even be asked about.

    Raises:
      GrammarError: too large, not GBNF, without the rule ``root``, or harmful to llama.cpp.
    """
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"the grammar has {len(grammar)} characters, the limit is {MAX_GRAMMAR_CHARS}"
        raise GrammarError(message)
    if "\0" in grammar + root or any(
        "\ud800" <= character <= "\udfff" for character in grammar + root
    ):
        raise GrammarError("the grammar has a letter that UTF-8 texts cannot have")
    inspection = inspect(grammar)
    if root not in inspection.rules or root.startswith("("):
        raise GrammarError(f"the grammar has no rule {root!r}")
    refuse_ambiguous(inspection, root)


def check_gbnf(vocabulary: Vocabulary, grammar: str, root: str) -> bool:
    """Whether a grammar is harmless and llama.cpp accepts it, starting at rule ``root``.

    Blocks for as long as compiling takes.

    Raises:
      ModelFileError: the vocabulary is closed.
    """
    try:
        inspect_gbnf(grammar, root)
    except GrammarError:
        return False
    with vocabulary.open_handle() as handle:
        sampler = llama_cpp.llama_sampler_init_grammar(handle, grammar.encode(), root.encode())
        if not sampler:
            return False
        llama_cpp.llama_sampler_free(sampler)
        return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

"""Grammars that bind an answer: made from what a request asks for, tried before the engine.

Everything here blocks for as long as the work takes and belongs in a preparation process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from paddler_trio.language.grammars.finite_automaton import one_of, write
from paddler_trio.language.grammars.gbnf_compilation import compile_gbnf
from paddler_trio.language.grammars.gbnf_reader import (
    Rules,
    closed_rules,
    components,
    empty_rules,
    leftmost,
    read_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    GrammarWriter,
)
from paddler_trio.language.grammars.regex_automaton import automaton_of
from paddler_trio.language.grammars.schema_writer import SchemaWriter
from paddler_trio.wire.json_schema import lawful_schema

MAX_SCHEMA_CHARS = 256 * 1024
MAX_CHOICES = 2000
MAX_CHOICE_CHARS = 64 * 1024


class LeftRecursionError(GrammarError):
    """A rule that begins with itself."""


def inspect(grammar: str) -> Rules:
    """The rules of a grammar that the engine can be given, groups included.

    A rule that begins with itself, or may do so behind rules that are empty, has texts that can
    never be written; llama.cpp refuses such grammars, so they are refused here.

    Raises:
      GrammarError: it cannot be read, or is refused; the text gives the reason.
    """
    rules = read_gbnf(grammar)
    plainly_empty = {name for name, ways in rules.items() if [] in ways}
    if _returns(rules, plainly_empty):
        raise LeftRecursionError("the grammar has a rule that begins with itself (left recursion)")
    if any(_returns(rules, empty_rules(rules))):
        raise LeftRecursionError("the grammar has a rule that may begin with itself")
    return rules


def _returns(rules: Rules, empty: set[str]) -> list[bool]:
    """For each way in which a rule leads back to itself: whether anything is left to be read."""
    edges = {name: list(leftmost(ways, empty)) for name, ways in rules.items()}
    component = components({name: [item for item, _ in out] for name, out in edges.items()})
    return [
        follows
        for name, out in edges.items()
        for item, follows in out
        if component[name] == component[item]
    ]


class SchemaNotConvertibleError(GrammarError):
    """A schema, pattern or choice that no grammar can be made of."""


@lru_cache(maxsize=32)  # an application asks for the same form again and again
def json_schema_to_gbnf(schema_text: str) -> str:
    """GBNF with the root rule ``root`` for documents that fit a JSON Schema.

    What a grammar cannot express is left out, so that documents are bound less; with ``strict``
    true beside the other keywords of the schema it is refused.

    Args:
      schema_text: a schema as JSON, at most ``MAX_SCHEMA_CHARS``.

    Raises:
      SchemaNotConvertibleError: not JSON, beyond a limit, without a document that fits, or strict
        and using what grammars lack; the text names the keyword and its place.
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
    is_strict = isinstance(schema, dict) and schema.get("strict") is True
    return schema_to_gbnf(schema, is_lenient=not is_strict)


def schema_to_gbnf(schema: object, *, is_lenient: bool = False) -> str:
    """As ``json_schema_to_gbnf``, for a schema that was read already.

    ``is_lenient``: what cannot be expressed is left out.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaNotConvertibleError("JSON Schema: $: a schema is an object, true or false")
    writer = GrammarWriter()
    try:
        if is_lenient and isinstance(schema, dict):
            schema = lawful_schema(schema).schema
        root = SchemaWriter(
            writer, schema, null_where_nullable=True, is_lenient=is_lenient
        ).document()
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
        rules = inspect(grammar)
    except LeftRecursionError as error:
        raise GrammarError("$ref: it leads back to itself with nothing in between") from error
    reached = {root}
    waiting = [root]
    while waiting:
        for item in (item for way in rules[waiting.pop()] for item in way):
            if isinstance(item, str) and item not in reached:
                reached.add(item)
                waiting.append(item)
    if reached - closed_rules(rules, is_given=lambda item: not isinstance(item, str)):
        raise GrammarError("it contains itself in a way that no finite text fits")


@lru_cache(maxsize=32)
def inspect_gbnf(grammar: str, root: str) -> None:
    """Refuse a grammar of a client that cannot be used.

    Raises:
      GrammarError: too large, not GBNF, without the rule ``root``, with a rule that begins with
        itself, or beginning in too many ways.
    """
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"the grammar has {len(grammar)} characters, the limit is {MAX_GRAMMAR_CHARS}"
        raise GrammarError(message)
    if "\0" in grammar + root or any(
        "\ud800" <= character <= "\udfff" for character in grammar + root
    ):
        raise GrammarError("the grammar has a character that UTF-8 texts cannot have")
    inspect(grammar)
    compile_gbnf(grammar, root)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

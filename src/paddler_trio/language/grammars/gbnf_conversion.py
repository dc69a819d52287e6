"""Grammars that bind an answer: made from what a request asks for, tried before the engine.

Everything here blocks for as long as the work takes and belongs in a preparation process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

import attrs

from paddler_trio.language.grammars.finite_automaton import one_of, write
from paddler_trio.language.grammars.gbnf_reader import (
    Rules,
    bottom_up,
    closed_rules,
    empty_rules,
    leftmost,
    read_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    GrammarWriter,
)
from paddler_trio.language.grammars.pushdown_automaton import compile_gbnf
from paddler_trio.language.grammars.regex_automaton import automaton_of
from paddler_trio.language.grammars.schema_writer import SchemaWriter


class LeftRecursionError(GrammarError):
    """A rule that begins with itself."""


@attrs.frozen
class Inspection:
    """A grammar that the engine can be given; ``rules`` by their names, groups included."""

    rules: Rules

    def endless(self, root: str) -> list[str]:
        """Rules that ``root`` leads to and no finite text fits."""
        reached = {root}
        waiting = [root]
        while waiting:
            for item in (item for way in self.rules[waiting.pop()] for item in way):
                if isinstance(item, str) and item not in reached:
                    reached.add(item)
                    waiting.append(item)
        finite = closed_rules(self.rules, is_given=lambda item: not isinstance(item, str))
        return sorted(reached - finite)


def inspect(grammar: str) -> Inspection:
    """Take a grammar apart and look at it.

    Raises:
      GrammarError: it cannot be read, or is refused; the text gives the reason.
    """
    rules = read_gbnf(grammar)
    plainly_empty = {name for name, ways in rules.items() if [] in ways}
    edges = {name: list(leftmost(ways, plainly_empty)) for name, ways in rules.items()}
    _, has_cycle = bottom_up({name: [item for item, _ in out] for name, out in edges.items()})
    if has_cycle:
        raise LeftRecursionError("the grammar has a rule that begins with itself (left recursion)")
    empty = empty_rules(rules)
    edges = {name: list(leftmost(ways, empty)) for name, ways in rules.items()}
    if _grows(edges):
        raise LeftRecursionError("the grammar has a rule that may begin with itself")
    return Inspection(rules)


def _grows(edges: Mapping[str, list[tuple[str, bool]]]) -> bool:
    """Whether a rule comes back to itself with something left to be read behind it."""
    component = _components({name: [item for item, _ in out] for name, out in edges.items()})
    return any(
        follows and component[name] == component[item]
        for name, out in edges.items()
        for item, follows in out
    )


def _components(edges: Mapping[str, list[str]]) -> dict[str, int]:
    """Which names lead to each other: Tarjan's strongly connected components, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: dict[str, int] = {}
    waiting: list[str] = []
    for start in edges:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        waiting.append(start)
        path = [(start, iter(edges[start]))]
        while path:
            name, out = path[-1]
            following = next(out, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == index[name]:
                    while True:
                        member = waiting.pop()
                        component[member] = index[name]
                        if member == name:
                            break
            elif following not in index:
                index[following] = low[following] = len(index)
                waiting.append(following)
                path.append((following, iter(edges[following])))
            elif following not in component:
                low[name] = min(low[name], index[following])
    return component


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

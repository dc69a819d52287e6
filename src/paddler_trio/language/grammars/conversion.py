"""Grammars that bind an answer: made from what a request asks for, and tried before the engine.

Everything here blocks for as long as the work takes and belongs in a preparation process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NoReturn

import attrs
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from paddler_trio.language.grammars.lark import (
    GrammarError,
    LarkWriter,
    either,
    literal,
)
from paddler_trio.language.grammars.patterns import whole_text
from paddler_trio.language.grammars.schema_preparation import SchemaPreparation
from paddler_trio.wire.engine.engine_pipe import Grammar, Thoughts
from paddler_trio.wire.json_schema import lawful_schema

MAX_SCHEMA_CHARS = 256 * 1024
MAX_CHOICES = 2000
MAX_CHOICE_CHARS = 64 * 1024
_TOKEN_NUMBERS = re.compile(r"<\[\^?[0-9,]+\]>")


class SchemaNotConvertibleError(GrammarError):
    """A schema, pattern or choice that no grammar can be made of."""


@attrs.frozen
class AnswerGrammar:
    """Lark that binds an answer; further fields as in :class:`Grammar`."""

    lark: str
    trigger_tokens: list[int] = attrs.field(factory=list)
    trigger_patterns: list[str] = attrs.field(factory=list)
    thoughts: Thoughts | None = None

    def compiled(self) -> Grammar:
        """Return it for the engine; GrammarError if the library refuses it, or it is too large."""
        check_grammar(self.lark)
        return Grammar(self.lark, self.trigger_tokens, self.trigger_patterns, self.thoughts)


@lru_cache(maxsize=8)
def check_grammar(lark: str) -> None:
    """Compile a grammar as the engine will do, over bytes for tokens; GrammarError."""
    lark = _TOKEN_NUMBERS.sub("<[0]>", lark)
    matcher = LLMatcher(
        _bytes_for_tokens(), LLMatcher.grammar_from_lark(lark), log_level=0, limits=library_limits()
    )
    if matcher.is_error():
        problem = matcher.get_error().partition("\n")[0]
        raise GrammarError(f"the grammar cannot be followed: {problem}")


@cache
def _bytes_for_tokens() -> LLTokenizer:
    """Return a vocabulary that costs nothing: how long compiling takes is up to the grammar."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


class _Bytes:
    """A tokenizer as the library asks for one."""

    eos_token_id = 256
    bos_token_id = None

    tokens: Sequence[bytes] = (*(bytes([each]) for each in range(256)), b"\xffend")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def library_limits() -> LLParserLimits:
    """Return what the library may spend on one grammar, and on one token."""
    return LLParserLimits(
        initial_lexer_fuel=4_000_000,
        step_lexer_fuel=1_000_000,
        step_max_items=150_000,
        max_items_in_row=4_000,
        max_lexer_states=20_000,
        max_grammar_size=60_000,
        verbose_errors=False,
    )


def write_json_schema(schema_text: str, writer: LarkWriter) -> str:
    """Return the rule for documents that fit a JSON Schema.

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
    return write_schema(schema, writer, is_lenient=not is_strict)


def write_schema(schema: object, writer: LarkWriter, *, is_lenient: bool = False) -> str:
    """As ``write_json_schema``, for a schema that was read already.

    ``is_lenient``: what cannot be expressed is left out.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaNotConvertibleError("JSON Schema: $: a schema is an object, true or false")
    try:
        if is_lenient and isinstance(schema, dict):
            schema = lawful_schema(schema).schema
        preparation = SchemaPreparation(
            writer.work, schema, null_where_nullable=True, is_lenient=is_lenient
        )
        return writer.rule(preparation.grammar(preparation.value(schema, "$")))
    except GrammarError as error:
        raise SchemaNotConvertibleError(f"JSON Schema: {error}") from error
    except RecursionError as error:
        raise SchemaNotConvertibleError("JSON Schema is nested too deeply") from error


def write_any_object(writer: LarkWriter) -> str:
    """Return the rule for any JSON object."""
    preparation = SchemaPreparation(writer.work, True)
    return writer.rule(preparation.grammar(preparation.any_object()))


def write_pattern(pattern: str, writer: LarkWriter) -> str:
    """Return what texts match a regular expression as a whole; SchemaNotConvertibleError."""
    try:
        return writer.terminal(whole_text(pattern))
    except GrammarError as error:
        raise SchemaNotConvertibleError(str(error)) from error


def write_choice(choices: Sequence[str], writer: LarkWriter) -> str:
    """Return what takes exactly one of these texts; SchemaNotConvertibleError."""
    size_chars = sum(map(len, choices))
    if not choices or len(choices) > MAX_CHOICES:
        message = f"choice has {len(choices)} texts, at least 1 and at most {MAX_CHOICES} can be"
        raise SchemaNotConvertibleError(message)
    if size_chars > MAX_CHOICE_CHARS:
        message = f"choice has {size_chars} characters, the limit is {MAX_CHOICE_CHARS}"
        raise SchemaNotConvertibleError(message)
    try:
        return writer.terminal(either([literal(choice) for choice in choices]))
    except GrammarError as error:
        raise SchemaNotConvertibleError(f"choice: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

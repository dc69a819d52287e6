"""Grammars that bind an answer: made from JSON Schema, and tried before they reach the engine.

llama.cpp's own converter, which travels with llama-cpp-python as Python, turns a schema into
GBNF. It trusts its input, so what it would turn into megabytes, follow off this machine or write
down wrongly is refused or put right here first.

llama.cpp's grammar parser calls itself for every open parenthesis and would overrun the stack
(measured: between 10 000 and 30 000 with 8 MB), so nesting is counted before it sees a grammar.
"""

from __future__ import annotations

import json
import re

from llama_cpp import llama_cpp
from llama_cpp.llama_grammar import SchemaConverter

from paddler_trio.agent.vocabulary import Vocabulary
from paddler_trio.errors import PaddlerError

MAX_SCHEMA_CHARS = 64 * 1024
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_REPETITIONS = 1000
MAX_NESTING = 2000

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_QUANTIFIER = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
# Literals, character classes and comments, whose parentheses open nothing.
_GBNF_TEXT = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)


class SchemaNotConvertibleError(PaddlerError):
    """A JSON Schema that no grammar can be made of."""


def json_schema_to_gbnf(schema_text: str) -> str:
    """GBNF with the root rule ``root`` for the documents a JSON Schema describes.

    Properties come in the order of the schema; whitespace is at most one blank at a time.

    Args:
      schema_text: a JSON object of at most ``MAX_SCHEMA_CHARS``.

    Raises:
      SchemaNotConvertibleError: not JSON, beyond a limit, or using what the converter lacks.
    """
    if len(schema_text) > MAX_SCHEMA_CHARS:
        message = f"JSON Schema has {len(schema_text)} characters, the limit is {MAX_SCHEMA_CHARS}"
        raise SchemaNotConvertibleError(message)
    try:
        schema: object = json.loads(schema_text)
        _refuse_what_grows(schema)
        converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        converter.visit(converter.resolve_refs(schema, ""), "")
        grammar: str = converter.format_grammar()
    except SchemaNotConvertibleError:
        raise
    except RecursionError as error:
        message = "JSON Schema is nested too deeply, or refers to itself without an end"
        raise SchemaNotConvertibleError(message) from error
    except Exception as error:
        # The converter says no with whatever comes first: assertions, key and type errors.
        message = f"JSON Schema cannot be turned into a grammar: {type(error).__name__}: {error}"
        raise SchemaNotConvertibleError(message) from error
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"grammar of the JSON Schema has {len(grammar)} characters, "
        raise SchemaNotConvertibleError(f"{message}the limit is {MAX_GRAMMAR_CHARS}")
    return grammar


def check_gbnf(vocabulary: Vocabulary, grammar: str, root: str) -> bool:
    """Whether llama.cpp accepts a grammar, starting at rule ``root``.

    Blocks for as long as compiling takes. A grammar beyond ``MAX_GRAMMAR_CHARS`` or nested deeper
    than ``MAX_NESTING`` is not accepted.

    Raises:
      ModelFileError: the vocabulary is closed.
    """
    if not grammar.strip() or "\0" in grammar + root or len(grammar) > MAX_GRAMMAR_CHARS:
        return False
    if _nesting_of(grammar) > MAX_NESTING:
        return False
    try:
        grammar_bytes, root_bytes = grammar.encode(), root.encode()
    except UnicodeEncodeError:
        return False
    with vocabulary.open_handle() as handle:
        sampler = llama_cpp.llama_sampler_init_grammar(handle, grammar_bytes, root_bytes)
        if not sampler:
            return False
        llama_cpp.llama_sampler_free(sampler)
        return True


class _Converter(SchemaConverter):  # type: ignore[misc]  # llama_cpp has no types for us
    """The converter, writing literals whose quotes and backslashes survive."""

    def _format_literal(self, literal: str) -> str:
        return f'"{literal.translate(_ESCAPES)}"'

    def _generate_constant_rule(self, value: object) -> str:
        # Models write letters, not \\u escapes.
        return self._format_literal(json.dumps(value, ensure_ascii=False))


def _refuse_what_grows(node: object) -> None:
    """Counts become that many copies of a rule, and references are followed: look first."""
    if isinstance(node, list):
        for item in node:
            _refuse_what_grows(item)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        _refuse_what_grows(value)
        numbers: list[int] = []
        if key in _COUNTS and isinstance(value, int):
            numbers = [value]
        elif key == "pattern" and isinstance(value, str):
            numbers = [int(n) for pair in _QUANTIFIER.findall(value) for n in pair if n]
        elif key == "$ref" and isinstance(value, str) and not value.startswith("#/"):
            message = f"JSON Schema: $ref: {value!r} does not start with '#/'"
            raise SchemaNotConvertibleError(message)
        if any(number > MAX_REPETITIONS for number in numbers):
            message = f"JSON Schema: {key}: {value!r} repeats more than {MAX_REPETITIONS} times"
            raise SchemaNotConvertibleError(message)


def _nesting_of(grammar: str) -> int:
    deepest = depth = 0
    for letter in re.findall(r"[()]", _GBNF_TEXT.sub("", grammar)):
        depth += 1 if letter == "(" else -1
        deepest = max(deepest, depth)
    return deepest

"""Schemas become grammars llama.cpp accepts, or errors; never a crash."""

import json

import pytest

from paddler_trio.agent.schema_grammar import (
    MAX_GRAMMAR_CHARS,
    MAX_NESTING,
    MAX_SCHEMA_CHARS,
    SchemaNotConvertibleError,
    check_gbnf,
    json_schema_to_gbnf,
)
from paddler_trio.agent.vocabulary import Vocabulary


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1000},
        {"enum": ["plain", 'with "quotes"', "back\\slash", "tab\t and\nline", "é", 1, None]},
        {"properties": {'a "b" \\': {"const": "\\"}}, "additionalProperties": {"type": "number"}},
        {"type": "string", "minLength": 2, "maxLength": 1000},
        {"type": "string", "pattern": "^[a-z]{2,8}$"},
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}},
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}},
                }
            },
        },
    ],
)
def test_a_schema_becomes_a_grammar_that_llama_cpp_accepts(
    vocabulary: Vocabulary, schema: object
) -> None:
    assert check_gbnf(vocabulary, json_schema_to_gbnf(json.dumps(schema)), "root")


def test_letters_in_constants_are_written_as_models_write_them() -> None:
    assert r'root ::= "\"é\\\"\""' in json_schema_to_gbnf('{"const": "é\\""}')


@pytest.mark.parametrize(
    ("schema_text", "words"),
    [
        ("", "JSONDecodeError"),
        ("[1", "JSONDecodeError"),
        ("true", "cannot be turned"),
        ('{"type": "nonsense"}', "nonsense"),
        ('{"$ref": "https://example.org/x"}', "does not start with"),
        ('{"$ref": "#/$defs/missing"}', "missing"),
        ('{"type": "string", "maxLength": 100000}', "maxLength: 100000"),
        ('{"type": "array", "items": {}, "minItems": 1000000000}', "minItems"),
        ('{"type": "string", "pattern": "^a{1,99999}$"}', "pattern"),
        ('{"type": "string", "pattern": "^(?!a)$"}', "cannot be turned"),
        ('{"not": ' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
        (" " * (MAX_SCHEMA_CHARS + 1), str(MAX_SCHEMA_CHARS)),
    ],
)
def test_what_cannot_become_a_grammar_is_an_error_with_the_reason(
    schema_text: str, words: str
) -> None:
    with pytest.raises(SchemaNotConvertibleError, match=words):
        json_schema_to_gbnf(schema_text)


def test_a_grammar_out_of_all_proportion_is_an_error() -> None:
    properties = {f"p{number}": {"type": "string", "maxLength": 1000} for number in range(50)}
    with pytest.raises(SchemaNotConvertibleError, match=str(MAX_GRAMMAR_CHARS)):
        json_schema_to_gbnf(json.dumps({"properties": properties}))


@pytest.mark.parametrize(
    ("grammar", "root", "accepted"),
    [
        ('root ::= "a" [()] "((("', "root", True),
        ('start ::= "a"', "start", True),
        ('start ::= "a"', "root", False),
        ("root ::= missing", "root", False),
        ('root ::= "a', "root", False),
        ("root ::= root", "root", False),
        ("", "root", False),
        ('root ::= "a"', "", False),
        ('root ::= "a"\0garbage', "root", False),
        ('root ::= "\ud800"', "root", False),
        ("root ::= " + "(" * MAX_NESTING + '"a"' + ")" * MAX_NESTING, "root", True),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "root", False),
        ("root ::= " + "[a]" * MAX_GRAMMAR_CHARS, "root", False),
    ],
)
def test_a_grammar_is_accepted_exactly_when_llama_cpp_can_use_it(
    vocabulary: Vocabulary, grammar: str, root: str, accepted: bool
) -> None:
    assert check_gbnf(vocabulary, grammar, root) is accepted

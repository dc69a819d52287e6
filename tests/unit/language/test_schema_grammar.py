"""Schemas, patterns and choices become grammars that say no more than they do, or errors."""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import suppress

import jsonschema
import pytest
from grammar_engine import (
    engine_of,
    gbnf_grammar,
    is_read_here,
    llama_cpp_grammar,
    schema_grammar,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from odd_schemas import odd_schemas
from paddler_trio.errors import MAX_MESSAGE_CHARS
from paddler_trio.language.grammars.conversion import (
    MAX_CHOICES,
    MAX_SCHEMA_CHARS,
    AnswerGrammar,
    SchemaNotConvertibleError,
    write_any_object,
    write_choice,
    write_json_schema,
    write_pattern,
)
from paddler_trio.language.grammars.gbnf import MAX_GBNF_CHARS, MAX_NESTING
from paddler_trio.language.grammars.lark import (
    MAX_GRAMMAR_CHARS,
    MAX_STEPS,
    GrammarError,
    LarkWriter,
)
from paddler_trio.language.grammars.schema_preparation import SchemaPreparation
from paddler_trio.language.vocabulary import Vocabulary
from written_grammars import written


def json_schema_grammar(schema_text: str) -> AnswerGrammar:
    return written(lambda writer: write_json_schema(schema_text, writer))


def pattern_grammar(pattern: str) -> AnswerGrammar:
    return written(lambda writer: write_pattern(pattern, writer))


def choice_grammar(choices: list[str]) -> AnswerGrammar:
    return written(lambda writer: write_choice(choices, writer))


# ------------------------------------------------------- random schemas, each with a value


@st.composite
def _integers(draw: st.DrawFn) -> tuple[dict[str, object], object]:
    value = draw(st.integers(-(10**6), 10**6))
    schema: dict[str, object] = {"type": "integer"}
    if draw(st.booleans()):
        schema["minimum"] = value - draw(st.integers(0, 1000))
    if draw(st.booleans()):
        schema["exclusiveMaximum"] = value + draw(st.integers(1, 1000))
    return schema, value


@st.composite
def _numbers(draw: st.DrawFn) -> tuple[dict[str, object], object]:
    hundredths = draw(st.integers(-(10**4), 10**4))
    schema: dict[str, object] = {"type": "number"}
    if draw(st.booleans()):
        schema["maximum"] = (hundredths + draw(st.integers(0, 500))) / 100
    if draw(st.booleans()):
        schema["exclusiveMinimum"] = (hundredths - draw(st.integers(1, 500))) / 100
    whole, rest = divmod(hundredths, 100)
    return schema, whole if not rest else hundredths / 100


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\x7f"), max_size=6)


@st.composite
def _strings(draw: st.DrawFn) -> tuple[dict[str, object], object]:
    value = draw(_TEXT)
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return {"type": "string", "enum": draw(st.permutations(list({value, "x", "y"})))}, value
    if kind == 1:
        return {"type": "string", "minLength": max(0, len(value) - 2), "maxLength": 7}, value
    if kind == 2:
        return {"type": "string", "pattern": f"^{re.escape(value)}[ab]{{0,2}}$"}, f"{value}a"
    return {"type": "string"}, value


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy) -> tuple[dict[str, object], object]:
    schema, value = draw(inner)
    count = draw(st.integers(0, 3))
    if count and draw(st.booleans()):
        return {"type": "array", "prefixItems": [schema], "items": {"const": 5}}, [value, 5, 5]
    limits = {"minItems": max(0, count - 1), "maxItems": count + 1}
    return {"type": "array", "items": schema, **limits}, [value] * count


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy) -> tuple[dict[str, object], object]:
    names = draw(st.lists(_TEXT, max_size=3, unique=True))
    members = [(name, *draw(inner)) for name in names]
    present = [draw(st.booleans()) for _ in names]
    schema: dict[str, object] = {
        "type": "object",
        "properties": {name: rules for name, rules, _ in members},
        "required": [name for name, p in zip(names, present, strict=True) if p],
    }
    value = {name: v for (name, _, v), p in zip(members, present, strict=True) if p}
    if draw(st.booleans()):
        schema["additionalProperties"] = {"type": "boolean"}
        if "zz" not in names:
            value["zz"] = True
    return schema, value


def _wrapped(inner: st.SearchStrategy) -> st.SearchStrategy:
    """The same value under ``anyOf``, ``allOf``, ``$ref`` or a list of types."""
    return st.one_of(
        _arrays(inner),
        _objects(inner),
        inner.map(lambda pair: ({"anyOf": [{"type": "null"}, pair[0]]}, pair[1])),
        inner.map(lambda pair: ({"allOf": [pair[0], {"title": "both"}]}, pair[1])),
        inner.map(lambda pair: ({"description": "alone", "anyOf": [pair[0]]}, pair[1])),
    )


_LEAVES = st.one_of(
    _integers(),
    _numbers(),
    _strings(),
    st.just(({"type": ["boolean", "null"]}, None)),
    st.just(({"const": {"a": [1, "é"]}}, {"a": [1, "é"]})),
)
_SCHEMAS = st.recursive(_LEAVES, _wrapped, max_leaves=6)


@settings(max_examples=examples(60))
@given(pair=_SCHEMAS, seed=st.integers(0, 2**32))
def test_every_text_of_the_grammar_fits_its_schema_and_a_value_that_fits_is_a_text(
    vocabulary: Vocabulary, pair: tuple[dict[str, object], object], seed: int
) -> None:
    schema, value = pair
    jsonschema.validate(value, schema)
    grammar = schema_grammar(schema)
    engine = engine_of(vocabulary, grammar)
    for text in (
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, ensure_ascii=False, indent=2),
    ):
        assert engine.accepts(text), text
    sampled = engine.random_text(random.Random(seed), 60)
    if sampled is not None:
        jsonschema.validate(json.loads(sampled), schema)


# --------------------------------------------------------------------- what it accepts

_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["value"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "object"}, ["{}", '{"a": [1, {}]}'], ["[]", "1", '{"a": 1', '{"a": 1} ']),
        (True, ["null", '"x"', "[]"], ["", "nul", " null"]),
        (
            {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]},
            ['{"b": 1}', '{"a": "x", "b": null}'],
            ["{}", '{"a": "x"}', '{"b": 1, "a": "x"}', '{"a": 1, "b": 1}', '{"b": 1, "c": 1}'],
        ),
        (
            {"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
            ['{"ab": 1, "x": null}', '{"a": null}', '{"abc": null}'],
            ['{"ab": null}', r'{"a\u0062": null}', '{"x": 1}'],
        ),
        (_TREE, ['{"value": 1, "children": [{"value": 2}]}'], ['{"children": []}']),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            ["[1]", "[1,2]", "[ 1, 2 ]"],
            ["[]", "[1,2,3]", "[1,]"],
        ),
        (
            {"prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 1},
            ["[1]", '[1, "a"]'],
            ["[]", '["a"]', '[1, "a", 2]'],
        ),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"24-1-1"']),
        ({"type": "string", "format": "uuid"}, ['"0123abCD-0123-0123-0123-0123456789ab"'], ['""']),
        ({"type": "string", "pattern": "b+"}, ['"abba"', '"b"'], ['"aca"']),
        ({"type": "string", "pattern": '^["\\\\\\n]$'}, [r'"\""', r'"\n"', r'"\\"'], ['"n"']),
        (
            {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
            ['"ab"', '"abc"'],
            ['"a"', '"abcd"', '"AB"'],
        ),
        ({"type": "string", "maxLength": 300}, [json.dumps("x" * 300)], [json.dumps("x" * 301)]),
        ({"enum": ['"', 1, None, [1, {}]]}, [r'"\""', "1", "null", "[1,{}]"], ["2", '""']),
        ({"type": "integer", "minimum": -5, "maximum": 12}, ["-5", "0", "12"], ["-6", "13", "01"]),
        ({"type": "number", "exclusiveMinimum": 0.5}, ["0.51", "7"], ["0.5", "0", "-1", "1e3"]),
        ({"type": "integer", "nullable": True}, ["1", "null"], ["1.5"]),
        (
            {"type": "object", "required": ["k"], "anyOf": [{"required": ["a"]}, {}]},
            ['{"k": 1, "a": 2}'],
            ['{"a": 2}'],
        ),
        (
            {
                "oneOf": [
                    {"properties": {"t": {"const": n}}, "required": ["t"], "type": "object"}
                    for n in ("x", "y")
                ]
            },
            ['{"t": "x"}', '{"t":"y"}'],
            ['{"t": "z"}', "{}"],
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}},
                    {"properties": {"a": {"maximum": 5}}, "required": ["a"]},
                ]
            },
            ['{"a": 4}'],
            ["{}", '{"a": 2}', '{"a": 6}'],
        ),
        (
            {"patternProperties": {"^x-": {"type": "integer"}}, "type": "object"},
            ['{"x-a": 1}', "{}"],
            ['{"y": 1}', '{"x-a": "1"}'],
        ),
        ({"type": "string", "minLength": 1}, [r'"\u00e9"', '"😀"'], [r'"\ud83d"', '""']),
        (
            {"required": ["a", "b"], "maxProperties": 3, "additionalProperties": True},
            ['{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'],
            ['{"a": 1, "b": 2, "c": 3, "d": 4}'],
        ),
        (
            {"properties": {"a": {}}, "maxProperties": 2, "additionalProperties": True},
            ["{}", '{"a": 1, "b": 2}', '{"b": 2}'],
            ['{"a": 1, "b": 2, "c": 3}', '{"b": 1, "c": 2, "d": 3}'],
        ),
        (
            {"items": {"type": "string"}, "allOf": [{"prefixItems": [{"enum": ["a", 1]}, {}]}]},
            ['["a", "b", "c"]'],
            ["[1]", '["b"]', '["a", 1]', '["a", "b", 1]'],
        ),
        (
            {
                "properties": {"b": {}},
                "anyOf": [
                    {"properties": {"a": {}}, "unevaluatedProperties": False},
                    {"properties": {"c": {}}},
                ],
            },
            ['{"a": 1}', '{"b": 1, "c": 2}'],
            ['{"a": 1, "b": 2}'],
        ),
        (
            {
                "properties": {"a": {"type": "null"}},
                "anyOf": [{"properties": {"b": {"type": "null"}}}],
                "unevaluatedProperties": False,
            },
            ['{"a": null, "b": null}', "{}"],
            ['{"a": null, "c": 1}'],
        ),
        ({"const": 1, "allOf": [{"const": 1.0}]}, ["1"], ["2"]),
    ],
)
def test_a_grammar_accepts_what_its_schema_means(
    vocabulary: Vocabulary, schema: object, accepted: list[str], refused: list[str]
) -> None:
    grammar = schema_grammar(schema)
    engine = engine_of(vocabulary, grammar)
    assert [text for text in accepted if not engine.accepts(text)] == []
    assert [text for text in refused if engine.accepts(text)] == []


def test_blanks_have_an_end(vocabulary: Vocabulary) -> None:
    engine = engine_of(vocabulary, written(write_any_object))
    assert engine.accepts('{\n        "a": {\n\t\t"b": [ ] }\n}')
    assert not engine.accepts('{\n\n"a": 1}')
    assert not engine.accepts('{"a":  1}')
    assert not engine.accepts("{}\n")
    assert not engine.accepts("[1]")


# ------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {}}, r"\$: not: cannot be expressed"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, r"\$\.a\.items: uniqueItems"),
        ({"properties": {"a": {"if": {}}}}, r"\$\.a: if:"),
        ({"dependentRequired": {}}, "dependentRequired"),
        (
            {
                "properties": {"b": {}},
                "allOf": [{"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}],
            },
            "unevaluatedProperties: beside anyOf, in one of several schemas",
        ),
        (
            {"properties": {f"p{n}": {} for n in range(9)}, "maxProperties": 2},
            "maxProperties: beside 9 properties that need not be there",
        ),
        ({"type": "array", "contains": {}}, "contains"),
        ({"type": "number", "multipleOf": 1e-12}, "multipleOf: 1e-12"),
        ({"type": "string", "format": "iri"}, "format: 'iri'"),
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "string", "pattern": "^(?!a)$"}, "pattern: look-around"),
        ({"type": "string", "pattern": r"(a)\1"}, "pattern: backreferences"),
        ({"type": "string", "pattern": "^a{1,99999}$"}, "99999 repetitions"),
        ({"type": "string", "maxLength": 100000}, "maxLength: 100000"),
        ({"type": "array", "items": {}, "minItems": 1000000000}, "minItems: 1000000000"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum, maximum"),
        ({"enum": []}, "enum: has to be a list that is not empty"),
        (False, "no value fits"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "number 0 and number 1"),
        ({"$ref": "https://example.org/x"}, r"does not start with '#/'"),
        ({"$ref": "#/$defs/missing"}, "'#/.defs/missing' does not exist"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no finite text"),
        (
            {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"},
            "no finite text",
        ),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "required: 'a'"),
        ({"type": "object", "minProperties": 10**9}, "minProperties: 1000000000"),
        ({"properties": []}, "properties: has to be an object"),
        ({"allOf": [{"format": "date"}, {"format": "time"}]}, "format: two different"),
        ([1], "a schema is an object"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_name_and_place(schema: object, words: str) -> None:
    with pytest.raises(SchemaNotConvertibleError, match=words):
        schema_grammar(schema)


_LONG = "n" * 100_000


@pytest.mark.parametrize(
    ("schema", "beginning", "end"),
    [
        ({"$ref": f"#/{_LONG}"}, "$: $ref: '#/nn", "n' does not exist"),
        ({"$ref": _LONG}, "$: $ref: 'nn", "n' does not start with '#/'"),
        ({"properties": {_LONG: {"not": {}}}}, "$.nn", "n: not: cannot be expressed in a grammar"),
        ({"type": "string", "format": {_LONG: 1}}, "$: format: {'nn", "uri, uuid"),
        ({"multipleOf": _LONG}, "$: multipleOf: nn", "n cannot be expressed in a grammar"),
        (
            {"required": [_LONG], "additionalProperties": False},
            "$: required: 'nn",
            "n' is not allowed to be there",
        ),
    ],
)
def test_what_is_quoted_of_a_schema_is_bounded(schema: object, beginning: str, end: str) -> None:
    with pytest.raises(SchemaNotConvertibleError) as caught:
        schema_grammar(schema)
    message = str(caught.value)
    assert message.startswith(f"JSON Schema: {beginning}")
    assert message.endswith(end)
    assert len(message) <= MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("grammar", "root", "beginning", "end"),
    [
        (f"root ::= {_LONG}", "root", "the grammar has no rule 'nn", "n', which 'root' asks for"),
        (f"{_LONG} ::= x", _LONG, "the grammar has no rule 'x', which 'nn", "n' asks for"),
        (f'root ::= "x" {_LONG} ::=', "root", "the grammar begins", "in the middle of a line"),
        ('root ::= "x"', _LONG, "the grammar has no rule 'nn", "n'"),
    ],
)
def test_what_is_quoted_of_a_grammar_is_bounded(
    vocabulary: Vocabulary, grammar: str, root: str, beginning: str, end: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        gbnf_grammar(vocabulary, grammar, root)
    message = str(caught.value)
    assert message.startswith(beginning)
    assert message.endswith(end)
    assert len(message) <= MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("schema_text", "words"),
    [
        ("", "is not JSON"),
        ("[1", "is not JSON"),
        ('{"maximum": NaN}', "NaN is not JSON"),
        ('{"items": ' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
        ('{"strict": true, "items": ' + '{"items": ' * 99 + "{}" + "}" * 100, "nested too deeply"),
        (" " * (MAX_SCHEMA_CHARS + 1), str(MAX_SCHEMA_CHARS)),
    ],
)
def test_what_is_no_schema_is_an_error_with_the_reason(schema_text: str, words: str) -> None:
    with pytest.raises(SchemaNotConvertibleError, match=words):
        json_schema_grammar(schema_text)


def test_a_grammar_out_of_all_proportion_is_an_error() -> None:
    values = [f"{n}{'x' * 100}" for n in range(2000)]
    parts = [{"properties": {"a": {"enum": values}, "b": {"const": n}}} for n in range(30)]
    with pytest.raises(SchemaNotConvertibleError, match=str(MAX_GRAMMAR_CHARS)):
        schema_grammar({"anyOf": parts})


def test_a_large_schema_becomes_a_grammar(vocabulary: Vocabulary) -> None:
    leaf = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"minimum": 3}}}
    schema = {
        "properties": {f"property number {n}": {**leaf, "title": "x" * n} for n in range(400)}
    }
    text = json.dumps(schema)
    assert len(text) > 100_000
    assert engine_of(vocabulary, json_schema_grammar(text)).accepts(
        '{"property number 7": {"n": 4}}'
    )


def test_a_long_chain_of_references_is_no_nesting(vocabulary: Vocabulary) -> None:
    link = {"type": "object", "required": ["n"]}
    definitions = {
        f"d{n}": {**link, "properties": {"n": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(300)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d300": {"const": 5}}}
    engine = engine_of(vocabulary, schema_grammar(schema))
    assert engine.accepts('{"n": ' * 300 + "5" + "}" * 300)
    assert not engine.accepts('{"n": ' * 299 + "5" + "}" * 299)


# ------------------------------------------------------------------- patterns and choices


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("(yes|no)!?", ["yes", "no!"], ["", "yes no", "maybe"]),
        (r"^\d{3}-[a-f]+$", ["123-abc"], ["12-a", "123-", "123-g"]),
        ("(a*)*b", ["b", "aaab"], ["a", ""]),
        (r"[^\n]{2,}", ["ab", "äö😀"], ["a", "a\nb"]),
        (r"a|\x62|\u0063|\u{64}", ["a", "b", "c", "d"], ["e"]),
        (r"(?:x(?P<n>y)?)+?", ["x", "xyx"], ["y"]),
        ("[^]{2}", ["\n]", "ab"], ["a", "abc"]),
        (r"a{b{}{1,2,3}{-1}", ["a{b{}{1,2,3}{-1}"], ["a"]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_binds_the_whole_answer(
    vocabulary: Vocabulary, pattern: str, accepted: list[str], refused: list[str]
) -> None:
    engine = engine_of(vocabulary, pattern_grammar(pattern))
    assert [text for text in accepted if not engine.accepts(text)] == []
    assert [text for text in refused if engine.accepts(text)] == []


_PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\w", "x", "é"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda piece: f"(?:{piece}){{1,2}}"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(60))
@given(pattern=_PATTERNS, texts=st.lists(st.text("abx1é\n-", max_size=5), max_size=6))
def test_a_pattern_means_what_it_means_elsewhere(
    vocabulary: Vocabulary, pattern: str, texts: list[str]
) -> None:
    engine = engine_of(vocabulary, pattern_grammar(pattern))
    for text in texts:
        meant = re.fullmatch(pattern, text, re.ASCII) is not None
        assert engine.accepts(text) is meant, text


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(?=b)", "look-around"),
        ("(?<=a)b", "look-around"),
        (r"\bword\b", "WordUnicode"),
        ("{2}", "nothing to repeat|missing expression"),
        ("[]a]", "dialects differ about a ] that comes first"),
        ("x|[^]a]", "dialects differ about a ] that comes first"),
        ("[]", "dialects differ about a ] that comes first"),
        ("a{,2}", r"dialects differ about \{,n\}"),
        ("a{,}", r"dialects differ about \{,n\} and \{,\}"),
        ("(?P<n>a)(?P<n>b)", "duplicate capture group name"),
        ("(?<n", "unclosed|group"),
        ("(?<1>a)", "group"),
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        ("[b-a]", "range"),
        ("[a", "not closed"),
        ("a$b", "End"),
        (r"\1", "backreferences"),
        ("a{99999}", "99999 repetitions"),
        ("\ud800", "half a surrogate pair"),
        ("a" * 20_000, "20000 characters"),
    ],
)
def test_a_pattern_that_no_grammar_can_say_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(SchemaNotConvertibleError, match=words):
        pattern_grammar(pattern)


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"\p{L}+", ["é"], ["1"]),
        ("(?i)ab", ["AB"], ["AC"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        ("[[a]b]", ["[b]", "ab]"], ["b"]),
        ("[a&&b]+", ["a&b"], ["c"]),
        ("[a--]", ["a", "-"], ["b"]),
        (r"\cJ[\b]", ["\n\b"], ["J"]),
        ("(a|b)*a(a|b){14}", ["a" * 15], ["a" * 14]),
        ("a{3000}", ["a" * 3000], ["a" * 2999]),
    ],
)
def test_a_pattern_means_what_ecmascript_means(
    vocabulary: Vocabulary, pattern: str, accepted: list[str], refused: list[str]
) -> None:
    engine = engine_of(vocabulary, pattern_grammar(pattern))
    assert [text for text in accepted if not engine.accepts(text)] == []
    assert [text for text in refused if engine.accepts(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "{a," * 5000 + "}",  # no brace is a count
        f"(?:[{''.join(map(chr, range(0x4E00, 0x5D00, 2)))}]?){{2000}}",  # 2000 large classes meet
        "(" * 200 + ")" * 200,
        "(" * 8000 + "a" + ")" * 8000,
        "((((a{1000}){1000}){1000}){1000}){1000}",
        "(x+x+)+y" * 500,
    ],
)
def test_a_pattern_beyond_the_limits_costs_little(pattern: str) -> None:
    began_s = time.process_time()
    with suppress(GrammarError):
        pattern_grammar(pattern).compiled()
    assert time.process_time() - began_s < 1.0, "what a request without a pattern may take"


@given(choices=st.lists(st.text('abc é\n"\\', min_size=1, max_size=5), min_size=1, max_size=6))
@settings(max_examples=examples(40))
def test_a_choice_is_one_of_its_texts_and_nothing_else(
    vocabulary: Vocabulary, choices: list[str]
) -> None:
    engine = engine_of(vocabulary, choice_grammar(choices))
    assert all(engine.accepts(choice) for choice in choices)
    for choice in choices:
        assert engine.accepts(choice + "a") is (choice + "a" in choices)
        assert engine.accepts(choice[:-1]) is (choice[:-1] in choices)


def test_choices_have_limits() -> None:
    for choices, words in (([], "0 texts"), (["a"] * (MAX_CHOICES + 1), str(MAX_CHOICES))):
        with pytest.raises(SchemaNotConvertibleError, match=words):
            choice_grammar(choices)
    with pytest.raises(SchemaNotConvertibleError, match="half a surrogate pair"):
        choice_grammar(["a\ud800"])


# ---------------------------------------------------------------- grammars from outside


@pytest.mark.parametrize(
    ("grammar", "root", "accepted"),
    [
        ('root ::= "a" [()] "((("', "root", True),
        ('start ::= "a"', "start", True),
        ('root ::= (ws "a")*\nws ::= [ \\t]*', "root", True),
        ('root ::= (word (" " word)*)?\nword ::= [a-z]+ | [^\\x00-\\x7F]', "root", True),
        ('root ::= ws ws ws "a"\nws ::= [ ]*', "root", True),
        ('root ::= x | y\nx ::= "a" # comment (\ny ::= x{2,3} | <[12]> | !<[13]>', "root", True),
        ('start ::= "a"', "root", False),
        ("root ::= missing", "root", False),
        ('root ::= "a', "root", False),
        ("", "root", False),
        ('root ::= "a"', "", False),
        ('root ::= "a"\0garbage', "root", False),
        ('root ::= "\ud800"', "root", False),
        ('root ::= ("a"', "root", False),
        ('root ::= "a")', "root", False),
        ('root ::= * "a"', "root", False),
        ('root ::= "a"{0,10000}', "root", False),
        ("root ::= " + "(" * MAX_NESTING + '"a"' + ")" * MAX_NESTING, "root", True),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "root", False),
        ("root ::= " + "[a]" * MAX_GBNF_CHARS, "root", False),
    ],
)
def test_a_grammar_is_accepted_exactly_when_llama_cpp_can_use_it(
    vocabulary: Vocabulary, grammar: str, root: str, accepted: bool
) -> None:
    assert is_read_here(vocabulary, grammar, root) is accepted
    if accepted:
        with llama_cpp_grammar(vocabulary, grammar, root) as theirs:
            assert theirs.is_read


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('r0 ::= "a"\n  | "b"', "where a rule has to begin"),
        ('r0 ::= "\\d"', "unknown escape"),
        ('r0 ::= ""*', "nothing before"),
        ("r0 ::= <nothing of this>", "no token of this model"),
    ],
)
def test_a_grammar_that_nobody_can_use_is_refused_with_the_reason(
    vocabulary: Vocabulary, grammar: str, words: str
) -> None:
    with pytest.raises(GrammarError, match=words):
        gbnf_grammar(vocabulary, grammar, "r0")


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        ('root ::= root "a" | "b"', ["b", "baa"], ["", "ab"]),
        ('root ::= a root "x" | "y"\na ::= b\nb ::= "z" | ""', ["yx", "zyx"], ["x"]),
        ('root ::= ("a"{0,100}){100}', ["", "a" * 5], ["b"]),
    ],
)
def test_a_rule_may_begin_with_itself_which_llama_cpp_refuses(
    vocabulary: Vocabulary, grammar: str, accepted: list[str], refused: list[str]
) -> None:
    engine = engine_of(vocabulary, gbnf_grammar(vocabulary, grammar))
    assert [text for text in accepted if not engine.accepts(text)] == []
    assert [text for text in refused if engine.accepts(text)] == []


_GBNF_PARTS = (
    'root ::=|a ::=|"x"|""|"\\x41"|[a-c]|[^\\n]|[]|.|a|(|)|*|+|?'
    "|{2}|{1,}|{0,3}|{ 2 , 3 }|<[5]>|!<[5]>"
)
_GBNF = st.lists(
    st.sampled_from([*_GBNF_PARTS.split("|"), "|", "\n", "\r\n", " ", "#c\n"]), max_size=14
).map(" ".join)


@settings(max_examples=examples(300))
@given(rules=_GBNF)
def test_gbnf_is_read_where_llama_cpp_reads_it(vocabulary: Vocabulary, rules: str) -> None:
    grammar = f'root ::= "r" {rules}\na ::= "s"'
    refused = ""
    try:
        gbnf_grammar(vocabulary, grammar)
    except GrammarError as error:
        refused = str(error)
    with llama_cpp_grammar(vocabulary, grammar) as theirs:
        if theirs.is_read:  # it refuses what it takes for a rule that begins with itself
            assert not refused
            assert is_read_here(vocabulary, grammar, "root")


_WRITTEN = {
    "chess": (
        """root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
        move ::= (pawn | nonpawn | castle) [+#]?
        nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
        pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
        castle ::= "O-O" "-O"?
        """,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O-O exd8=Q+\n", "1. e9 e5\n", "1. Nxe4 e5\n"],
    ),
    "arithmetic": (
        """root ::= (expr "=" ws term "\\n")+
        expr ::= term ([-+*/] term)*
        term ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num ::= [0-9]+ ws
        ws ::= [ \\t\\n]*
        """,
        ["1+2 = 3\n", "(a1 * b) - 4=x\n", "1+=2\n", "()=1\n"],
    ),
    "words and what begins like them": (
        """root ::= ("if" | "in" | [a-z]+ | "iffy!") " " [^\\n]{1,9} "."
        """,
        ["if x.", "ifs x..", "iffy! é.", "iffy? x.", "i x", "inn  ."],
    ),
    "tokens": (
        """root ::= "a" <|im_start|> !<|im_start|>* <[1530]> "b" """,
        ["a<|im_start|>bcx<|im_start|>b", "a<|im_start|><|im_start|>b", "abc", "a<|im_start|>x"],
    ),
}


@pytest.mark.parametrize("name", _WRITTEN)
def test_a_grammar_takes_the_texts_that_llama_cpp_takes(vocabulary: Vocabulary, name: str) -> None:
    grammar, texts = _WRITTEN[name]
    grammar = "\n".join(line.strip() for line in grammar.splitlines())
    engine = engine_of(vocabulary, gbnf_grammar(vocabulary, grammar))
    eos = vocabulary.eos_token
    assert eos is not None
    num_whole = 0
    for text in texts:
        tokens = [*vocabulary.tokenize(text, add_special=False, parse_special=True), eos]
        with llama_cpp_grammar(vocabulary, grammar) as theirs:
            taken = theirs.num_taken(tokens)
        assert engine.num_taken(tokens) == taken, text
        num_whole += taken == len(tokens)
    assert 0 < num_whole < len(texts)


_RULES = st.recursive(
    st.sampled_from(['"ab"', '"a"', '"é"', "[a-c]", "[^b]", ".", '""', "x"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]} | {pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=7,
)


@settings(max_examples=examples(80))
@given(rules=_RULES, other=_RULES, texts=st.lists(st.text("abcé\n", max_size=6), max_size=5))
def test_random_grammars_take_the_texts_that_llama_cpp_takes(
    vocabulary: Vocabulary, rules: str, other: str, texts: list[str]
) -> None:
    grammar = f'root ::= "=" ({rules})\nx ::= "c" ({other.replace("x", "[c]")})'
    engine = engine_of(vocabulary, gbnf_grammar(vocabulary, grammar))
    eos = vocabulary.eos_token
    assert eos is not None
    for text in texts:
        tokens = vocabulary.tokenize("=" + text, add_special=False, parse_special=True)
        with llama_cpp_grammar(vocabulary, grammar) as theirs:
            if not theirs.is_read:
                return  # it takes a rule for one that begins with itself
            assert engine.num_taken([*tokens, eos]) == theirs.num_taken([*tokens, eos]), text


def test_alternatives_that_multiply_are_counted_first() -> None:
    options = [{"anyOf": [{"const": f"{i}.{j}"} for j in range(12)]} for i in range(8)]
    with pytest.raises(SchemaNotConvertibleError, match="alternatives"):
        json_schema_grammar(json.dumps({"strict": True, "allOf": options}))


def test_large_enums_beside_each_other_are_compared_by_value() -> None:
    values = [f"value {i}" for i in range(2_000)]
    schema = {"allOf": [{"enum": values}, {"enum": values[::-1]}]}
    assert "value 1999" in json_schema_grammar(json.dumps(schema)).lark


def test_the_values_of_alternatives_are_written_out_once_each() -> None:
    branches = [{"enum": list(range(n, n + 150))} for n in range(0, 15_000, 150)]
    began_s = time.process_time()
    assert "14999" in schema_grammar({"oneOf": branches}).lark
    assert time.process_time() - began_s < 1.5, "once for each pair takes more than three seconds"


_VALUES = [f"value {i}" for i in range(2_000)]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/$defs/e"}] * 1000, "$defs": {"e": {"enum": _VALUES}}},
        {
            "allOf": [{"$ref": f"#/$defs/{name}"} for name in "ef"] * 500,
            "$defs": {"e": {"enum": _VALUES}, "f": {"enum": _VALUES[::-1]}},
        },
        {
            "allOf": [{"$ref": "#/$defs/o"}] * 1000,
            "$defs": {"o": {"properties": {name: {} for name in _VALUES}}},
        },
    ],
    ids=["equal enums", "enums", "properties"],
)
def test_parts_within_their_limits_are_too_much_together(schema: object) -> None:
    began_s = time.process_time()
    with pytest.raises(SchemaNotConvertibleError, match=f"{MAX_STEPS} steps together; make them"):
        schema_grammar(schema)
    assert time.process_time() - began_s < 3.0, "all of it takes four times as long"


def test_an_ordinary_schema_is_a_small_part_of_what_one_may_cost() -> None:
    writer = LarkWriter()
    fields = {f"field {n}": {"type": "string", "format": "date-time"} for n in range(20)}
    fields |= {f"id {n}": {"type": "string", "pattern": f"^{n}-[0-9a-f]{{12}}$"} for n in range(20)}
    kinds = [
        {"type": "object", "properties": {"t": {"const": n}, **fields}, "required": ["t", *fields]}
        for n in range(20)
    ]
    schema = {"type": "array", "items": {"oneOf": kinds}}
    SchemaPreparation(writer.work, schema).value(schema, "$")
    writer.work.spend(MAX_STEPS * 4 // 5)


def test_alternatives_are_told_apart_by_their_last_property_too() -> None:
    text = {"type": "string"}
    fields = {f"field {n}": text for n in range(20)}
    kinds = [
        {
            "type": "object",
            "properties": {**fields, "kind": {"const": n}},
            "required": [*fields, "kind"],
        }
        for n in range(100)
    ]
    assert "kind" in schema_grammar({"oneOf": kinds}).lark
    with pytest.raises(SchemaNotConvertibleError, match="oneOf: number 0 and number 99"):
        schema_grammar({"oneOf": [*kinds[:99], kinds[0]]})


# ------------------------------------------------------------------- what binds an answer less


@pytest.mark.parametrize(
    ("rules", "good", "bad"),
    [
        ({"type": "integer", "not": {"const": 5}}, "5", '"a"'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1,1]", '["a"]'),
        ({"type": "string", "format": "iri", "maxLength": 2}, '"ab"', '"abc"'),
        ({"type": "string", "pattern": "^(?!a)"}, '"a"', "1"),
        ({"type": "integer", "multipleOf": 7, "maximum": 9}, "7", "8"),
        ({"type": "number", "multipleOf": 1e-12, "maximum": 9}, "8", "10"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3, "type": "string"}]}, '"a"', "1"),
        ({"type": "string", "maxLength": 10**9}, '"a"', "1"),
        ({"type": "integer", "maximum": 10**30, "minimum": 0}, "7", "-7"),
        ({"type": "integer", "minimum": 10**30}, "7", '"a"'),
        ({"type": "number", "minimum": 1e-30, "maximum": 1}, "0.5", "-1"),
        ({"$ref": "#/nowhere", "type": "integer"}, "1", '"a"'),
        ({"$ref": "#"}, "1", "]"),
        ({"type": "object", "minProperties": 2}, '{"a":1,"b":2}', '{"a":1}'),
        ({"type": "object", "minProperties": 10**9}, "{}", "[]"),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "4", "3"),
        (
            {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string"},
            '"ab"',
            '"c"',
        ),
    ],
)
def test_what_cannot_be_said_binds_less_unless_the_schema_is_strict(
    rules: dict[str, object], good: str, bad: str, vocabulary: Vocabulary
) -> None:
    engine = engine_of(vocabulary, json_schema_grammar(json.dumps(rules)))
    assert engine.accepts(good)
    assert not engine.accepts(bad)


@given(odd_schemas())
@settings(max_examples=examples(60), deadline=None)
def test_an_odd_schema_is_a_grammar_or_nothing_fits_it(odd: dict[str, object]) -> None:
    reason = ""
    try:
        json_schema_grammar(json.dumps(odd))
    except SchemaNotConvertibleError as error:
        reason = str(error)
    assert not reason or any(word in reason for word in ("limit", "no ", "nothing", "not JSON")), (
        reason
    )

"""Random schemas, patterns, grammars and tools: a grammar or the typed refusal, in a fair time.

    python tests/fuzz/fuzz_schemas.py --inputs 1000000 --seed 1

Inputs are half sensible, so that most of them get far, and half mutilated. A crash, any other
exception and an input over a hundred times its fair cost end the run with the input printed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

from fuzzing import FairCost, Trial, command
from fuzzing import fuzz as try_all

from paddler_trio.language.answer_grammar import CallRules, Reasoning, constrain
from paddler_trio.language.answers import call_syntax
from paddler_trio.language.answers.call_syntax import JsonCalls, PythonCalls, QuotedObjects
from paddler_trio.language.answers.format_detection import GENERIC_CALLS
from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.grammars.call_grammar import CallPlace, Tool
from paddler_trio.language.grammars.conversion import (
    AnswerGrammar,
    write_choice,
    write_json_schema,
    write_pattern,
)
from paddler_trio.language.grammars.gbnf import write_gbnf
from paddler_trio.language.grammars.lark import GrammarError, LarkWriter

FAIR = FairCost(seconds=0.002, seconds_per_char=0.000_005)

_WORDS = ["a", "b", "name", "é", "", "x" * 30, "a/b", "~", 'q"', "\\", "</tool_call>", "\n", "😀"]
_PATTERN_PARTS = [
    "a", "b", ".", r"\d", r"\w", "[a-c]", "[^x]", "(", ")", "(?:", "|", "*", "+", "?", "{2,5}",
    "{0,900}", "^", "$", r"\b", "(?=", r"\u0041", "[", "]", "\\", "-", "é", "{,3}", r"\x",
]  # fmt: skip
_GBNF_PARTS = [
    "root", "a", "b", " ::= ", "\n", '"x"', '"', "[a-z]", "[^", "(", ")", "*", "+", "?", "{3}",
    "{1,}", "{0,5000}", "|", ".", "<[3]>", "!<a>", "# c\n", " ", "\\", "é",
]  # fmt: skip
_FORMATS = [
    GENERIC_CALLS,
    CallFormat(opener="<tool_call>", closer="</tool_call>", syntax=call_syntax.HERMES),
    CallFormat(opener="<tool_call>", closer="</tool_call>", syntax=call_syntax.QWEN_CODER),
    CallFormat(opener="<tool_call>", closer="</tool_call>", syntax=call_syntax.GLM),
    CallFormat(opener="[TOOL_CALLS]", syntax=call_syntax.MISTRAL_WITH_ID, one_a_section=True),
    CallFormat(opener="]<]minimax[>[<tool_call>", syntax=call_syntax.MINIMAX_M3),
    CallFormat(opener="<|tool_call>", closer="<tool_call|>", syntax=QuotedObjects()),
    CallFormat(opener="<|tool_call_start|>", syntax=PythonCalls()),
    CallFormat(opener="[", syntax=JsonCalls(in_list=True, before="[", name_is_key=True), kept=1),
]


def random_value(dice: random.Random, depth: int) -> object:
    kind = dice.randrange(8 if depth else 6)
    if kind < 6:
        return dice.choice([None, True, 0, -1, 3, 1.5, 1e300, 10**30, "", dice.choice(_WORDS)])
    if kind == 6:
        return [random_value(dice, depth - 1) for _ in range(dice.randrange(3))]
    return {dice.choice(_WORDS): random_value(dice, depth - 1) for _ in range(dice.randrange(3))}


def random_schema(dice: random.Random, depth: int) -> object:
    if dice.random() < 0.04:
        return random_value(dice, 2)
    if depth == 0 or dice.random() < 0.2:
        return dice.choice([{}, True, False, {"type": "string"}, {"type": "integer"}])
    schema: dict[str, object] = {}
    for _ in range(dice.randrange(1, 5)):
        key, make = dice.choice(_KEYWORDS)
        schema[key] = make(dice, depth - 1)
    if dice.random() < 0.05:
        schema[dice.choice(list(schema))] = random_value(dice, 2)
    return schema


def _schemas(dice: random.Random, depth: int) -> object:
    return [random_schema(dice, depth) for _ in range(dice.randrange(1, 4))]


def _properties(dice: random.Random, depth: int) -> object:
    return {dice.choice(_WORDS): random_schema(dice, depth) for _ in range(dice.randrange(4))}


def _count(dice: random.Random, _depth: int) -> object:
    return dice.choice([0, 1, 2, 5, 100, 3000, 70_000, 2.0, -1])


def _number(dice: random.Random, _depth: int) -> object:
    return dice.choice([0, 1, -3, 10, 2.5, -0.001, 10**17, 1e-9, True])


_TYPES = ["object", "array", "string", "integer", "number", "boolean", "null"]
_KEYWORDS: list[tuple[str, Callable[[random.Random, int], object]]] = [
    ("type", lambda dice, _: dice.choice(_TYPES)),
    ("type", lambda dice, _: dice.choice(_TYPES)),
    ("type", lambda dice, _: dice.sample(_TYPES, 2)),
    ("properties", _properties),
    ("properties", _properties),
    ("required", lambda dice, _: dice.sample(_WORDS, 2)),
    ("additionalProperties", random_schema),
    ("patternProperties", lambda dice, depth: {"^a": random_schema(dice, depth)}),
    ("propertyNames", random_schema),
    ("minProperties", _count),
    ("maxProperties", _count),
    ("items", random_schema),
    ("prefixItems", _schemas),
    ("minItems", _count),
    ("maxItems", _count),
    ("minLength", _count),
    ("maxLength", _count),
    ("pattern", lambda dice, _: random_text(dice, _PATTERN_PARTS)),
    ("format", lambda dice, _: dice.choice(["date", "date-time", "email", "ipv6", "int32", "x"])),
    ("minimum", _number),
    ("exclusiveMaximum", _number),
    ("enum", lambda dice, _: [random_value(dice, 2) for _ in range(dice.randrange(4))]),
    ("const", lambda dice, _: random_value(dice, 2)),
    ("anyOf", _schemas),
    ("oneOf", _schemas),
    ("allOf", _schemas),
    ("$ref", lambda dice, _: dice.choice(["#", "#/$defs/a", "#/$defs/b", "#/items", "x"])),
    ("$defs", lambda dice, depth: {name: random_schema(dice, depth) for name in "ab"}),
    ("not", random_schema),
    ("uniqueItems", lambda dice, _: dice.random() < 0.5),
    ("nullable", lambda _dice, _: True),
]


def random_text(dice: random.Random, parts: list[str]) -> str:
    return "".join(dice.choice(parts) for _ in range(dice.randrange(12)))


def _mutilated(dice: random.Random, text: str) -> str:
    if text and dice.random() < 0.1:
        at = dice.randrange(len(text))
        return text[:at] + dice.choice(["", '"', "{", "\\", "\ud800", "\0"]) + text[at + 1 :]
    return text


def _writes(write: Callable[[LarkWriter], str]) -> Callable[[], AnswerGrammar]:
    def make() -> AnswerGrammar:
        writer = LarkWriter()
        grammar = AnswerGrammar(writer.text(write(writer)))
        grammar.compiled()
        return grammar

    return make


def try_schema(dice: random.Random) -> Trial:
    text = _mutilated(dice, json.dumps(random_schema(dice, 4), ensure_ascii=dice.random() < 0.5))
    return _writes(lambda writer: write_json_schema(text, writer)), text


def try_pattern(dice: random.Random) -> Trial:
    pattern = random_text(dice, _PATTERN_PARTS)
    return _writes(lambda writer: write_pattern(pattern, writer)), pattern


def try_grammar(dice: random.Random) -> Trial:
    rules = (random_text(dice, _GBNF_PARTS), random_text(dice, _GBNF_PARTS))
    text = _mutilated(dice, "root ::= {}\na ::= {}".format(*rules))
    return _writes(lambda writer: write_gbnf(text, "root", writer, lambda _: 7)), text


def try_choice(dice: random.Random) -> Trial:
    choices = [dice.choice(_WORDS) for _ in range(dice.randrange(5))]
    return _writes(lambda writer: write_choice(choices, writer)), repr(choices)


def try_tools(dice: random.Random) -> Trial:
    schema = {"type": "object", "properties": _properties(dice, 3)}
    tools = [Tool("f", schema), Tool(dice.choice(_WORDS), random_schema(dice, 3)), Tool("g")]
    form = dice.choice(_FORMATS)
    place = CallPlace(form=form, avoided=tuple(t for t in (form.closer, "<x>") if t))
    choice = dice.choice(["auto", "required", "function"])
    calls = CallRules(place=place, tools=tools, choice=choice, tool_name="f")
    reasoning = Reasoning(open="<think>", close="</think>", is_open=dice.random() < 0.3)
    shown = f"{form.syntax} {choice} {json.dumps([tool.parameters for tool in tools], default=str)}"
    return lambda: constrain(None, reasoning=reasoning, calls=calls), shown


TRIALS = (try_schema, try_schema, try_schema, try_pattern, try_grammar, try_choice, try_tools)


def fuzz(
    inputs: int,
    seed: int,
    *,
    judges_cost: bool = False,
    judge: Callable[[AnswerGrammar], object] = lambda _: None,
) -> Counter[str]:
    """Try so many inputs; ``judge`` is given every grammar that was made."""

    def look(made: object) -> None:
        if isinstance(made, AnswerGrammar):
            judge(made)

    return try_all(
        TRIALS,
        inputs=inputs,
        seed=seed,
        refusals=(GrammarError,),
        fair=FAIR if judges_cost else None,
        judge=look,
    )


if __name__ == "__main__":
    command(fuzz, __doc__)

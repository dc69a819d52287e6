"""Random answers through everything that reads answers, for as long as you like.

    python tests/fuzz/fuzz_language.py --inputs 1000000 --seed 1

An input is a text made of markers, halves of markers, pieces of real answers, JSON, and noise, cut
anywhere. For each one: nothing but a typed outcome may come back, cutting must change nothing,
and no input may cost a hundred times what its length is worth.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzzing import FairCost, Trial, command
from fuzzing import fuzz as try_all

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "language" / "answers"))

from answer_cases import CASES, TOOLS

from paddler_trio.language.answers.automaton import Automaton, TokenClass
from paddler_trio.language.answers.format_detection import known_format
from paddler_trio.language.answers.literals import parse_json, parse_literal
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import ToolCallReader, ToolSet
from paddler_trio.language.answers.typed_values import ANY, json_of
from paddler_trio.language.answers.whole_answer import AnswerReader

FAIR = FairCost(seconds=0.001, seconds_per_char=2e-6)

_NOISE = (
    '{"name": "weather", "arguments": {',
    '"city": "Bern"',
    "}",
    "]",
    '"',
    "\\",
    "\\u00e9",
    "\\ud800",
    "\n",
    " ",
    "weather",
    "now",
    "é",
    "中",
    "😀",
    "\x00",
    "1e999",
    "NaN",
    "null",
    "True",
    "'",
    "(",
    ")",
    "[",
    "{",
    ",",
    ":",
    "=",
    "<",
    ">",
    "```json",
    "<![CDATA[",
    "]]>",
)


def _forms() -> list[ModelFormat]:
    templates = sorted({case.template for case in CASES})
    return [form for form in map(known_format, templates) if form is not None]


FORMS = _forms()
TOOL_SET = ToolSet(TOOLS)
MARKS = sorted(
    {mark for form in FORMS for kind in TokenClass for mark in form.rules.markers_of(kind).texts}
)
RAWS = [case.raw for case in CASES]


def some_text(dice: random.Random) -> str:
    """A text that looks like an answer here and there."""
    parts: list[str] = []
    for _ in range(dice.randint(1, 7)):
        match dice.randrange(6):
            case 0:
                parts.append(dice.choice(MARKS))
            case 1:
                mark = dice.choice(MARKS)
                parts.append(mark[: dice.randint(1, len(mark))])
            case 2:
                raw = dice.choice(RAWS)
                start = dice.randrange(len(raw))
                parts.append(raw[start : start + dice.randint(1, 40)])
            case 3:
                parts.append(
                    "".join(chr(dice.randrange(32, 127)) for _ in range(dice.randint(1, 9)))
                )
            case _:
                parts.append(dice.choice(_NOISE))
    return "".join(parts)


def mutated(dice: random.Random) -> str:
    """A real answer with a few letters or stretches changed."""
    text = dice.choice(RAWS)
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(text) + 1)
        end = min(len(text), place + dice.randint(0, 12))
        middle = dice.choice(("", text[place:end] * 2, dice.choice(_NOISE), dice.choice(MARKS)))
        text = text[:place] + middle + text[end:]
    return text


def cut(text: str, dice: random.Random) -> Iterator[str]:
    """The text in pieces of a few letters, sometimes of one."""
    start = 0
    longest = dice.choice((1, 3, 12, 80))
    while start < len(text):
        size = dice.randint(1, longest)
        yield text[start : start + size]
        start += size


def _input(dice: random.Random) -> str:
    text = some_text(dice) if dice.random() < 0.7 else mutated(dice)
    return text * dice.randint(10, 500) if dice.random() < 0.001 else text


# ----------------------------------------------------------------------------- what is fuzzed


def try_whole_answer(dice: random.Random) -> Trial:
    text, form, is_partial = _input(dice), dice.choice(FORMS), dice.random() < 0.5

    def read() -> None:
        meanings = []
        for pieces in ([text], cut(text, dice)):
            reader = AnswerReader(form, TOOL_SET)
            for piece in pieces:
                reader.feed(piece)
            answer = reader.end(is_partial=is_partial)
            calls = [(call.name, call.arguments) for call in answer.tool_calls]
            meanings.append((answer.content, answer.reasoning, calls, answer.problems))
        assert meanings[0] == meanings[1], f"{form.name}: cutting changed {meanings}"

    return read, text


def try_sections(dice: random.Random) -> Trial:
    text, form = _input(dice), dice.choice(FORMS)

    def read() -> None:
        shown = []
        for pieces in ([text], cut(text, dice)):
            automaton = Automaton(form.rules)
            found = [p for piece in pieces for p in automaton.feed(piece)] + automaton.flush()
            shown.append("".join(piece.text for piece in found))
        assert shown[0] == shown[1], f"{form.name}: cutting changed what is shown"

    return read, text


def try_calls(dice: random.Random) -> Trial:
    text, form, is_cut_off = _input(dice), dice.choice(FORMS), dice.random() < 0.5
    syntax = None if form.calls is None else form.calls.syntax

    def read() -> None:
        reader = ToolCallReader(TOOL_SET, syntax=syntax, new_id=lambda: f"id{dice.random()}")
        for piece in cut(text, dice):
            reader.feed(piece)
        reader.close_section(is_cut_off=is_cut_off)
        for delta in reader.take_deltas():
            delta.arguments.encode()

    return read, text


def try_values(dice: random.Random) -> Trial:
    text = _input(dice)
    types = ANY if dice.random() < 0.5 else frozenset({dice.choice(sorted(ANY))})

    def read() -> None:
        for parse in (parse_json, lambda value: parse_literal(value, quote_token='<|"|>')):
            try:
                parse(text)
            except (ValueError, RecursionError):
                continue
        parse_json(json_of(text, types))

    return read, text


TRIALS = (try_whole_answer, try_sections, try_calls, try_values)


def fuzz(inputs: int, seed: int, *, judges_cost: bool = False) -> Counter[str]:
    """Try so many inputs; what came of them, by kind."""
    fair = FAIR if judges_cost else None
    return try_all(TRIALS, inputs=inputs, seed=seed, fair=fair)


if __name__ == "__main__":
    command(fuzz, __doc__)

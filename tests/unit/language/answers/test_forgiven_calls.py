# ruff: noqa: E501 - raw answers are one line each
"""Small slips of models: a value that is none, quotes inside quotes, an end that was forgotten."""

from __future__ import annotations

import json

import pytest
from answer_cases import BERN, HARMONY, HERMES, LFM, LLAMA, MISTRAL
from reading import TOOL_SET, meaning, read

from paddler_trio.language.answers.format_detection import format_of, known_format
from paddler_trio.language.answers.literals import parse_literal
from paddler_trio.language.answers.typed_values import ANY, json_of
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.templates.chat_template import ChatTemplate

M1 = "<beginning_of_sentence><tool_calls>\\n"


@pytest.mark.parametrize(
    ("template", "raw", "content", "calls"),
    [
        (
            LFM,
            "<|tool_call_start|>[weather(city=b'x', days=[1, 2]), now()]<|tool_call_end|>",
            "weather(city=b'x', days=[1, 2])",
            [("now", {})],
        ),
        (
            LFM,
            '<|tool_call_start|>[weather(city="Bern"), now(at=9e999)]<|tool_call_end|>d',
            "now(at=9e999)d",
            [("weather", BERN)],
        ),
        (
            "<function_calls></function_calls>",
            "c<function_calls>now(a=today)\nweather(city='Bern')</function_calls>",
            "cnow(a=today)",
            [("weather", BERN)],
        ),
        (
            LFM,
            "<|tool_call_start|>[now(), weather(city='Bern']), now()]<|tool_call_end|>",
            "weather(city='Bern']), now()]",
            [("now", {})],
        ),
        (
            "<TOOLCALL></TOOLCALL>",
            '<TOOLCALL>[{"name": "now"}, {"name": 1}, {"name": "now", arguments}]</TOOLCALL>',
            '{"name": 1}{"name": "now", arguments}]',
            [("now", {})],
        ),
        (
            LFM,
            "<|tool_call_start|>[now(), weather(city='Bern')<|tool_call_end|>",
            "",
            [("now", {}), ("weather", BERN)],
        ),
        (LFM, "c<|tool_call_start|>[ ]<|tool_call_end|>", "c", []),
        (
            "<TOOLCALL></TOOLCALL>",
            '<TOOLCALL>[{"name": "now", "arguments": {}}</TOOLCALL>',
            "",
            [("now", {})],
        ),
        (
            M1,
            '<tool_calls>\n{"name": "now"}\n{now: 1}\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_calls>',
            "{now: 1}",
            [("now", {}), ("weather", BERN)],
        ),
        (
            LLAMA,
            '{"name": "now", "parameters": {}} is what {I} wrote.',
            "is what {I} wrote.",
            [("now", {})],
        ),
        (
            HERMES,
            "<tool_call>\n{'arguments': {'city': 'Bern', 'wind': True}, 'name': 'weather'}\n</tool_call>",
            "",
            [("weather", {"city": "Bern", "wind": True})],
        ),
        (
            HERMES,
            "<tool_call>{ 'name': 'now', 'arguments': {'a': 'it's \\'b\\''}}</tool_call>c",
            "c",
            [("now", {"a": "it's 'b'"})],
        ),
        (MISTRAL, "c[TOOL_CALLS]now", "c", [("now", {})]),
        (
            '<function name=""><param name=""></param></function>',
            "<function name=\"weather\"><param name=\"properties\">{'city': 'Bern', 'days': 2}</param></function>",
            "",
            [("weather", {"city": "Bern", "days": 2})],
        ),
        (
            LLAMA,
            'As in {"name": "now", "parameters": {}}.',
            'As in {"name": "now", "parameters": {}}.',
            [],
        ),
    ],
)
def test_what_is_no_call_stays_and_the_others_arrive(
    template: str, raw: str, content: str, calls: list[tuple[str, object]]
) -> None:
    assert meaning(read(template, [raw])) == (content, calls)
    assert meaning(read(template, raw)) == (content, calls)
    for cut in range(1, len(raw)):
        assert meaning(read(template, [raw[:cut], raw[cut:]])) == (content, calls)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_a_message_to_a_tool_that_is_no_json_is_its_arguments_as_text(pieces: int) -> None:
    raw = "<|start|>assistant<|channel|>commentary to=functions.weather<|message|>Bern, please<|call|>"
    answer = read(HARMONY, (raw[i : i + pieces] for i in range(0, len(raw), pieces)))
    assert meaning(answer) == ("", [("weather", "Bern, please")])
    assert answer.problems == ("tool 'weather': the arguments are not a JSON object",)


@pytest.mark.parametrize("prompt_end", ["", "<|start|>assistant to=functions.now<|message|>"])
def test_a_message_to_a_tool_with_nothing_in_it_calls_the_tool(prompt_end: str) -> None:
    form = known_format(HARMONY)
    assert form is not None
    header = "" if prompt_end else "<|start|>assistant to=functions.now<|message|>"
    weather = '<|start|>assistant to=functions.weather<|message|>{"city": "Bern"}<|call|>'
    for raw in (f"{header}<|call|>{weather}", f"{header} <|call|>{weather}"):
        reader = AnswerReader(form, TOOL_SET, prompt_end=prompt_end)
        for character in raw:
            reader.feed(character)
        assert meaning(reader.end()) == ("", [("now", {}), ("weather", BERN)])
    reader = AnswerReader(form, TOOL_SET, prompt_end=prompt_end)
    reader.feed(header)
    assert meaning(reader.end()) == ("", [("now", {})])


@pytest.mark.parametrize(
    "raw",
    [
        'I ask.<tool_call>[{"name": "now", "arguments": {}}]</tool_call>',
        'I ask.[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
        'I ask.\n[{"name": "now", "arguments": {}}]',
        'I ask.\n```json\n{"name": "now", "arguments": {}}\n```\n',
    ],
)
def test_a_model_without_marks_of_its_own_may_borrow_some(raw: str) -> None:
    template = ChatTemplate.compile("{% for m in messages %}{{ m.content }}{% endfor %}")
    reader = AnswerReader(format_of(template), TOOL_SET)
    for character in raw:
        reader.feed(character)
    answer = reader.end()
    assert (answer.content.strip(), answer.problems) == ("I ask.", ())
    assert [call.name for call in answer.tool_calls] == ["now"]


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"integer"}, 12),
        ('"12"', {"integer"}, 12),
        ("\"{'a': [1, None]}\"", {"object"}, {"a": [1, None]}),
        ("null", {"integer"}, None),
        ("None", {"string", "null"}, None),
        ("null", {"string"}, "null"),
        ("2.5", {"integer"}, 2.5),
        ("soon", {"integer"}, "soon"),
        ("12", {"string", "null"}, "12"),
        ('"12"', {"string", "null"}, '"12"'),
        ('"12"', ANY, "12"),
        ("{1, 2}", ANY, "{1, 2}"),
    ],
)
def test_a_bare_value_is_what_its_schema_lets_it_be(
    text: str, types: set[str], value: object
) -> None:
    assert json.loads(json_of(text, frozenset(types))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a', 'b'}", ["a", "b"]),
        ("{1, (2, 3)}", [1, [2, 3]]),
        ("{}", {}),
        ("{'a': {'b'}}", {"a": ["b"]}),
    ],
)
def test_sets_are_lists(text: str, value: object) -> None:
    assert parse_literal(text, has_sets=True) == value


@pytest.mark.parametrize("text", ["{'a': 1, 'b'}", "{a, b}", "{'a' 'b': 1}", "{'a'"])
def test_what_is_neither_a_set_nor_an_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_literal(text, has_sets=True)

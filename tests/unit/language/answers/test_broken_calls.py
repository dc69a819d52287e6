# ruff: noqa: E501, ISC004, RUF001 - raw answers are one line each, in the characters their families use
"""Calls that cannot be read cost nothing but themselves: their text stays, their siblings arrive."""

from __future__ import annotations

import pytest
from answer_cases import BERN, DSML, GEMMA, GLM, HERMES, KIMI, MUSE, V3
from reading import TOOL_SET, meaning, read

from paddler_trio.language.answers.format_detection import format_of, known_format
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.templates.chat_template import ChatTemplate

SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
GRANITE = '<|tool_call|>[{"name": "now", "arguments": {}}]'


@pytest.mark.parametrize(
    ("template", "raw", "kept", "calls"),
    [
        (
            KIMI,
            "c"
            + SECTION.format(
                CALL.format("functions.now:0", '{"a": 1')
                + CALL.format("functions.weather:1", '{"city": "Bern"}')
            ),
            ["c", "functions.now:0", '{"a": 1'],
            [("weather", BERN)],
        ),
        (
            KIMI,
            SECTION.format(f" let me see {CALL.format('functions.now:0 ', '{} ')}"),
            ["let me see"],
            [("now", {})],
        ),
        (
            DSML,
            "<｜DSML｜function_calls>\n"
            '<｜DSML｜invoke name="weather">\nBern\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\nd',
            ['name="weather"', "Bern", "d"],
            [("now", {})],
        ),
        ("<|tool_call|>", f"c\n{GRANITE}\nAnd d.", ["c", "And d."], [("now", {})]),
        (HERMES, "<tool_call>\nhow?\n</tool_call>\nd", ["how?", "d"], []),
        (
            HERMES,
            '<tool_call>{"name": "now", "arguments": {"a": }</tool_call>',
            ['{"name": "now"'],
            [],
        ),
        (V3, "c<｜tool▁calls▁begin｜>weather", ["c", "weather"], []),
        (GEMMA, '<|tool_call>call:weather{city:<|"|>Be<tool_call|>', ["weather", "Be"], []),
    ],
)
def test_a_call_that_cannot_be_read_stays_as_content(
    template: str, raw: str, kept: list[str], calls: list[tuple[str, object]]
) -> None:
    answer = read(template, [raw])
    assert [(call.name, call.arguments) for call in answer.tool_calls] == calls
    assert answer.problems
    places = [answer.content.find(text) for text in kept]
    assert min(places) >= 0, answer.content
    assert places == sorted(places)
    assert calls or answer.content == raw
    assert meaning(read(template, raw)) == meaning(answer)


def test_a_call_that_breaks_off_is_no_content() -> None:
    raw = SECTION.format(CALL.format("functions.weather:0", '{"city": "Be'))
    raw = "c" + raw[: raw.index("Be") + 2]
    answer = read(KIMI, [raw], is_partial=True)
    assert meaning(answer) == ("c", [("weather", '{"city": "Be')])
    assert meaning(read(KIMI, raw, is_partial=True)) == meaning(answer)


def test_a_broken_call_of_a_partial_answer_is_not_the_one_that_breaks_off() -> None:
    broken = CALL.format("functions.now:0", '{"a": 1')
    begun = CALL.format("functions.weather:1", '{"city": "Be')
    raw = f"<|tool_calls_section_begin|>{broken}{begun[: begun.index('Be') + 2]}"
    # What a broken JSON text goes on with can be told only when its section ends.
    assert [call.name for call in read(KIMI, [raw], is_partial=True).tool_calls] == ["now"]
    whole = SECTION.format(broken + CALL.format("functions.weather:1", '{"city": "Bern"}'))
    answer = read(KIMI, whole + "d", is_partial=True)
    assert [call.name for call in answer.tool_calls] == ["weather"]
    assert answer.content.endswith("d")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [('{"city": "Bern"}', ["weather"]), ('{"code": "1"}', ["python"]), ("{}", [])],
)
def test_a_call_with_an_index_and_no_name_is_for_the_tool_that_takes_it(
    arguments: str, names: list[str]
) -> None:
    raw = SECTION.format(CALL.format("0", arguments))
    answer = read(KIMI, raw)
    assert [call.name for call in answer.tool_calls] == names
    assert [call.id for call in answer.tool_calls] == ["0"] * len(names)
    assert bool(names) != (arguments in answer.content)


@pytest.mark.parametrize(
    ("written", "arguments", "name"),
    [
        ("call_3", '{"city": "Bern"}', "weather"),
        ("weather", '{"code": "1"}', "weather"),
        ("later:3", '{"city": "Bern"}', "later"),
        ("functions.later", '{"city": "Bern"}', "later"),
        ("later", '{"a": 1}', "later"),
    ],
)
def test_an_id_that_a_client_once_made_is_no_name_if_the_arguments_fit_a_tool(
    written: str, arguments: str, name: str
) -> None:
    answer = read(KIMI, SECTION.format(CALL.format(written, arguments)))
    assert [call.name for call in answer.tool_calls] == [name]


@pytest.mark.parametrize("written", ["now", "now.now", "now.then", "then.then"])
def test_a_tool_that_is_named_twice_is_called_once(written: str) -> None:
    raw = f' to={written}<|message|><atem:function_calls>\n<atem:invoke name="{written}">\n'
    raw += "</atem:invoke>\n</atem:function_calls>"
    form = known_format(MUSE)
    assert form is not None
    reader = AnswerReader(form, TOOL_SET, prompt_end="<|start|>assistant")
    for character in raw:
        reader.feed(character)
    expected = "now" if written == "now.now" else written
    assert [call.name for call in reader.end().tool_calls] == [expected]


def test_a_name_alone_calls_even_a_tool_that_nobody_offered() -> None:
    answer = read(GLM, "<tool_call>later\n</tool_call>")
    assert meaning(answer) == ("", [("later", {})])
    assert "later" in answer.problems[0]
    assert read(GLM, "<tool_call>lat", is_partial=True).tool_calls == ()


QUOTING = """{%- for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>VALUE</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endfor %}"""


@pytest.mark.parametrize(
    ("value", "raw", "expected"),
    [
        ("{{ value | tojson }}", '"Bern"', "Bern"),
        ("{{ value | tojson }}", '"a \\" b"', 'a " b'),
        ("{{ value | tojson }}", "Bern", "Bern"),
        ("{{ value | tojson }}", "12", "12"),
        ("{{ value if value is string else value | tojson }}", '"Bern"', '"Bern"'),
    ],
)
def test_a_template_says_whether_texts_are_quoted(value: str, raw: str, expected: str) -> None:
    reader = AnswerReader(
        format_of(ChatTemplate.compile(QUOTING.replace("VALUE", value))), TOOL_SET
    )
    reader.feed("<tool_call>weather\n<arg_key>city</arg_key>\n")
    for character in f"<arg_value>{raw}</arg_value>\n</tool_call>":
        reader.feed(character)
    assert [call.arguments for call in reader.end().tool_calls] == [{"city": expected}]

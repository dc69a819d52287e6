# ruff: noqa: E501 - raw answers are one line each
"""JSON that is none to the letter is read as what the model meant, in whatever pieces it comes."""

from __future__ import annotations

import json

import pytest
from answer_cases import BERN, HARMONY, HERMES, KIMI, LLAMA, MISTRAL, QWEN_CODER
from hypothesis import given
from hypothesis import strategies as st
from reading import meaning, read

from paddler_trio.language.answers.streamed_json import mended_json, read_json_text
from paddler_trio.language.answers.text_source import Source

SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "one\n\ttwo\r"}', {"a": "one\n\ttwo\r"}),
        (r'{"a": "\d+ it\'s \\ \" \u00e9"}', {"a": r"\d+ it's \ " + '" é'}),
        ('{"a": [1, 2, ], "b": {"c": 1,\n},}', {"a": [1, 2], "b": {"c": 1}}),
        (
            '{"a": True, "b": [None, False], "c": "True"}',
            {"a": True, "b": [None, False], "c": "True"},
        ),
        ("{'a': 'it's', \"b\": ['x', \"y\"]}", {"a": "it's", "b": ["x", "y"]}),
        ('{"a": "b",, "c": 1}', {"a": "b", "c": 1}),
    ],
)
def test_what_was_meant_is_plain(written: str, meant: object) -> None:
    assert json.loads(mended_json(written)) == meant


@pytest.mark.parametrize("written", ['{"a": }', '{"a" 1}', "{a: 1}", '["a"}', '{"a": 1', "1 2", ""])
def test_what_is_no_json_stays_none(written: str) -> None:
    with pytest.raises(ValueError):
        mended_json(written)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab \n\t\"'\\{}[],:é", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab '", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, st.sampled_from([None, 1, 3]))
def test_what_is_json_passes_as_it_is(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert mended_json(text) == text


@given(VALUES, st.randoms(use_true_random=False))
def test_raw_characters_are_escaped_in_any_pieces(value: object, dice: object) -> None:
    written = json.dumps({"a": value}, ensure_ascii=False).replace("\\n", "\n").replace("\\t", "\t")
    source, parts = Source(), list[str]()
    reading = read_json_text(source, parts.append)
    for character in written:
        source.feed(character)
        next(reading, None)
    assert "".join(parts) == mended_json(written)


@pytest.mark.parametrize(
    ("template", "raw"),
    [
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}]}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern",},}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather" "arguments": {"city": "Bern"}}\n</tool_call>'),
        (HERMES, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {'city': 'Bern'}}\n</tool_call>"),
        (HERMES, '<tool_call>\n```json\n{"name": "weather", "arguments": {"city": "Bern"}}\n```\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": "{\\"city\\": \\"Bern\\"}"}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}, "arguments": {"city": "Rom"}}\n</tool_call>'),
        (LLAMA, '{"name": "weather", "parameters": {"city": "Bern"}}}'),
        (KIMI, SECTION.format(CALL.format("functions.weather:0", '{"city": "Bern"}}'))),
        (KIMI, SECTION.format(CALL.format("functions.weather:0", '{"city": "Bern",}'))),
        (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}}'),
        (HARMONY, '<|start|>assistant<|channel|>commentary to=functions.weather<|message|>{"city": "Bern"}}<|call|>'),
        (QWEN_CODER, '<tool_call>\n<function=weather>{"city": "Bern"}}</function>\n</tool_call>'),
    ],
)  # fmt: skip
def test_a_call_with_a_bracket_or_a_comma_too_much_or_too_few_is_one(
    template: str, raw: str
) -> None:
    expected = ("", [("weather", BERN)])
    assert meaning(read(template, [raw])) == expected
    assert meaning(read(template, raw)) == expected
    assert read(template, [raw]).problems == ()


@pytest.mark.parametrize("template", [HERMES, LLAMA])
def test_raw_line_breaks_stay_in_the_argument(template: str) -> None:
    text = "def f():\n\treturn 1\r\n"
    raw = f'{{"name": "python", "arguments": {{"code": "{text}"}}}}'
    raw = f"<tool_call>\n{raw}\n</tool_call>" if template == HERMES else raw
    for pieces in ([raw], raw):
        assert meaning(read(template, pieces)) == ("", [("python", {"code": text})])


def test_a_value_between_tags_may_be_json_that_has_to_be_mended() -> None:
    raw = '<tool_call>\n<function=weather>\n<parameter=area>\n{"a": "x\ny", "b": True,}\n</parameter>\n</function>\n</tool_call>'
    answer = read(QWEN_CODER, raw)
    assert [call.arguments for call in answer.tool_calls] == [{"area": {"a": "x\ny", "b": True}}]


def test_a_call_that_breaks_off_is_not_completed() -> None:
    raw = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}'
    answer = read(HERMES, raw, is_partial=True)
    assert meaning(answer) == ("", [("weather", '{"city": "Bern"}')])

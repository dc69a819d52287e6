"""What a raw answer means, from a template's text alone, at a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paddler_trio.cli.commands import command_line

TEMPLATE = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if tools %}{{ tools|tojson }} <tool_call></tool_call>{% endif -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""
RAW = (
    "Ünd so?\n</think>\n\nI look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>\n'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    return str(path)


def parse(raw: str, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        command_line(["template"]), ["template", "parse", *options], input=raw.encode()
    )
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("split", [(), ("--split", "1"), ("--split", "2")])
def test_an_answer_is_printed_as_what_it_means(template: str, split: tuple[str, ...]) -> None:
    answer = parse(RAW, "--template", template, *split)
    [call] = answer.pop("tool_calls")
    assert answer == {"content": "I look.", "reasoning": "Ünd so?", "format": "hermes"}
    assert (call["name"], call["arguments"]) == ("weather", {"city": "Zürich"})
    assert call["id"]


def test_the_conversation_decides_how_the_answer_begins(template: str) -> None:
    assert parse("Hi.", "--template", template)["reasoning"] == "Hi."
    assert parse("Hi.", "--template", template, "--no-thinking")["content"] == "Hi."


def test_messages_and_tools_are_taken_as_render_takes_them(template: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "<think> hm </think>"}]')
    (tmp_path / "t.json").write_text(json.dumps([TOOL]))
    options = ("--messages", str(tmp_path / "m.json"), "--tools", str(tmp_path / "t.json"))
    answer = parse(RAW.replace("weather", "fly"), "--template", template, *options)
    assert answer["reasoning"] == "Ünd so?"
    assert answer["problems"] == ["tool 'fly': there is no tool of this name"]


def test_an_answer_that_was_cut_off_shows_how_far_its_call_came(template: str) -> None:
    raw = RAW[: RAW.index("Zürich") + 3]
    assert parse(raw, "--template", template)["tool_calls"] == []
    [call] = parse(raw, "--template", template, "--partial")["tool_calls"]
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Zür')


def test_bytes_that_are_no_text_become_replacement_characters(template: str) -> None:
    result = CliRunner().invoke(
        command_line(["template"]),
        ["template", "parse", "--template", template, "--no-thinking"],
        input=b"a\xff\xf0b",
    )
    assert json.loads(result.stdout)["content"] == "a\ufffd\ufffdb"


def test_a_conversation_cannot_come_from_where_the_answer_comes(template: str) -> None:
    result = CliRunner().invoke(
        command_line(["template"]),
        ["template", "parse", "--template", template, "--messages", "-"],
        input=b"",
    )
    assert result.exit_code != 0
    assert "standard input" in result.output


def test_what_was_found_out_about_a_template_can_be_read(template: str) -> None:
    result = CliRunner().invoke(
        command_line(["template"]), ["template", "show", "--template", template]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["default"]
    assert found["format"] == "hermes"
    assert found["reasoning"] == {"open": "<think>", "close": "</think>"}
    assert found["tool_calls"]["open"] == "<tool_call>"
    assert found["tool_calls"]["syntax"]["kind"] == "JsonCalls"
    assert "<|im_end|>" in found["turn_ends"]

"""Templates render as their authors tested them, and fail with words."""

import json
from datetime import UTC, datetime

import pytest

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.chat_template import MAX_SOURCE_CHARS, ChatTemplate

TOOL = {"type": "function", "function": {"name": "zoo", "description": "<b>&'é", "parameters": {}}}


def render(
    source: str,
    messages: list[dict[str, object]] | None = None,
    *,
    tools: list[dict[str, object]] | None = None,
    enable_thinking: bool | None = None,
    extra: dict[str, object] | None = None,
    max_output_chars: int = 10_000,
) -> str:
    return ChatTemplate.compile(source).render(
        messages or [],
        tools=tools,
        add_generation_prompt=True,
        enable_thinking=enable_thinking,
        bos_token="<s>",
        eos_token="</s>",
        extra=extra,
        max_output_chars=max_output_chars,
    )


def test_block_tags_leave_neither_their_line_end_nor_their_indentation() -> None:
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n"
        "{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    )
    assert render(source, [{"role": "user", "content": "hi"}]) == "hi\n"


def test_tojson_keeps_order_characters_and_html_as_they_are() -> None:
    value = {"z": 1, "a": "<é & 'x'>"}
    assert render("{{ v | tojson }}", extra={"v": value}) == '{"z": 1, "a": "<é & \'x\'>"}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("(indent=2)", '{\n  "b": "é",\n  "a": 1\n}'),
        ("(ensure_ascii=True)", '{"b": "\\u00e9", "a": 1}'),
        ("(sort_keys=True)", '{"a": 1, "b": "é"}'),
        ("(separators=(',', ':'))", '{"b":"é","a":1}'),
    ],
)
def test_tojson_takes_the_arguments_of_json_dumps(arguments: str, expected: str) -> None:
    assert render(f"{{{{ v | tojson{arguments} }}}}", extra={"v": {"b": "é", "a": 1}}) == expected


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize(
    "question",
    [
        "tools",
        "tools is defined",
        "tools is not none",
        "tools != none",
        "tools is defined and tools is not none",
        "tools | length",
    ],
)
def test_without_tools_no_way_of_asking_finds_any(
    question: str, tools: list[dict[str, object]] | None
) -> None:
    assert render(f"{{% if {question} %}}tools{{% else %}}none{{% endif %}}", tools=tools) == "none"


def test_a_template_that_loops_over_tools_without_asking_prints_nothing_for_them() -> None:
    assert render("[{% for tool in tools %}{{ tool }}{% endfor %}]{{ tools | tojson }}") == "[]null"


def test_with_tools_every_way_of_asking_finds_them() -> None:
    source = (
        "{{ tools is defined and tools is not none and tools != none }} {{ tools[0] | tojson }}"
    )
    assert render(source, tools=[TOOL]) == f"True {json.dumps(TOOL, ensure_ascii=False)}"


def test_the_thinking_switch_is_undefined_unless_somebody_set_it() -> None:
    source = "{{ enable_thinking is defined }} {{ enable_thinking }}"
    assert render(source) == "False "
    assert render(source, enable_thinking=False) == "True False"


def test_strftime_now_reads_the_clock_it_was_given() -> None:
    moment = datetime(2031, 2, 3, 4, 5, tzinfo=UTC)
    template = ChatTemplate.compile("{{ strftime_now('%d %b %Y') }}", now=lambda: moment)
    prompt = template.render(
        [], add_generation_prompt=False, enable_thinking=None, bos_token="", eos_token=""
    )
    assert prompt == "03 Feb 2031"


def test_loop_controls_and_generation_blocks_are_understood() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}\n<{{ m.content }}>{% endgeneration %}{% endfor %}"
    )
    messages: list[dict[str, object]] = [{"content": str(number)} for number in range(4)]
    assert render(source, messages) == "<0><1>"


def test_special_tokens_and_extra_variables_reach_the_template() -> None:
    assert render("{{ bos_token }}{{ nl_token }}{{ eos_token }}", extra={"nl_token": "\n"}) == (
        "<s>\n</s>"
    )


@pytest.mark.parametrize("name", ["messages", "tools", "enable_thinking", "bos_token"])
def test_an_extra_variable_cannot_replace_one_of_the_request(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=name):
        render("", extra={name: "x"})


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="only user and assistant"):
        render("{{ raise_exception('only user and assistant roles') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ 1 + 'x' }}",
        "{{ 1 // 0 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 10 ** 1000000000 }}",
    ],
)
def test_a_template_that_fails_or_escapes_is_an_error_of_its_own_kind(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        render(source)


def test_a_prompt_longer_than_the_limit_is_an_error() -> None:
    with pytest.raises(ChatTemplateError, match="more than 100 characters"):
        render("{% for i in range(51) %}ab{% endfor %}", max_output_chars=100)
    assert len(render("{% for i in range(50) %}ab{% endfor %}", max_output_chars=100)) == 100


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("one\n{% if %}", "line 2"),
        ("{% generation %}", "endgeneration"),
        ("{{ x | nosuchfilter }}", "nosuchfilter"),
        ("{% for i in x %}" * 30 + "{% endfor %}" * 30, "does not compile"),
        ("{{" + "(" * 5000 + ")" * 5000 + "}}", "does not compile"),
        (" " * (MAX_SOURCE_CHARS + 1), str(MAX_SOURCE_CHARS)),
    ],
)
def test_what_does_not_compile_says_where_or_why(source: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        ChatTemplate.compile(source)

"""Templates that lack something get it said in another way; what they know they get as it is."""

import json
import re
from typing import Any

import pytest

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.wire.trio.work import ConversationPrompt

KNOWS_ALL = """\
{% if tools %}TOOLS {{ tools | tojson }}
{% endif %}
{% for m in messages %}
[{{ m.role }}] {% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}
{% if m.content is string %}
{{ m.content }}
{% elif m.content %}
{% for part in m.content %}{{ part.text }}{% endfor %}

{% endif %}
{% for call in m.tool_calls or [] %}
{% set arguments = call.function.arguments %}
CALL {{ call.function.name }} {{ arguments if arguments is string else arguments | tojson }}
{% endfor %}
{% endfor %}
"""
STRICT = """\
{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}
{% endif %}
{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Only two roles') }}{% endif %}
<{{ m.role }}>{{ m.content | trim }}</>
{% endfor %}
"""
FORGETFUL = """\
{% for m in messages %}
{% if m.role == 'user' or m.role == 'assistant' or m.role == 'system' %}
{{ m.role }}: {{ m.content }}
{% endif %}
{% endfor %}
"""
WANTS_PARTS = """\
{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part['text'] }}{% endfor %}

{% endfor %}
"""
WANTS_OBJECTS = """\
{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}
<{{ call.function.name }}>{% for key, value in call.function.arguments.items() %}
<{{ key }}>{{ value }}</>{% endfor %}{% endfor %}

{% endfor %}
"""
WANTS_TEXT = """\
{% for m in messages %}
{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}
{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}

{% endfor %}
"""
WANTS_NULL = """\
{% for m in messages %}
{% if m.role == 'assistant' and m['content'] is none %}
{% for call in m.tool_calls %}CALL {{ call.function.name }} {{ call.function.arguments | tojson }}
{% endfor %}
{% else %}
{{ m.role }}: {{ m['content'] + '' }}
{% endif %}
{% endfor %}
"""
LISTS_TOOLS_AS_PYTHON = "TOOLS {{ tools }}\n" + KNOWS_ALL.replace(
    "arguments if arguments is string else arguments | tojson", "arguments | tojson"
)
NEEDS_WHOLE_TOOLS = """\
{% for tool in tools or [] %}
{{ tool.function.name + ': ' + tool.function.description }}
{% for name in tool.function.parameters.properties.keys() %} {{ name }}{% endfor %}

{% endfor %}
{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}
"""
READS_WORDS = """\
{% set ns = namespace(think=true) %}
{% for m in messages %}
{% if '/think' in m.content %}{% set ns.think = true %}
{% elif '/no_think' in m.content %}{% set ns.think = false %}{% endif %}
{{ m.role }}: {{ m.content.replace('/think', '').replace('/no_think', '') | trim }}
{% endfor %}
assistant: {{ '<think>' if ns.think else '<think></think>' }}"""
SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hi"}
CALL = {"id": "callid001", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "callid001", "name": "f", "content": "3"}


def prompt(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    templates = ModelTemplates(default=ModelTemplate.compile(source))
    conversation = ConversationPrompt(messages=messages, **fields)
    return prepare_conversation(conversation, templates).text(add_generation_prompt=True)


def with_arguments(arguments: object) -> dict[str, Any]:
    return {**CALLS, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]}


def test_a_template_that_knows_everything_gets_everything_as_it_came() -> None:
    parts = [{"type": "text", "text": "o"}, {"type": "text", "text": "k"}]
    rendered = prompt(
        KNOWS_ALL,
        {"role": "developer", "content": parts},
        USER,
        {**with_arguments('{"a":1}'), "content": None, "reasoning": "hm"},
        RESULT,
    )
    assert rendered == ('[developer] ok\n[user] hi\n[assistant] (hm) CALL f {"a":1}\n[tool] 3\n')


def test_without_a_system_role_the_text_goes_on_top_of_the_first_question() -> None:
    rendered = prompt(STRICT, SYSTEM, USER, {"role": "assistant", "content": "yes"}, USER)
    assert rendered == "<user>Be kind.\n\nhi</>\n<assistant>yes</>\n<user>hi</>\n"


def test_developers_are_heard_as_the_system_is() -> None:
    assert (
        prompt(FORGETFUL, {**SYSTEM, "role": "developer"}, USER) == "system: Be kind.\nuser: hi\n"
    )
    assert prompt(STRICT, {**SYSTEM, "role": "developer"}, USER) == "<user>Be kind.\n\nhi</>\n"


def test_parts_become_lines_where_a_template_knows_only_strings() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt(STRICT, {"role": "user", "content": parts}) == "<user>one\ntwo</>\n"


def test_strings_become_parts_where_a_template_knows_only_those() -> None:
    assert prompt(WANTS_PARTS, SYSTEM, USER) == "system:Be kind.\nuser:hi\n"


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_arguments_come_in_the_form_that_a_template_prints(arguments: object) -> None:
    calls = with_arguments(arguments)
    assert prompt(WANTS_OBJECTS, USER, calls).endswith("<f><a>1</>\n")
    assert prompt(WANTS_TEXT, USER, calls).endswith('f({"a": 1})\n')
    assert prompt(KNOWS_ALL, USER, calls).endswith('CALL f {"a": 1}\n')


@pytest.mark.parametrize("arguments", ['{"a', "[1]", "3"])
def test_arguments_that_are_no_object_are_told_as_they_are_where_one_is_needed(
    arguments: str,
) -> None:
    rendered = prompt(WANTS_OBJECTS, USER, with_arguments(arguments))
    assert rendered == f'user: hi\nassistant: {{"name": "f", "arguments": {arguments}}}\n'


def test_no_arguments_are_an_empty_object() -> None:
    assert prompt(WANTS_OBJECTS, USER, with_arguments("")).endswith("<f>\n")


def test_null_content_beside_calls_is_what_the_template_copes_with() -> None:
    null = {**CALLS, "content": None}
    assert prompt(WANTS_NULL, USER, null) == 'user: hi\nCALL f {"a": 1}\n'
    assert prompt(KNOWS_ALL, USER, null) == '[user] hi\n[assistant] CALL f {"a": 1}\n'
    assert "None" not in prompt("{% for m in messages %}{{ m['content'] }}{% endfor %}", USER, null)


def test_results_and_calls_are_told_to_a_template_that_would_lose_both() -> None:
    asks = {"role": "user", "content": "and now?"}
    assert prompt(FORGETFUL, USER, CALLS, RESULT, asks) == (
        'user: hi\nassistant: {"name": "f", "arguments": {"a": 1}}\n'
        "user: Result of f:\n3\nuser: and now?\n"
    )


def test_turns_made_here_never_break_a_template_that_wants_them_to_alternate() -> None:
    asks = {"role": "user", "content": "and now?"}
    assert prompt(STRICT, SYSTEM, USER, CALLS, RESULT, RESULT, asks) == (
        '<user>Be kind.\n\nhi</>\n<assistant>{"name": "f", "arguments": {"a": 1}}</>\n'
        "<user>Result of f:\n3\n\nResult of f:\n3\n\nand now?</>\n"
    )


def test_turns_made_here_join_what_stands_before_them_too() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}]}
    answer = {"role": "assistant", "content": "yes"}
    assert prompt(STRICT, USER, RESULT) == "<user>hi\n\nResult of f:\n3</>\n"
    assert prompt(STRICT, parts, RESULT) == "<user>one\nResult of f:\n3</>\n"
    rendered = prompt(STRICT, USER, answer, USER, SYSTEM)
    assert rendered == "<user>hi</>\n<assistant>yes</>\n<user>hi\n\nBe kind.</>\n"


@pytest.mark.parametrize("silent", [{}, {"content": None}])
def test_an_answer_without_anything_said_is_empty_where_a_template_needs_a_content(
    silent: dict[str, Any],
) -> None:
    answer = {"role": "assistant", **silent}
    needs = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    assert prompt(needs, USER, answer, USER) == "user:hi;assistant:;user:hi;"
    sees = "{% for m in messages %}{{ m.role }} {{ m.content is defined }};{% endfor %}"
    shows = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert prompt(sees + shows, USER, answer) == "user True;assistant False;hi"


def test_turns_of_one_role_are_joined_where_a_template_wants_them_to_alternate() -> None:
    answers = [{"role": "assistant", "content": text} for text in ("yes", "", "no")]
    assert prompt(STRICT, USER, USER) == "<user>hi\n\nhi</>\n"
    assert prompt(STRICT, *answers, USER) == ("<user></>\n<assistant>yes\n\nno</>\n<user>hi</>\n")


ONE_SYSTEM = """\
{% if messages[0].role == 'system' %}SYSTEM {{ messages[0].content }}
{% endif %}
{% for m in messages if m.role != 'system' %}
{{ m.role }}: {{ m.content }}
{% endfor %}
"""
HOISTS_SYSTEMS = """\
{% for m in messages if m.role == 'system' %}SYSTEM {{ m.content }}
{% endfor %}
{% for m in messages if m.role != 'system' %}
{{ m.role }}: {{ m.content }}
{% endfor %}
"""
SYSTEM_2 = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "yes"}


def test_several_system_texts_are_one_where_a_template_takes_one() -> None:
    developer = {**SYSTEM_2, "role": "developer"}
    for second in (SYSTEM_2, developer):
        assert prompt(ONE_SYSTEM, SYSTEM, second, USER) == (
            "SYSTEM Be kind.\n\nBe brief.\nuser: hi\n"
        )
    assert prompt(HOISTS_SYSTEMS, SYSTEM, SYSTEM_2, USER) == (
        "SYSTEM Be kind.\nSYSTEM Be brief.\nuser: hi\n"
    )


@pytest.mark.parametrize("source", [ONE_SYSTEM, HOISTS_SYSTEMS])
def test_a_late_system_text_stays_in_its_place(source: str) -> None:
    assert prompt(source, SYSTEM, USER, ANSWER, SYSTEM_2, USER) == (
        "SYSTEM Be kind.\nuser: hi\nassistant: yes\nuser: Be brief.\n\nhi\n"
    )
    assert prompt(source, USER, SYSTEM_2, ANSWER) == "user: hi\n\nBe brief.\nassistant: yes\n"
    assert prompt(source, SYSTEM, USER, ANSWER, SYSTEM_2) == (
        "SYSTEM Be kind.\nuser: hi\nassistant: yes\nuser: Be brief.\n"
    )


ONE_CALL = """\
{% for m in messages %}
{% if m.tool_calls %}
{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}
CALL {{ m.tool_calls[0].function.arguments | tojson }}
{% else %}
{{ m.role }}: {{ m.content }}
{% endif %}
{% endfor %}
"""


def test_calls_are_told_one_by_one_each_with_its_result() -> None:
    function = {"name": "f", "arguments": {"a": 2}}
    second = {"id": "callid002", "type": "function", "function": function}
    both = {**CALLS, "content": "I look.", "tool_calls": [CALL, second]}
    results = [{**RESULT, "tool_call_id": "callid002", "content": "4"}, RESULT]
    knows_names = ONE_CALL.replace("CALL {{", "CALL {{ m.tool_calls[0].function.name }} {{")
    assert prompt(knows_names, USER, both, *results) == (
        'user: hi\nassistant: I look.\nCALL f {"a": 1}\ntool: 3\nCALL f {"a": 2}\ntool: 4\n'
    )


NINE = """\
{% for m in messages %}
{% for call in m.tool_calls or [] %}
{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}
CALL {{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}
{% else %}
{{ m.role }}: {{ m.tool_call_id }} {{ m.content }}
{% endfor %}
{% endfor %}
"""


def test_foreign_ids_get_nine_letters_and_digits_and_stay_apart() -> None:
    given = ["call_9Qm2XyLr7TtB40", "toolu_018abcDEF9921", "z", "callid001"]
    messages = [USER]
    for id_ in given:
        messages += [{**CALLS, "tool_calls": [{**CALL, "id": id_}]}]
        messages += [{**RESULT, "tool_call_id": id_}]
    rendered = prompt(NINE, *messages)
    called = re.findall(r"CALL (\w+) ", rendered)
    assert re.findall(r"tool: (\w+) ", rendered) == called
    assert all(re.fullmatch("[0-9A-Za-z]{9}", each) for each in called)
    assert len(set(called)) == len(given)
    assert called[3] == "callid001"
    assert rendered.startswith(prompt(NINE, *messages[:3])), "the beginning stays"


def test_calls_and_results_without_ids_are_paired_where_ids_are_needed() -> None:
    without = {key: each for key, each in CALL.items() if key != "id"}
    calls = {**CALLS, "tool_calls": [without, without]}
    result = {"role": "tool", "content": "3"}
    rendered = prompt(NINE, USER, calls, result, result)
    called = re.findall(r"CALL (\w+) ", rendered)
    assert re.findall(r"tool: (\w+) ", rendered) == called
    assert len(set(called)) == 2


def test_tools_are_told_in_words_where_a_template_tells_of_none() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "Looks."}}
    rendered = prompt(FORGETFUL, SYSTEM, USER, CALLS, tools=[tool])
    assert rendered == (
        "system: Be kind.\n\nYou can call tools. Each line describes one of them:\n"
        '{"name": "f", "description": "Looks."}\n'
        "To call a tool, write nothing but this, with its name and its arguments as JSON:\n"
        '{"name": "NAME_OF_THE_TOOL", "arguments": {"NAME_OF_AN_ARGUMENT": "VALUE"}}\n'
        "You are told the result in the next turn.\n"
        'user: hi\nassistant: {"name": "f", "arguments": {"a": 1}}\n'
    )


FIRST_WORD_ONLY = "{% for m in messages %}{{ m.role }}: {{ m.content.split()[0] }}\n{% endfor %}"


def test_a_request_is_refused_by_what_its_template_loses() -> None:
    long = {"role": "user", "content": "one two"}
    assert prompt(FIRST_WORD_ONLY, USER, ANSWER) == "user: hi\nassistant: yes\n"
    with pytest.raises(ChatTemplateError, match=r"^messages\[2\]\.content: .* not print it"):
        prompt(FIRST_WORD_ONLY, USER, ANSWER, long)


def test_a_template_that_cannot_be_probed_gets_messages_as_they_came() -> None:
    needs_more = "{{ persona.name }}" + KNOWS_ALL
    with pytest.raises(ChatTemplateError, match="'persona' is undefined"):
        prompt(needs_more, SYSTEM, USER)
    rendered = prompt(needs_more, SYSTEM, USER, template_kwargs={"persona": {"name": "Zoe"}})
    assert rendered == "Zoe[system] Be kind.\n[user] hi\n"


def test_what_was_given_is_not_changed() -> None:
    messages = [SYSTEM, USER, with_arguments('{"a": 1}'), RESULT]
    before = json.dumps(messages)
    for source in (STRICT, FORGETFUL, WANTS_PARTS, WANTS_OBJECTS, WANTS_TEXT, KNOWS_ALL):
        prompt(source, *messages)
    assert json.dumps(messages) == before


def test_how_a_template_lists_its_tools_says_nothing_about_its_calls() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    rendered = prompt(LISTS_TOOLS_AS_PYTHON, USER, CALLS, tools=[tool])
    assert 'CALL f {"a": 1}' in rendered


@pytest.mark.parametrize(
    "function",
    [
        {"name": "f"},
        {"name": "f", "description": None, "parameters": {}},
        {"name": "f", "parameters": {"type": "object"}},
    ],
)
def test_tools_get_what_a_template_refuses_to_be_without(function: dict[str, Any]) -> None:
    tool = {"type": "function", "function": function}
    rendered = prompt(NEEDS_WHOLE_TOOLS, USER, tools=[tool])
    assert rendered.startswith("f: \n")
    assert json.dumps(tool) in prompt(KNOWS_ALL, USER, tools=[tool])


@pytest.mark.parametrize("messages", [(USER,), (SYSTEM, USER)])
@pytest.mark.parametrize(("thinking", "end"), [(True, "<think>"), (False, "<think></think>")])
def test_models_that_are_switched_by_a_word_are_told_it(
    messages: tuple[dict[str, Any], ...], thinking: bool, end: str
) -> None:
    rendered = prompt(READS_WORDS, *messages, thinking=thinking)
    assert rendered.endswith(f"user: hi\nassistant: {end}")
    assert "/" not in rendered.partition("assistant")[0]


def test_the_word_is_told_in_parts_too_and_only_where_it_is_read() -> None:
    parts = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    assert prompt(READS_WORDS, parts, USER, thinking=False).endswith("<think></think>")
    assert "think" not in prompt(KNOWS_ALL, USER, thinking=False)

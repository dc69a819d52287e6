"""What sessions with hosted models contain: items, blocks and tools that are no functions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.answers.answer import ArgumentsDelta, Call, ToolCallStart
from paddler_trio.balancer.apis.anthropic.anthropic_request import read_messages
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.free_form import FreeText, arguments_of
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_calls import CallDeltas, whole_call
from paddler_trio.balancer.apis.openai.chat_request import read_chat
from paddler_trio.balancer.apis.responses.client_tools import KINDS, WrittenCall
from paddler_trio.balancer.apis.responses.responses_request import ResponsesRequest, read_responses

LIMITS = ApiLimits()
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "carry on"}]}
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def responses(*items: Any, **body: Any) -> tuple[ResponsesRequest, list[str]]:
    ignored = IgnoredFields()
    request = read_responses({"input": [USER, *items, USER], **body}, LIMITS, ignored)
    return request, ignored.names


def messages_with(*items: Any, **body: Any) -> list[Any]:
    """What stands between the two turns of the user."""
    return list(responses(*items, **body)[0].conversation(()).messages[1:-1])


# ------------------------------------------------------------------------------ unknown ones

KNOWN = {
    "message", "function_call", "function_call_output", "reasoning", "item_reference", "mcp_call",
    *(kind.item for kind in KINDS.values()), *(f"{kind.item}_output" for kind in KINDS.values()),
    "tool_search_output",
}  # fmt: skip


@given(kind=NAMES.filter(lambda name: name not in KNOWN), more=st.dictionaries(NAMES, VALUES))
def test_items_of_any_other_kind_are_left_out_and_reported(kind: str, more: Any) -> None:
    request, reported = responses({**more, "type": kind})
    assert request.conversation(()).messages == responses()[0].conversation(()).messages
    assert reported == [f"input[].{kind}"]
    with pytest.raises(ApiError, match="must be one of"):
        read_responses({"input": [{**more, "type": kind}]}, LIMITS)


@pytest.mark.parametrize(
    "kind",
    ["compaction", "web_search_call", "image_generation_call", "file_search_call",
     "code_interpreter_call", "computer_call", "mcp_list_tools", "mcp_approval_request"],
)  # fmt: skip
def test_hosted_items_without_a_meaning_here_are_left_out(kind: str) -> None:
    assert responses({"type": kind, "id": "x"})[1] == [f"input[].{kind}"]


@given(kind=NAMES, more=st.dictionaries(NAMES, VALUES))
def test_parts_and_blocks_of_any_other_kind_are_left_out_and_reported(kind: str, more: Any) -> None:
    kind = f"next_{kind}"
    text = {"type": "text", "text": "a"}
    body = {"messages": [{"role": "user", "content": [text, {**more, "type": kind}]}]}
    for read, bound in ((read_chat, {}), (read_messages, {"max_tokens": 1})):
        ignored = IgnoredFields()
        prompt = read({**body, **bound}, LIMITS, ignored).generate.prompt  # type: ignore[operator]
        assert prompt.messages[0]["content"] in ("a", [text])
        assert ignored.names == [f"messages[].content[].{kind}"]
    other = {"type": "message", "role": "user", "content": [{**more, "type": kind}]}
    assert responses(other)[1] == [f"input[].content[].{kind}"]


# -------------------------------------------------------------------------- calls and results


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        (
            {"type": "custom_tool_call", "call_id": "k", "name": "patcher", "input": '+ "a"\n'},
            "patcher",
            {"input": '+ "a"\n'},
        ),
        (
            {"type": "custom_tool_call", "call_id": "k", "name": "f", "namespace": "n",
             "input": ""},
            "n__f",
            {"input": ""},
        ),
        (
            {
                "type": "local_shell_call",
                "call_id": "k",
                "status": "completed",
                "action": {"type": "exec", "command": ["pwd"], "env": {}},
            },
            "local_shell",
            {"command": ["pwd"], "env": {}},
        ),
        (
            {"type": "shell_call", "call_id": "k", "action": {"commands": ["pwd"]}},
            "shell",
            {"commands": ["pwd"]},
        ),
        (
            {
                "type": "apply_patch_call",
                "call_id": "k",
                "operation": {"type": "delete_file", "path": "a"},
            },
            "apply_patch",
            {"type": "delete_file", "path": "a"},
        ),
        (
            {"type": "tool_search_call", "call_id": "k", "arguments": {"query": "mail"}},
            "tool_search",
            {"query": "mail"},
        ),
        (
            {"type": "mcp_call", "id": "k", "server_label": "s", "name": "n", "arguments": "{}"},
            "n",
            {},
        ),
        (
            {"type": "function_call", "call_id": "k", "name": "f", "namespace": "mcp__m__",
             "arguments": "{}"},
            "mcp__m__f",
            {},
        ),
    ],
)  # fmt: skip
def test_calls_of_hosted_kinds_are_calls_of_functions(
    call: Any, name: str, arguments: object
) -> None:
    (message,) = messages_with(call)
    ((told),) = message["tool_calls"]
    assert (told["id"], told["function"]["name"]) == ("k", name)
    assert json.loads(told["function"]["arguments"]) == arguments


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"type": "custom_tool_call_output", "output": "fine"}, "fine"),
        (
            {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "a"}]},
            "a",
        ),
        ({"type": "local_shell_call_output", "output": "/"}, "/"),
        (
            {
                "type": "shell_call_output",
                "output": [
                    {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 2}},
                    {"stdout": "c", "stderr": "", "outcome": {"type": "timeout"}},
                ],
            },
            "ab\n[exit code 2]\nc\n[timeout]",
        ),
        ({"type": "apply_patch_call_output", "status": "completed"}, "completed"),
        ({"type": "tool_search_output", "tools": []}, "Nothing was found."),
        (
            {"type": "function_call_output",
             "output": [{"type": "input_file", "filename": "a.pdf"}]},
            "[file 'a.pdf': attached here, but not readable]",
        ),
    ],
)  # fmt: skip
def test_results_of_hosted_kinds_are_results(result: Any, text: str) -> None:
    (message,) = messages_with({**result, "call_id": "k"})
    assert (message["role"], message["tool_call_id"], message["content"]) == ("tool", "k", text)


def test_a_call_that_a_server_made_is_a_call_and_its_result() -> None:
    call = {"type": "mcp_call", "id": "m", "name": "n", "arguments": "{}", "output": "o"}
    asked, told = messages_with(call)
    assert asked["tool_calls"][0]["id"] == told["tool_call_id"] == "m"
    assert told["content"] == "o"


# ------------------------------------------------------------------------------------- tools

FUNCTION: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM: Any = {
    "type": "custom",
    "name": "apply",
    "description": "Patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
}
SPACE: Any = {"type": "namespace", "name": "mail", "description": "d", "tools": [FUNCTION, CUSTOM]}


def offered_by(*tools: Any, items: Any = (), **body: Any) -> list[str]:
    request, _ = responses(*items, tools=list(tools), **body)
    return [tool["function"]["name"] for tool in request.conversation(()).tools]  # type: ignore[index]


def test_tools_that_the_client_runs_are_offered_as_functions() -> None:
    tools = (
        FUNCTION, CUSTOM, SPACE, {"type": "local_shell"},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"}, {"type": "tool_search", "execution": "client"},
    )  # fmt: skip
    assert offered_by(*tools) == [
        "f", "apply", "mail__f", "mail__apply", "local_shell", "shell", "apply_patch",
        "tool_search",
    ]  # fmt: skip


def test_tools_that_a_server_runs_are_not() -> None:
    hosted = ({"type": "shell", "environment": {"type": "container_auto"}}, {"type": "tool_search"})
    assert offered_by(*hosted, {"type": "web_search"}, {"type": "image_generation"}) == []


def test_the_grammar_of_a_custom_tool_is_told_in_words() -> None:
    (tool,) = responses(tools=[CUSTOM])[0].conversation(()).tools
    function: Any = tool["function"]
    assert function["description"].startswith("Patch.")
    assert "start: /x/" in function["description"]
    assert function["parameters"]["required"] == ["input"]


def test_tools_that_were_found_are_offered_once() -> None:
    found = {"type": "tool_search_output", "call_id": "k", "tools": [SPACE, FUNCTION]}
    assert offered_by(FUNCTION, items=[found, found]) == ["f", "mail__f", "mail__apply"]
    (_, message, _) = responses(found)[0].conversation(()).messages
    assert message["content"] == "Found: mail__f, mail__apply, f"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "f"}, "mail__f"),
        ({"type": "function", "name": "f", "namespace": "mail"}, "mail__f"),
        ({"type": "custom", "name": "apply"}, "apply"),
        ({"type": "local_shell"}, "local_shell"),
    ],
)
def test_any_tool_may_be_chosen(choice: Any, name: str) -> None:
    tools = [CUSTOM, SPACE, {"type": "local_shell"}]
    assert responses(tools=tools, tool_choice=choice)[0].conversation(()).tool_name == name
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    (only,) = responses(tools=tools, tool_choice=allowed)[0].conversation(()).tools
    assert only["function"]["name"] == name  # type: ignore[index]


def test_a_tool_that_is_not_there_cannot_be_chosen() -> None:
    for choice in ({"type": "shell"}, {"type": "custom", "name": "x"}):
        with pytest.raises(ApiError, match="tool_choice names"):
            responses(tools=[CUSTOM], tool_choice=choice)[0].conversation(())


# ------------------------------------------------------------------------ what the model writes


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(data=st.data(), text=st.text(max_size=40), is_ascii=st.booleans())
def test_free_text_arrives_whole_however_its_json_is_cut(
    data: st.DataObject, text: str, is_ascii: bool
) -> None:
    written = json.dumps(
        {"input": text}, ensure_ascii=is_ascii, indent=data.draw(st.sampled_from([None, 1]))
    )
    free = FreeText()
    told = [free.feed(piece) for piece in data.draw(cut(written))]
    assert "".join(told) + free.end() == text == free.text


@given(st.one_of(st.text(max_size=30), VALUES.map(json.dumps)))
def test_free_text_is_never_lost_where_the_arguments_are_others(arguments: str) -> None:
    free = FreeText()
    told = free.feed(arguments) + free.end()
    assert told == free.text
    if not arguments.lstrip().startswith("{"):
        assert told in (arguments, *_texts(arguments))


def _texts(written: str) -> list[str]:
    try:
        value = json.loads(written, strict=False)
    except ValueError:
        return []
    return [value] if isinstance(value, str) else []


def written_item(tool: Any, name: str, arguments: str) -> tuple[str, dict[str, Any], list[Any]]:
    request, _ = responses(tools=[tool])
    call = WrittenCall(name, request.offered(()).get(name))
    kind, members = call.begun
    grown = list(call.feed(arguments))
    events, last = call.end()
    return kind, {**members, **last}, [*grown, *events]


def test_calls_are_told_as_items_of_the_tools_kind() -> None:
    kind, item, events = written_item(CUSTOM, "apply", arguments_of("+x"))
    assert (kind, item) == ("custom_tool_call", {"name": "apply", "input": "+x"})
    assert events == [
        ("response.custom_tool_call_input.delta", "+x"),
        {"type": "response.custom_tool_call_input.done", "input": "+x"},
    ]
    kind, item, _ = written_item(SPACE, "mail__f", "{}")
    assert (kind, item) == ("function_call", {"name": "f", "namespace": "mail", "arguments": "{}"})
    kind, item, _ = written_item({"type": "local_shell"}, "local_shell", '{"command": ["a"]}')
    assert kind == "local_shell_call"
    assert item["action"] == {"type": "exec", "command": ["a"], "env": {}}
    kind, item, _ = written_item({"type": "apply_patch"}, "apply_patch", '{"path": "a"')
    assert item["operation"] == {"type": "update_file", "path": "", "diff": ""}, "it was cut off"


@given(data=st.data(), text=st.text(max_size=20))
def test_chunks_and_whole_answers_of_a_custom_tool_agree(data: st.DataObject, text: str) -> None:
    written = arguments_of(text)
    deltas = CallDeltas({"apply"})
    pieces = [ToolCallStart(0, "c", "apply")]
    pieces += [ArgumentsDelta(0, each) for each in data.draw(cut(written))]  # type: ignore[misc]
    first, *rest = [delta for piece in pieces for delta in deltas.of(piece)] + [*deltas.ended()]
    assert first["type"] == "custom"
    told = "".join(each["custom"]["input"] for each in rest)  # type: ignore[index]
    whole: Any = whole_call(Call("c", "apply", written), {"apply"})
    assert told == whole["custom"]["input"] == text


def test_custom_tools_of_a_chat() -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    tool = {"type": "custom", "custom": {"name": "sed", "description": "d", "format": form}}
    called = {"id": "c", "type": "custom", "custom": {"name": "sed", "input": "s/a/b/"}}
    body = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
        "tools": [tool],
        "tool_choice": {"type": "custom", "custom": {"name": "sed"}},
    }
    request = read_chat(body, LIMITS)
    prompt: Any = request.generate.prompt
    assert (prompt.tool_choice, prompt.tool_name) == ("function", "sed")
    assert "a+" in prompt.tools[0]["function"]["description"]
    told = prompt.messages[1]["tool_calls"][0]["function"]
    assert json.loads(told["arguments"]) == {"input": "s/a/b/"}
    assert request.delivery.custom_tools == {"sed"}


# --------------------------------------------------------------------------------- Anthropic


def turns(*blocks: Any, role: str = "assistant", **body: Any) -> tuple[list[Any], list[str]]:
    ignored = IgnoredFields()
    around = [{"role": "user", "content": "a"}, {"role": role, "content": [*blocks]}]
    messages = [*around, {"role": "user", "content": "b"}]
    asked = {"max_tokens": 1, "messages": messages, **body}
    prompt: Any = read_messages(asked, LIMITS, ignored).generate.prompt
    return list(prompt.messages[1:-1]), ignored.names


TEXT = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("use", "result", "texts"),
    [
        (
            "server_tool_use",
            {
                "type": "web_search_tool_result",
                "content": [
                    {"type": "web_search_result", "title": "T", "url": "u", "page_age": "1 day",
                     "encrypted_content": "AAAA"}
                ],
            },
            ["T", "u"],
        ),
        (
            "server_tool_use",
            {
                "type": "code_execution_tool_result",
                "content": {"type": "code_execution_result", "stdout": "out", "stderr": "",
                            "return_code": 0, "content": []},
            },
            ["out"],
        ),
        (
            "mcp_tool_use",
            {"type": "mcp_tool_result", "is_error": True, "content": [TEXT]},
            ["Error: ", "t"],
        ),
    ],
)  # fmt: skip
def test_what_a_server_ran_is_a_call_and_a_result(use: str, result: Any, texts: list[str]) -> None:
    call = {"type": use, "id": "s1", "name": "web", "input": {"q": 1}, "server_name": "x"}
    messages, reported = turns(TEXT, call, {**result, "tool_use_id": "s1"}, TEXT)
    asked, told, then = messages
    assert asked["content"] == then["content"] == "t"
    assert asked["tool_calls"][0]["function"] == {"name": "web", "arguments": '{"q":1}'}
    assert (told["role"], told["tool_call_id"]) == ("tool", "s1")
    assert all(text in told["content"] for text in texts)
    assert "AAAA" not in told["content"]
    assert reported == []


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"type": "search_result", "source": "s", "title": "T", "content": [TEXT],
             "citations": {"enabled": True}},
            "T\ns\nt",
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [TEXT]}, "title": "T"},
            "T\nt",
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
                "title": "T",
            },
            "T\n[document 'T': attached here, but not readable]",
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "http://x/a"}},
            "[document 'http://x/a': attached here, but not readable]",
        ),
        ({"type": "compaction", "content": "before"}, "before"),
        (
            {"type": "container_upload", "file_id": "f"},
            "[container_upload: attached here, but not readable]",
        ),
    ],
)  # fmt: skip
def test_blocks_with_a_text_are_that_text(role: str, block: Any, text: str) -> None:
    (message,), _ = turns(block, role=role)
    assert message["content"] == text


def test_thinking_that_cannot_be_read_and_references_are_taken() -> None:
    (message,), _ = turns({"type": "redacted_thinking", "data": "x"}, TEXT)
    assert message["content"] == "t"
    found = {"type": "tool_result", "tool_use_id": "a",
             "content": [{"type": "tool_reference", "tool_name": "f"}]}  # fmt: skip
    (message,), _ = turns(found, role="user")
    assert message["content"] == "Found: f"


def test_tools_that_anthropics_models_know_by_heart_are_offered_with_their_schema() -> None:
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    ignored = IgnoredFields()
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "tools": tools}
    prompt: Any = read_messages(body, LIMITS, ignored).generate.prompt
    assert [tool["function"]["name"] for tool in prompt.tools] == [tool["name"] for tool in tools][
        :3
    ]
    assert ignored.names == ["tools[].code_execution_20250825"]

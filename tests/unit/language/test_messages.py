"""Messages are judged with the path of the field and leave in one spelling."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.chat_messages import (
    has_media,
    read_documents,
    read_messages,
    read_tools,
    text_of,
)

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("x", r"messages\[1\]: expected an object"),
        ({}, r"messages\[1\]\.role"),
        ({"role": 3}, r"messages\[1\]\.role: expected a role's name, got 3"),
        ({"role": ""}, r"messages\[1\]\.role"),
        ({"role": "user", "content": 3}, r"messages\[1\]\.content: expected a string or an array"),
        ({"role": "user", "content": [3]}, r"messages\[1\]\.content\[0\]: expected an object"),
        ({"role": "user", "content": [{}]}, r"messages\[1\]\.content\[0\]\.type"),
        (
            {"role": "user", "content": [{"type": "text", "text": None}]},
            r"messages\[1\]\.content\[0\]\.text: expected a string, got null",
        ),
        ({"role": "user", "name": 3}, r"messages\[1\]\.name"),
        ({"role": "tool", "tool_call_id": []}, r"messages\[1\]\.tool_call_id"),
        ({"role": "assistant", "reasoning": {}}, r"messages\[1\]\.reasoning"),
        ({"role": "assistant", "tool_calls": "x"}, r"messages\[1\]\.tool_calls: expected an array"),
        ({"role": "assistant", "tool_calls": [1]}, r"messages\[1\]\.tool_calls\[0\]"),
        (
            {"role": "assistant", "tool_calls": [{"function": 1}]},
            r"messages\[1\]\.tool_calls\[0\]\.function: expected an object",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            r"messages\[1\]\.tool_calls\[0\]\.function\.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]},
            r"messages\[1\]\.tool_calls\[0\]\.function\.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": 3, "function": {"name": "f"}}]},
            r"messages\[1\]\.tool_calls\[0\]\.id",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(message: object, path: str) -> None:
    with pytest.raises(ChatTemplateError, match=path):
        read_messages([USER, message])


@pytest.mark.parametrize("messages", [None, {}, "x", 3])
def test_a_conversation_is_an_array(messages: object) -> None:
    with pytest.raises(ChatTemplateError, match="messages: "):
        read_messages(messages)


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ({}, "tools: expected an array"),
        ([1], r"tools\[0\]: expected an object"),
        ([{"type": "function"}], r"tools\[0\]\.function: expected an object"),
        ([{"function": {}}], r"tools\[0\]\.function\.name"),
        ([{"function": {"name": "f", "parameters": 3}}], r"tools\[0\]\.function\.parameters"),
    ],
)
def test_tools_are_judged_like_messages(tools: object, path: str) -> None:
    with pytest.raises(ChatTemplateError, match=path):
        read_tools(tools)


def test_documents_are_objects() -> None:
    assert read_documents(None) == []
    assert read_documents([{"text": "x"}]) == [{"text": "x"}]
    with pytest.raises(ChatTemplateError, match=r"documents\[0\]"):
        read_documents(["x"])


def test_null_fields_are_left_out() -> None:
    [message] = read_messages([{"role": "assistant", "content": None, "name": None, "x": None}])
    assert message == {"role": "assistant"}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_spelling(field: str) -> None:
    [message] = read_messages([{"role": "assistant", "content": "x", field: "hm"}])
    assert message["reasoning_content"] == "hm"
    assert message["thinking"] == "hm"


def test_what_there_was_before_tools_becomes_tools() -> None:
    call, result = read_messages(
        [
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "3"},
        ]
    )
    assert call["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    assert result["role"] == "tool"
    assert read_tools([{"name": "f"}]) == [{"type": "function", "function": {"name": "f"}}]


def test_no_calls_are_no_calls() -> None:
    [message] = read_messages([{"role": "assistant", "content": "x", "tool_calls": []}])
    assert "tool_calls" not in message


def test_texts_in_parts_have_one_type() -> None:
    [message] = read_messages(
        [
            {
                "role": "user",
                "content": [
                    "plain",
                    {"type": "input_text", "text": "a"},
                    {"type": "output_text", "text": "b"},
                    {"type": "refusal", "refusal": "c"},
                ],
            }
        ]
    )
    assert text_of(message["content"]) == "plain\na\nb\nc"
    assert all(part["type"] == "text" for part in message["content"])  # type: ignore[attr-defined]


def test_images_are_seen_and_sounds_heard() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert has_media([USER, {"role": "user", "content": [image]}])
    assert has_media([{"role": "user", "content": [{"type": "input_audio"}]}])
    assert not has_media([USER, {"role": "user", "content": [{"type": "text", "text": "x"}]}])


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True)
@given(json_values, json_values)
def test_whatever_comes_is_read_or_refused(messages: Any, tools: Any) -> None:
    before = repr((messages, tools))
    for read, values in ((read_messages, messages), (read_tools, tools), (read_documents, tools)):
        try:
            for each in read(values):
                assert isinstance(each, dict)
        except ChatTemplateError as error:
            assert str(error)  # noqa: PT017
    assert repr((messages, tools)) == before

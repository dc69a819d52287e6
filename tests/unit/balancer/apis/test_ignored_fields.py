"""Fields of other servers: an answer without them is an answer all the same, and says so."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.anthropic.anthropic_request import read_count_tokens, read_messages
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import Field, FieldSupport
from paddler_trio.balancer.apis.ignored_fields import (
    MAX_HEADER_BYTES,
    MAX_MET,
    MAX_NAMES,
    IgnoredFields,
    IgnoredFieldsLog,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.infill import read_infill
from paddler_trio.balancer.apis.llama_server.model_routes import detokenize_record, tokenize_record
from paddler_trio.balancer.apis.llama_server.rerank import read_rerank
from paddler_trio.balancer.apis.ollama import ollama_fields, ollama_request
from paddler_trio.balancer.apis.openai.chat_request import conversation_of, read_chat
from paddler_trio.balancer.apis.openai.completion_request import (
    read_completion,
    read_llama_completion,
)
from paddler_trio.balancer.apis.openai.embeddings import embeddings_record, llama_embeddings_record
from paddler_trio.balancer.apis.openapi_document import openapi, records
from paddler_trio.balancer.apis.responses.responses_request import read_input_tokens, read_responses
from paddler_trio.wire.trio.work import ConversationPrompt

LIMITS = ApiLimits()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "no"}],
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "sun"},
        {"role": "function", "name": "f", "content": "sun"},
    ],
    "tools": [TOOL],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "weather"}}],
        },
    },
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
    },
    "stream": True,
    "stream_options": {"include_usage": True},
    "thinking": {"type": "enabled", "budget_tokens": 7},
    "reasoning": {"effort": "high"},
}
COMPLETION: dict[str, Any] = {
    "prompt": "p",
    "stream": True,
    "stream_options": {"include_usage": True},
    "structured_outputs": {"json": SCHEMA},
}
RESPONSE: dict[str, Any] = {
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:,"},
            ],
        },
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "r"}],
        },
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "sun"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "o"}]},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {
        "type": "allowed_tools",
        "tools": [{"type": "function", "name": "weather"}],
    },
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
}
MESSAGES: dict[str, Any] = {
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "x"},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "sun"}],
                }
            ],
        },
    ],
    "tools": [{"name": "weather", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
OLLAMA_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "t", "images": ["iVBORw0KGgo"]},
        {
            "role": "assistant",
            "thinking": "t",
            "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "sun"},
    ],
    "tools": [TOOL],
    "format": "json",
    "options": {"temperature": 0.5, "num_predict": 5, "stop": ["."]},
    "think": "low",
    "logprobs": True,
}
COUNTED_RESPONSE = RESPONSE
COUNTED_MESSAGES = {name: value for name, value in MESSAGES.items() if name != "max_tokens"}


def _record(record: Any) -> Any:
    return lambda body, limits, ignored: record(limits).read(body, "", ignored)


INFILL = {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]}
SURFACES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (read_chat, CHAT),
    "/v1/chat/completions/input_tokens": (conversation_of, CHAT),
    "/apply-template": (conversation_of, CHAT),
    "/v1/completions": (read_completion, COMPLETION),
    "/completion": (read_llama_completion, {**COMPLETION, "stream_options": {}}),
    "/infill": (read_infill, INFILL),
    "/v1/responses": (read_responses, RESPONSE),
    "/v1/responses/input_tokens": (read_input_tokens, COUNTED_RESPONSE),
    "/v1/messages": (read_messages, MESSAGES),
    "/v1/messages/count_tokens": (read_count_tokens, COUNTED_MESSAGES),
    "/v1/embeddings": (_record(embeddings_record), {"input": "i"}),
    "/embedding": (_record(llama_embeddings_record), {"content": "i"}),
    "/v1/rerank": (read_rerank, {"query": "q", "documents": [{"text": "d"}]}),
    "/tokenize": (_record(tokenize_record), {"content": "c"}),
    "/detokenize": (_record(detokenize_record), {"tokens": [1]}),
    "/api/chat": (ollama_request.read_chat, OLLAMA_CHAT),
    "/api/generate": (ollama_request.read_generate, {"prompt": "p", "options": {"seed": 3}}),
    "/api/embed": (_record(ollama_fields.embed_record), {"input": ["i"]}),
    "/api/embeddings": (_record(ollama_fields.embeddings_record), {"prompt": "p"}),
    "/api/show": (_record(ollama_fields.show_record), {"model": "m"}),
    "/api/pull": (_record(ollama_fields.pull_record), {"model": "m"}),
    "/api/create": (_record(ollama_fields.create_record), {"model": "m"}),
    "/api/copy": (
        _record(ollama_fields.copy_record),
        {"source": "m", "destination": "n"},
    ),
}
FREE = ("arguments", "parameters", "schema", "input_schema", "input", "json", "stream_options")
"""What is below is the client's own, or passed on as it is."""


def objects_in(value: Any, path: str = "", *, is_free: bool = False) -> Iterator[tuple[str, Any]]:
    """Every object of a body that a table reads, with its path."""
    if isinstance(value, dict) and not is_free:
        yield path, value
        for name, inner in value.items():
            where = f"{path}.{name}" if path else name
            closed = name in FREE and isinstance(inner, dict) and not inner.get("include_usage")
            yield from objects_in(inner, where, is_free=closed)
    elif isinstance(value, list):
        for inner in value:
            yield from objects_in(inner, f"{path}[]")


def test_every_body_that_is_described_is_tried() -> None:
    assert {path for path, _ in records(LIMITS)} == set(SURFACES)


@pytest.mark.parametrize("path", SURFACES)
def test_unknown_fields_at_every_level_change_nothing_and_are_reported(path: str) -> None:
    read, plain = SURFACES[path]
    expected = read(plain, LIMITS, IgnoredFields())
    places = list(objects_in(plain))
    for number, (where, _) in enumerate(places):
        body = copy.deepcopy(plain)
        list(objects_in(body))[number][1]["nix"] = {"deep": [1, {"er": None}]}
        ignored = IgnoredFields()
        assert read(body, LIMITS, ignored) == expected, where
        assert ignored.names == [f"{where}.nix" if where else "nix"]
        with pytest.raises(ApiError) as told:
            read(body, LIMITS, IgnoredFields(is_strict=True))
        assert (told.value.status, told.value.code) == (400, "unknown_parameter")
        assert (told.value.param or "").endswith("nix")
    quiet = IgnoredFields()
    read({**plain, "nix": None}, LIMITS, quiet)
    assert quiet.names == [], "null is as good as absent"


HINTS = [
    (path, field)
    for (path, _), record in records(LIMITS).items()
    for field in record
    if field.support is FieldSupport.IGNORED
]


@pytest.mark.parametrize(("path", "field"), HINTS, ids=lambda each: getattr(each, "name", each))
def test_a_hint_is_ignored_and_reported_unless_it_asks_for_nothing(path: str, field: Field) -> None:
    read, plain = SURFACES[path]
    for value in field.neutral:
        ignored = IgnoredFields(is_strict=True)
        read({**plain, field.name: value}, LIMITS, ignored)
    ignored = IgnoredFields()
    assert read({**plain, field.name: "wish"}, LIMITS, ignored) == read(
        plain, LIMITS, IgnoredFields()
    )
    assert ignored.names == [field.name]
    with pytest.raises(ApiError) as told:
        read({**plain, field.name: "wish"}, LIMITS, IgnoredFields(is_strict=True))
    assert (told.value.code, told.value.param) == ("unsupported_parameter", field.name)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"usage": {"include": True}}, ["usage"]),
        ({"provider": {"order": ["x"]}}, ["provider"]),
        ({"plugins": [{"id": "web"}]}, ["plugins"]),
        ({"num_ctx": 8192, "keep_alive": "5m"}, ["num_ctx", "keep_alive"]),
        ({"options": {"temperature": 1}}, ["options"]),
        ({"verbosity": "low"}, ["verbosity"]),
        ({"prediction": {"type": "content", "content": "x"}}, ["prediction"]),
        ({"messages": [{"role": "user", "content": "q", "id": "m1"}]}, ["messages[].id"]),
        ({"tools": [TOOL, {"type": "web_search"}]}, ["tools[].web_search"]),
    ],
)
def test_what_real_programs_send_to_a_chat(more: dict[str, Any], names: list[str]) -> None:
    plain = {"messages": [{"role": "user", "content": "q"}]}
    ignored = IgnoredFields()
    told = read_chat({**plain, **more}, LIMITS, ignored)
    tools = {"tools": [TOOL]} if "tools" in more else {}
    assert told == read_chat({**plain, **tools}, LIMITS)
    assert ignored.names == names


def test_what_only_a_stream_can_do_says_nothing_about_a_whole_answer() -> None:
    for read, body in (
        (read_chat, {"messages": []}),
        (read_completion, {"prompt": "p"}),
        (read_responses, {"input": "q"}),
    ):
        ignored = IgnoredFields()
        options = {} if read is read_responses else {"stream_options": {"include_usage": True}}
        read({**body, **options, "return_progress": True}, LIMITS, ignored)  # type: ignore[operator]
        assert ignored.names == [*options, "return_progress"]
        with pytest.raises(ApiError, match="only possible with stream"):
            read({**body, "return_progress": True}, LIMITS)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("think", "thinking"), [(True, True), (False, False), ("low", True), ("none", False)]
)
def test_ollamas_word_for_thinking_is_honoured(think: object, thinking: bool) -> None:
    prompt = read_chat({"messages": [], "think": think}, LIMITS).generate.prompt
    assert isinstance(prompt, ConversationPrompt)
    assert prompt.thinking is thinking


def test_an_empty_conversation_is_the_templates_own_beginning() -> None:
    assert read_chat({"messages": []}, LIMITS).generate.prompt == ConversationPrompt(messages=())


# --------------------------------------------------------------------------- tools of a server


SEARCH = {"type": "web_search_preview", "search_context_size": "low"}
NAMED = {"type": "function", **FUNCTION}


@pytest.mark.parametrize(
    "choice",
    ["auto", "none", {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}],
    ids=["auto", "none", "allowed"],
)
def test_a_tool_that_a_server_would_run_is_not_offered(choice: object) -> None:
    ignored = IgnoredFields()
    body = {"input": "q", "tools": [SEARCH, NAMED], "tool_choice": choice}
    request = read_responses(body, LIMITS, ignored)
    offered: Any = request.conversation(()).tools
    assert [tool["function"]["name"] for tool in offered] in (["weather"], [])
    assert request.values["tools"] == [NAMED]
    assert "tools[].web_search_preview" in ignored.names


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search_preview"},
        {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]},
    ],
    ids=["required", "named", "allowed"],
)
def test_it_cannot_be_required(choice: object) -> None:
    body = {"input": "q", "tools": [SEARCH], "tool_choice": choice}
    with pytest.raises(ApiError) as told:
        read_responses(body, LIMITS, IgnoredFields()).conversation(())
    assert told.value.status == 400
    assert (told.value.param or "").startswith("tool_choice")


def test_a_chat_and_a_message_have_the_same_rule() -> None:
    ignored = IgnoredFields()
    chat = {"messages": [{"role": "user", "content": "q"}], "tools": [SEARCH]}
    told: Any = read_chat(chat, LIMITS, ignored).generate.prompt
    assert told.tools == ()
    message = {"max_tokens": 1, **chat, "tools": [{"type": "web_search_20250305", "name": "s"}]}
    told = read_messages(message, LIMITS, ignored).generate.prompt
    assert told.tools == ()
    assert ignored.names == ["tools[].web_search_preview", "tools[].web_search_20250305"]
    for read, body, choice in (
        (read_chat, chat, "required"),
        (read_messages, message, {"type": "any"}),
        (read_messages, message, {"type": "tool", "name": "s"}),
    ):
        with pytest.raises(ApiError):
            read({**body, "tool_choice": choice}, LIMITS, IgnoredFields())  # type: ignore[operator]


# -------------------------------------------------------------------------------- how it is told


@given(st.lists(st.tuples(st.text(max_size=300), st.text(max_size=300)), max_size=60))
def test_the_header_is_short_and_plain_whatever_names_there_are(
    names: list[tuple[str, str]],
) -> None:
    ignored = IgnoredFields()
    for path, name in names:
        ignored.unknown(path, name)
    assert len(ignored.names) <= MAX_NAMES
    header = ignored.header()
    assert (header is None) == (not names)
    if header is not None:
        assert len(header) <= MAX_HEADER_BYTES
        assert re.fullmatch(rb"[A-Za-z0-9_.\[\]?, -]*", header)


def test_many_of_them_cost_little() -> None:
    ignored = IgnoredFields()
    for number in range(3 * MAX_MET):
        ignored.unknown(f"messages[{number}]", "id")
    assert ignored.header() == b"messages[].id, ..."
    for number in range(MAX_NAMES):
        ignored.unknown("", f"n{number}")
    assert ignored.names == ["messages[].id"]


def test_the_log_has_each_name_once_and_not_more_than_so_many() -> None:
    log = IgnoredFieldsLog(max_names=3)

    def news(*names: str) -> list[str]:
        ignored = IgnoredFields()
        for name in names:
            ignored.unknown("", name)
        return log.unlogged(ignored)

    assert news("a", "b") == ["a", "b"]
    assert news("a", "c") == ["c"]
    assert news("d", "e") == []


def test_the_document_says_what_becomes_of_them() -> None:
    told: dict[bool, Any] = {
        is_strict: openapi(LIMITS, is_strict=is_strict) for is_strict in (False, True)
    }
    for is_strict, document in told.items():
        chat = document["components"]["schemas"]["CreateChatCompletionRequest"]
        for described in (chat, chat["properties"]["stream_options"]["anyOf"][0]):
            assert described.get("additionalProperties", True) is not is_strict


def test_what_an_agent_could_not_hold_is_added_once() -> None:
    ignored = IgnoredFields()
    ignored.add("tools[0].input_schema.properties.a.items", "not")
    ignored.unbound(
        [
            "tools[].function.parameters.a.items.not",  # the same
            "tools[].function.parameters.items.not",
            "tools[].function.parameters",
            "schema.a.items.not",
            5,
        ]
    )
    assert ignored.names == [
        "tools[].input_schema.properties.a.items.not",
        "tools[].function.parameters.items.not",
        "tools[].function.parameters",
        "schema.a.items.not",
    ]
    for nothing in (None, "text", {"a": 1}, 7):
        ignored.unbound(nothing)
    ignored.unbound(["x" * 10_000] * 100_000)
    assert len(ignored.names) == 5
    assert len(ignored.names[-1]) == 160

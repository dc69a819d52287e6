"""Anthropic's blocks and the items of responses as messages, and the store of responses."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.balancer.apis.anthropic.anthropic_request import read_messages
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.responses.responses_request import Item, messages_of, read_responses
from paddler_trio.balancer.apis.responses.responses_routes import _page
from paddler_trio.balancer.apis.responses.responses_store import (
    ENTRY_BYTES,
    ResponseStore,
    StoredResponse,
)
from paddler_trio.wire.codec import dumps, loads

LIMITS = ApiLimits()


def conversation(body: dict[str, Any]) -> dict[str, Any]:
    asked = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **body}
    told: dict[str, Any] = attrs.asdict(read_messages(asked, LIMITS).generate.prompt)
    return told


# ------------------------------------------------------------------------------------ Anthropic


def test_results_of_tools_are_messages_before_what_the_user_says() -> None:
    messages = conversation(
        {
            "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "messages": [
                {"role": "user", "content": "weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Rome"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "so?"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no net"}],
                        },
                    ],
                },
            ],
        }
    )["messages"]
    call = {"name": "f", "arguments": '{"city":"Rome"}'}
    assert list(messages) == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "Error: no net"},
        {"role": "user", "content": "so?"},
    ]


def test_images_and_documents_become_parts() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    text = {"type": "text", "media_type": "text/plain", "data": "words"}
    blocks = [
        {"type": "document", "source": text, "title": "T"},
        {"type": "image", "source": source},
        {"type": "text", "text": "what?"},
    ]
    (message,) = conversation({"messages": [{"role": "user", "content": blocks}]})["messages"]
    assert message["content"] == [
        {"type": "text", "text": "T\nwords"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "text", "text": "what?"},
    ]


def test_a_last_message_of_the_assistant_is_gone_on_with_if_it_is_text() -> None:
    hello = {"role": "user", "content": "hi"}
    told = conversation({"messages": [hello, {"role": "assistant", "content": "I am"}]})
    assert told["continue_final_message"] is True
    assert told["add_generation_prompt"] is False
    call = [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]
    for content in (call, "", [{"type": "thinking", "thinking": "x"}]):
        with pytest.raises(ApiError, match="must be text to go on with"):
            conversation({"messages": [hello, {"role": "assistant", "content": content}]})


@pytest.mark.parametrize(
    ("body", "thinking", "bound"),
    [
        ({}, False, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True, 2000),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True, 1024),
        ({"output_config": {"effort": "low"}}, False, None),
    ],
)
def test_thinking_is_off_unless_it_is_asked_for(
    body: dict[str, Any], thinking: bool, bound: int | None
) -> None:
    told = conversation(body)
    assert (told["thinking"], told["max_reasoning_tokens"]) == (thinking, bound)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (None, ("auto", None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", None, False)),
        ({"type": "any"}, ("required", None, True)),
        ({"type": "tool", "name": "f"}, ("function", "f", True)),
        ({"type": "none"}, ("none", None, True)),
    ],
)
def test_choices_of_tools_have_other_words(choice: object, told: tuple[object, ...]) -> None:
    body: dict[str, Any] = {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    if choice is not None:
        body["tool_choice"] = choice
    found = conversation(body)
    assert (found["tool_choice"], found["tool_name"], found["parallel_tool_calls"]) == told
    assert found["tools"][0]["function"] == {"name": "f", "parameters": {"type": "object"}}


# -------------------------------------------------------------------------------------- items


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def output(number: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": f"o{number}"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def test_items_of_one_turn_are_one_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]}
    gist = {"type": "reasoning", "summary": [{"text": "aha"}]}
    messages = messages_of(
        [
            said("developer", "rules"),
            said("user", "q"),
            thought,
            call(1),
            call(2),
            output(1),
            output(2),
            gist,
            said("assistant", "a"),
            said("user", "q2"),
        ]
    )
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert messages[2]["reasoning_content"] == "hm"
    assert messages[2]["content"] == ""
    calls: Any = messages[2]["tool_calls"]
    assert [each["id"] for each in calls] == ["c1", "c2"]
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "o1"}
    assert (messages[5]["reasoning_content"], messages[5]["content"]) == ("aha", "a")


def test_a_message_need_not_say_that_it_is_one() -> None:
    """Clients that write all members of a class write null for those that were not given."""
    for kind in ({}, {"type": None}, {"type": "message"}):
        request = read_responses({"input": [{**said("user", "q"), **kind}]}, LIMITS)
        assert request.conversation(()).messages == ({"role": "user", "content": "q"},)


def test_thoughts_in_a_row_are_joined_once() -> None:
    """Each of thousands that copied those before it would take minutes of a long request."""
    size, number = 4096, 256
    text = "a" * size
    items = [{"type": "reasoning", "content": [{"text": text}]} for _ in range(number)]
    tracemalloc.start()
    try:
        (message,) = messages_of([*items, call(1)])
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message["reasoning_content"] == text * number
    assert most_bytes < 1.5 * size * number, "what is joined, and no copy of it beside that"


def test_two_answers_in_a_row_stay_two() -> None:
    messages = messages_of([said("assistant", "a"), said("assistant", "b")])
    assert [message["content"] for message in messages] == ["a", "b"]


def test_an_effort_bounds_the_reasoning_and_is_told_to_the_template() -> None:
    def told(effort: str) -> tuple[object, object, object]:
        body = {"input": "q", "reasoning": {"effort": effort}}
        found = read_responses(body, LIMITS).conversation(())
        return found.thinking, found.max_reasoning_tokens, found.template_kwargs

    assert told("none") == (False, None, {})
    assert told("low") == (True, 1024, {"reasoning_effort": "low"})
    assert told("xhigh") == (True, None, {"reasoning_effort": "high"})


# -------------------------------------------------------------------------------------- store


def stored(name: str, size: int = 10, owner: str = "") -> StoredResponse:
    return StoredResponse.of(owner, {"id": name, "output": [], "pad": "x" * size}, b"[]", b"[]", 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4000)), max_size=60))
def test_the_store_never_holds_more_than_it_may(made: list[tuple[bool, int]]) -> None:
    store = ResponseStore(max_responses=5, max_bytes=10_000)
    for place, (drops, size) in enumerate(made):
        name = f"r{place}"
        assert store.keep(stored(name, size))
        assert store.get(name, owner="") is not None, "the newest is always there"
        assert len(store) <= 5
        assert store.num_bytes <= 10_000
        if drops:
            assert store.drop(name, owner="")
    for place in range(len(made)):
        store.drop(f"r{place}", owner="")
    assert (len(store), store.num_bytes) == (0, 0)


def test_what_is_used_stays_longer_and_what_is_too_large_is_not_kept() -> None:
    store = ResponseStore(max_responses=2, max_bytes=10_000)
    store.keep(stored("a"))
    store.keep(stored("b"))
    assert store.get("a", owner="") is not None
    store.keep(stored("c"))
    assert store.get("b", owner="") is None
    assert store.get("a", owner="") is not None
    assert not store.keep(stored("huge", 20_000))
    assert not ResponseStore(0, 10_000).keep(stored("a"))


def test_a_response_is_there_for_its_own_key_alone() -> None:
    store = ResponseStore(max_responses=2, max_bytes=10_000)
    store.keep(stored("a", owner="alice"))
    assert store.get("a", owner="bob") is None
    assert not store.drop("a", owner="bob")
    assert store.drop("a", owner="alice")
    assert store.num_bytes == 0


def test_an_item_is_found_as_long_as_the_response_that_has_it_and_by_its_key_alone() -> None:
    def with_item(name: str) -> StoredResponse:
        response = {"id": name, "output": [{"id": f"msg_{name}", "type": "message"}]}
        return StoredResponse.of("alice", response, b"[]", b"[]", 0)

    store = ResponseStore(max_responses=2, max_bytes=10_000)
    for name in "abc":
        store.keep(with_item(name))
    assert store.having("msg_a", owner="alice") is None, "it made room"
    assert store.having("msg_b", owner="bob") is None
    found = store.having("msg_b", owner="alice")
    assert found is not None
    assert (found.id, found.output) == ("b", [{"id": "msg_b", "type": "message"}])
    store.keep(with_item("d"))
    assert store.having("msg_c", owner="alice") is None, "what is referred to stays longer"
    assert store.drop("b", owner="alice")
    assert store.having("msg_b", owner="alice") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("limit", "0"), ("limit", "101"), ("limit", "9" * 5000), ("order", "x" * 5000)],
)
def test_a_page_that_cannot_be_is_refused_in_a_few_words(name: str, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        _page(stored("resp_1"), {name: [value]})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert len(refused.value.message) < 200


def test_who_has_most_of_the_store_makes_room() -> None:
    store = ResponseStore(max_responses=6, max_bytes=100_000)
    for place in range(2):
        store.keep(stored(f"a{place}", owner="alice"))
    for place in range(20):
        store.keep(stored(f"b{place}", owner="bob"))
    assert all(store.get(f"a{place}", owner="alice") for place in range(2))
    assert [p for p in range(20) if store.get(f"b{p}", owner="bob")] == [16, 17, 18, 19]
    store.keep(stored("large", 80_000, owner="carol"))
    assert store.get("large", owner="carol") is not None, "the newest is always there"
    assert store.get("a0", owner="alice") is not None
    assert store.get("b16", owner="bob") is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 1e15) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=40,
)


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(JSON_VALUES, min_size=1, max_size=5), st.integers(1, 64))
@example([{}], 64)
@example([[]], 64)
@example([0], 64)
@example([""], 1)
@example([{"type": "input_text", "text": ""}], 64)
@pytest.mark.thorough
def test_what_the_store_retains_is_what_it_counts(values: list[object], repeats: int) -> None:
    """The memory itself is judged: small values are many times larger as objects than as text."""
    most_bytes = 128 * 1024
    piece = len(dumps(values)) * repeats
    store = ResponseStore(max_responses=10_000, max_bytes=most_bytes)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(most_bytes // (piece + ENTRY_BYTES) + 50):
            items: list[Item] = [{"content": loads(dumps(values * repeats))}]
            output = [
                {"id": f"msg_{number}_{place}".ljust(52, "_"), "content": value}
                for place, value in enumerate(loads(dumps(values)))
            ]
            response = {"id": f"r{number}", "output": output}
            store.keep(StoredResponse.of("key", response, b"[]", dumps(items), 0))
        del items, output, response
        gc.collect()
        retained, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.num_bytes > most_bytes // 2, "the store is full"
    assert retained < 1.5 * most_bytes


def test_what_is_reserved_for_a_stored_response_is_what_reading_it_takes() -> None:
    """An item is as large as what is known of its tokens."""
    token = {"token": " a", "logprob": -0.123456, "bytes": [32, 97]}
    known = [{**token, "top_logprobs": [token] * 20}] * 200
    output = [
        {"id": f"msg_{number}", "content": [{"text": "a", "logprobs": known}]}
        for number in range(2)
    ]
    stored = StoredResponse.of("key", {"id": "r", "output": output}, b"[]", b"[]", 100)
    gc.collect()
    tracemalloc.start()
    try:
        conversation = stored.conversation
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert conversation == output
    assert stored.response_weight_bytes >= most_bytes > 2 * len(stored.response_json)
    assert stored.conversation_weight_bytes == stored.response_weight_bytes + 100


def test_what_a_response_echoes_and_no_prompt_has_is_as_short_as_a_schema() -> None:
    long = "d" * (LIMITS.max_schema_bytes + 1)
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    tool = {"type": "function", "name": "f", "output_schema": {"title": long}}
    space = {"type": "namespace", "name": "n", "description": long, "tools": []}
    free = {"type": "custom", "name": "c", "format": {"type": "text", "x": long}}
    shell = {"type": "shell", "environment": {"type": "local", "x": long}}
    tools: list[dict[str, Any]] = [{"tools": [each]} for each in (tool, space, free, shell)]
    for body in ({"text": {"format": {**form, "description": long}}}, *tools):
        with pytest.raises(ApiError, match="max_schema_bytes"):
            read_responses({"input": "hi", **body}, LIMITS)
    fits = {**form, "description": long[1:]}
    read = read_responses({"input": "hi", "text": {"format": fits}}, LIMITS)
    assert read.values["text"] == {"format": fits}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        *(
            ({label: "x" * 513}, f"{label} has 513 characters, the limit is 512")
            for label in ("user", "safety_identifier", "prompt_cache_key")
        ),
        (
            {"metadata": {"short": "v", "n" * 65: "v"}},
            'metadata has the name "n{65}" of 65 characters, the limit of a name is 64',
        ),
    ],
)
def test_labels_that_a_response_echoes_are_short(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=f" {message}$"):
        read_responses({"input": "hi", **body}, LIMITS)
    fits = {
        label: value[:-1] if isinstance(value, str) else {"n" * 64: "v"}
        for label, value in body.items()
    }
    read = read_responses({"input": "hi", **fits}, LIMITS)
    assert {label: read.values[label] for label in fits} == fits


def test_the_user_of_a_message_has_a_short_name() -> None:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(ApiError, match=r"metadata\.user_id has 513 characters, the limit is 512"):
        read_messages({**body, "metadata": {"user_id": "u" * 513}}, LIMITS)

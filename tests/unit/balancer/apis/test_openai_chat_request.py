"""Chat bodies: every field changes what is generated or told, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import Field, FieldSupport
from paddler_trio.balancer.apis.generation_fields import TIMEOUT
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS, chat_record
from paddler_trio.balancer.apis.openai.chat_request import ChatRequest, read_chat
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, Work

LIMITS = ApiLimits()
RECORD = chat_record(LIMITS)
USER = {"role": "user", "content": "Hello"}
BEGUN = [USER, {"role": "assistant", "content": "I"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS = {"tools": [TOOL]}
STREAM = {"stream": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

EXAMPLES: dict[str, tuple[dict[str, Any], object]] = {
    # field: (what else the body has, the value)
    "model": ({}, "m"),
    "messages": ({}, [USER, {"role": "assistant", "content": "Hi"}, USER]),
    "n": ({}, 3),
    "max_tokens": ({}, 7),
    "stop": ({}, ["a", "b"]),
    "include_stop_str_in_output": ({}, True),
    "temperature": ({}, 0.25),
    "top_p": ({}, 0.5),
    "top_k": ({}, 5),
    "min_p": ({}, 0.1),
    "typical_p": ({}, 0.9),
    "top_n_sigma": ({}, 1.5),
    "dynatemp_range": ({}, 0.5),
    "dynatemp_exponent": ({}, 2),
    "xtc_probability": ({}, 0.5),
    "xtc_threshold": ({}, 0.2),
    "adaptive_target": ({}, 0.5),
    "adaptive_decay": ({}, 0.5),
    "mirostat": ({}, 2),
    "mirostat_tau": ({}, 4.5),
    "mirostat_eta": ({}, 0.2),
    "repeat_penalty": ({}, 1.3),
    "repeat_last_n": ({}, 64),
    "frequency_penalty": ({}, 0.5),
    "presence_penalty": ({}, -0.5),
    "dry_multiplier": ({}, 0.8),
    "dry_base": ({}, 1.5),
    "dry_allowed_length": ({}, 3),
    "dry_penalty_last_n": ({}, -1),
    "dry_sequence_breakers": ({}, ["\n"]),
    "min_keep": ({}, 2),
    "samplers": ({}, ["top_k", "temperature"]),
    "penalize_prompt": ({}, True),
    "seed": ({}, 11),
    "ignore_eos": ({}, True),
    "logit_bias": ({}, {"5": -100}),
    "logprobs": ({}, True),
    "top_logprobs": ({"logprobs": True}, 4),
    "n_probs": ({}, 2),
    "response_format": ({}, {"type": "json_object"}),
    "grammar": ({}, 'root ::= "a"'),
    "json_schema": ({}, SCHEMA),
    "guided_json": ({}, SCHEMA),
    "guided_regex": ({}, "a+"),
    "guided_choice": ({}, ["yes", "no"]),
    "guided_grammar": ({}, 'root ::= "a"'),
    "regex": ({}, "a+"),
    "ebnf": ({}, 'root ::= "a"'),
    "structured_outputs": ({}, {"regex": "a+"}),
    "tools": ({}, [TOOL]),
    "tool_choice": (TOOLS, "required"),
    "parallel_tool_calls": (TOOLS, False),
    "parse_tool_calls": (TOOLS, False),
    "reasoning_effort": ({}, "low"),
    "enable_thinking": ({}, False),
    "reasoning_budget_tokens": ({}, 99),
    "thinking": ({}, {"type": "enabled", "budget_tokens": 5}),
    "think": ({}, "low"),
    "reasoning": ({}, {"max_tokens": 5}),
    "include_reasoning": ({}, False),
    "reasoning_format": ({}, "none"),
    "stream": ({}, True),
    "stream_options": (STREAM, {"include_usage": True}),
    "timings_per_token": (STREAM, True),
    "return_progress": (STREAM, True),
    "sse_ping_interval": (STREAM, 2),
    "chat_template_kwargs": ({}, {"colour": "red"}),
    "documents": ({}, [{"text": "a"}]),
    "add_generation_prompt": ({}, False),
    "continue_final_message": ({"messages": BEGUN}, False),
    "verbose": ({}, True),
    "cache_prompt": ({}, False),
    "cache_salt": ({}, "mine"),
    "lora": ({}, [{"id": 1, "scale": 0.5}]),
}


def read(**body: object) -> ChatRequest:
    return read_chat({"messages": [USER], **body}, LIMITS)


def told_off(**body: object) -> ApiError:
    with pytest.raises(ApiError) as told:
        read(**body)
    assert told.value.status == 400
    return told.value


def generate(**body: object) -> Generate:
    """The request as the agent reads it: the contract's own reader judges it."""
    (work,) = read(**body).works()
    assert structure(unstructure(work, Work), Work) == work
    return work


def conversation(**body: object) -> ConversationPrompt:
    prompt = read(**body).generate.prompt
    assert isinstance(prompt, ConversationPrompt)
    return prompt


def fields(support: FieldSupport) -> list[Field]:
    """Without ``timeout``, which is no part of the request: its exchange takes it."""
    return [field for field in RECORD if field.support is support and field is not TIMEOUT]


@pytest.mark.parametrize("field", fields(FieldSupport.HONOURED), ids=lambda field: field.name)
def test_every_honoured_field_changes_the_request(field: Field) -> None:
    others, value = EXAMPLES[field.name]
    changed = read(**others | {field.name: value})
    assert changed != read(**others)
    for work in changed.works():
        assert structure(unstructure(work, Work), Work) == work
    for alias in field.aliases:
        assert read(**others | {alias: value}) == changed


@pytest.mark.parametrize("field", fields(FieldSupport.ACCEPTED), ids=lambda field: field.name)
def test_an_accepted_field_changes_nothing(field: Field) -> None:
    kinds = ("auto", True, 1, {"a": "b"}, "text")
    values = [kind for kind in kinds if _has_shape(field, kind)]
    assert values
    for value in values:
        assert read(**{field.name: value}) == read()


def _has_shape(field: Field, value: object) -> bool:
    try:
        field.shape.read(value, field.name)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("field", fields(FieldSupport.REFUSED), ids=lambda field: field.name)
def test_a_refused_field_is_refused_by_name_unless_it_asks_for_nothing(field: Field) -> None:
    error = told_off(**{field.name: {"any": "thing"}})
    assert (error.param, error.code) == (field.name, "unsupported_parameter")
    assert field.note in error.message
    for value in (None, *field.neutral):
        assert read(**{field.name: value}) == read()


@pytest.mark.parametrize("field", RECORD.fields, ids=lambda field: field.name)
def test_null_is_as_good_as_absent(field: Field) -> None:
    if not field.is_required:
        assert read(**{field.name: None}) == read()


def test_the_request_that_asks_for_nothing_leaves_all_to_the_cluster() -> None:
    asked = generate()
    assert asked == generate(temperature=None)
    assert (asked.max_tokens, asked.constraint, asked.stop, asked.logprobs) == (
        None,
        None,
        (),
        None,
    )
    assert asked.sampling == type(asked.sampling)()


def test_developers_are_the_system_and_refusals_are_what_was_said() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "refusal": "No."},
        USER,
    ]
    system, _, refusal, _ = conversation(messages=messages).messages
    assert system["role"] == "system"
    assert refusal == {"role": "assistant", "content": "No."}


def test_images_and_reasoning_pass_in_one_spelling() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, image]},
        {"role": "assistant", "reasoning": "Hm.", "content": "A cat."},
        USER,
    ]
    seen, said, _ = conversation(messages=messages).messages
    assert isinstance(seen["content"], list)
    assert seen["content"][1]["image_url"] == {"url": "data:image/png;base64,AA"}
    assert said["reasoning_content"] == "Hm."


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ("string", "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": 123}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "system", "content": 123}], "messages[0].content"),
        ([USER, {}], "messages[1].role"),
        ([{"role": "user", "content": [{"type": "sound"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_audio", "input_audio": {"data": 5}}],
                }
            ],
            "messages[0].content[0].input_audio.data",
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "messages[0].content[0].input_audio",
        ),
        ([{"role": "user", "content": "x", "mood": 1}], "messages[0].mood"),
        ([USER, *[{"role": "assistant", "content": "x"}] * 2], "messages[2].role"),
    ],
)
def test_bad_messages_are_refused_with_their_path(messages: object, param: str) -> None:
    assert told_off(messages=messages).param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 10_000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"stop": "a" * 5000}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": [[5]]}, "logit_bias[0]"),
        ({"samplers": ["quadratic"]}, "samplers[0]"),
        ({"samplers": "kz"}, "samplers"),
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"tools": [{"type": "hosted", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {**STREAM, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"timings_per_token": True}, "timings_per_token"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"nix": 1}, "nix"),
    ],
)
def test_bad_values_are_refused_with_their_path(body: dict[str, object], param: str) -> None:
    error = told_off(**body)
    assert error.param == param
    assert error.envelope()["error"] == {
        "message": error.message,
        "type": "invalid_request_error",
        "param": param,
        "code": error.code,
    }


def test_a_tool_that_is_not_there_is_told_with_the_beginning_of_the_others() -> None:
    tools = [{"type": "function", "function": {"name": f"{n:0200}"}} for n in range(200)]
    choice = {"type": "function", "function": {"name": "g"}}
    error = told_off(tools=tools, tool_choice=choice)
    assert error.message.startswith("tool_choice names 'g'; the tools are: 000")
    assert len(error.message) < 700


@pytest.mark.parametrize(
    ("last", "more", "goes_on"),
    [
        ({"role": "assistant", "content": "I"}, {}, True),
        ({"role": "assistant", "content": [{"type": "text", "text": "I"}]}, {}, True),
        ({"role": "assistant", "content": ""}, {}, False),
        ({"role": "assistant", "content": "I"}, {"continue_final_message": False}, False),
        ({"role": "assistant", "content": "I"}, {"add_generation_prompt": True}, False),
        (USER, {}, False),
    ],
)
def test_an_answer_that_was_begun_is_gone_on_with(
    last: dict[str, Any], more: dict[str, Any], *, goes_on: bool
) -> None:
    prompt = conversation(messages=[USER, last], **more)
    assert prompt.continue_final_message is goes_on
    assert prompt.add_generation_prompt is not goes_on


def test_a_call_that_stands_last_is_not_gone_on_with() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    last = {"role": "assistant", "content": "I", "tool_calls": [call]}
    assert not conversation(messages=[USER, last], **TOOLS).continue_final_message


@pytest.mark.parametrize("name", ["type", "n_max", "n_min", "p_min", "ngram_size_n"])
def test_how_drafts_are_made_is_nobodys_business(name: str) -> None:
    value = "none" if name == "type" else 1
    assert read(**{f"speculative.{name}": value}) == read()


def test_choices_differ_in_their_seeds_only() -> None:
    works = read(n=3, seed=2**32 - 1).works()
    seeds = [work.sampling.seed for work in works]
    assert seeds == [2**32 - 1, 0, 1]
    assert read(n=2).works()[0] == read(n=2).works()[1]
    assert generate(seed=-1).sampling.seed is None
    assert generate(seed=-5).sampling.seed == 2**32 - 5


def test_biases_may_be_written_in_every_way() -> None:
    ways = (
        generate(logit_bias={"5": -100, " cat": False}),
        generate(logit_bias=[[5, -100], [" cat", False]]),
        generate(logit_bias=[["cat", 1.5]]),
    )
    first, second, third = (way.sampling.logit_bias for way in ways)
    assert first == second
    assert [(bias.token, bias.text, bias.bias) for bias in first] == [
        (5, None, -100),
        (None, " cat", None),
    ]
    assert third[0].text == "cat"


def test_what_no_token_has_as_its_id_is_a_text() -> None:
    for name in (str(2**31), "9" * 5000):
        (bias,) = generate(logit_bias={name: 1}).sampling.logit_bias
        assert (bias.token, bias.text) == (None, name)


def test_samplers_may_be_letters() -> None:
    assert generate(samplers="kt").sampling.samplers == ("top_k", "temperature")


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_is_a_budget_and_a_word_for_the_template(effort: str) -> None:
    prompt = conversation(reasoning_effort=effort)
    assert prompt.thinking is (effort != "none")
    assert prompt.max_reasoning_tokens == (EFFORTS[effort] or None)
    words = {"minimal": "low", "xhigh": "high", "max": "high"}
    expected = {} if effort == "none" else {"reasoning_effort": words.get(effort, effort)}
    assert prompt.template_kwargs == expected


def test_a_budget_of_nothing_is_no_reasoning() -> None:
    assert conversation(reasoning_budget_tokens=0).thinking is False
    both = conversation(reasoning_effort="high", thinking={"budget_tokens": 7})
    assert both.max_reasoning_tokens == 7


def test_allowed_tools_are_the_only_ones_offered() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "g"}}],
        },
    }
    prompt = conversation(tools=[TOOL, other], tool_choice=choice)
    assert prompt.tools == (other,)
    assert (prompt.tool_choice, prompt.tool_name) == ("required", None)


@pytest.mark.parametrize("label", ["user", "safety_identifier", "prompt_cache_key"])
def test_a_label_is_short(label: str) -> None:
    with pytest.raises(ApiError, match=f" {label} has 513 characters, the limit is 512$"):
        read_chat({"messages": [USER], label: "x" * 513}, LIMITS)

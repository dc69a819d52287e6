"""What clients of other servers send with any model is answered, whatever the model's template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import Fleet
from test_generate import post

from llama_source import template_text
from no_tls import NO_TLS
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

HEY = [{"role": "user", "content": "hey"}]


def serve(fleet: Fleet, model: Path, *, template: str | None = None) -> None:
    """Store this model and template, and wait until they are served."""
    url = f"{fleet.management_url}/api/v1/balancer_desired_state"
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=60) as http:
        state = http.get(url).raise_for_status().json()
        state["model"] = {"LocalToAgent": str(model)}
        state["inference_parameters"] |= {"context_size": 4096}
        state["use_chat_template_override"] = template is not None
        state["chat_template_override"] = None if template is None else {"content": template}
        answer = http.put(url, json=state)
    assert answer.status_code == 204, answer.text
    fleet.wait_serving()


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(model=None, slots=2) as fleet:
        yield fleet


REASONING_HINTS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/messages",
        {
            "max_tokens": 4,
            "messages": HEY,
            "thinking": {"type": "enabled", "budget_tokens": 2000},
        },
    ),
    ("/v1/messages", {"max_tokens": 4, "messages": HEY, "thinking": {"type": "adaptive"}}),
    ("/v1/chat/completions", {"max_tokens": 4, "messages": HEY, "reasoning_effort": "low"}),
    ("/v1/chat/completions", {"max_tokens": 4, "messages": HEY, "think": "high"}),
    ("/v1/chat/completions", {"max_tokens": 4, "messages": HEY, "reasoning_budget_tokens": 50}),
    (
        "/v1/responses",
        {
            "max_output_tokens": 4,
            "input": "hey",
            "reasoning": {"effort": "high", "summary": "auto"},
        },
    ),
]


def test_a_hint_for_reasoning_is_no_reason_to_refuse_where_a_model_does_not(fleet: Fleet) -> None:
    serve(fleet, BUNDLED_MODEL, template=template_text("Qwen-Qwen2.5-7B-Instruct.jinja"))
    for path, body in REASONING_HINTS:
        answer = post(fleet, path, body)
        assert answer.status_code == 200, (body, answer.text)


def test_a_model_without_a_chat_template_is_served(fleet: Fleet, tmp_path: Path) -> None:
    bare = tmp_path / "bare.gguf"
    key = b"tokenizer.chat_template"
    bare.write_bytes(BUNDLED_MODEL.read_bytes().replace(key, b"tokenizer.chat_xxxxxxxx"))
    serve(fleet, bare)
    raw = post(fleet, "/completion", {"prompt": "Once upon", "n_predict": 4})
    assert raw.status_code == 200
    assert raw.json()["content"]
    told = post(fleet, "/apply-template", {"messages": HEY})
    assert told.json()["prompt"] == "<|im_start|>user\nhey<|im_end|>\n<|im_start|>assistant\n"
    assert post(fleet, "/v1/chat/completions", {"messages": HEY, "max_tokens": 4}).is_success


CHANGING_ROLES = [
    "Qwen3.5-4B.jinja",
    "Mistral-Small-3.2-24B-Instruct-2506.jinja",
    "mistralai-Mistral-Nemo-Instruct-2407.jinja",
]


@pytest.mark.parametrize("name", CHANGING_ROLES)
def test_instructions_may_come_in_two_messages(fleet: Fleet, name: str) -> None:
    serve(fleet, BUNDLED_MODEL, template=template_text(name))
    system, developer = (
        {"role": role, "content": text}
        for role, text in (("system", "RED-LANTERN"), ("developer", "BLUE-KETTLE"))
    )
    ready = {"role": "user", "content": "ready?"}
    messages = [system, developer, ready]
    prompt = post(fleet, "/apply-template", {"messages": messages}).json()["prompt"]
    assert re.search("RED-LANTERN.*BLUE-KETTLE.*ready[?]", prompt, re.DOTALL)
    chat = {"messages": messages, "max_tokens": 4}
    assert post(fleet, "/v1/chat/completions", chat).status_code == 200
    responses = {"instructions": "RED-LANTERN", "input": [developer, ready]}
    answer = post(fleet, "/v1/responses", {**responses, "max_output_tokens": 4})
    assert answer.status_code == 200


@pytest.mark.parametrize("name", CHANGING_ROLES)
@pytest.mark.parametrize("id_", ["abcdefgh1", "toolu_018abcDEF9921", "z"])
def test_a_result_and_a_reminder_may_come_in_one_turn(fleet: Fleet, name: str, id_: str) -> None:
    serve(fleet, BUNDLED_MODEL, template=template_text(name))
    use = {"type": "tool_use", "id": id_, "name": "save_note", "input": {}}
    result = {"type": "tool_result", "tool_use_id": id_, "content": "KEPT"}
    body = {
        "max_tokens": 4,
        "tools": [{"name": "save_note", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "keep it"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result, {"type": "text", "text": "what else?"}]},
        ],
    }
    assert post(fleet, "/v1/messages", body).status_code == 200
    two = [{"role": "user", "content": text} for text in ("one", "two")]
    answer = post(fleet, "/v1/messages", {"max_tokens": 4, "messages": two})
    assert answer.status_code == 200


def test_a_model_without_tools_is_told_them_and_calls_one_that_it_has_to(fleet: Fleet) -> None:
    serve(fleet, BUNDLED_MODEL, template=template_text("llama-cpp-rwkv-world.jinja"))
    city = {"type": "string", "maxLength": 20}  # else it may go on until max_tokens
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": "save_note", "parameters": parameters}
    body = {"messages": HEY, "tools": [{"type": "function", "function": function}]}
    prompt = post(fleet, "/apply-template", body).json()["prompt"]
    assert '"name": "save_note"' in prompt
    required = {**body, "tool_choice": "required", "max_tokens": 200}
    for seed in range(20):  # the call of a model this small is not always whole by then
        asked = {**required, "seed": seed}
        (choice,) = post(fleet, "/v1/chat/completions", asked).json()["choices"]
        if choice["finish_reason"] == "tool_calls":
            break
    (call,) = choice["message"]["tool_calls"][:1]
    assert call["function"]["name"] == "save_note"
    assert "city" in json.loads(call["function"]["arguments"])

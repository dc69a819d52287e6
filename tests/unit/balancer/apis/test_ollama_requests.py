"""Ollama's bodies as native requests, its templates, and what an answer's lines are."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.answers.answer import AnswerReader, Step
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.ollama.go_template import filled
from paddler_trio.balancer.apis.ollama.ollama_answers import AnswerLines, Holder, OllamaForm
from paddler_trio.balancer.apis.ollama.ollama_request import read_chat, read_generate
from paddler_trio.wire.paddler.request_params import JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ConversationPrompt,
    InfillPrompt,
    TextPrompt,
)

LIMITS = ApiLimits()
SAY = [{"role": "user", "content": "q"}]
TEXTS = {".System": "S", ".Prompt": "P", ".Suffix": ""}


def chat(**body: Any) -> Any:
    return read_chat({"messages": SAY, **body}, LIMITS)


def generate(**body: Any) -> Any:
    return read_generate(body, LIMITS)


def test_options_are_sampling_and_ends() -> None:
    options = {"temperature": 0.5, "top_k": 3, "repeat_penalty": 1.2, "seed": 7, "stop": ["a", ""]}
    made = chat(options={**options, "num_predict": 9}).generate
    sampling = made.sampling
    assert (made.max_tokens, made.stop) == (9, ("a",))
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.5, 3, 7)
    assert (sampling.penalty_repeat, sampling.penalty_last_n) == (1.2, 64)
    for most in (-2, -1, 0):
        assert chat(options={"num_predict": most}).generate.max_tokens is None


def test_no_images_are_nothing_in_any_message() -> None:
    """LiteLLM says of each that it has none."""
    ignored = IgnoredFields()
    messages = [{"role": role, "content": "q", "images": []} for role in ("system", "user")]
    said = read_chat({"messages": messages}, LIMITS, ignored).generate.prompt.messages
    assert ([each["content"] for each in said], ignored.names) == (["q", "q"], [])
    read_chat({"messages": [{**messages[0], "images": ["Qk"]}, messages[1]]}, LIMITS, ignored)
    assert ignored.names == ["messages[].images"]


def test_a_context_stands_before_what_a_template_renders() -> None:
    assert generate(prompt="q").generate.context == ()
    assert generate(prompt="q", context=None).generate.context == ()
    assert generate(prompt="q", context=[5, 6]).generate.context == (5, 6)
    assert generate(prompt="q", template="{{ .Prompt }}", context=[5]).generate.context == (5,)
    assert chat().generate.context is None
    for way in ({"raw": True}, {"suffix": "s"}):
        assert generate(prompt="q", context=[], **way).generate.context is None
        with pytest.raises(ApiError, match="context has no place in a prompt with"):
            generate(prompt="q", context=[5], **way)
    assert generate(context=[5]).generate is None


def test_a_form_is_any_object_or_a_schema() -> None:
    assert chat(format="").generate.constraint is None
    assert chat(format="json").generate.constraint == AnyJsonGrammar()
    assert isinstance(chat(format={"type": "object"}).generate.constraint, JsonSchemaGrammar)
    with pytest.raises(ApiError, match="format"):
        chat(format="yaml")


def test_messages_are_those_of_templates() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    made = read_chat(
        {
            "messages": [
                {"role": "user", "content": "see", "images": ["/9j/x", "data:image/gif;base64,R"]},
                {"role": "assistant", "thinking": "t", "tool_calls": [call]},
                {"role": "tool", "tool_name": "f", "tool_call_id": "c", "content": "r"},
            ]
        },
        LIMITS,
    ).generate
    assert made is not None
    assert isinstance(made.prompt, ConversationPrompt)
    user, assistant, tool = made.prompt.messages
    assert user["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/x"}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R"}},
        {"type": "text", "text": "see"},
    ]
    assert assistant["reasoning_content"] == "t"
    assert assistant["tool_calls"] == [call]
    assert tool == {"role": "tool", "content": "r", "name": "f", "tool_call_id": "c"}


def test_a_prompt_is_a_conversation_a_text_or_a_gap() -> None:
    made = generate(prompt="p", system="s").generate.prompt
    assert made.messages == (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "p"},
    )
    assert generate(prompt="p", raw=True).generate.prompt == TextPrompt(text="p")
    gap = generate(prompt="p", suffix="s").generate.prompt
    assert gap == InfillPrompt(prefix="p", suffix="s")
    assert generate(prompt="p", template="[{{ .Prompt }}]").generate.prompt == TextPrompt(
        text="[p]"
    )
    for odd in (
        {"raw": True, "system": "s"},
        {"raw": True, "template": "t"},
        {"suffix": "x", "template": "t"},
        {"raw": True, "images": ["x"]},
        {"template": "{{ .Prompt }}", "images": ["x"]},
    ):
        with pytest.raises(ApiError) as told:
            generate(prompt="p", **odd)
        assert told.value.status == 400


def test_without_anything_to_say_the_model_is_loaded_or_not_kept() -> None:
    for made in (read_chat({}, LIMITS), generate(), generate(prompt="", system="s")):
        assert (made.generate, made.unloads) == (None, False)
    for nothing in (0, "0", "0s"):
        ignored = IgnoredFields()
        assert read_generate({"keep_alive": nothing}, LIMITS, ignored).unloads
        assert ignored.names == ["keep_alive"]
    assert not generate(keep_alive="10m").unloads


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ .System }}|{{.Prompt}}", "S|P"),
        ("{{ if .System }}a{{ else }}b{{ end }}", "a"),
        ("{{ if .Suffix }}a{{ else if .Prompt }}b{{ else }}c{{ end }}", "b"),
        ("{{ if not .Suffix }}{{ if .Suffix }}a{{ else }}b{{ end }}{{ end }}", "b"),
        ("a \n {{- .Prompt -}} \n b", "aPb"),
        ("{{ .Prompt }}A:{{ .Response }}<end>", "PA:"),
        ("{{ if .Suffix }}{{ .Response }}{{ end }}rest", "rest"),
        ("{{/* a word */}}x", "x"),
        ("no places", "no places"),
    ],
)
def test_a_template_is_filled(template: str, prompt: str) -> None:
    assert filled(template, TEXTS) == prompt


@pytest.mark.parametrize(
    "template",
    [
        "{{ range .Messages }}{{ end }}",
        "{{ .Prompt }}{{ .Prompt }}",
        "{{ if .System }}",
        "{{ end }}",
        "{{ .Prompt",
        "{{ if and .System .Prompt }}{{ end }}",
        "{{ if .System }}" * 40,
    ],
)
def test_other_templates_are_refused_by_name(template: str) -> None:
    with pytest.raises(ApiError) as told:
        filled(template, TEXTS)
    assert (told.value.status, told.value.param) == (400, "template")


ACTIONS = ["if .System", "if not .Prompt", "else", "end", "- .Prompt -", ".System", ".Response"]


@given(
    st.lists(st.sampled_from(ACTIONS) | st.text(alphabet=" a\n", max_size=3), max_size=12),
    st.text(max_size=9),
)
def test_no_template_makes_more_of_a_request_than_there_is(pieces: list[str], text: str) -> None:
    template = "".join(f"{{{{{each}}}}}" if each in ACTIONS else each for each in pieces)
    with contextlib.suppress(ApiError):
        made = filled(template, {".System": text, ".Prompt": text})
        assert len(made) <= len(template) + 2 * len(text)


# ------------------------------------------------------------------------------------ the lines


def lines_of(*results: Any) -> list[Any]:
    form = OllamaForm(model="m", holder=Holder.MESSAGE, elapsed_s=lambda: 1.0)
    lines = AnswerLines(form, AnswerReader())
    text = b"".join(lines.take(Step(0, [result])) for result in results)
    return [json.loads(line) for line in text.splitlines()]


def done(reason: str = "stop") -> Any:
    usage = {"prompt_tokens": 5, "content_tokens": 3}
    timings = {"prompt_ms": 100.0, "predicted_ms": 300.0}
    return {"Done": {"usage": usage, "finish": {"reason": reason}, "timings": timings}}


def test_a_call_is_one_line_with_its_arguments_as_an_object() -> None:
    deltas: list[Any] = [
        {"ToolCallDelta": {"index": 0, "id": "a", "name": "f", "arguments": ""}},
        {"ToolCallDelta": {"index": 0, "arguments": '{"x":'}},
        {"ToolCallDelta": {"index": 0, "arguments": "1}"}},
        {"ToolCallDelta": {"index": 1, "id": "b", "name": "g", "arguments": "{}"}},
    ]
    *pieces, last = lines_of(*deltas, done())
    assert [piece["message"]["tool_calls"] for piece in pieces] == [
        [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}],
        [{"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}}],
    ]
    assert (last["done"], last["done_reason"]) == (True, "stop")


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop", "stop"), ("stop_text", "stop"), ("length", "length"), ("cells", "length")],
)
def test_the_last_line_has_the_reason_and_the_times(reason: str, told: str) -> None:
    *pieces, last = lines_of({"ReasoningToken": "t"}, {"ContentToken": "c"}, done(reason))
    assert [piece["message"] for piece in pieces] == [
        {"role": "assistant", "content": "", "thinking": "t"},
        {"role": "assistant", "content": "c"},
    ]
    assert last["done_reason"] == told
    names = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert [last[name] for name in names] == [10**9, 6 * 10**8, 10**8, 3 * 10**8]
    assert (last["prompt_eval_count"], last["eval_count"]) == (5, 3)


def test_silence_is_a_line_that_says_nothing() -> None:
    form = OllamaForm(model="m", holder=Holder.MESSAGE, elapsed_s=lambda: 1.0)
    line = json.loads(AnswerLines(form, AnswerReader()).filler("queued position=3"))
    assert (line["message"], line["done"]) == ({"role": "assistant", "content": ""}, False)

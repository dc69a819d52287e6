"""What strangers send is taken if it makes any sense, and what is lost of it is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.answers.answer import Step
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import FieldSupport
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_fields import chat_record
from paddler_trio.balancer.apis.openai.chat_request import ChatRequest, read_chat
from paddler_trio.balancer.apis.openai.completion_request import (
    CompletionRequest,
    read_completion,
    read_llama_completion,
)
from paddler_trio.balancer.apis.openai.embeddings import Embedded
from paddler_trio.balancer.apis.sampling_fields import PROMPT_WINDOW
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES, breakers_problem
from paddler_trio.wire.trio.work import ConversationPrompt, SamplingOverrides, Work

LIMITS = ApiLimits()
USER = {"role": "user", "content": "Hello"}
ROLEPLAY: dict[str, Any] = {
    # a front end for role play sends all of these to llama-server, whatever its sliders say
    "prompt": "You are",
    "n_predict": 100,
    "max_tokens": 100,
    "temperature": 3.5,
    "top_k": -1,
    "tfs_z": 1,
    "typical_p": 1,
    "mirostat_mode": 0,
    "repeat_penalty": 1.1,
    "repetition_penalty": 1.1,
    "dry_sequence_breakers": [],
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "samplers": [
        "penalties",
        "dry",
        "top-k",
        "tfs_z",
        "typical_p",
        "temp",
        "adaptive_p",
    ],
    "min_tokens": 0,
    "stop": ["\nUser:", ""],
    "skip_special_tokens": False,
    "logit_bias": [],
    "n_indent": 2,
    "t_max_predict_ms": 500,
    "post_sampling_probs": True,
    "api_server": "http://127.0.0.1:8080",
}
NUMBERS = sorted(parameter.server_name for parameter in PARAMETERS.values())
SPELLINGS = {**dict(zip(STAGES, STAGES, strict=True)), "temp": "temperature", "top-k": "top_k"}


def chat(ignored: IgnoredFields | None = None, **body: object) -> ChatRequest:
    return read_chat({"messages": [USER], **body}, LIMITS, ignored or IgnoredFields())


def completion(ignored: IgnoredFields | None = None, **body: object) -> CompletionRequest:
    return read_llama_completion({"prompt": "a", **body}, LIMITS, ignored or IgnoredFields())


def conversation(ignored: IgnoredFields | None = None, **body: object) -> ConversationPrompt:
    prompt = chat(ignored, **body).generate.prompt
    assert isinstance(prompt, ConversationPrompt)
    return prompt


# --------------------------------------------------------------------------------- sampling


def test_a_front_end_for_role_play_is_answered() -> None:
    ignored = IgnoredFields()
    sampling = completion(ignored, **ROLEPLAY).generate.sampling
    assert (sampling.temperature, sampling.top_k) == (3.5, 0)
    assert sampling.samplers == ("penalties", "dry", "top_k", "typ_p", "temperature", "adaptive_p")
    assert sampling.dry_sequence_breakers is None
    assert completion(**ROLEPLAY).generate.stop == ("\nUser:",)
    assert (sampling.adaptive_target, sampling.post_sampling_probs) == (-0.01, True)
    assert {"samplers.tfs_z", "n_indent"} <= {*ignored.names}
    honoured = {"temperature", "typical_p", "stop", "min_tokens", "post_sampling_probs"}
    assert not honoured & {*ignored.names}


@given(
    st.dictionaries(
        st.sampled_from(NUMBERS),
        st.one_of(st.integers(-(2**70), 2**70), st.floats(-1e300, 1e300)),
    )
)
def test_numbers_out_of_range_are_the_nearest_and_reported(body: dict[str, float]) -> None:
    whole = {p.server_name for p in PARAMETERS.values() if isinstance(p.default, int)}
    body = {name: int(value) if name in whole else value for name, value in body.items()}
    ignored = IgnoredFields()
    request = completion(ignored, **body)
    (work,) = request.works([request.generate.prompt])  # type: ignore[list-item]
    structure(unstructure(work, Work), Work)  # 32 bits have room for each
    beyond = set()
    for parameter in PARAMETERS.values():
        value = getattr(work.sampling, parameter.name)
        if parameter.server_name in body:
            assert value is not None
            assert parameter.problem(value) is None
            if parameter.problem(body[parameter.server_name]) is not None:
                beyond.add(parameter.server_name)
    assert {*ignored.names} == beyond
    if beyond:
        with pytest.raises(ApiError):
            read_llama_completion({"prompt": "a", **body}, LIMITS)


@given(st.lists(st.sampled_from([*SPELLINGS, "tfs_z", "", "nix\n"]), min_size=1, max_size=64))
def test_stages_that_nobody_knows_are_left_out(names: list[str]) -> None:
    ignored = IgnoredFields()
    stages = completion(ignored, samplers=names).generate.sampling.samplers
    known = dict.fromkeys(SPELLINGS[name] for name in names if name in SPELLINGS)
    assert stages == (tuple(known) or None)
    assert bool(ignored.names) == (len(known) < len(names))


@pytest.mark.parametrize("given", [5, {"a": 1}, [5], ["top_k"] * 65, "k" * 65])
def test_what_is_no_list_of_stages_is_refused(given: object) -> None:
    with pytest.raises(ApiError) as told:
        completion(samplers=given)
    assert (told.value.param or "").startswith("samplers")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["\n", ":"], ("\n", ":")),
        ('["\\n", ":"]', ("\n", ":")),
        ('"\\n", ":"', ("\n", ":")),
        ("stop", ("stop",)),
        ([], None),
        ("", None),
        (["", "a" * 65, "b", "b"], ("b",)),
    ],
)
def test_breakers_are_a_list_or_the_text_of_one(given: object, kept: object) -> None:
    assert completion(dry_sequence_breakers=given).generate.sampling.dry_sequence_breakers == kept


@given(st.lists(st.text(max_size=80), max_size=40))
def test_breakers_are_never_too_many(texts: list[str]) -> None:
    kept = completion(dry_sequence_breakers=texts).generate.sampling.dry_sequence_breakers or ()
    assert breakers_problem(kept) is None
    assert all(0 < len(text) <= 64 for text in kept)


@pytest.mark.parametrize(
    ("body", "sees_prompt", "window"),
    [
        ({}, False, None),
        ({"frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1}, False, None),
        ({"frequency_penalty": 0.5}, True, PROMPT_WINDOW),
        ({"repetition_penalty": 1.2}, True, PROMPT_WINDOW),
        ({"presence_penalty": -1, "repeat_last_n": -1}, True, -1),
        ({"presence_penalty": 1, "penalize_prompt": False}, False, PROMPT_WINDOW),
        ({"penalize_prompt": True}, True, None),
    ],
)
def test_penalties_that_a_request_asks_for_see_the_prompt(
    body: dict[str, object], window: int | None, *, sees_prompt: bool
) -> None:
    for sampling in (chat(**body).generate.sampling, completion(**body).generate.sampling):
        assert (sampling.penalize_prompt, sampling.penalty_last_n) == (sees_prompt, window)


# ------------------------------------------------------------------------------- other fields


@given(
    st.dictionaries(
        st.sampled_from(
            [each.name for each in chat_record(LIMITS) if each.support is FieldSupport.ACCEPTED]
        ),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4),
    )
)
def test_fields_without_effect_may_be_anything(body: dict[str, object]) -> None:
    assert chat(**body) == chat()


@pytest.mark.parametrize("most", [0, -1, -2, -(2**40)])
def test_no_token_is_one_and_fewer_are_as_many_as_fit(most: int) -> None:
    ignored = IgnoredFields()
    for request in (chat(ignored, max_tokens=most), completion(n_predict=most)):
        assert request.generate.max_tokens == (1 if most == 0 else None)
    assert ignored.names == ["max_tokens"] * (most != -1)


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "wizard"])
def test_a_message_may_say_nothing(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}, {"role": role, "content": []}):
        (read,) = conversation(messages=[message]).messages
        assert read["content"] == ""


@given(st.text(min_size=1).filter(lambda role: role not in {"assistant", "system", "developer"}))
def test_who_has_a_role_of_its_own_speaks_as_a_user(role: str) -> None:
    ignored = IgnoredFields()
    message: dict[str, object] = {"role": role, "content": "x", "name": "n"}
    (read,) = conversation(ignored, messages=[message]).messages
    is_known = role in {"user", "tool", "function"}
    assert read["role"] == (role if is_known else "user")
    assert ignored.names == ["messages[].role"] * (not is_known)


def test_a_call_before_there_were_tool_calls_is_one() -> None:
    called = {"name": "f", "arguments": "{}"}
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "f", "content": "1"},
    ]
    _, said, result = conversation(messages=messages).messages
    assert said["tool_calls"] == [{"type": "function", "function": called}]
    assert "function_call" not in said
    assert result["content"] == "1"


def test_a_call_without_arguments_has_none() -> None:
    call = {"id": "c", "function": {"name": "f"}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool"}]
    (_, said, _) = conversation(messages=messages).messages
    assert said["tool_calls"] == [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]


def test_texts_of_another_api_are_texts() -> None:
    parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
    for role in ("system", "user", "assistant"):
        (read,) = conversation(messages=[{"role": role, "content": parts}]).messages
        assert isinstance(read["content"], list)
        assert [part["type"] for part in read["content"]] == ["text"] * 3
        assert [part["text"] for part in read["content"]] == [part["text"] for part in parts]


def tool(name: str, **more: object) -> dict[str, object]:
    return {"function": {"name": name, **more}}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_of_tools_of_one_name_the_first_counts(names: list[str]) -> None:
    ignored = IgnoredFields()
    given = [tool(name, description=str(place)) for place, name in enumerate(names)]
    tools = conversation(ignored, tools=given, tool_choice="any").tools
    kept = list(dict.fromkeys(names))
    assert tools == tuple(
        {"type": "function", **tool(name, description=str(names.index(name)))} for name in kept
    )
    assert {*ignored.names} == {f"tools[].{name}" for name in names if names.count(name) > 1}
    assert conversation(tools=given, tool_choice="any").tool_choice == "required"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": False}, None),
        ({"logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 99}, 20),
        ({"n_probs": 500}, 100),
        ({"n_probs": 0}, None),
    ],
)
def test_log_probabilities_are_asked_for_in_many_ways(
    body: dict[str, object], wanted: int | None
) -> None:
    assert chat(**body).generate.logprobs == wanted


@pytest.mark.parametrize(("asked", "wanted"), [(True, 0), (False, None), (2, 2), (99, 20)])
def test_completions_take_a_flag_too(asked: object, wanted: int | None) -> None:
    body = {"prompt": "a", "logprobs": asked}
    request = read_completion(body, LIMITS, IgnoredFields())
    assert request.generate.logprobs == wanted
    assert request.delivery.with_logprobs is (wanted is not None)


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8),
    st.integers(0, 8).filter(lambda norm: norm != 2),
)
def test_vectors_have_the_norm_that_is_asked_for(vector: list[float], norm: int) -> None:
    embedded = Embedded(1, [0], norm=norm)
    embedded.take(Step(0, [{"Embedding": {"embedding": vector, "source_document_id": "0"}}]))
    (found,) = embedded.in_order()
    sizes = np.abs(found.astype(np.float64))
    if np.abs(vector).max() < 1e-3:
        return
    length = sizes.max() / 32760 if norm == 0 else (sizes**norm).sum() ** (1 / norm)
    assert length == pytest.approx(1, rel=1e-4)


def test_overrides_that_ask_for_nothing_are_none() -> None:
    assert chat().generate.sampling == SamplingOverrides()

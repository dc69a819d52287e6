"""Answers of servers about themselves, also those that are nothing of the kind."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.agent.servers.upstream_state import (
    MAX_MODELS,
    Modalities,
    ServerFacts,
    UnusableAnswerError,
    UpstreamModel,
    parse_busy_metric,
    parse_busy_slots,
    parse_error,
    parse_models,
    parse_props,
)
from upstream_double import LlamaServerDouble, error


def told(double: LlamaServerDouble, path: str) -> bytes:
    status, body = double._told(path, {})
    assert status == 200
    return body


def test_llama_server_tells_its_slots_context_build_and_modalities() -> None:
    facts = parse_props(told(LlamaServerDouble(num_slots=3, has_metrics=True), "/props"))
    assert facts == ServerFacts(
        total_slots=3,
        context_tokens=4096,
        build="b9999-abc",
        model_path="/models/qwen.gguf",
        modalities=Modalities(vision=True),
        has_slots=True,
        has_metrics=True,
    )


def test_a_router_has_no_slots_and_no_model_of_its_own() -> None:
    facts = parse_props(told(LlamaServerDouble(models={}), "/props"))
    assert facts.is_router
    assert facts.total_slots is facts.context_tokens is None
    assert not facts.model_path


def test_models_have_a_context_and_in_a_router_a_state() -> None:
    assert parse_models(told(LlamaServerDouble(), "/v1/models")) == (
        UpstreamModel("qwen", "", 4096),
    )
    routed = LlamaServerDouble(models={"a": "loaded", "b": "unloaded"})
    assert parse_models(told(routed, "/models")) == (
        UpstreamModel("a", "loaded"),
        UpstreamModel("b", "unloaded"),
    )
    assert [model.is_loaded for model in parse_models(told(routed, "/models"))] == [True, False]
    assert parse_models(told(LlamaServerDouble(is_other=True), "/v1/models")) == (
        UpstreamModel("qwen", "", 8192),
    )
    failed = b'{"data":[{"id":"a","status":{"value":"unloaded","failed":true}}]}'
    assert parse_models(failed) == (UpstreamModel("a", "failed"),)


def test_busy_slots_are_counted() -> None:
    double = LlamaServerDouble(foreign=2, has_metrics=True)
    assert parse_busy_slots(told(double, "/slots")) == 2
    assert parse_busy_metric(told(double, "/metrics")) == 2


@pytest.mark.parametrize("body", [b"", b"vllm:x 1\n", b"llamacpp:requests_processing x\n",
                                  b"llamacpp:requests_processing 1e9\n"])  # fmt: skip
def test_metrics_without_the_number_are_unusable(body: bytes) -> None:
    with pytest.raises(UnusableAnswerError):
        parse_busy_metric(body)


def test_an_error_is_one_short_line() -> None:
    assert parse_error(error(503, "Loading model")) == "Loading model"
    assert parse_error(b'{"error":"a\\nb"}') == "a b"
    assert len(parse_error(error(500, "x" * 5000))) == 200
    assert parse_error(b"<html>") == parse_error(b"[1]") == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["data", "id", "status", "value", "meta", "n_ctx", "total_slots", "role",
                         "is_processing", "modalities", "default_generation_settings", "error"]),
        inner,
        max_size=5,
    ),
)  # fmt: skip


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=30))
def test_whatever_is_answered_is_a_value_or_unusable(body: bytes) -> None:
    for parse in (parse_props, parse_models, parse_busy_slots, parse_busy_metric):
        try:
            value = parse(body)
        except UnusableAnswerError:
            continue
        if isinstance(value, ServerFacts):
            assert value.total_slots is None or value.total_slots > 0
        if isinstance(value, tuple):
            assert all(model.name for model in value)
    assert "\n" not in parse_error(body)


@pytest.mark.parametrize("body", [b"[" * 500_000, b"9" * 100_000, b'{"a":' * 300_000])
def test_what_is_deep_or_long_is_unusable(body: bytes) -> None:
    with pytest.raises(UnusableAnswerError):
        parse_props(body)


def test_lists_are_cut() -> None:
    many = json.dumps({"data": [{"id": str(each)} for each in range(1000)]}).encode()
    assert len(parse_models(many)) == MAX_MODELS
    with pytest.raises(UnusableAnswerError):
        parse_busy_slots(json.dumps([{}] * 5000).encode())

"""What went wrong, as clients are told it."""

from __future__ import annotations

import pytest

from paddler_trio.balancer.apis.api_errors import ApiError, from_failure, from_result, naming_fields
from paddler_trio.net.server.streaming import comment, event
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.wire.paddler.results import ENDING_EMBEDDING_TAGS, ENDING_GENERATION_TAGS


@pytest.mark.parametrize("tag", sorted((ENDING_GENERATION_TAGS | ENDING_EMBEDDING_TAGS) - {"Done"}))
def test_every_ending_but_done_is_an_error(tag: str) -> None:
    error = from_result({tag: "words"})
    assert error is not None
    assert error.status in {400, 422, 500, 501, 503}
    assert error.code


def test_what_ends_nothing_is_no_error() -> None:
    for result in ("Done", {"Done": {}}, {"ContentToken": "Error"}, {"Usage": {}}):
        assert from_result(result) is None


def test_a_prompt_that_is_too_long_says_the_numbers() -> None:
    refused = refusal(num_prompt_tokens=300, max_tokens=5, cells=256)
    assert refused is not None
    error = from_result({"SamplerError": refused.reason})
    assert error is not None
    assert (error.status, error.type) == (400, "exceed_context_size_error")
    assert error.code == "context_length_exceeded"
    assert error.details == {"n_prompt_tokens": 300, "n_ctx": 256}


def test_a_prompt_whose_tokens_were_not_counted_to_the_end_is_told_alike() -> None:
    said = "the prompt has at least 300 tokens, but one slot of this agent holds 256 (context_size)"
    error = from_result({"BadRequest": {"field": "prompt", "message": said}})
    assert error is not None
    assert error.code == "context_length_exceeded"
    assert "has at least 300 tokens" in error.message
    assert error.details == {"n_prompt_tokens": 300, "n_ctx": 256}


def test_an_empty_prompt_is_its_senders_fault() -> None:
    refused = refusal(num_prompt_tokens=0, max_tokens=5, cells=256)
    assert refused is not None
    error = from_result({"SamplerError": refused.reason})
    assert error is not None
    assert (error.status, error.param) == (400, "prompt")
    other = from_result({"SamplerError": "out of memory"})
    assert other is not None
    assert other.status == 500


def test_fields_of_agents_have_the_clients_names() -> None:
    told = {"field": "prompt.tool_choice", "message": "tool_choice is wrong"}
    error = from_result({"BadRequest": told})
    assert error is not None
    assert (error.status, error.param, error.message) == (
        400,
        "tool_choice",
        "tool_choice is wrong",
    )
    for field, param in (
        ("sampling.penalty_repeat", "repeat_penalty"),
        ("sampling.logit_bias[3].token", "logit_bias[3].token"),
        ("prompt.tokens[0]", "prompt[0]"),
    ):
        error = from_result({"BadRequest": {"field": field, "message": "x"}})
        assert error is not None
        assert error.param == param


@pytest.mark.parametrize(
    ("code", "type_"),
    [(503, "overloaded_error"), (504, "timeout_error"), (502, "server_error")],
)
def test_failures_keep_their_status_and_say_when_to_try_again(code: int, type_: str) -> None:
    advice = [(b"retry-after", b"7")]
    error = from_failure(Failure(code, "why"), advice)
    assert (error.status, error.type, error.message) == (code, type_, "why")
    assert [*error.headers] == advice
    error = from_failure(Failure(499, "cancelled"), advice)
    assert [*error.headers] == [(b"x-should-retry", b"false")]


def test_an_envelope_has_all_members() -> None:
    error = ApiError(404, "gone", param="model")
    assert error.envelope() == {
        "error": {
            "message": "gone",
            "type": "not_found_error",
            "param": "model",
            "code": "not_found",
        }
    }


def test_agents_do_not_know_which_field_it_was_but_the_request_does() -> None:
    with pytest.raises(ApiError) as told, naming_fields(prompt="prompt", constraint="grammar"):
        raise ApiError(400, "bad", code="invalid_grammar")
    assert told.value.param == "grammar"
    with pytest.raises(ApiError) as told, naming_fields(prompt="prompt", constraint=None):
        raise ApiError(400, "long", code="context_length_exceeded", param="messages")
    assert told.value.param == "prompt"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("messages[1].role: expected a name", "messages[1].role"),
        ("template_kwargs.messages: set by the request already", "chat_template_kwargs.messages"),
        ("Conversation roles must alternate", "messages"),
        ("tools: expected an array", "tools"),
    ],
)
def test_a_template_blames_the_field_it_names(text: str, param: str) -> None:
    error = from_result({"ChatTemplateError": text})
    assert error is not None
    assert (error.status, error.param) == (400, param)


def test_events_are_exactly_framed() -> None:
    assert event({"a": "b\nc"}) == b'data: {"a":"b\\nc"}\n\n'
    assert event(1, name="x") == b"event: x\ndata: 1\n\n"
    assert comment("here") == b": here\n\n"

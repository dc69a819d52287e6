from __future__ import annotations

import pytest
from hypothesis import given, settings
from wire_values import values_of

from effort import examples
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.messages import AgentResponseBody
from paddler_trio.wire.paddler.raw_results import ends_stream, result_tag
from paddler_trio.wire.paddler.results import (
    ALL_EMBEDDING_TAGS,
    ALL_GENERATION_TAGS,
    ENDING_EMBEDDING_TAGS,
    ENDING_GENERATION_TAGS,
    EXTENDED_EMBEDDING_TAGS,
    TOKEN_TAGS,
    EmbeddingResult,
    GeneratedTokenResult,
    GenerationFailure,
    TokenPiece,
)

NOT_ENDING = {
    "ContentToken",
    "ReasoningToken",
    "ToolCallToken",
    "UndeterminableToken",
    "ToolCallParsed",
    "ToolCallParseFailed",
    "ToolCallValidationFailed",
    "UnrecognizedToolCallFormat",
}


def names_in_refusal(shape: object) -> set[str]:
    with pytest.raises(WireError) as caught:
        structure("?", shape)  # type: ignore[arg-type]  # a union, known at run time only
    listed = str(caught.value).partition("expected one of ")[2].removesuffix(" @ $")
    return set(listed.split(", "))


def test_the_tags_are_those_the_classes_are_written_under() -> None:
    assert names_in_refusal(GeneratedTokenResult) == ALL_GENERATION_TAGS
    assert names_in_refusal(EmbeddingResult) == ALL_EMBEDDING_TAGS


def test_exactly_the_enders_end() -> None:
    assert ALL_GENERATION_TAGS - ENDING_GENERATION_TAGS == NOT_ENDING
    assert len(ALL_GENERATION_TAGS) == 21
    assert {"Embedding", "DocumentExceedsBatchSize"} == ALL_EMBEDDING_TAGS - ENDING_EMBEDDING_TAGS
    assert NOT_ENDING > TOKEN_TAGS


@settings(max_examples=examples(60), deadline=None)
@given(values_of(GeneratedTokenResult))
def test_a_generation_result_ends_its_stream_as_its_tag_says(result: GeneratedTokenResult) -> None:
    raw = unstructure(result, AgentResponseBody)
    tag = result_tag(unstructure(result))
    assert ends_stream(raw) is (tag in ENDING_GENERATION_TAGS)
    assert isinstance(result, TokenPiece) is (tag in TOKEN_TAGS)
    assert ends_stream(raw) or not isinstance(result, GenerationFailure)


@settings(max_examples=examples(30), deadline=None)
@given(values_of(EmbeddingResult))
def test_an_embedding_result_ends_its_stream_as_its_tag_says(result: EmbeddingResult) -> None:
    raw = unstructure(result, AgentResponseBody)
    assert ends_stream(raw) is (result_tag(unstructure(result)) in ENDING_EMBEDDING_TAGS)


@pytest.mark.parametrize("tag", sorted(EXTENDED_EMBEDDING_TAGS))
def test_our_own_embedding_results_end_nothing_and_only_we_may_send_them(tag: str) -> None:
    raw = {"Embedding": {tag: {}}}
    assert not ends_stream(raw, extended=True)
    with pytest.raises(WireError, match=f"unknown variant '{tag}'"):
        ends_stream(raw)


def test_a_unit_variant_ends_in_both_spellings() -> None:
    assert ends_stream({"Embedding": "Done"})
    assert ends_stream({"Embedding": {"Done": None}})


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "Done",
        {},
        {"GeneratedToken": {"Done": {}}, "Embedding": "Done"},
        {"GeneratedToken": {"ToolCallValidatorBuildFailed": "x"}},
        {"GeneratedToken": {"ContentToken": "a", "Done": {}}},
        {"GeneratedToken": None},
        {"Embedding": "ContentToken"},
        {"ModelMetadata": None},
    ],
)
def test_what_no_peer_knows_is_a_wire_error(raw: object) -> None:
    with pytest.raises(WireError):
        ends_stream(raw)


@pytest.mark.parametrize("raw", [None, 1, [], {}, {"a": 1, "b": 2}])
def test_a_result_has_one_tag(raw: object) -> None:
    assert result_tag("Done") == "Done"
    assert result_tag({"Done": None}) == "Done"
    with pytest.raises(WireError):
        result_tag(raw)

"""The encoding rules, one by one, with the text an operator or a client gets to see."""

from __future__ import annotations

import copy
from typing import TypeVar

import attrs
import pytest
from wire_client import BufferedRequestManagerSnapshot

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, structure, unstructure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    InferenceParameters,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    Function,
    GenerateEmbeddingBatchParams,
    GrammarConstraint,
    NormalizationMethod,
    ParametersSchema,
    RmsNorm,
    TextPart,
    Tool,
    tool_schema_problem,
)
from paddler_trio.wire.paddler.results import (
    Embedding,
    EmbeddingDone,
    EmbeddingResult,
    GeneratedTokenResult,
    TokenUsage,
    ValidJson,
)
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
)

T = TypeVar("T")

RAW_PROMPT: dict[str, object] = {"raw_prompt": "Hi", "max_tokens": 1}
CONVERSATION: dict[str, object] = {
    "add_generation_prompt": True,
    "conversation_history": [{"role": "user", "content": "Hi"}],
    "enable_thinking": False,
    "max_tokens": 1,
}


def refusal(value: object, shape: type[object]) -> str:
    with pytest.raises(WireError) as caught:
        structure(value, shape)
    return str(caught.value)


@pytest.mark.parametrize(
    ("max_tokens", "got"),
    [
        (10.0, "10.0"),
        (10.5, "10.5"),
        (True, "true"),
        ("10", "the string '10'"),
        (None, "null"),
        (2**31, "2147483648"),
        (-(2**31) - 1, "-2147483649"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_integers_are_integers_within_their_range(max_tokens: object, got: str) -> None:
    params = RAW_PROMPT | {"max_tokens": max_tokens}
    complaint = f"expected an integer in -2147483648..2147483647, got {got} @ $.max_tokens"
    assert refusal(params, ContinueFromRawPromptParams) == complaint


@pytest.mark.parametrize("max_tokens", [2**31 - 1, -(2**31), 0])
def test_max_tokens_takes_the_whole_range(max_tokens: int) -> None:
    params = structure(RAW_PROMPT | {"max_tokens": max_tokens}, ContinueFromRawPromptParams)
    assert params.max_tokens == max_tokens


def test_unsigned_counters_refuse_negatives_and_take_64_bits() -> None:
    usage = {field.name: 2**64 - 1 for field in attrs.fields(TokenUsage)}
    assert structure(usage, TokenUsage).prompt_tokens == 2**64 - 1
    assert "got -1 @ $.prompt_tokens" in refusal(usage | {"prompt_tokens": -1}, TokenUsage)


@pytest.mark.parametrize("grammar", [{}, {"grammar": None}])
def test_an_optional_field_may_be_absent_or_null_and_is_written_as_null(
    grammar: dict[str, object],
) -> None:
    params = structure(RAW_PROMPT | grammar, ContinueFromRawPromptParams)
    assert params.grammar is None
    assert dumps(unstructure(params)) == b'{"raw_prompt":"Hi","max_tokens":1,"grammar":null}'


@pytest.mark.parametrize("field", ["tools", "parse_tool_calls"])
def test_a_field_with_a_default_may_be_absent_but_not_null(field: str) -> None:
    assert structure(CONVERSATION, ContinueFromConversationHistoryParams).tools == ()
    complaint = refusal(CONVERSATION | {field: None}, ContinueFromConversationHistoryParams)
    assert complaint.endswith(f"got null @ $.{field}")


def test_forwarding_writes_every_field() -> None:
    params = structure(CONVERSATION, ContinueFromConversationHistoryParams)
    assert unstructure(params) == CONVERSATION | {
        "grammar": None,
        "parse_tool_calls": False,
        "tools": [],
    }


@pytest.mark.parametrize("field", list(CONVERSATION))
def test_a_required_field_may_be_neither_absent_nor_null(field: str) -> None:
    without = {key: value for key, value in CONVERSATION.items() if key != field}
    shape = ContinueFromConversationHistoryParams
    assert refusal(without, shape) == f"required field missing @ $.{field}"
    assert refusal(CONVERSATION | {field: None}, shape).endswith(f"got null @ $.{field}")


def test_every_inference_parameter_is_required_although_python_has_defaults() -> None:
    full = unstructure(InferenceParameters())
    assert isinstance(full, dict)
    assert len(full) == 17
    for field in full:
        without = {key: value for key, value in full.items() if key != field}
        assert refusal(without, InferenceParameters) == f"required field missing @ $.{field}"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"content": "x"}, "required field missing @ $.conversation_history[1].role"),
        (
            {"role": "user", "content": 5},
            "expected a string or an array of parts, got 5 @ $.conversation_history[1].content",
        ),
        (
            {"role": "user", "content": None},
            "expected a string or an array of parts, got null @ $.conversation_history[1].content",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "extra": 1}]},
            "unknown field 'extra' @ $.conversation_history[1].content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "audio"}]},
            (
                "unknown variant 'audio', expected text or image_url"
                " @ $.conversation_history[1].content[0].type"
            ),
        ),
        (
            {"role": "user", "content": [{"text": "a"}]},
            "required field missing @ $.conversation_history[1].content[0].type",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}],
            },
            "unknown field 'detail' @ $.conversation_history[1].content[0].image_url",
        ),
        ("hello", "expected an object, got the string 'hello' @ $.conversation_history[1]"),
    ],
)
def test_a_bad_message_is_named_by_its_place(message: object, complaint: str) -> None:
    params = copy.deepcopy(CONVERSATION)
    params["conversation_history"] = [{"role": "user", "content": "Hi"}, message]
    assert refusal(params, ContinueFromConversationHistoryParams) == complaint


def test_unknown_fields_are_refused() -> None:
    assert (
        refusal(RAW_PROMPT | {"foo": 1}, ContinueFromRawPromptParams) == "unknown field 'foo' @ $"
    )


def test_grammars_are_tagged_inside_and_strict() -> None:
    def of(grammar: object) -> str:
        return refusal(RAW_PROMPT | {"grammar": grammar}, ContinueFromRawPromptParams)

    assert of({"type": "gbnf", "grammar": "g"}) == "required field missing @ $.grammar.root"
    assert of({"type": "regex"}).startswith("unknown variant 'regex', expected gbnf or json_schema")
    assert of({"type": "json_schema", "schema": {}}).endswith("got an object @ $.grammar.schema")
    assert of("gbnf") == "expected an object, got the string 'gbnf' @ $.grammar"
    written = {"type": "json_schema", "schema": "{}"}
    assert unstructure(structure(written, GrammarConstraint)) == written


FUNCTION: dict[str, object] = {"name": "f", "description": "d"}


def tool(parameters: object) -> dict[str, object]:
    return {"type": "function", "function": FUNCTION | {"parameters": parameters}}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (tool({}), "required field missing @ $.function.parameters.type"),
        (tool({"type": 1}), "expected a string, got 1 @ $.function.parameters.type"),
        (tool({"type": "object", "$defs": {}}), "unknown field '$defs' @ $.function.parameters"),
        (
            tool({"type": "object", "required": "a"}),
            "expected an array, got the string 'a' @ $.function.parameters.required",
        ),
        (
            {"type": "retrieval", "function": FUNCTION},
            "unknown variant 'retrieval', expected function @ $.type",
        ),
        (
            {"type": "function", "function": {"name": "f"}},
            "required field missing @ $.function.description",
        ),
    ],
)
def test_tools_are_strict(value: object, complaint: str) -> None:
    assert refusal(value, Tool) == complaint


@pytest.mark.parametrize("function", [FUNCTION, FUNCTION | {"parameters": None}])
def test_no_schema_is_left_out_when_written(function: dict[str, object]) -> None:
    read = structure({"type": "function", "function": function}, Tool)
    assert read == Tool(Function("f", "d"))
    assert unstructure(read) == {"type": "function", "function": FUNCTION}


def test_a_schema_keeps_its_properties_as_they_came_and_omits_what_it_has_not() -> None:
    full = {
        "type": "object",
        "properties": {"k": {"type": ["string", "null"], "default": None, "x": 1.0}},
        "required": ["k"],
        "additionalProperties": False,
    }
    assert unstructure(structure(full, ParametersSchema)) == full
    bare = {"type": "object", "properties": None, "required": None, "additionalProperties": None}
    assert unstructure(structure(bare, ParametersSchema)) == {"type": "object"}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (None, None),
        ({"type": "object", "required": ["a"]}, None),
        ({"type": "object", "properties": {"a": {}}}, None),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, None),
        (
            {"type": "object", "properties": {"a": {}}, "required": ["a", "b"]},
            "Required field 'b' not found in properties",
        ),
        (
            {"type": "object", "properties": {}, "required": ["a"]},
            "Required field 'a' not found in properties",
        ),
    ],
)
def test_required_arguments_must_be_properties(parameters: object, problem: str | None) -> None:
    params = CONVERSATION | {"tools": [tool(parameters)]}
    read = structure(params, ContinueFromConversationHistoryParams)
    assert tool_schema_problem(read) == problem


@pytest.mark.parametrize("written", ["None", {"None": None}])
def test_a_variant_without_data_may_be_spelled_with_null(written: object) -> None:
    assert structure(written, DesiredModel) == NoModel()
    assert unstructure(NoModel()) == "None"


def test_variants_without_data_carry_nothing_else() -> None:
    assert structure({"Fresh": None}, AgentStateApplicationStatus) == "Fresh"
    assert structure({"Done": None}, EmbeddingResult) == EmbeddingDone()
    with pytest.raises(WireError, match=r"expected null, got 1 @ \$\.Done"):
        structure({"Done": 1}, EmbeddingResult)
    assert refusal({"Fresh": 1}, AgentStateApplicationStatus) == "expected null, got 1 @ $.Fresh"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("LocalToAgent", "variant 'LocalToAgent' must carry a value @ $"),
        ({"LocalToAgent": None}, "expected a string, got null @ $.LocalToAgent"),
        ({"Url": {"url": "u", "x": 1}}, "unknown field 'x' @ $.Url"),
        ({"Url": "u"}, "expected an object, got the string 'u' @ $.Url"),
        ({"HuggingFace": {"filename": "f", "repo_id": "r"}}, "missing @ $.HuggingFace.revision"),
        ({"Url": {"url": "u"}, "None": None}, "got an object @ $"),
        ({}, "expected one of None, LocalToAgent, Url, HuggingFace, got an object @ $"),
        ("Ftp", "unknown variant 'Ftp', expected one of None, LocalToAgent, Url, HuggingFace @ $"),
        (["None"], "got an array @ $"),
    ],
)
def test_an_enum_takes_exactly_one_known_variant(value: object, complaint: str) -> None:
    with pytest.raises(WireError) as caught:
        structure(value, DesiredModel)
    assert str(caught.value).endswith(complaint)


def test_a_model_is_written_under_its_tag() -> None:
    assert unstructure(LocalToAgent("/m.gguf")) == {"LocalToAgent": "/m.gguf"}


def test_plain_names_are_checked() -> None:
    complaint = refusal("Broken", AgentStateApplicationStatus)
    assert complaint.startswith("unknown variant 'Broken', expected one of Fresh, ")
    assert "got 3 @ $" in refusal(3, AgentStateApplicationStatus)


def test_floats_take_integers_are_32_bit_and_refuse_the_rest() -> None:
    assert structure({"RmsNorm": {"epsilon": 1}}, NormalizationMethod) == RmsNorm(1.0)
    assert dumps(unstructure(RmsNorm(0.1 + 0.2))) == b'{"RmsNorm":{"epsilon":0.3}}'
    for value, got in ((True, "got true"), ("1", "got the string"), (1e39, "does not fit")):
        with pytest.raises(WireError) as caught:
            structure({"RmsNorm": {"epsilon": value}}, NormalizationMethod)
        assert got in str(caught.value)
        assert str(caught.value).endswith(" @ $.RmsNorm.epsilon")


@pytest.mark.parametrize("bad", [True, None, "0.5", 1e39])
def test_a_bad_number_in_an_embedding_is_named_by_its_index(bad: object) -> None:
    value: dict[str, object] = {
        "embedding": [0.25, 1, bad],
        "normalization_method": "L2",
        "pooling_type": "Last",
        "source_document_id": "a",
    }
    assert refusal(value, Embedding).endswith(" @ $.embedding[2]")
    assert structure(value | {"embedding": [0.25, 1]}, Embedding).embedding == (0.25, 1.0)


def test_a_batch_needs_both_its_fields_and_may_be_empty() -> None:
    batch = {"input_batch": [], "normalization_method": "None"}
    assert structure(batch, GenerateEmbeddingBatchParams).input_batch == ()
    missing = refusal({"input_batch": []}, GenerateEmbeddingBatchParams)
    assert missing == "required field missing @ $.normalization_method"


def test_paths_quote_keys_that_are_no_identifiers() -> None:
    value: object = {"ToolCallParsed": [{"id": "1", "name": "f", "arguments": {"Valid Json": 1}}]}
    with pytest.raises(WireError) as caught:
        structure(value, GeneratedTokenResult)
    expected = "unknown variant 'Valid Json', expected ValidJson or InvalidJson"
    assert str(caught.value) == f"{expected} @ $.ToolCallParsed[0].arguments"
    assert unstructure(structure({"ValidJson": None}, ValidJson)) == {"ValidJson": None}


def test_long_rubbish_is_cut_short_in_errors() -> None:
    assert (
        len(refusal(RAW_PROMPT | {"max_tokens": "x" * 10_000}, ContinueFromRawPromptParams)) < 150
    )
    assert len(refusal(RAW_PROMPT | {"x" * 10_000: 1}, ContinueFromRawPromptParams)) < 150


def test_text_parts_alone_carry_their_type() -> None:
    assert unstructure(TextPart("a")) == {"type": "text", "text": "a"}


def test_top_level_values_of_the_wrong_kind_are_refused() -> None:
    values: tuple[object, ...] = (None, [], "x", 1)
    for value in values:
        assert refusal(value, BufferedRequestManagerSnapshot).startswith("expected an object, got ")
        assert refusal(value, BalancerDesiredState).endswith(" @ $")

"""Paddler's own Python client reads what we write, and we read what it writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paddler_client import (
    agent_controller_pool_snapshot as peer_pool,
)
from paddler_client import balancer_desired_state as peer_state
from paddler_client import buffered_request_manager_snapshot as peer_buffer
from paddler_client import chat_template as peer_template
from paddler_client import continue_from_conversation_history_params as peer_conversation
from paddler_client import continue_from_raw_prompt_params as peer_prompt
from paddler_client import generate_embedding_batch_params as peer_batch
from paddler_client import inference_parameters as peer_parameters
from paddler_client import model_metadata as peer_metadata
from paddler_client.inference_message import InferenceMessageKind
from paddler_client.inference_message import parse_inference_client_message as peer_parse
from pydantic import BaseModel
from wire_client import AgentControllerPoolSnapshot, BufferedRequestManagerSnapshot
from wire_values import values_of

from effort import examples
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, InferenceParameters
from paddler_trio.wire.paddler.messages import (
    InferenceResponse,
    InferenceResponseBody,
    error_line,
    render,
)
from paddler_trio.wire.paddler.raw_results import ends_stream, result_tag
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
)
from paddler_trio.wire.paddler.results import (
    ALL_GENERATION_TAGS,
    Done,
    EmbeddingProduced,
    TokenPiece,
    ToolCallParsed,
)
from paddler_trio.wire.paddler.status import (
    ChatTemplate,
    ModelMetadata,
)

PAIRS: list[tuple[type[object], type[BaseModel]]] = [
    (AgentControllerPoolSnapshot, peer_pool.AgentControllerPoolSnapshot),
    (BalancerDesiredState, peer_state.BalancerDesiredState),
    (BufferedRequestManagerSnapshot, peer_buffer.BufferedRequestManagerSnapshot),
    (ChatTemplate, peer_template.ChatTemplate),
    (
        ContinueFromConversationHistoryParams,
        peer_conversation.ContinueFromConversationHistoryParams,
    ),
    (ContinueFromRawPromptParams, peer_prompt.ContinueFromRawPromptParams),
    (GenerateEmbeddingBatchParams, peer_batch.GenerateEmbeddingBatchParams),
    (InferenceParameters, peer_parameters.InferenceParameters),
    (ModelMetadata, peer_metadata.ModelMetadata),
]
SENT_BY_THE_CLIENT = [pair for pair in PAIRS if not pair[0].__name__.endswith("Snapshot")]
# Results the client of Paddler 4.0 has never heard of, and says so.
UNKNOWN_TO_THE_CLIENT = {
    "DetokenizationFailed",
    "DocumentExceedsBatchSize",
    "EmbeddingsDisabled",
    "TokenGenerationDisabled",
    "ToolSchemaInvalid",
}
quick = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda cls: cls.__module__)
@quick
@given(data=st.data())
def test_the_client_reads_our_documents(
    ours: type[object], theirs: type[BaseModel], data: st.DataObject
) -> None:
    value = data.draw(values_of(ours))
    text = dumps(unstructure(value))
    read = theirs.model_validate_json(text)
    again = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    if ours is not ContinueFromConversationHistoryParams:  # it drops parse_tool_calls
        assert again == loads(text)


@pytest.mark.parametrize(("ours", "theirs"), SENT_BY_THE_CLIENT, ids=lambda cls: cls.__module__)
@quick
@given(data=st.data())
def test_we_read_what_the_client_sends_without_nulls(
    ours: type[object], theirs: type[BaseModel], data: st.DataObject
) -> None:
    value = data.draw(values_of(ours))
    peer = theirs.model_validate_json(dumps(unstructure(value)))
    sent = peer.model_dump_json(by_alias=True, exclude_none=True)
    read = structure(loads(sent), ours)
    if not isinstance(value, ContinueFromConversationHistoryParams):
        assert read == value


def test_the_clients_default_state_is_ours() -> None:
    sent = peer_state.BalancerDesiredState().model_dump_json(by_alias=True, exclude_none=True)
    assert structure(loads(sent), BalancerDesiredState) == BalancerDesiredState.default()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(values_of(InferenceResponse))
def test_the_client_reads_our_results(message: InferenceResponse) -> None:
    raw = unstructure(message.response, InferenceResponseBody)
    outer = result_tag(raw)
    tag = result_tag(raw[outer]) if isinstance(raw, dict) else outer
    line = render(message).decode()
    if tag in UNKNOWN_TO_THE_CLIENT:
        with pytest.raises(ValueError, match="Unknown"):
            peer_parse(line)
        return
    read = peer_parse(line)
    assert read.request_id == message.request_id
    assert read.generated_by == message.generated_by
    match message.response:
        case TokenPiece(text):
            assert read.is_token
            assert read.token == text
        case Done(summary):
            assert read.is_done
            assert read.summary is not None
            assert read.summary.usage.prompt_tokens == summary.usage.prompt_tokens
        case ToolCallParsed(calls):
            assert read.parsed_tool_calls is not None
            assert [call.name for call in read.parsed_tool_calls] == [call.name for call in calls]
        case EmbeddingProduced(embedding):
            assert read.embedding_data is not None
            assert tuple(read.embedding_data.embedding) == embedding.embedding
        case _:
            assert read.is_terminal
    # The client takes tool call failures for an end; nothing that ends goes unnoticed by it.
    if isinstance(raw, dict) and ends_stream(raw):
        assert read.is_terminal


def test_the_client_knows_all_but_the_results_listed_here() -> None:
    for tag in ALL_GENERATION_TAGS - UNKNOWN_TO_THE_CLIENT:
        assert isinstance(InferenceMessageKind[_screaming(tag)], InferenceMessageKind)


def test_the_client_reads_our_errors() -> None:
    read = peer_parse(error_line("r", 503, "Buffered requests overflow").decode())
    assert read.kind is InferenceMessageKind.SERVER_ERROR
    assert read.error_code == 503
    assert read.error_message == "Buffered requests overflow"
    assert read.request_id == "r"


def _screaming(tag: str) -> str:
    return "".join(f"_{char}" if char.isupper() else char for char in tag)[1:].upper()

"""Frames and documents as Paddler 4.1 peers write them, read and written again."""

from __future__ import annotations

import pytest
from wire_client import AgentControllerPoolSnapshot, parse_inference_client_message

from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    DesiredModel,
    HuggingFaceModel,
)
from paddler_trio.wire.paddler.messages import (
    AgentMessage,
    AgentRequest,
    AgentResponse,
    AgentResponseBody,
    BalancerMessage,
    DeregisterAgent,
    ErrorDescription,
    ErrorEnvelope,
    GetModelMetadata,
    InferenceClientMessage,
    InferenceRequest,
    InferenceResponse,
    InferenceServerMessage,
    LoadedModelMetadata,
    RegisterAgent,
    SetState,
    StopRespondingTo,
    Timeout,
    TokenGenerationDisabledNotification,
    Version,
    parse_agent_message,
    parse_balancer_message,
    parse_inference_server_message,
    render,
)
from paddler_trio.wire.paddler.request_params import (
    L2,
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    EmbeddingInputDocument,
    GenerateEmbeddingBatchParams,
    ImageUrl,
    ImageUrlPart,
    RmsNorm,
    TextPart,
)
from paddler_trio.wire.paddler.results import (
    ContentToken,
    Done,
    Embedding,
    EmbeddingDone,
    EmbeddingProduced,
    ParsedToolCall,
    PoolingType,
    ToolCallParsed,
    ValidJson,
)
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    ModelMetadata,
    SlotAggregatedStatusSnapshot,
)

RAW_PROMPT = '{"Request":{"id":"job-7","request":{"ContinueFromRawPrompt":{"grammar":null,"max_tokens":24,"raw_prompt":"Two plus two is"}}}}'  # noqa: E501
TOKEN = '{"Response":{"generated_by":"rack-3","request_id":"job-7","response":{"GeneratedToken":{"ContentToken":" four"}}}}'  # noqa: E501
OVERFLOW = '{"Error":{"request_id":"job-7","error":{"code":503,"description":"Buffered requests overflow"}}}'  # noqa: E501
STOP = '{"Notification":{"StopRespondingTo":"job-7"}}'
DISABLED = '{"Notification":"TokenGenerationDisabled"}'
TOOL_CALL = '{"Response":{"generated_by":null,"request_id":"k2","response":{"GeneratedToken":{"ToolCallParsed":[{"id":"call_9","name":"lookup","arguments":{"ValidJson":{"key":"a"}}}]}}}}'  # noqa: E501
DONE = '{"Response":{"generated_by":"rack-3","request_id":"k2","response":{"GeneratedToken":{"Done":{"usage":{"prompt_tokens":31,"cached_prompt_tokens":0,"input_image_tokens":0,"input_audio_tokens":0,"content_tokens":5,"reasoning_tokens":0,"tool_call_tokens":18,"undeterminable_tokens":0}}}}}}'  # noqa: E501
EMBEDDING = '{"Response":{"generated_by":"rack-3","request_id":"e1","response":{"Embedding":{"Embedding":{"embedding":[0.25,-0.5],"normalization_method":"L2","pooling_type":"Last","source_document_id":"row-4"}}}}}'  # noqa: E501
LAST_LINE = '{"Response":{"generated_by":null,"request_id":"fin0","response":{"Embedding":"Done"}}}'
REGISTER = '{"Notification":{"RegisterAgent":{"name":"rack-3","slot_aggregated_status_snapshot":{"desired_slots_total":4,"download_current":0,"download_filename":null,"download_indeterminate":true,"download_total":0,"issues":[],"model_path":null,"slots_processing":0,"slots_total":0,"state_application_status":"Fresh","uses_chat_template_override":false,"version":0}}}}'  # noqa: E501
SET_STATE = '{"Notification":{"SetState":{"desired_state":{"chat_template_override":null,"inference_parameters":{"n_batch":512,"context_size":4096,"embedding_batch_size":64,"enable_embeddings":true,"image_resize_to_fit":1024,"k_cache_dtype":"F16","v_cache_dtype":"F16","min_p":0.05,"n_gpu_layers":99,"penalty_frequency":0.0,"penalty_last_n":-1,"penalty_presence":0.0,"penalty_repeat":1.0,"pooling_type":"Mean","temperature":0.0,"top_k":1,"top_p":1.0},"model":{"HuggingFace":{"filename":"m.gguf","repo_id":"org/m","revision":"main"}},"multimodal_projection":"None"}}}}'  # noqa: E501
EMBED = '{"Request":{"id":"r8","request":{"GenerateEmbeddingBatch":{"input_batch":[{"content":"abc","id":"row-1"}],"normalization_method":{"RmsNorm":{"epsilon":0.00001}}}}}}'  # noqa: E501
ASK_METADATA = '{"Request":{"id":"r9","request":"GetModelMetadata"}}'
METADATA = '{"Response":{"generated_by":null,"request_id":"r9","response":{"ModelMetadata":{"metadata":{"general.architecture":"llama"}}}}}'  # noqa: E501
CONVERSATION = r'{"add_generation_prompt":true,"conversation_history":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Describe"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"enable_thinking":false,"max_tokens":64,"grammar":{"type":"gbnf","grammar":"root ::= \"ok\"","root":"root"},"parse_tool_calls":true,"tools":[{"type":"function","function":{"name":"lookup","description":"find a row","parameters":{"type":"object","properties":{"key":{"type":"string"}},"required":["key"]}}}]}'  # noqa: E501
INITIAL_STATE = b'{"chat_template_override":null,"inference_parameters":{"n_batch":2048,"context_size":8192,"embedding_batch_size":256,"enable_embeddings":false,"image_resize_to_fit":1024,"k_cache_dtype":"Q8_0","v_cache_dtype":"Q8_0","min_p":0.05,"n_gpu_layers":0,"penalty_frequency":0.0,"penalty_last_n":-1,"penalty_presence":0.8,"penalty_repeat":1.1,"pooling_type":"Last","temperature":0.8,"top_k":80,"top_p":0.8},"model":"None","multimodal_projection":"None","use_chat_template_override":false}'  # noqa: E501
POOL = '{"agents":[{"desired_slots_total":4,"download_current":0,"download_filename":null,"download_indeterminate":true,"download_total":0,"id":"b0Jf3kQe1uYtV5xM9sLpA","issues":[{"ModelCannotBeLoaded":{"model_path":"/srv/m.gguf"}}],"model_path":null,"name":"rack-3","slots_processing":0,"slots_total":0,"state_application_status":"AttemptedAndRetrying","uses_chat_template_override":false}]}'  # noqa: E501


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            RAW_PROMPT,
            InferenceRequest("job-7", ContinueFromRawPromptParams("Two plus two is", 24)),
        ),
        (STOP, StopRespondingTo("job-7")),
        (OVERFLOW, ErrorEnvelope("job-7", ErrorDescription(503, "Buffered requests overflow"))),
    ],
)
def test_frames_from_clients(text: str, message: InferenceServerMessage) -> None:
    assert parse_inference_server_message(text) == message
    assert loads(render(message)) == loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOKEN, InferenceResponse("rack-3", "job-7", ContentToken(" four"))),
        (OVERFLOW, ErrorEnvelope("job-7", ErrorDescription(503, "Buffered requests overflow"))),
        (DISABLED, TokenGenerationDisabledNotification()),
        (
            TOOL_CALL,
            InferenceResponse(
                None,
                "k2",
                ToolCallParsed((ParsedToolCall("call_9", "lookup", ValidJson({"key": "a"})),)),
            ),
        ),
        (
            EMBEDDING,
            InferenceResponse(
                "rack-3",
                "e1",
                EmbeddingProduced(Embedding((0.25, -0.5), L2(), PoolingType.LAST, "row-4")),
            ),
        ),
        (LAST_LINE, InferenceResponse(None, "fin0", EmbeddingDone())),
        (
            '{"Response":{"generated_by":null,"request_id":"x","response":"Timeout"}}',
            InferenceResponse(None, "x", Timeout()),
        ),
    ],
)
def test_frames_to_clients(text: str, message: InferenceClientMessage) -> None:
    assert parse_inference_client_message(text) == message
    assert render(message) == text.encode()


def test_a_finished_generation_counts_its_tokens() -> None:
    message = parse_inference_client_message(DONE)
    assert isinstance(message, InferenceResponse)
    assert isinstance(message.response, Done)
    usage = message.response.summary.usage
    assert usage.prompt_tokens == 31
    assert usage.content_tokens + usage.reasoning_tokens + usage.tool_call_tokens == 23
    assert render(message) == DONE.encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"Notification":{"Version":{"version":"4.1.0"}}}', Version("4.1.0")),
        (STOP, StopRespondingTo("job-7")),
        (ASK_METADATA, AgentRequest("r9", GetModelMetadata())),
        (
            EMBED,
            AgentRequest(
                "r8",
                GenerateEmbeddingBatchParams(
                    (EmbeddingInputDocument("row-1", "abc"),), RmsNorm(0.00001)
                ),
            ),
        ),
    ],
)
def test_frames_to_agents(text: str, message: AgentMessage) -> None:
    assert parse_agent_message(text) == message
    assert loads(render(message)) == loads(text)


def test_a_state_for_an_agent() -> None:
    message = parse_agent_message(SET_STATE)
    assert isinstance(message, SetState)
    assert message.desired_state.model == HuggingFaceModel("m.gguf", "org/m", "main")
    assert message.desired_state.inference_parameters.pooling_type is PoolingType.MEAN
    assert render(message) == SET_STATE.encode()
    inner = dumps(unstructure(message.desired_state))
    assert structure(loads(inner), AgentDesiredState) == message.desired_state


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            REGISTER,
            RegisterAgent(
                "rack-3",
                SlotAggregatedStatusSnapshot(
                    desired_slots_total=4,
                    download_current=0,
                    download_filename=None,
                    download_indeterminate=True,
                    download_total=0,
                    issues=(),
                    model_path=None,
                    slots_processing=0,
                    slots_total=0,
                    state_application_status=AgentStateApplicationStatus.FRESH,
                    uses_chat_template_override=False,
                    version=0,
                ),
            ),
        ),
        ('{"Notification":"DeregisterAgent"}', DeregisterAgent()),
        (
            METADATA,
            AgentResponse.of(
                "r9", LoadedModelMetadata(ModelMetadata({"general.architecture": "llama"}))
            ),
        ),
        (
            '{"Response":{"generated_by":null,"request_id":"r9","response":{"ModelMetadata":null}}}',
            AgentResponse.of("r9", LoadedModelMetadata(None)),
        ),
        (OVERFLOW, ErrorEnvelope("job-7", ErrorDescription(503, "Buffered requests overflow"))),
    ],
)
def test_frames_from_agents(text: str, message: BalancerMessage) -> None:
    assert parse_balancer_message(text) == message
    assert loads(render(message)) == loads(text)


def test_an_answer_is_read_in_full_where_somebody_needs_it() -> None:
    message = parse_balancer_message(METADATA)
    assert isinstance(message, AgentResponse)
    body = structure(message.response_raw, AgentResponseBody)
    assert body == LoadedModelMetadata(ModelMetadata({"general.architecture": "llama"}))


def test_a_conversation() -> None:
    params = structure(loads(CONVERSATION), ContinueFromConversationHistoryParams)
    assert params.conversation_history[1].content == (
        TextPart("Describe"),
        ImageUrlPart(ImageUrl("data:image/png;base64,AAAA")),
    )
    assert loads(dumps(unstructure(params))) == loads(CONVERSATION)


def test_the_state_of_an_empty_balancer() -> None:
    assert structure(loads(INITIAL_STATE), BalancerDesiredState) == BalancerDesiredState.default()
    assert dumps(unstructure(BalancerDesiredState.default())) == INITIAL_STATE


def test_a_pool() -> None:
    pool = structure(loads(POOL), AgentControllerPoolSnapshot)
    assert (
        pool.agents[0].state_application_status
        is AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING
    )
    assert dumps(unstructure(pool)) == POOL.encode()


@pytest.mark.parametrize(
    "text", ['"None"', '{"LocalToAgent":"/m"}', '{"Url":{"url":"http://x/m.gguf"}}']
)
def test_models(text: str) -> None:
    assert dumps(unstructure(structure(loads(text), DesiredModel))) == text.encode()

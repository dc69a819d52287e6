"""The published Python client, unmodified, against a real balancer, agent and engine.

It is an asyncio library, so each test runs its own loop. Whatever it raises or cannot parse is a
failure of ours: it is one of the two judges of compatibility.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import httpx
import pytest
from fleet import Fleet
from paddler_client import ClientInference, ClientManagement
from paddler_client.agent_desired_model import AgentDesiredModel
from paddler_client.agent_state_application_status import AgentStateApplicationStatus
from paddler_client.balancer_desired_state import BalancerDesiredState
from paddler_client.chat_template import ChatTemplate
from paddler_client.continue_from_conversation_history_params import (
    ContinueFromConversationHistoryParams,
)
from paddler_client.continue_from_raw_prompt_params import ContinueFromRawPromptParams
from paddler_client.conversation_message import ConversationMessage
from paddler_client.embedding_input_document import EmbeddingInputDocument
from paddler_client.embedding_normalization_method import EmbeddingNormalizationMethod
from paddler_client.error import HttpError
from paddler_client.generate_embedding_batch_params import GenerateEmbeddingBatchParams
from paddler_client.grammar_constraint import (
    GbnfGrammarConstraint,
    GrammarConstraint,
    JsonSchemaGrammarConstraint,
)
from paddler_client.huggingface_model_reference import HuggingFaceModelReference
from paddler_client.inference_message import InferenceMessage, InferenceMessageKind
from paddler_client.inference_parameters import InferenceParameters
from paddler_client.kv_cache_dtype import KvCacheDtype
from paddler_client.pooling_type import PoolingType
from paddler_client.tool import Function, Tool
from paddler_client.tool_call_arguments import ValidJson
from paddler_client.url_model_reference import UrlModelReference
from paddler_client.validated_parameters_schema import ValidatedParametersSchema

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

Kind = InferenceMessageKind

ENDLESS = GbnfGrammarConstraint(grammar='root ::= "la " root', root="root")
WEATHER = Tool(
    function=Function(
        name="get_weather",
        description="Get the current weather for a city",
        parameters=ValidatedParametersSchema(
            type="object",
            properties={"location": {"type": "string", "description": "City name"}},
            required=["location"],
        ),
    )
)


class ParamsWithParsedCalls(ContinueFromConversationHistoryParams):
    """What an application adds to ask for parsed tool calls: the client has no field for it."""

    parse_tool_calls: bool = True


@asynccontextmanager
async def clients(
    fleet: Fleet, *, sockets: int = 1
) -> AsyncIterator[tuple[ClientInference, ClientManagement]]:
    async with (
        ClientInference(fleet.inference_url, socket_pool_size=sockets) as inference,
        ClientManagement(fleet.management_url) as management,
    ):
        yield inference, management


def raw(max_tokens: int, prompt: str = "Sing:") -> ContinueFromRawPromptParams:
    return ContinueFromRawPromptParams(raw_prompt=prompt, max_tokens=max_tokens, grammar=ENDLESS)


def chat(
    text: str,
    *,
    thinking: bool = False,
    grammar: GrammarConstraint | None = None,
    tools: list[Tool] | None = None,
    max_tokens: int = 200,
) -> ContinueFromConversationHistoryParams:
    return ContinueFromConversationHistoryParams(
        add_generation_prompt=True,
        conversation_history=[ConversationMessage(role="user", content=text)],
        enable_thinking=thinking,
        grammar=grammar,
        max_tokens=max_tokens,
        tools=tools or [],
    )


async def everything(stream: AsyncIterable[InferenceMessage]) -> list[InferenceMessage]:
    return [message async for message in stream]


async def close(stream: AsyncIterator[object]) -> None:
    """Stop following; the client's streams are generators, which its types do not say."""
    assert isinstance(stream, AsyncGenerator)
    await stream.aclose()


def text_of(messages: list[InferenceMessage], kind: InferenceMessageKind) -> str:
    return "".join(m.token or "" for m in messages if m.kind == kind)


# ------------------------------------------------------------------------------------- generation


def test_both_services_are_healthy(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, management):
            assert await inference.get_health() == "OK"
            assert await management.get_health() == "OK"

    asyncio.run(body())


def test_five_tokens_are_exactly_five_messages_and_then_done(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, _):
            messages = await everything(await inference.continue_from_raw_prompt(raw(5)))
        *tokens, last = messages
        assert len(tokens) == 5
        assert all(message.is_token and message.token for message in tokens)
        assert last.is_done
        assert last.summary is not None
        assert last.summary.usage.completion_tokens == 5
        assert last.summary.usage.prompt_tokens > 0
        assert {message.generated_by for message in messages} == {"a1"}
        assert len({message.request_id for message in messages}) == 1

    asyncio.run(body())


@pytest.mark.parametrize("over", ["http", "socket"])
@pytest.mark.parametrize("thinking", [False, True])
def test_a_conversation_is_answered(fleet: Fleet, over: str, thinking: bool) -> None:
    async def body() -> None:
        params = chat("Hello!", thinking=thinking)
        async with clients(fleet) as (inference, _):
            messages = await everything(
                inference.post_continue_from_conversation_history(params)
                if over == "http"
                else await inference.continue_from_conversation_history(params)
            )
        assert "tiny demo model" in text_of(messages, Kind.CONTENT_TOKEN)
        assert bool(text_of(messages, Kind.REASONING_TOKEN).strip()) == thinking
        assert messages[-1].is_done
        assert messages[-1].summary is not None
        assert bool(messages[-1].summary.usage.reasoning_tokens) == thinking

    asyncio.run(body())


def test_a_grammar_decides_what_is_said(fleet: Fleet) -> None:
    async def body() -> None:
        yes_or_no = GbnfGrammarConstraint(grammar='root ::= "yes" | "no"', root="root")
        schema = json.dumps(
            {
                "type": "object",
                "properties": {"age": {"type": "integer"}},
                "required": ["age"],
                "additionalProperties": False,
            }
        )
        async with clients(fleet) as (inference, _):
            stream = await inference.continue_from_conversation_history(
                chat("Hello!", grammar=yes_or_no)
            )
            assert text_of(await everything(stream), Kind.CONTENT_TOKEN) in ("yes", "no")
            stream = await inference.continue_from_conversation_history(
                chat(
                    "Give me a JSON object with name Tamara and age 47.",
                    grammar=JsonSchemaGrammarConstraint(schema_value=schema),
                )
            )
            answer = json.loads(text_of(await everything(stream), Kind.CONTENT_TOKEN))
            assert answer.keys() == {"age"}
            assert isinstance(answer["age"], int)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        (
            chat("x", thinking=True, grammar=ENDLESS),
            Kind.GRAMMAR_INCOMPATIBLE_WITH_THINKING,
        ),
        (
            chat("x", grammar=GbnfGrammarConstraint(grammar="root ::= (", root="root")),
            Kind.GRAMMAR_INITIALIZATION_FAILED,
        ),
        (
            chat("x", grammar=JsonSchemaGrammarConstraint(schema_value="{")),
            Kind.GRAMMAR_SYNTAX_ERROR,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_grammar_that_cannot_be_is_said_to_be(
    fleet: Fleet, params: ContinueFromConversationHistoryParams, kind: InferenceMessageKind
) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, _):
            stream = await inference.continue_from_conversation_history(params)
            (message,) = await everything(stream)
            assert message.kind == kind
            assert message.error_message
            lines = inference.post_continue_from_conversation_history(params)
            assert [m.kind for m in await everything(lines)] == [kind]

    asyncio.run(body())


def test_tool_calls_are_raw_tokens_unless_parsing_is_asked_for(fleet: Fleet) -> None:
    async def body() -> None:
        question = "What is the weather in Paris?"
        async with clients(fleet) as (inference, _):
            stream = await inference.continue_from_conversation_history(
                chat(question, tools=[WEATHER])
            )
            messages = await everything(stream)
            assert {m.kind for m in messages[:-1]} == {Kind.TOOL_CALL_TOKEN}
            call = json.loads(text_of(messages, Kind.TOOL_CALL_TOKEN))
            assert call == {"name": "get_weather", "arguments": {"location": "Paris"}}
            assert messages[-1].is_done

            params = ParamsWithParsedCalls(**dict(chat(question, tools=[WEATHER])))
            messages = await everything(inference.post_continue_from_conversation_history(params))
            (parsed,) = [m for m in messages if m.kind == Kind.TOOL_CALL_PARSED]
            assert parsed.parsed_tool_calls is not None
            (tool_call,) = parsed.parsed_tool_calls
            assert (tool_call.name, tool_call.id != "") == ("get_weather", True)
            assert tool_call.arguments == ValidJson({"location": "Paris"})
            assert messages[-1].is_done

            stream = await inference.continue_from_conversation_history(params)
            messages = await everything(stream)
            assert messages[-1].kind == Kind.TOOL_CALL_PARSED, "for this client it ends the stream"

    asyncio.run(body())


def test_arguments_that_break_the_schema_are_reported(fleet: Fleet) -> None:
    async def body() -> None:
        tool = WEATHER.model_copy(deep=True)
        assert tool.function.parameters is not None
        tool.function.parameters.properties = {"location": {"type": "string", "maxLength": 2}}
        question = chat("What is the weather in Paris?", tools=[tool])
        async with clients(fleet) as (inference, _):
            messages = await everything(
                inference.post_continue_from_conversation_history(
                    ParamsWithParsedCalls(**dict(question))
                )
            )
        (failed,) = [m for m in messages if m.kind == Kind.TOOL_CALL_VALIDATION_FAILED]
        assert "get_weather" in (failed.error_message or "")
        assert messages[-1].is_done

    asyncio.run(body())


def test_many_streams_share_one_socket(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, _):
            numbers = range(1, 25)
            streams = [await inference.continue_from_raw_prompt(raw(n)) for n in numbers]
            answers = await asyncio.gather(*map(everything, streams))
        for number, messages in zip(numbers, answers, strict=True):
            assert messages[-1].is_done, messages[-1]
            assert len(messages) == number + 1

    asyncio.run(body())


def test_what_a_balancer_without_agents_answers_can_be_read(lonely: Fleet) -> None:
    async def body() -> None:
        async with clients(lonely) as (inference, _):
            waits = await inference.continue_from_raw_prompt(raw(1))
            overflows = await inference.continue_from_raw_prompt(raw(1))
            (message,) = await everything(overflows)
            assert (message.kind, message.error_code) == (Kind.SERVER_ERROR, 503)
            assert message.error_message == "Buffered requests overflow"
            (message,) = await everything(waits)
            assert (message.error_code, message.error_message) == (
                504,
                "Waiting for available slot timed out",
            )
            batch = GenerateEmbeddingBatchParams(
                input_batch=[EmbeddingInputDocument(id="a", content="x")],
                normalization_method=EmbeddingNormalizationMethod.l2(),
            )
            with pytest.raises(HttpError) as refusal:
                await everything(inference.generate_embedding_batch(batch))
            assert refusal.value.status_code == 501
            assert refusal.value.message == (
                "Embedding generation is not enabled in the inference parameters"
            )

    asyncio.run(body())


# ------------------------------------------------------------------------------------- management


def test_the_agents_can_be_listed_and_followed_through_a_quiet_while(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, management):
            (agent,) = (await management.get_agents()).agents
            assert (agent.name, agent.slots_total, agent.desired_slots_total) == ("a1", 4, 4)
            assert agent.state_application_status == AgentStateApplicationStatus.APPLIED
            assert agent.model_path == str(BUNDLED_MODEL)
            assert (agent.issues, agent.slots_processing) == ([], 0)

            snapshots = management.agents_stream()
            assert len((await anext(snapshots)).agents) == 1
            began_s = monotonic()
            following = asyncio.ensure_future(anext(snapshots))
            await asyncio.wait([following], timeout=5.5)  # this client's read timeout is 5 s
            assert not following.done(), "something happened, or the stream was given up"
            assert monotonic() - began_s > 5
            await everything(await inference.continue_from_raw_prompt(raw(3)))
            seen = [(await following).agents[0].slots_processing]
            while seen[-1] or len(seen) < 2:
                seen.append((await anext(snapshots)).agents[0].slots_processing)
            assert 1 in seen
            await close(snapshots)

    asyncio.run(body())


def test_waiting_requests_can_be_counted_and_followed(lonely: Fleet) -> None:
    async def body() -> None:
        async with clients(lonely) as (inference, management):
            assert (await management.get_buffered_requests()).buffered_requests_current == 0
            snapshots = management.buffered_requests_stream()
            assert (await anext(snapshots)).buffered_requests_current == 0
            stream = await inference.continue_from_raw_prompt(raw(1))
            assert (await anext(snapshots)).buffered_requests_current == 1
            await everything(stream)
            assert (await anext(snapshots)).buffered_requests_current == 0
            await close(snapshots)

    asyncio.run(body())


def test_every_field_of_the_desired_state_survives_put_and_get(lonely: Fleet) -> None:
    state = BalancerDesiredState(
        chat_template_override=ChatTemplate(content="{{ messages }} \u00e9 \U0001f600"),
        inference_parameters=InferenceParameters(
            n_batch=7,
            context_size=9,
            embedding_batch_size=11,
            enable_embeddings=True,
            image_resize_to_fit=13,
            k_cache_dtype=KvCacheDtype.BF16,
            v_cache_dtype=KvCacheDtype.Q5_1,
            min_p=0.15,
            n_gpu_layers=-1,
            penalty_frequency=0.25,
            penalty_last_n=17,
            penalty_presence=0.35,
            penalty_repeat=1.45,
            pooling_type=PoolingType.MEAN,
            temperature=0.55,
            top_k=19,
            top_p=0.65,
        ),
        model=AgentDesiredModel.from_huggingface(
            HuggingFaceModelReference(filename="f", repo_id="o/r", revision="main")
        ),
        multimodal_projection=AgentDesiredModel.from_url(UrlModelReference(url="https://x/y")),
        use_chat_template_override=True,
    )

    async def body() -> None:
        async with clients(lonely) as (_, management):
            fresh = await management.get_balancer_desired_state()
            assert fresh == BalancerDesiredState()
            try:
                await management.put_balancer_desired_state(state)
                assert await management.get_balancer_desired_state() == state
                url = f"{lonely.management_url}/api/v1/balancer_applicable_state"
                async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                    applicable = (await http.get(url)).json()
                expected = state.model_dump(mode="json", exclude={"use_chat_template_override"})
                assert applicable == expected
            finally:
                await management.put_balancer_desired_state(fresh)

    asyncio.run(body())


def test_a_model_tells_about_itself_and_an_override_about_its_template(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (inference, management):
            (agent,) = (await management.get_agents()).agents
            found = await management.get_model_metadata(agent.id)
            assert found is not None
            assert found.metadata["general.architecture"] == "llama"
            assert "tokenizer.chat_template" in found.metadata
            assert await management.get_chat_template_override(agent.id) is None

            template = ChatTemplate(content="Repeat: {{ messages[-1].content }}")
            before = await management.get_balancer_desired_state()
            state = before.model_copy(
                update={"chat_template_override": template, "use_chat_template_override": True}
            )
            await management.put_balancer_desired_state(state)
            try:
                await asyncio.to_thread(fleet.wait_serving)
                assert await management.get_chat_template_override(agent.id) == template
                (agent,) = (await management.get_agents()).agents
                assert agent.uses_chat_template_override
                params = chat("x", max_tokens=1)
                messages = await everything(
                    inference.post_continue_from_conversation_history(params)
                )
                assert messages[-1].is_done
            finally:
                await management.put_balancer_desired_state(before)
                await asyncio.to_thread(fleet.wait_serving)
            with pytest.raises(HttpError) as refusal:
                await management.get_model_metadata("nobody")
            assert (refusal.value.status_code, refusal.value.message) == (404, "")

    asyncio.run(body())


def test_metrics_count_slots(fleet: Fleet) -> None:
    async def body() -> None:
        async with clients(fleet) as (_, management):
            text = await management.get_metrics()
        assert "\npaddler_slots_total 4\n" in text
        assert "\npaddler_slots_processing 0\n" in text
        assert "\npaddler_requests_buffered 0\n" in text

    asyncio.run(body())

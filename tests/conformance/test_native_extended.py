"""``/api/v2`` when the agents are Paddler 4.1's: their words where they suffice, 501 elsewhere."""

from __future__ import annotations

import pytest
from native_client import Json, result_of, running_balancer
from paddler_agent import serving_agent

HELLO = {"Conversation": {"messages": [{"role": "user", "content": "Hello!"}]}}


async def test_what_paddler_can_say_is_asked_in_its_words() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0") as agent,
        balancer.post("/api/v2/generate", {"prompt": HELLO}) as answer,
    ):
        request_id, request = await agent.next_request()
        params = request["ContinueFromConversationHistory"]
        assert params["conversation_history"] == [{"role": "user", "content": "Hello!"}]
        assert (params["max_tokens"], params["enable_thinking"]) == (32768, True)
        await agent.answer(request_id, "hi")
        results = [result_of(line) for line in await answer.rest()]
        assert results[0] == {"ContentToken": "hi"}
        assert [*results[-1]] == ["Done"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": HELLO, "stop": ["END"]}, "stop"),
        ({"prompt": HELLO, "sampling": {"seed": 1}}, "sampling.seed"),
        ({"prompt": {"Tokens": {"tokens": [1]}}}, "prompt.Tokens"),
    ],
)
async def test_what_it_cannot_say_is_answered_501_with_the_field(body: Json, field: str) -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        answer = await balancer.http.post(balancer.inference_url("/api/v2/generate"), json=body)
        assert (answer.status_code, field in answer.text) == (501, True)
        assert agent.requests() == []


async def test_it_answers_no_questions() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0"):
        answer = await balancer.http.get(balancer.inference_url("/api/v2/model"))
        assert answer.status_code == 501

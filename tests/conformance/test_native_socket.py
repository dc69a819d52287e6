"""The inference WebSocket, frame by frame, against agents that speak plain Paddler 4.1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio_websocket
from native_client import (
    Json,
    RunningBalancer,
    error_of,
    open_answer,
    request_id_of,
    result_of,
    running_balancer,
    text_of,
)
from paddler_agent import DONE, PaddlerAgent, serving_agent

DISABLED = "Token generation is disabled while the cluster is configured for embeddings"


@asynccontextmanager
async def balancer_with_agent(
    slots: int, **config: Json
) -> AsyncIterator[tuple[RunningBalancer, PaddlerAgent]]:
    """A balancer and one agent that may get work."""
    async with (
        running_balancer(**config) as balancer,
        serving_agent(balancer.management, "a0", slots=slots) as agent,
    ):
        await balancer.wait_agents(lambda seen: [a["slots_total"] for a in seen] == [slots])
        yield balancer, agent


async def test_a_plain_get_of_the_socket_is_a_400() -> None:
    async with (
        running_balancer() as balancer,
        open_answer(balancer.inference, "GET", "/api/v1/inference_socket") as answer,
    ):
        assert answer.status_code == 400


async def test_answers_interleave_and_each_keeps_its_order() -> None:
    async with balancer_with_agent(2) as (balancer, agent), balancer.socket() as client:
        await client.ask("one")
        first, _ = await agent.next_request()
        await client.ask("two")
        second, _ = await agent.next_request()
        frames = []
        for wire_id, text in ((second, "b"), (first, "a"), (second, "d"), (first, "c")):
            await agent.token(wire_id, text)
            frames.append(await client.next())  # none waits for the other
        for wire_id in (first, second):
            await agent.done(wire_id)
            frames.append(await client.next())
    assert [request_id_of(f) for f in frames] == ["two", "one", "two", "one", "one", "two"]
    for request_id, text in (("one", "ac"), ("two", "bd")):
        mine = [f for f in frames if request_id_of(f) == request_id]
        assert text_of(mine) == text
        assert result_of(mine[-1]) == DONE
        assert {f["Response"]["generated_by"] for f in mine} == {"a0"}


async def test_a_client_that_reads_late_gets_every_token_of_all_its_requests_in_order() -> None:
    async with balancer_with_agent(2) as (balancer, agent), balancer.socket() as client:
        ids = {}
        for name in ("one", "two"):
            await client.ask(name)
            ids[name], _ = await agent.next_request()
        expected = {name: [f"{name} {n} ".ljust(25_000, "x") for n in range(300)] for name in ids}
        for n in range(300):  # 15 MB: more than the kernel holds
            for name, wire_id in ids.items():
                await agent.token(wire_id, expected[name][n])
        for wire_id in ids.values():
            await agent.done(wire_id)
        frames = [await client.next() for _ in range(602)]
    for name, texts in expected.items():
        mine = [f for f in frames if request_id_of(f) == name]
        assert [text_of([f]) for f in mine[:-1]] == texts
        assert result_of(mine[-1]) == DONE


async def test_a_client_chosen_id_never_reaches_an_agent_so_two_sockets_may_share_one() -> None:
    async with (
        balancer_with_agent(2) as (balancer, agent),
        balancer.socket() as one,
        balancer.socket() as two,
    ):
        await one.ask("same")
        first, _ = await agent.next_request()
        await two.ask("same")
        second, _ = await agent.next_request()
        assert len({first, second, "same"}) == 3
        await agent.answer(second, "two's")
        await agent.answer(first, "one's")
        assert text_of(await one.until_over("same")) == "one's"
        assert text_of(await two.until_over("same")) == "two's"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"max_buffered_requests": 0}, (503, "Buffered requests overflow")),
        ({"buffered_request_timeout_s": 0.05}, (504, "Waiting for available slot timed out")),
    ],
)
async def test_errors_come_as_frames_with_the_clients_id(
    config: Json, error: tuple[int, str]
) -> None:
    async with running_balancer(**config) as balancer, balancer.socket() as client:
        await client.ask("x")
        (frame,) = await client.until_over("x")
    assert error_of(frame) == error


async def test_an_id_that_every_token_would_repeat_has_a_length() -> None:
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        await client.ask("x" * 257)
        assert error_of(await client.next()) == (
            400,
            "the id has 257 characters, the limit is 256",
        )
        await client.ask("y" * 256)
        wire_id, _ = await agent.next_request()
        await agent.done(wire_id)
        assert request_id_of(await client.next()) == "y" * 256


async def test_an_id_in_flight_is_refused_once_more_and_the_original_stays_stoppable() -> None:
    async with balancer_with_agent(2) as (balancer, agent), balancer.socket() as client:
        await client.ask("x")
        wire_id, _ = await agent.next_request()
        await client.ask("x")
        assert error_of(await client.next()) == (
            400,
            'Request id "x" is already in flight on this connection',
        )
        assert agent.requests() == [wire_id]
        await client.stop("x")
        assert await agent.next_stop() == wire_id


async def test_a_stopped_request_holds_its_id_and_slot_until_the_agent_confirms() -> None:
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        await client.ask("x")
        wire_id, _ = await agent.next_request()
        await client.stop("x")
        assert await agent.next_stop() == wire_id
        await client.ask("x")
        code, _ = error_of(await client.next())
        assert code == 400
        await agent.token(wire_id, "nobody sees this")
        assert [a["slots_processing"] for a in await balancer.agents()] == [1]
        await agent.done(wire_id)
        await balancer.wait_slots(0)
        await client.ask("x")
        again, _ = await agent.next_request()
        await agent.answer(again, "again")
        assert text_of(await client.until_over("x")) == "again"


async def test_stopping_a_waiting_request_frees_its_place_without_a_word() -> None:
    async with running_balancer(max_buffered_requests=1) as balancer, balancer.socket() as client:
        await client.ask("a")
        await balancer.wait_buffered(1)
        await client.stop("a")
        await balancer.wait_buffered(0)
        await client.stop("a")
        await client.stop("never heard of")
        await client.ask("b")
        await balancer.wait_buffered(1)
        await client.ask("c")
        assert request_id_of(await client.next()) == "c"


async def test_stopping_one_request_leaves_its_sibling_running() -> None:
    async with balancer_with_agent(2) as (balancer, agent), balancer.socket() as client:
        await client.ask("stays")
        stays, _ = await agent.next_request()
        await client.ask("goes")
        goes, _ = await agent.next_request()
        await client.stop("goes")
        assert await agent.next_stop() == goes
        await agent.done(goes)
        await agent.answer(stays)
        assert text_of(await client.until_over("stays")) == "ok"


async def test_as_many_waiting_requests_are_served_as_slot_holders_stop() -> None:
    async with balancer_with_agent(3) as (balancer, agent), balancer.socket() as client:
        holders = {}
        for name in ("a", "b", "c"):
            await client.ask(name)
            holders[name], _ = await agent.next_request()
        for name in ("d", "e", "f"):
            await client.ask(name)
        await balancer.wait_buffered(3)
        for name in ("a", "b"):
            await client.stop(name)
            await agent.done(holders[name])
        served = [(await agent.next_request())[0] for _ in range(2)]
        await balancer.wait_buffered(1)
        await client.stop("c")
        await agent.done(holders["c"])
        served.append((await agent.next_request())[0])
        for wire_id, name in zip(served, ("d", "e", "f"), strict=True):
            await agent.answer(wire_id, name)
            assert text_of(await client.until_over(name)) == name


async def test_closing_the_connection_cancels_everything_on_it() -> None:
    async with balancer_with_agent(1) as (balancer, agent):
        async with balancer.socket() as client:
            await client.ask("running")
            wire_id, _ = await agent.next_request()
            await client.ask("waiting")
            await balancer.wait_buffered(1)
        assert await agent.next_stop() == wire_id
        await balancer.wait_buffered(0)
        await agent.done(wire_id)
        await balancer.wait_slots(0)
        assert agent.requests() == [wire_id]


@pytest.mark.parametrize(
    "noise",
    [
        "not json",
        "{}",
        b"binary",
        {"Error": {"request_id": "x", "error": {"code": 500, "description": "mine"}}},
        {"Notification": "StopRespondingTo"},
        {"Notification": {"Version": {"version": "1"}}},
        {"Response": {"generated_by": None, "request_id": "x", "response": "Timeout"}},
    ],
    ids=lambda noise: json.dumps(noise)[:20] if not isinstance(noise, bytes) else "binary",
)
async def test_what_is_not_for_a_balancer_disturbs_nobody(noise: Json) -> None:
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        await client.ask("x")
        wire_id, _ = await agent.next_request()
        await client.say(noise)
        await agent.answer(wire_id)
        assert text_of(await client.until_over("x")) == "ok"


async def test_a_request_that_cannot_be_read_is_answered_instead_of_left_waiting() -> None:
    async with running_balancer() as balancer, balancer.socket() as client:
        await client.say({"Request": {"id": "x", "request": {"ContinueFromRawPrompt": {}}}})
        frame = await client.next()
        assert request_id_of(frame) == "x"
        code, text = error_of(frame)
        assert code == 400
        assert text.startswith("Json deserialize error: ")


async def test_a_tool_schema_problem_fails_that_request_and_not_the_socket() -> None:
    parameters = {"type": "object", "properties": {"a": {}}, "required": ["b"]}
    function = {"name": "f", "description": "d", "parameters": parameters}
    conversation = {
        "add_generation_prompt": True,
        "conversation_history": [],
        "enable_thinking": False,
        "max_tokens": 5,
        "tools": [{"type": "function", "function": function}],
    }
    request = {"ContinueFromConversationHistory": conversation}
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        await client.ask("good")
        wire_id, _ = await agent.next_request()
        await client.say({"Request": {"id": "bad", "request": request}})
        code, text = error_of(await client.next())
        assert code == 400
        assert "Required field 'b' not found in properties" in text
        await agent.answer(wire_id)
        assert text_of(await client.until_over("good")) == "ok"


async def test_in_embeddings_mode_the_socket_answers_for_the_agents() -> None:
    async with balancer_with_agent(1) as (balancer, agent):
        await balancer.put_parameters(enable_embeddings=True)
        async with balancer.socket() as client:
            assert await client.next() == {"Notification": "TokenGenerationDisabled"}
            await client.ask("x")
            assert await client.next() == {
                "Response": {
                    "generated_by": None,
                    "request_id": "x",
                    "response": {"GeneratedToken": {"TokenGenerationDisabled": DISABLED}},
                }
            }
            assert agent.requests() == []
            await balancer.put_parameters(temperature=0.5)
            await balancer.put_parameters(enable_embeddings=False)
            assert await client.next() == {"Notification": "TokenGenerationEnabled"}
            await agent.load(1)
            await client.ask("x")
            wire_id, _ = await agent.next_request()
            await agent.answer(wire_id)
            assert text_of(await client.until_over("x")) == "ok"


async def test_nothing_is_announced_to_a_socket_that_finds_generation_enabled() -> None:
    async with running_balancer() as balancer, balancer.socket() as client:
        await balancer.put_parameters(temperature=0.5)
        await balancer.put_parameters(enable_embeddings=True)
        assert await client.next() == {"Notification": "TokenGenerationDisabled"}


async def test_a_ping_is_answered() -> None:
    async with running_balancer() as balancer, balancer.socket() as client:
        with trio.fail_after(60):
            await client.connection.ping(b"payload")


@pytest.mark.parametrize("offset", range(2))
async def test_a_large_message_reaches_an_agent_as_it_was(offset: int) -> None:
    """It goes in fragments of 1 MiB; with one of the two offsets a fragment ends in a character."""
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        prompt = "x" * offset + "😀" * 700_000
        await client.ask("large", raw_prompt=prompt)
        wire_id, request = await agent.next_request()
        assert request["ContinueFromRawPrompt"]["raw_prompt"] == prompt
        await agent.done(wire_id)
        assert len(await client.until_over("large")) == 1


async def test_a_request_that_would_cost_a_paddler_agent_its_link_is_refused() -> None:
    async with balancer_with_agent(1) as (balancer, agent), balancer.socket() as client:
        await client.ask("huge", raw_prompt="x" * (16 * 1024 * 1024))
        code, text = error_of(await client.next())
        assert code == 413
        assert "at most 16773120 are taken" in text
        await client.ask("next")
        wire_id, _ = await agent.next_request()
        await agent.answer(wire_id)
        assert text_of(await client.until_over("next")) == "ok"


async def test_at_shutdown_the_socket_closes_with_1001_after_telling_who_waits() -> None:
    async with running_balancer() as balancer, balancer.socket() as client:
        await client.ask("waits")
        await balancer.wait_buffered(1)
        balancer.stop.set()
        assert error_of(await client.next()) == (503, "balancer is shutting down")
        with pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await client.next()
        assert closed.value.reason is not None
        assert (closed.value.reason.code, closed.value.reason.reason) == (
            1001,
            "Server shutting down",
        )

"""Generation and embeddings over HTTP, line by line, against agents that speak Paddler 4.1."""

from __future__ import annotations

import json

import httpx
import pytest
import trio
from native_client import (
    CHAT,
    CONVERSATION,
    EMBED,
    RAW,
    RAW_PROMPT,
    Json,
    RunningBalancer,
    agents_of,
    error_of,
    is_ending,
    only_line,
    result_of,
    running_balancer,
    text_of,
)
from paddler_agent import DONE, PaddlerAgent, dial, serving_agent

OVERFLOW = (503, "Buffered requests overflow")
NO_SLOT = (504, "Waiting for available slot timed out")
LOST = (502, "Agent controller connection closed")


# ----------------------------------------------------------------------- what an answer is made of


async def test_an_answer_is_json_lines_of_one_request_that_end_with_its_ending() -> None:
    async with running_balancer() as balancer, agents_of(balancer, 1) as (agent,):
        async with balancer.generate() as answer:
            wire_id, _ = await agent.next_request()
            await agent.token(wire_id, "four\n")
            await agent.respond(wire_id, {"GeneratedToken": {"ReasoningToken": "hm"}})
            await agent.done(wire_id)
            await agent.token(wire_id, "too late")
            body = await answer.body()
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["transfer-encoding"] == "chunked"
    assert body.endswith(b"}\n")
    lines = [json.loads(line) for line in body.decode().removesuffix("\n").split("\n")]
    assert [result_of(line) for line in lines] == [
        {"ContentToken": "four\n"},
        {"ReasoningToken": "hm"},
        DONE,
    ]
    assert all(line.keys() == {"Response"} for line in lines)
    envelopes = [line["Response"] for line in lines]
    assert all(e.keys() == {"generated_by", "request_id", "response"} for e in envelopes)
    assert {e["generated_by"] for e in envelopes} == {"a0"}
    assert len({e["request_id"] for e in envelopes}) == 1


async def test_an_agent_without_a_name_is_null_in_generated_by() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "nameless") as agent:
        await agent.register(None)
        await agent.load(1)
        async with balancer.generate() as answer:
            wire_id, _ = await agent.next_request()
            await agent.done(wire_id)
            (line,) = await answer.rest()
    assert line["Response"]["generated_by"] is None


async def test_agents_get_every_field_of_a_request_whatever_the_client_left_out() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d"}}
    async with running_balancer() as balancer, agents_of(balancer, 1) as (agent,):
        seen = []
        for path, body in (
            (RAW, RAW_PROMPT),
            (CHAT, CONVERSATION),
            (CHAT, CONVERSATION | {"tools": [], "grammar": None}),
            (CHAT, CONVERSATION | {"tools": [tool], "parse_tool_calls": True}),
        ):
            async with balancer.post(path, body) as answer:
                wire_id, request = await agent.next_request()
                seen.append(request)
                await agent.done(wire_id)
                assert len(await answer.rest()) == 1
    full = CONVERSATION | {"grammar": None, "parse_tool_calls": False, "tools": []}
    assert seen == [
        {"ContinueFromRawPrompt": RAW_PROMPT | {"grammar": None}},
        {"ContinueFromConversationHistory": full},
        {"ContinueFromConversationHistory": full},
        {"ContinueFromConversationHistory": full | {"tools": [tool], "parse_tool_calls": True}},
    ]


@pytest.mark.parametrize(
    "ending",
    [
        {"ChatTemplateError": "x"},
        {"DetokenizationFailed": "x"},
        {"GrammarIncompatibleWithThinking": "x"},
        {"GrammarInitializationFailed": "x"},
        {"GrammarRejectedModelOutput": "x"},
        {"GrammarSyntaxError": "x"},
        {"ImageDecodingFailed": "x"},
        {"ImageExceedsBatchSize": {"image_tokens": 9, "n_batch": 4}},
        {"MultimodalNotSupported": "x"},
        {"SamplerError": "x"},
        {"TokenGenerationDisabled": "x"},
        {"ToolSchemaInvalid": "x"},
    ],
    ids=lambda ending: next(iter(ending)),
)
async def test_every_ending_of_an_agent_ends_the_answer_and_frees_the_slot(ending: Json) -> None:
    async with running_balancer() as balancer, agents_of(balancer, 1) as (agent,):
        async with balancer.generate() as answer:
            wire_id, _ = await agent.next_request()
            await agent.respond(wire_id, {"GeneratedToken": ending})
            (line,) = await answer.rest()
        await balancer.wait_slots(0)
    assert result_of(line) == ending


async def test_tool_call_events_pass_through_and_end_nothing() -> None:
    events: list[Json] = [
        {"ToolCallToken": "{"},
        {"ToolCallParsed": [{"id": "c", "name": "f", "arguments": {"ValidJson": {"a": 1}}}]},
        {"ToolCallParseFailed": "x"},
        {"ToolCallValidationFailed": ["f: x"]},
        {"UnrecognizedToolCallFormat": {"text": "t", "ffi_error_message": "m"}},
        {"UndeterminableToken": "u"},
        DONE,
    ]
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        for event in events:
            await agent.respond(wire_id, {"GeneratedToken": event})
        assert [result_of(line) for line in await answer.rest()] == events


# ------------------------------------------------------------------------------ waiting for a slot


async def test_without_agents_a_request_waits_and_gets_504() -> None:
    async with running_balancer(buffered_request_timeout_s=0.05) as balancer:
        line = await only_line(balancer, RAW, RAW_PROMPT)
        assert error_of(line) == NO_SLOT
        assert error_of(await only_line(balancer, CHAT, CONVERSATION)) == NO_SLOT


async def test_without_a_buffer_whoever_finds_no_slot_gets_503() -> None:
    async with running_balancer(max_buffered_requests=0) as balancer:
        assert error_of(await only_line(balancer, RAW, RAW_PROMPT)) == OVERFLOW
        async with dial(balancer.management, "starting") as agent:
            await agent.register("starting")
            await balancer.wait_agents(lambda agents: len(agents) == 1)
            assert error_of(await only_line(balancer, RAW, RAW_PROMPT)) == OVERFLOW


async def test_a_busy_slot_without_a_buffer_refuses_the_second_and_keeps_the_first() -> None:
    async with (
        running_balancer(max_buffered_requests=0) as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as first,
    ):
        wire_id, _ = await agent.next_request()
        await agent.token(wire_id, "a")
        assert text_of([await first.next_line()]) == "a"
        assert error_of(await only_line(balancer, RAW, RAW_PROMPT)) == OVERFLOW
        await agent.answer(wire_id, "b")
        assert text_of(await first.rest()) == "b"


async def test_a_waiting_request_is_served_once_an_agent_has_loaded_its_model() -> None:
    async with running_balancer() as balancer, trio.open_nursery() as nursery:

        async def ask() -> None:
            async with balancer.generate() as answer:
                assert text_of(await answer.rest()) == "here"

        nursery.start_soon(ask)
        await balancer.wait_buffered(1)
        agent = await nursery.start(_serve_until_cancelled, balancer)
        wire_id, _ = await agent.next_request()
        assert await balancer.buffered() == 0
        await agent.answer(wire_id, "here")
        await balancer.wait_slots(0)
        nursery.cancel_scope.cancel()


async def _serve_until_cancelled(
    balancer: RunningBalancer, *, task_status: trio.TaskStatus[PaddlerAgent]
) -> None:
    async with serving_agent(balancer.management, "late") as agent:
        task_status.started(agent)
        await trio.sleep_forever()


async def test_after_a_504_the_next_request_finds_the_agent_that_has_come() -> None:
    async with running_balancer(buffered_request_timeout_s=0.2) as balancer:
        assert error_of(await only_line(balancer, RAW, RAW_PROMPT)) == NO_SLOT
        async with agents_of(balancer, 1) as (agent,), balancer.generate() as answer:
            wire_id, _ = await agent.next_request()
            await agent.answer(wire_id)
            assert text_of(await answer.rest()) == "ok"


async def test_five_requests_share_two_agents_with_two_slots_each() -> None:
    async with running_balancer() as balancer, agents_of(balancer, 2, 2) as agents:
        answers: list[list[Json]] = []

        async def ask() -> None:
            async with balancer.generate() as answer:
                answers.append(await answer.rest())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            held = [await agent.next_request() for agent in agents for _ in range(2)]
            await balancer.wait_buffered(1)
            await balancer.wait_slots(2, 2)
            assert await balancer.metric("slots_processing") == 4
            await agents[0].answer(held[0][0], "first")
            fifth, _ = await agents[0].next_request()
            for agent, wire_id in (
                (agents[0], held[1][0]),
                (agents[0], fifth),
                (agents[1], held[2][0]),
                (agents[1], held[3][0]),
            ):
                await agent.answer(wire_id)
        await balancer.wait_slots(0, 0)
    assert len(answers) == 5
    for lines in answers:
        assert is_ending(lines[-1])
        assert len({line["Response"]["generated_by"] for line in lines}) == 1


async def test_a_burst_spreads_over_every_agent() -> None:
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 4, 4, 4, 4) as agents,
        trio.open_nursery() as nursery,
    ):

        async def ask() -> None:
            async with balancer.generate() as answer:
                await answer.rest()

        for _ in range(16):
            nursery.start_soon(ask)
        await balancer.wait_slots(4, 4, 4, 4)
        for agent in agents:
            for _ in range(4):
                await agent.done((await agent.next_request())[0])


# --------------------------------------------------------------------------- the client goes away


async def test_a_dropped_answer_stops_the_agent_and_keeps_the_slot_until_it_confirms() -> None:
    async with running_balancer() as balancer, agents_of(balancer, 1) as (agent,):
        async with balancer.generate() as answer:
            wire_id, _ = await agent.next_request()
            await agent.token(wire_id, "a")
            await answer.next_line()
        assert await agent.next_stop() == wire_id
        assert [a["slots_processing"] for a in await balancer.agents()] == [1]
        await agent.token(wire_id, "still running")
        assert [a["slots_processing"] for a in await balancer.agents()] == [1]
        await agent.done(wire_id)
        await balancer.wait_slots(0)


async def test_half_closing_the_connection_frees_a_waiting_request() -> None:
    async with running_balancer() as balancer:
        for path, body in ((RAW, RAW_PROMPT), (CHAT, CONVERSATION)):
            client = await _post_raw(balancer, path, body)
            await balancer.wait_buffered(1)
            await client.send_eof()
            await balancer.wait_buffered(0)
            await client.aclose()


async def test_half_closing_the_connection_stops_a_running_request() -> None:
    async with running_balancer() as balancer, agents_of(balancer, 1) as (agent,):
        client = await _post_raw(balancer, RAW, RAW_PROMPT)
        wire_id, _ = await agent.next_request()
        await agent.token(wire_id, "a")
        await client.send_eof()
        assert await agent.next_stop() == wire_id
        await agent.done(wire_id)
        await balancer.wait_slots(0)
        await client.aclose()


async def _post_raw(balancer: RunningBalancer, path: str, body: Json) -> trio.SocketStream:
    host, _, port = balancer.inference.rpartition(":")
    client = await trio.open_tcp_stream(host, int(port))
    text = json.dumps(body).encode()
    await client.send_all(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(text), text)
    )
    return client


# ------------------------------------------------------------------------- the agent fails someone


async def test_with_an_item_timeout_of_zero_the_first_message_is_504() -> None:
    async with (
        running_balancer(inference_item_timeout_s=0.0) as balancer,
        agents_of(balancer, 1) as (agent,),
    ):
        code, text = error_of(await only_line(balancer, RAW, RAW_PROMPT))
        assert (code, text.split(".")[0]) == (
            504,
            "Inference timed out after 0ms waiting for next token",
        )
        wire_id, _ = await agent.next_request()
        assert await agent.next_stop() == wire_id


async def test_a_silent_agent_is_stopped_and_its_slot_comes_back_even_without_an_ending() -> None:
    async with (
        running_balancer(inference_item_timeout_s=0.15) as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        await agent.token(wire_id, "a")
        first, last = await answer.rest()
        assert text_of([first]) == "a"
        code, text = error_of(last)
        assert code == 504
        assert text == (
            "Inference timed out after 150ms waiting for next token. Increase "
            "--inference-item-timeout if the prompt requires longer processing."
        )
        assert await agent.next_stop() == wire_id
        assert [a["slots_processing"] for a in await balancer.agents()] == [1]
        await balancer.wait_slots(0)


async def test_an_agent_lost_before_its_first_token_costs_the_client_nothing() -> None:
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 1) as (second,),
        balancer.generate() as busy,
    ):
        busy_id, _ = await second.next_request()
        async with serving_agent(balancer.management, "lost") as first:
            await balancer.wait_agents(lambda agents: len(agents) == 2)
            async with balancer.generate() as answer:
                await first.next_request()
                await first.socket.aclose()
                await balancer.wait_buffered(1)
                await second.answer(busy_id)
                wire_id, _ = await second.next_request()
                await second.answer(wire_id, "rescued")
                lines = await answer.rest()
        await busy.rest()
    assert text_of(lines) == "rescued"
    assert {line["Response"]["generated_by"] for line in lines} == {"a0"}


@pytest.mark.parametrize("way", ["close", "deregister", "crash"])
async def test_an_agent_lost_in_the_middle_of_an_answer_is_a_502(way: str) -> None:
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        await agent.token(wire_id, "half")
        await answer.next_line()
        if way == "close":
            await agent.socket.aclose()
        elif way == "deregister":
            await agent.notify("DeregisterAgent")
        else:
            await agent.crash()
        (last,) = await answer.rest()
        assert error_of(last) == LOST
        await balancer.wait_agents(lambda agents: agents == [])


@pytest.mark.parametrize(
    "bad",
    [
        {"GeneratedToken": {"Nonsense": 1}},
        {"GeneratedToken": "Done"},
        {"Timeout": None},
        {"ModelMetadata": {"metadata": {}}},
        "Timeout",
    ],
    ids=["unknown-result", "done-without-summary", "unknown-tag", "wrong-family", "bare-string"],
)
async def test_a_malformed_result_fails_its_request_and_closes_the_link(bad: Json) -> None:
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        await agent.respond(wire_id, bad)
        (last,) = await answer.rest()
        code, text = error_of(last)
        assert code == 502
        assert text.startswith("The agent sent a malformed frame: ")
        await agent.wait_closed()
        await balancer.wait_agents(lambda agents: agents == [])


async def test_results_that_nobody_waits_for_are_dropped() -> None:
    async with (
        running_balancer() as balancer,
        agents_of(balancer, 1) as (agent,),
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        await agent.answer("nobody's")
        await agent.say({"Error": {"request_id": wire_id, "error": {"code": 1, "description": ""}}})
        await agent.answer(wire_id, "mine")
        assert text_of(await answer.rest()) == "mine"
        assert not agent.is_closed


# --------------------------------------------------------------------------- requests out of order


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (RAW, {"raw_prompt": "x"}, "max_tokens"),
        (RAW, RAW_PROMPT | {"temperature": 1}, "temperature"),
        (RAW, RAW_PROMPT | {"max_tokens": 5.0}, "max_tokens"),
        (RAW, RAW_PROMPT | {"max_tokens": 2**31}, "max_tokens"),
        (RAW, RAW_PROMPT | {"grammar": {"type": "regex", "regex": "."}}, "grammar"),
        (RAW, [], ""),
        (CHAT, CONVERSATION | {"tools": None}, "tools"),
        (CHAT, CONVERSATION | {"parse_tool_calls": None}, "parse_tool_calls"),
        (CHAT, CONVERSATION | {"conversation_history": [{"role": "user"}]}, "content"),
        (EMBED, {"input_batch": []}, "normalization_method"),
    ],
)
async def test_a_body_that_is_not_one_is_refused(path: str, body: Json, says: str) -> None:
    async with running_balancer() as balancer:
        answer = await balancer.http.post(balancer.inference_url(path), json=body)
    assert answer.status_code == 400
    assert answer.text.startswith("Json deserialize error: ")
    assert answer.headers["content-type"].startswith("text/plain")
    assert says in answer.text


async def test_bodies_must_be_json_and_a_pages_must_say_so_and_they_have_a_size() -> None:
    async with running_balancer() as balancer:
        url = balancer.inference_url(RAW)

        async def post(
            content: bytes, kind: str | None, headers: dict[str, str] | None = None
        ) -> httpx.Response:
            own = {} if kind is None else {"content-type": kind}
            return await balancer.http.post(url, content=content, headers=own | (headers or {}))

        for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
            taken = await post(b'{"raw_prompt": 1}', kind)
            assert (taken.status_code, taken.text[:24]) == (400, "Json deserialize error: ")
            for no_json in (b"{", b"raw_prompt=x"):
                answer = await post(no_json, kind)
                assert (answer.status_code, answer.text) == (400, "Content type error")
            page = {"sec-fetch-site": "same-origin"}
            answer = await post(json.dumps(RAW_PROMPT).encode(), kind, page)
            assert (answer.status_code, answer.text) == (400, "Content type error")
        assert (await post(b"{", "application/json")).status_code == 400
        large = json.dumps(RAW_PROMPT | {"raw_prompt": "x" * 2_097_152}).encode()
        assert (await post(large, "application/json")).status_code == 413
        assert (await post(b'{"a":1,"a":1}', "application/vnd.x+json")).text.startswith(
            "Json deserialize error: "
        )


async def test_a_required_tool_field_that_is_no_property_is_refused() -> None:
    parameters = {"type": "object", "properties": {"a": {}}, "required": ["b"]}
    function = {"name": "f", "description": "d", "parameters": parameters}
    body = CONVERSATION | {"tools": [{"type": "function", "function": function}]}
    async with running_balancer() as balancer:
        answer = await balancer.http.post(balancer.inference_url(CHAT), json=body)
    assert answer.status_code == 400
    assert answer.text == ("Invalid request parameters: Required field 'b' not found in properties")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", RAW),
        ("POST", RAW + "/"),
        ("PUT", RAW),
        ("HEAD", "/api/v1/agents"),
        ("POST", "/health"),
        ("POST", "/api/v1/inference_socket"),
        ("GET", "/api/v1/models"),
    ],
)
async def test_an_unknown_route_or_method_is_an_empty_404(method: str, path: str) -> None:
    async with running_balancer() as balancer:
        answer = await balancer.http.request(method, balancer.inference_url(path))
    assert (answer.status_code, answer.content) == (404, b"")


async def test_health_is_ok_as_plain_text() -> None:
    async with running_balancer() as balancer:
        for url in (balancer.inference_url("/health"), balancer.management_url("/health")):
            answer = await balancer.http.get(url)
            assert (answer.status_code, answer.text) == (200, "OK")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"

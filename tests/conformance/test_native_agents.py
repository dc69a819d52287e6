"""The agent socket seen from a Paddler 4.1 agent: registration, status, states, and every end."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio_websocket
from native_client import RAW, RAW_PROMPT, Json, open_answer, running_balancer, text_of
from paddler_agent import dial, serving_agent, status_snapshot

AGENT_FIELDS = {
    "desired_slots_total",
    "download_current",
    "download_filename",
    "download_indeterminate",
    "download_total",
    "id",
    "issues",
    "model_path",
    "name",
    "slots_processing",
    "slots_total",
    "state_application_status",
    "uses_chat_template_override",
}
PATH = {"model_path": "/m.gguf"}
ISSUES: list[Json] = [
    {"CacheStorageIsFull": PATH},
    {"ChatTemplateDoesNotCompile": {"error": "e", "model_path": PATH, "template_content": "{%"}},
    {"DownloadServerDeniedAccess": PATH},
    {"HuggingFaceCannotAcquireLock": {"lock_path": "/l", "model_path": PATH}},
    {"ModelCannotBeLoaded": PATH},
    {"ModelFileDoesNotExist": PATH},
    {"SlotCannotStart": {"error": "e", "slot_index": 0}},
    {"SlotCannotStart": {"error": "e", "slot_index": 1}},
    {"UnableToFindChatTemplate": PATH},
]


async def test_the_version_comes_first_and_the_state_only_after_registration() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "a0") as agent:
        await agent.notify({"UpdateAgentStatus": {"slot_aggregated_status_snapshot": agent.status}})
        await agent.register("rack")
        state = await agent.next_state()
        assert agent.received == [
            {"Notification": {"Version": {"version": "4.1.0"}}},
            {"Notification": {"SetState": {"desired_state": state}}},
        ]
        url = balancer.management_url("/api/v1/balancer_applicable_state")
        assert state == (await balancer.http.get(url)).json()


async def test_a_changed_state_is_sent_to_every_agent_and_an_identical_one_to_none() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0") as one,
        serving_agent(balancer.management, "a1") as two,
    ):
        state = await balancer.desired_state()
        await balancer.put_state(state)
        await balancer.put_parameters(temperature=0.25)
        for agent in (one, two):
            changed = await agent.next_state()
            assert changed["inference_parameters"]["temperature"] == 0.25
            states = [f for f in agent.received if "SetState" in f.get("Notification", {})]
            assert len(states) == 2


async def test_an_agent_is_shown_with_exactly_paddlers_fields() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "my%20id") as agent:
        await agent.register(
            None,
            issues=ISSUES,
            download_current=2**40,
            download_total=2**41,
            download_filename="f",
            download_indeterminate=False,
            slots_processing=3,
            uses_chat_template_override=True,
            version=7,
        )
        (seen,) = await balancer.wait_agents(lambda agents: len(agents) == 1)
    assert seen.keys() == AGENT_FIELDS
    expected = {k: v for k, v in agent.status.items() if k != "version"}
    assert seen == expected | {"id": "my id", "name": None, "slots_processing": 0}


async def test_issues_are_shown_sorted_and_once_and_go_when_the_agent_says_so() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "a0") as agent:
        await agent.register("a0", issues=[*reversed(ISSUES), ISSUES[0]])
        await balancer.wait_agents(lambda agents: [a["issues"] for a in agents] == [ISSUES])
        await agent.update(version=agent.status["version"], issues=[])
        await balancer.wait_agents(lambda agents: [a["issues"] for a in agents] == [[]])


async def test_an_older_status_is_dropped_and_an_equal_one_counts() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        version = agent.status["version"]
        await agent.update(version=version + 5, model_path="/new")
        await agent.update(version=version + 4, model_path="/old")
        await agent.update(version=version + 5, model_path="/same")
        seen = await balancer.wait_agents(lambda a: bool(a) and a[0]["model_path"] != "/new")
        assert seen[0]["model_path"] == "/same"


async def test_the_balancers_own_count_of_busy_slots_is_the_one_shown() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0", slots=2) as agent,
        balancer.generate(),
    ):
        await agent.next_request()
        await agent.update(slots_processing=9, model_path="/seen")
        (seen,) = await balancer.wait_agents(lambda a: a[0]["model_path"] == "/seen")
        assert seen["slots_processing"] == 1
        await agent.update(slots_total=0, model_path="/shrunk")
        (seen,) = await balancer.wait_agents(lambda a: a[0]["model_path"] == "/shrunk")
        assert (seen["slots_processing"], seen["slots_total"]) == (1, 0)


async def test_an_agent_that_deregisters_is_gone_and_disconnected() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        await agent.notify("DeregisterAgent")
        await agent.wait_closed()
        assert await balancer.agents() == []


async def test_a_second_registration_of_an_id_is_refused_and_the_first_goes_on() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as live:
        async with dial(balancer.management, "a0") as newcomer:
            await newcomer.register("newcomer")
            await newcomer.wait_closed()
        assert [a["name"] for a in await balancer.agents()] == ["a0"]
        async with balancer.generate() as answer:
            await live.answer((await live.next_request())[0])
            assert text_of(await answer.rest()) == "ok"
        await live.crash()
        await balancer.wait_agents(lambda agents: agents == [])
        async with serving_agent(balancer.management, "a0", name="again"):
            assert [a["name"] for a in await balancer.agents()] == ["again"]


async def test_registering_twice_on_one_connection_ends_it() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        await agent.register("a0")
        await agent.wait_closed()
        await balancer.wait_agents(lambda agents: agents == [])


async def test_a_connection_that_never_registered_removes_nobody() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0"):
        async with dial(balancer.management, "a0") as stray:
            await stray.say({"Notification": "DeregisterAgent"})
            await stray.wait_closed()
        assert len(await balancer.agents()) == 1


@pytest.mark.parametrize(
    "frame",
    [
        "not json",
        {"Notification": "RegisterAgent"},
        {"Notification": []},
        {"Trio": {"Step": []}},
        {"Notification": {"RegisterAgent": {"name": None}}},
    ],
    ids=["text", "empty", "no-notification", "not-negotiated", "incomplete"],
)
async def test_a_frame_that_is_none_closes_the_link(frame: Json) -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        await agent.say(frame)
        await agent.wait_closed()
        await balancer.wait_agents(lambda agents: agents == [])


async def test_a_silent_agent_is_gone() -> None:
    async with (
        running_balancer(agent_silence_s=0.3) as balancer,
        dial(balancer.management, "a0") as agent,
    ):
        await agent.register("a0")
        await balancer.wait_agents(lambda agents: len(agents) == 1)
        await agent.wait_closed()
        await balancer.wait_agents(lambda agents: agents == [])


async def test_nothing_is_dispatched_between_a_new_state_and_the_slots_that_serve_it() -> None:
    async with running_balancer() as balancer, trio.open_nursery() as nursery:

        async def ask() -> None:
            async with balancer.generate() as answer:
                await answer.rest()

        async with serving_agent(balancer.management, "a0", slots=2) as agent:
            await balancer.wait_agents(lambda agents: [a["slots_total"] for a in agents] == [2])
            nursery.start_soon(ask)
            running, _ = await agent.next_request()
            await balancer.put_parameters(context_size=512)
            await agent.next_state()
            nursery.start_soon(ask)
            await balancer.wait_buffered(1)
            await agent.update(state_application_status="Fresh")  # it drains: slots unchanged
            await agent.done(running)
            await balancer.wait_slots(0)
            assert await balancer.buffered() == 1
            await agent.update(slots_total=0)
            await agent.update(model_path="/loading")
            await balancer.wait_agents(lambda a: a[0]["model_path"] == "/loading")
            assert agent.requests() == [running]
            await agent.update(slots_total=2, state_application_status="Applied")
            wire_id, _ = await agent.next_request()
            await agent.done(wire_id)
            await balancer.wait_buffered(0)


async def test_requests_reach_an_agent_as_they_came_and_one_for_each_slot_that_is_freed() -> None:
    slots, requests = 8, 64
    async with (
        running_balancer(max_buffered_requests=requests) as balancer,
        serving_agent(balancer.management, "a0", slots=slots) as agent,
        AsyncExitStack() as answers,
    ):
        for number in range(requests):
            await answers.enter_async_context(balancer.generate(raw_prompt=f"number {number}"))
        running: list[str] = []
        prompts: list[str] = []
        while len(prompts) < requests:
            while len(running) < slots and len(prompts) < requests:
                wire_id, body = await agent.next_request()
                running.append(wire_id)
                prompts.append(body["ContinueFromRawPrompt"]["raw_prompt"])
            assert await balancer.metric("slots_processing") == slots
            assert await balancer.buffered() == requests - len(prompts)
            assert len(agent.requests()) == len(prompts)
            await agent.answer(running.pop(len(prompts) % slots))
        assert prompts == [f"number {number}" for number in range(requests)]


async def test_a_client_with_one_request_is_not_behind_anothers_backlog() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0") as agent,
        AsyncExitStack() as answers,
    ):
        for name in (*["greedy"] * 12, "modest"):
            body = RAW_PROMPT | {"raw_prompt": name}
            headers = [("X-Paddler-Client", name)]
            await answers.enter_async_context(
                open_answer(balancer.inference, "POST", RAW, body, more_headers=headers)
            )
        prompts: list[str] = []
        for _ in range(13):
            wire_id, request = await agent.next_request()
            prompts.append(request["ContinueFromRawPrompt"]["raw_prompt"])
            await agent.answer(wire_id)
        assert sorted(prompts) == ["greedy"] * 12 + ["modest"]
        assert prompts.index("modest") <= 2


async def test_a_request_that_runs_when_the_state_changes_may_finish() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0") as agent,
        balancer.generate() as answer,
    ):
        wire_id, _ = await agent.next_request()
        await agent.token(wire_id, "old ")
        await balancer.put_parameters(context_size=512)
        await agent.next_state()
        await agent.token(wire_id, "model")
        await agent.update(slots_total=0)
        await agent.done(wire_id)
        assert text_of(await answer.rest()) == "old model"


async def test_an_agent_with_slots_that_reconnects_waits_for_its_reload() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "a0") as agent:
        await agent.register("a0", slots_total=1, model_path="/m", version=9)
        await agent.next_state()
        async with balancer.generate() as answer:
            await balancer.wait_buffered(1)
            await agent.load(1)
            await agent.answer((await agent.next_request())[0])
            assert text_of(await answer.rest()) == "ok"


async def test_at_shutdown_agents_hear_1001() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        balancer.stop.set()
        reason = await agent.wait_closed()
    assert isinstance(reason, trio_websocket.CloseReason)
    assert (reason.code, reason.reason) == (1001, "Server shutting down")


async def test_a_snapshot_with_a_field_too_many_is_no_snapshot() -> None:
    async with running_balancer() as balancer, dial(balancer.management, "a0") as agent:
        agent.status = status_snapshot(surprise=1)
        await agent.register("a0")
        await agent.wait_closed()
        assert await balancer.agents() == []

"""What operators get on the wire: state, streams, queries, metrics, and refusals."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
import trio
from native_client import Json, RunningBalancer, open_answer, running_balancer
from paddler_agent import PaddlerAgent, serving_agent

DRAIN = "/api/v2/agents/{}/drain"
STATE = "/api/v1/balancer_desired_state"
DEFAULT_STATE = {
    "chat_template_override": None,
    "inference_parameters": {
        "n_batch": 2048,
        "context_size": 8192,
        "embedding_batch_size": 256,
        "enable_embeddings": False,
        "image_resize_to_fit": 1024,
        "k_cache_dtype": "Q8_0",
        "v_cache_dtype": "Q8_0",
        "min_p": 0.05,
        "n_gpu_layers": 0,
        "penalty_frequency": 0.0,
        "penalty_last_n": -1,
        "penalty_presence": 0.8,
        "penalty_repeat": 1.1,
        "pooling_type": "Last",
        "temperature": 0.8,
        "top_k": 80,
        "top_p": 0.8,
    },
    "model": "None",
    "multimodal_projection": "None",
    "use_chat_template_override": False,
}
EVERY_FIELD_DIFFERENT = {
    "chat_template_override": {"content": "{{ messages }}"},
    "inference_parameters": {
        "n_batch": 0,
        "context_size": 0,
        "embedding_batch_size": 1,
        "enable_embeddings": True,
        "image_resize_to_fit": 1,
        "k_cache_dtype": "F32",
        "v_cache_dtype": "IQ4_NL",
        "min_p": 0.1,
        "n_gpu_layers": -1,
        "penalty_frequency": 0.3,
        "penalty_last_n": 64,
        "penalty_presence": 0.7,
        "penalty_repeat": 1.05,
        "pooling_type": "Rank",
        "temperature": 0.0,
        "top_k": -5,
        "top_p": 1.0,
    },
    "model": {"HuggingFace": {"filename": "f", "repo_id": "o/r", "revision": "main"}},
    "multimodal_projection": {"Url": {"url": "https://example.com/p.gguf"}},
    "use_chat_template_override": True,
}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/v1/agents/"),
        ("POST", "/api/v1/agents"),
        ("HEAD", "/api/v1/agents"),
        ("OPTIONS", "/api/v1/agents"),
        ("POST", "/api/v1/agents/stream"),
        ("HEAD", "/api/v1/agents/stream"),
        ("DELETE", STATE),
        ("PATCH", STATE),
        ("POST", "/health"),
        ("GET", "/api/v1//agents"),
        ("GET", "/api/v1/agent/nobody/model_metadata"),
        ("GET", "/api/v1/agent/nobody/chat_template_override"),
        ("GET", "/api/v1/agent_socket/"),
        ("POST", "/api/v1/agent_socket/x"),
        ("GET", "/api/v1/agent_socket/x/y"),
    ],
)
async def test_an_unknown_route_method_or_agent_is_an_empty_404(method: str, path: str) -> None:
    async with running_balancer() as balancer:
        answer = await balancer.http.request(method, balancer.management_url(path))
    assert (answer.status_code, answer.content) == (404, b"")


async def test_a_plain_get_of_the_agent_socket_is_a_400() -> None:
    async with running_balancer() as balancer:
        url = balancer.management_url("/api/v1/agent_socket/x")
        assert (await balancer.http.get(url)).status_code == 400


async def test_an_empty_balancer_has_no_agents_nothing_buffered_and_the_default_state() -> None:
    async with running_balancer() as balancer:

        async def got(path: str) -> Json:
            answer = await balancer.http.get(balancer.management_url(path))
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            assert b" " not in answer.content, "JSON answers are compact"
            return answer.json()

        assert await got("/api/v1/agents") == {"agents": []}
        assert await got("/api/v1/buffered_requests") == {"buffered_requests_current": 0}
        assert await got(STATE) == DEFAULT_STATE
        applicable = await got("/api/v1/balancer_applicable_state")
        expected = {k: v for k, v in DEFAULT_STATE.items() if k != "use_chat_template_override"}
        assert applicable == expected


async def test_every_field_of_the_state_survives_put_and_get() -> None:
    async with running_balancer() as balancer:
        answer = await balancer.put_state(EVERY_FIELD_DIFFERENT)
        assert (answer.status_code, answer.content) == (204, b"")
        assert await balancer.desired_state() == EVERY_FIELD_DIFFERENT
        url = balancer.management_url("/api/v1/balancer_applicable_state")
        applicable = (await balancer.http.get(url)).json()
    assert applicable == {
        k: v for k, v in EVERY_FIELD_DIFFERENT.items() if k != "use_chat_template_override"
    }


async def test_an_override_that_is_not_used_does_not_become_applicable() -> None:
    state = DEFAULT_STATE | {"chat_template_override": {"content": "x"}}
    async with running_balancer() as balancer:
        await balancer.put_state(state)
        url = balancer.management_url("/api/v1/balancer_applicable_state")
        assert (await balancer.http.get(url)).json()["chat_template_override"] is None
        assert await balancer.desired_state() == state


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("image_resize_to_fit", "image_resize_to_fit must be greater than zero"),
        ("embedding_batch_size", "embedding_batch_size must be greater than zero"),
    ],
)
async def test_a_zero_that_makes_no_sense_is_refused_and_changes_nothing(
    name: str, text: str
) -> None:
    parameters: Json = DEFAULT_STATE["inference_parameters"]
    async with running_balancer() as balancer:
        answer = await balancer.put_state(
            DEFAULT_STATE | {"inference_parameters": parameters | {name: 0}}
        )
        assert (answer.status_code, answer.text) == (400, text)
        assert answer.headers["content-type"].startswith("text/plain")
        assert await balancer.desired_state() == DEFAULT_STATE


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"model": "Nothing"},
        {"model": {"LocalToAgent": "/a", "Url": {"url": "b"}}},
        {"model": {"HuggingFace": {"filename": "f", "repo_id": "o/r"}}},
        {"use_chat_template_override": None},
        {"inference_parameters": {"temperature": 0.5}},
        {"chat_template_override": {"content": "x", "name": "y"}},
    ],
    ids=json.dumps,
)
async def test_a_state_that_is_not_one_is_refused_and_changes_nothing(change: Json) -> None:
    async with running_balancer() as balancer:
        answer = await balancer.put_state(DEFAULT_STATE | change)
        assert answer.status_code == 400
        assert answer.text.startswith("Json deserialize error: ")
        assert await balancer.desired_state() == DEFAULT_STATE


async def test_a_state_must_be_json_say_so_and_have_a_size() -> None:
    async with running_balancer() as balancer:
        url = balancer.management_url(STATE)
        text = json.dumps(DEFAULT_STATE | {"use_chat_template_override": True}).encode()
        for kind in ("text/plain", "application/octet-stream"):
            answer = await balancer.http.put(url, content=text, headers={"content-type": kind})
            assert (answer.status_code, answer.text) == (400, "Content type error")
        kind = "application/json"
        broken = await balancer.http.put(url, content=b"{", headers={"content-type": kind})
        assert broken.text.startswith("Json deserialize error: ")
        large = DEFAULT_STATE | {"chat_template_override": {"content": "x" * 2_097_152}}
        assert (await balancer.put_state(large)).status_code == 413
        assert await balancer.desired_state() == DEFAULT_STATE
        packed = await balancer.http.put(
            url,
            content=gzip.compress(text),
            headers={"content-type": kind, "content-encoding": "gzip"},
        )
        assert packed.status_code == 204
        bomb = gzip.compress(b" " * 50_000_000)
        answer = await balancer.http.put(
            url, content=bomb, headers={"content-type": kind, "content-encoding": "gzip"}
        )
        assert answer.status_code == 413


async def test_a_new_state_is_shown_where_there_is_no_agent_to_tell() -> None:
    async with running_balancer() as balancer:
        url = f"http://{balancer.management}/api/v2/agents"
        before = (await balancer.http.get(url)).json()
        answer = await balancer.put_state(EVERY_FIELD_DIFFERENT)
        digest = answer.headers["x-paddler-state-digest"]
        after = (await balancer.http.get(url)).json()
        assert after == {"desired_state_digest": digest, "agents": []} != before


async def test_a_state_that_cannot_be_stored_is_a_500_and_not_in_force(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    async with running_balancer(state_database=f"file://{folder}/state.json") as balancer:
        shutil.rmtree(folder)
        answer = await balancer.put_state(EVERY_FIELD_DIFFERENT)
        assert answer.status_code == 500
        assert await balancer.desired_state() == DEFAULT_STATE


async def test_the_state_file_is_paddlers_and_survives_a_restart(tmp_path: Path) -> None:
    database = f"file://{tmp_path}/state.json"
    async with running_balancer(state_database=database) as balancer:
        await balancer.put_state(EVERY_FIELD_DIFFERENT)
    document = json.loads((tmp_path / "state.json").read_text())
    assert document == {"balancer_desired_state": EVERY_FIELD_DIFFERENT, "version": "1"}
    (tmp_path / "state.json").write_text(json.dumps(document | {"version": ""}))
    async with running_balancer(state_database=database) as balancer:
        assert await balancer.desired_state() == EVERY_FIELD_DIFFERENT
        await balancer.put_state(DEFAULT_STATE)
    assert json.loads((tmp_path / "state.json").read_text())["version"] == ""


async def test_an_event_stream_begins_with_a_snapshot_and_lives_on_comments() -> None:
    async with running_balancer() as balancer:
        for path, snapshot in (
            ("/api/v1/agents/stream", '{"agents":[]}'),
            ("/api/v1/buffered_requests/stream", '{"buffered_requests_current":0}'),
        ):
            async with open_answer(balancer.management, "GET", path) as answer:
                assert answer.status_code == 200
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.headers["cache-control"] == "no-cache"
                assert answer.headers["content-encoding"] == "identity"
                lines = [await answer.next_text_line() for _ in range(4)]
                assert lines == [f"data: {snapshot}", "", ": keep-alive", ""]
        async with open_answer(balancer.management, "GET", "/api/v1/agents/stream") as answer:
            for _ in range(4):
                await answer.next_text_line()
            with trio.fail_after(4.5):  # the Python client gives up after five seconds
                assert await answer.next_text_line() == ": keep-alive"


async def test_claiming_and_releasing_a_slot_shows_on_the_agents_stream() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0") as agent,
        open_answer(balancer.management, "GET", "/api/v1/agents/stream") as events,
    ):

        async def wait_processing(number: int) -> None:
            while True:
                line = await events.next_text_line()
                if line.startswith("data: "):
                    (seen,) = json.loads(line.removeprefix("data: "))["agents"]
                    if (seen["slots_processing"], seen["slots_total"]) == (number, 1):
                        return

        await wait_processing(0)
        async with balancer.generate() as answer:
            await wait_processing(1)
            await agent.answer((await agent.next_request())[0])
            await answer.rest()
        await wait_processing(0)


async def test_open_event_streams_end_at_shutdown_and_do_not_delay_it() -> None:
    async with (
        running_balancer() as balancer,
        open_answer(balancer.management, "GET", "/api/v1/agents/stream") as one,
        open_answer(balancer.management, "GET", "/api/v1/buffered_requests/stream") as two,
        serving_agent(balancer.management, "a0"),
        balancer.socket(),
    ):
        balancer.stop.set()
        with trio.fail_after(60):
            await one.body()
            await two.body()


async def ask_agent(
    balancer: RunningBalancer, agent: PaddlerAgent, query: str, response: Json
) -> Json:
    """Ask for ``query`` as an operator while the agent answers with ``response``."""
    route = {"GetModelMetadata": "model_metadata"}.get(query, "chat_template_override")
    found: list[Json] = []

    async def ask() -> None:
        url = balancer.management_url(f"/api/v1/agent/a0/{route}")
        answer = await balancer.http.get(url)
        assert answer.status_code == 200
        found.append(answer.json())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        wire_id, request = await agent.next_request()
        assert request == query
        await agent.respond(wire_id, response)
    return found[0]


async def test_queries_are_answered_by_the_agent_even_with_null() -> None:
    metadata = {"metadata": {"general.architecture": "llama"}}
    template = {"content": "{{ x }}"}
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        for query, response, expected in (
            ("GetModelMetadata", {"ModelMetadata": metadata}, metadata),
            ("GetModelMetadata", {"ModelMetadata": None}, None),
            ("GetChatTemplateOverride", {"ChatTemplateOverride": template}, template),
            ("GetChatTemplateOverride", {"ChatTemplateOverride": None}, None),
        ):
            assert await ask_agent(balancer, agent, query, response) == expected


async def test_a_query_is_502_when_the_agent_leaves_and_504_when_it_says_nothing() -> None:
    async with running_balancer() as balancer:
        statuses: list[int] = []

        async def ask() -> None:
            url = balancer.management_url("/api/v1/agent/a0/model_metadata")
            answer = await balancer.http.get(url)
            assert answer.content == b""
            statuses.append(answer.status_code)

        async with serving_agent(balancer.management, "a0") as agent:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await agent.next_request()
            assert statuses == [504]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await agent.next_request()
                await agent.crash()
            assert statuses == [504, 502]


async def test_metrics_begin_with_paddlers_three_gauges_letter_by_letter() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "a0", slots=2) as agent,
        balancer.generate(),
    ):
        await agent.next_request()
        answer = await balancer.http.get(balancer.management_url("/metrics"))
    kind = "text/plain; version=0.0.4; charset=utf-8; escaping=values"
    assert answer.headers["content-type"] == kind
    assert answer.text.startswith(
        "# HELP paddler_slots_processing Number of processing slots\n"
        "# TYPE paddler_slots_processing gauge\n"
        "paddler_slots_processing 1\n"
        "\n"
        "# HELP paddler_slots_total Number of total slots\n"
        "# TYPE paddler_slots_total gauge\n"
        "paddler_slots_total 2\n"
        "\n"
        "# HELP paddler_requests_buffered Number of buffered requests\n"
        "# TYPE paddler_requests_buffered gauge\n"
        "paddler_requests_buffered 0\n"
    )
    ours = re.findall(r"^(\w+) [\d.e+]+$", answer.text, re.MULTILINE)[3:]
    assert ours[:5] == [
        "paddler_input_bytes",
        "paddler_input_bytes_limit",
        "paddler_input_refusals",
        "paddler_event_loop_lag_milliseconds",
        "paddler_event_loop_stalls",
    ]


async def test_a_name_that_two_agents_have_is_refused_with_their_ids() -> None:
    async with (
        running_balancer() as balancer,
        serving_agent(balancer.management, "id-1", name="twin"),
        serving_agent(balancer.management, "id-2", name="twin"),
        serving_agent(balancer.management, "id-3", name="other"),
    ):
        await balancer.wait_agents(lambda agents: len(agents) == 3)

        async def drained() -> list[str]:
            answer = await balancer.http.get(balancer.management_url("/api/v2/agents"))
            return [each["id"] for each in answer.json()["agents"] if each["is_drained"]]

        refused = await balancer.http.post(balancer.management_url(DRAIN.format("twin")))
        assert refused.status_code == 409
        assert refused.text == ("2 agents are called 'twin'; give the id of one: id-1 or id-2")
        assert await drained() == []
        for given, its in [("id-2", "id-2"), ("other", "id-3")]:
            answer = await balancer.http.post(balancer.management_url(DRAIN.format(given)))
            assert (answer.status_code, answer.json()["id"]) == (200, its)
        assert await drained() == ["id-2", "id-3"]

"""Traces, logs and the access log of real daemons: the same ids everywhere, one trace a request."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio_websocket
from fleet import Fleet
from streams import RAW, Heard, listen, song, until_first_tokens

from no_tls import NO_TLS
from otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver

CALLER = "1234567890abcdef"
PROMPT = "Sing:"


@attrs.frozen
class Watched:
    fleet: Fleet
    receiver: OtlpReceiver
    access_log: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.access_log.read_text().splitlines()]

    def _lines_of(self, request: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["request"] == request]

    async def line_of(self, request: str) -> dict[str, Any]:
        """The only line of this request, once it is written."""
        with trio.fail_after(60):
            while not (found := self._lines_of(request)):  # noqa: ASYNC110
                await trio.sleep(0.02)  # the file is all there is to watch
        assert len(found) == 1
        return found[0]

    def trace(self, trace_id: str, is_there: Any) -> list[ReceivedSpan]:
        """Its spans, once they are as wanted."""
        spans = self.receiver.wait_for(
            lambda all_spans: is_there([s for s in all_spans if s.trace_id == trace_id])
        )
        return [span for span in spans if span.trace_id == trace_id]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    access_log = tmp_path_factory.mktemp("logs") / "access.log"
    with otlp_receiver() as receiver:
        traced = [f"--otlp-endpoint={receiver.url}", "--log-level=debug"]
        with Fleet.start(
            agents=2,
            slots=2,
            balancer_options=[*traced, "--access-log=json", f"--access-log-file={access_log}"],
            agent_options=traced,
            env={"NO_PROXY": "127.0.0.1", "OTEL_RESOURCE_ATTRIBUTES": "deployment.name=test"},
        ) as fleet:
            yield Watched(fleet, receiver, access_log)
        assert receiver.problems == []
        assert not any(PROMPT.encode() in body for body in receiver.raw)
        assert PROMPT not in access_log.read_text()


def headers(trace_id: str, request: str, flags: str = "01") -> list[tuple[str, str]]:
    return [
        ("traceparent", f"00-{trace_id}-{CALLER}-{flags}"),
        ("tracestate", "vendor=abc"),
        ("x-request-id", request),
        ("x-paddler-client", "singer"),
    ]


async def moved_song(
    fleet: Fleet, trace_id: str, request: str, *, kills_engine: bool
) -> tuple[str, Heard]:
    """The agent that was lost in the middle of it, and what the client heard."""
    heard = Heard()
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            body = song(max_tokens=600)
            run = partial(listen, fleet.inference, RAW, body, heard)
            await nursery.start(partial(run, headers=headers(trace_id, request)))
            await until_first_tokens([heard], 1)
            lost = heard.generated_by[0]
            daemon = fleet.agents[lost]
            pid = daemon.engine_pid if kills_engine else daemon.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    assert heard.endings == ["Done"]
    return lost, heard


def records(daemon: Any, request: str) -> list[Mapping[str, object]]:
    """What this daemon has logged about a request."""
    found = []
    for line in list(daemon.log):
        if request in line and line.startswith("{"):
            found.append(json.loads(line))
    return found


def by_name(spans: list[ReceivedSpan], service: str) -> dict[str, ReceivedSpan]:
    return {s.name: s for s in spans if s.service == f"paddler-trio-{service}"}


async def test_a_request_that_moved_is_one_trace_across_balancer_and_both_agents(
    watched: Watched,
) -> None:
    trace_id, request = "a" * 31 + "1", "moved-1"
    fleet = watched.fleet
    lost, heard = await moved_song(fleet, trace_id, request, kills_engine=True)
    spans = watched.trace(
        trace_id,
        lambda found: (
            sum(s.name == "generation" for s in found) == 2
            and any(s.kind == "SERVER" and s.name.startswith("POST") for s in found)
        ),
    )
    (whole,) = [span for span in spans if span.name == f"POST {RAW}"]
    assert (whole.kind, whole.parent_id, whole.state) == ("SERVER", CALLER, "vendor=abc")
    assert whole.service == "paddler-trio-balancer"
    attributes = whole.attributes
    assert attributes["http.route"] == RAW
    assert attributes["http.response.status_code"] == 200
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.provider.name"] == "paddler-trio"
    assert attributes["gen_ai.request.model"] == "default"
    assert attributes["gen_ai.usage.output_tokens"] == heard.tokens > 100
    assert attributes["gen_ai.usage.input_tokens"] > 0  # type: ignore[operator]
    assert attributes["paddler.request.id"] == request
    assert attributes["paddler.request.outcome"] == "completed"
    assert attributes["paddler.client"] == "singer"
    assert attributes["paddler.continuations"] == 1
    assert whole.events["continuation"]["paddler.agent.name"] == lost
    assert not whole.is_error
    placements = [span for span in spans if span.name == "placement"]
    assert [span.parent_id for span in placements] == [whole.span_id] * 2
    first, second = sorted(placements, key=lambda span: span.start_s)
    assert first.is_error
    assert not second.is_error
    assert {first.kind, second.kind} == {"CLIENT"}
    assert first.attributes["paddler.placement.ending"] == "handed back"
    assert first.attributes["paddler.agent.name"] == lost
    assert second.attributes["paddler.agent.name"] != lost
    queues = [span for span in spans if span.name == "queue"]
    assert [span.parent_id for span in queues] == [whole.span_id] * 2
    generations = {s.attributes["paddler.agent.name"]: s for s in spans if s.name == "generation"}
    for placement in (first, second):
        name = placement.attributes["paddler.agent.name"]
        generation = generations[name]
        assert (generation.parent_id, generation.kind) == (placement.span_id, "SERVER")
        assert (generation.service, generation.instance) == ("paddler-trio-agent", name)
        assert placement.start_s - 0.1 <= generation.start_s <= generation.end_s
        below = {s.name for s in spans if s.parent_id == generation.span_id}
        assert below == {"prepare", "engine queue", "prefill", "decode"}
        below = {s.name for s in spans if s.parent_id == placement.span_id}
        assert below == {"prefill", "decode", "generation"}
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids)
    assert {span.parent_id for span in spans} <= {*ids, CALLER}, "no span without its parent"

    line = await watched.line_of(request)
    assert line["trace"] == trace_id
    assert set(line["agents"]) == {"a1", "a2"}
    assert line["continuations"] == 1
    for daemon in (fleet.balancer, *fleet.agents.values()):
        logged = records(daemon, request)
        assert logged, f"{daemon.name} has no line about it"
        assert {(each["request"], each["trace"]) for each in logged} == {(request, trace_id)}
    fleet.wait_serving()


async def test_the_access_log_has_a_line_for_each_request_however_it_ended(
    watched: Watched,
) -> None:
    fleet = watched.fleet
    url = fleet.inference_url
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}
    asked: list[tuple[str, str, object, int]] = [
        ("chat", "/v1/chat/completions", chat, 200),
        ("message", "/v1/messages", chat | {"model": "any"}, 200),
        (
            "stream",
            "/api/v2/generate",
            {"prompt": {"Text": {"text": PROMPT}}, "max_tokens": 3},
            200,
        ),
        ("bad", "/v1/chat/completions", {"messages": PROMPT}, 400),
        ("embed", "/v1/embeddings", {"input": PROMPT}, 501),
        ("rank", "/v1/rerank", {"query": PROMPT, "documents": ["a"]}, 501),
        ("lost", "/nowhere%1b", {}, 404),
    ]
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, timeout=60) as client:
        for request, path, body, status in asked:
            answer = await client.post(
                url + path, json=body, headers={"x-request-id": request, "x-paddler-client": 'a "b'}
            )
            assert answer.status_code == status, (request, answer.text)
            assert answer.headers.get_list("x-request-id") == [request]
        models = await client.get(url + "/v1/models/none", headers={"x-request-id": "models"})
        assert (await client.get(url + "/health")).status_code == 200
    lines = {request: await watched.line_of(request) for request, *_ in asked}
    for request, path, _, status in asked:
        line = lines[request]
        assert (line["status"], line["method"]) == (status, "POST")
        assert line["client"] == 'a "b'
        assert line["address"].startswith("127.0.0.1:")
        assert line["route"] == (None if request == "lost" else path)
        assert line["outcome"] == ("completed" if status == 200 else "refused")
        assert (line["generated_tokens"] or 0) > 0 or status != 200
        assert line["duration_s"] >= (line["ttft_s"] or 0) >= 0
    assert lines["lost"]["path"] == "/nowhere\x1b"
    assert "\x1b" not in watched.access_log.read_text()
    chat_line = lines["chat"]
    assert chat_line["prompt_tokens"] > chat_line["cached_tokens"] >= 0
    assert chat_line["deployment"] == "default"
    assert len(chat_line["agents"]) == 1
    assert 0 <= chat_line["queue_s"] <= chat_line["ttft_s"] <= chat_line["duration_s"]
    line = await watched.line_of("models")
    assert (line["method"], line["status"]) == ("GET", models.status_code)
    assert line["route"] == "/v1/models/{tail...}"
    assert not any(line["route"] == "/health" for line in watched.lines())


async def test_a_client_that_leaves_is_in_the_access_log_with_what_it_was_sent(
    watched: Watched,
) -> None:
    heard, request = Heard(), "left-1"
    run = partial(listen, watched.fleet.inference, RAW, song(), heard, leave_after_tokens=3)
    await run(headers=headers("b" * 32, request))
    line = await watched.line_of(request)
    assert (line["outcome"], line["status"]) == ("stopped", 200)
    assert line["generated_tokens"] >= 3
    spans = watched.trace("b" * 32, lambda found: any(s.name == f"POST {RAW}" for s in found))
    (whole,) = [span for span in spans if span.name == f"POST {RAW}"]
    assert not whole.is_error
    assert whole.attributes["paddler.request.outcome"] == "stopped"


async def test_each_request_on_a_web_socket_has_a_line_and_a_trace_of_its_own(
    watched: Watched,
) -> None:
    url = f"ws://{watched.fleet.inference}/api/v1/inference_socket"
    work = {"ContinueFromRawPrompt": {"raw_prompt": PROMPT, "max_tokens": 2}}
    names = ["ws one", "ws-two"]
    with trio.fail_after(60):
        async with trio_websocket.open_websocket_url(url) as socket:
            for name in names:
                await socket.send_message(json.dumps({"Request": {"id": name, "request": work}}))
            ended: set[str] = set()
            while ended != set(names):
                text = await socket.get_message()
                if "Done" in text:
                    ended.add(json.loads(text)["Response"]["request_id"])
            bad = {"Request": {"id": "ws-bad", "request": {"ContinueFromRawPrompt": {}}}}
            await socket.send_message(json.dumps(bad))
            assert "400" in await socket.get_message()
    lines = [await watched.line_of(name) for name in [*names, "ws-bad"]]
    assert [line["status"] for line in lines] == [200, 200, 400]
    assert [line["outcome"] for line in lines] == ["completed", "completed", "refused"]
    assert {line["route"] for line in lines} == {"/api/v1/inference_socket"}
    assert {line["method"] for line in lines} == {None}
    assert all(line["address"].startswith("127.0.0.1:") for line in lines)
    assert len({line["trace"] for line in lines}) == 3
    upgrades = [line for line in watched.lines() if line["status"] == 101]
    assert len(upgrades) == 1
    name = "WEBSOCKET /api/v1/inference_socket"
    spans = watched.trace(lines[0]["trace"], lambda found: any(s.name == name for s in found))
    assert sum(span.name == name for span in spans) == 1


async def test_a_trace_that_its_caller_does_not_sample_is_not_sent_but_has_its_id_in_logs(
    watched: Watched,
) -> None:
    trace_id = "c" * 32
    heard = Heard()
    run = partial(listen, watched.fleet.inference, RAW, song(max_tokens=2), heard)
    await run(headers=headers(trace_id, "quiet-1", "00"))
    assert (await watched.line_of("quiet-1"))["trace"] == trace_id
    await run(headers=headers("d" * 32, "loud-1"))
    spans = watched.trace("d" * 32, lambda found: {"generation"} <= {s.name for s in found})
    assert spans
    assert not any(span.trace_id == trace_id for span in watched.receiver.spans)


async def test_a_hangup_opens_the_access_log_anew(watched: Watched) -> None:
    old = watched.access_log.with_suffix(".1")
    watched.access_log.rename(old)
    watched.fleet.balancer.signal(signal.SIGHUP)
    with trio.fail_after(60):
        while not watched.access_log.exists():  # noqa: ASYNC110
            await trio.sleep(0.02)
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, timeout=60) as client:
        await client.get(f"{watched.fleet.inference_url}/v1/models", headers={"x-request-id": "n"})
    assert (await watched.line_of("n"))["route"] == "/v1/models"
    assert '"request":"n"' not in old.read_text()
    watched.access_log.write_text(old.read_text() + watched.access_log.read_text())


async def test_a_request_whose_agent_was_killed_is_one_trace_as_well(watched: Watched) -> None:
    trace_id, request = "e" * 32, "killed-1"
    lost, _ = await moved_song(watched.fleet, trace_id, request, kills_engine=False)
    spans = watched.trace(
        trace_id,
        lambda found: (
            any(s.name == "generation" for s in found) and any(s.name == "placement" for s in found)
        ),
    )
    ending = {
        span.attributes["paddler.agent.name"]: span.attributes["paddler.placement.ending"]
        for span in spans
        if span.name == "placement"
    }
    assert ending.pop(lost) == "lost"
    assert [*ending.values()] == ["done"]
    for daemon in (watched.fleet.balancer, *watched.fleet.agents.values()):
        logged = records(daemon, request)
        assert logged
        assert {(each["request"], each["trace"]) for each in logged} == {(request, trace_id)}

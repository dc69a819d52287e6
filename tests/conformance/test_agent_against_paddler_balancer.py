"""Our agent, a real process with a real engine, in the service of a Paddler 4.1 balancer."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from fleet import Daemon
from native_client import Json
from paddler_balancer import AgentLink, PaddlerBalancer, paddler_balancer

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

SLOTS = 2
SNAPSHOT_FIELDS = {
    "desired_slots_total",
    "download_current",
    "download_filename",
    "download_indeterminate",
    "download_total",
    "issues",
    "model_path",
    "slots_processing",
    "slots_total",
    "state_application_status",
    "uses_chat_template_override",
    "version",
}
USAGE_FIELDS = {
    "prompt_tokens",
    "cached_prompt_tokens",
    "input_image_tokens",
    "input_audio_tokens",
    "content_tokens",
    "reasoning_tokens",
    "tool_call_tokens",
    "undeterminable_tokens",
}


def state(model: Path | None, *, template: str | None = None, **parameters: Json) -> Json:
    """An ``AgentDesiredState`` as a 4.1 balancer sends it."""
    return {
        "chat_template_override": None if template is None else {"content": template},
        "inference_parameters": {
            "n_batch": 512,
            "context_size": 1024,
            "embedding_batch_size": 256,
            "enable_embeddings": False,
            "image_resize_to_fit": 1024,
            "k_cache_dtype": "F16",
            "v_cache_dtype": "F16",
            "min_p": 0.05,
            "n_gpu_layers": 0,
            "penalty_frequency": 0.0,
            "penalty_last_n": -1,
            "penalty_presence": 0.0,
            "penalty_repeat": 1.0,
            "pooling_type": "Last",
            "temperature": 0.0,
            "top_k": 80,
            "top_p": 0.8,
            **parameters,
        },
        "model": "None" if model is None else {"LocalToAgent": str(model)},
        "multimodal_projection": "None",
    }


def raw_prompt(max_tokens: int = 5) -> Json:
    """A generation that never ends by itself before its limit: the grammar has no end."""
    endless = {"type": "gbnf", "grammar": 'root ::= "la " root', "root": "root"}
    prompt = {"raw_prompt": "Sing:", "max_tokens": max_tokens, "grammar": endless}
    return {"ContinueFromRawPrompt": prompt}


def conversation(text: str, **changes: Json) -> Json:
    body = {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": text}],
        "enable_thinking": False,
        "max_tokens": 60,
        "grammar": None,
        "parse_tool_calls": False,
        "tools": [],
        **changes,
    }
    return {"ContinueFromConversationHistory": body}


@contextmanager
def agent_of(balancer: PaddlerBalancer, *more: str) -> Iterator[Daemon]:
    """An agent process that dials this balancer; gone with the block."""
    options = ["agent", f"--management-addr={balancer.address}", f"--slots={SLOTS}"]
    agent = Daemon.start(
        "agent", [*options, "--name=rack", "--drain-timeout=30000", "--log-json", *more], {}
    )
    try:
        yield agent
    except BaseException as error:
        error.add_note("\n".join(agent.log))
        raise
    finally:
        agent.end()


@asynccontextmanager
async def linked_agent(
    *options: str,
) -> AsyncIterator[tuple[PaddlerBalancer, Daemon, AgentLink]]:
    """A balancer, an agent process, and the link between them."""
    async with paddler_balancer() as balancer:
        with agent_of(balancer, *options) as agent:
            yield balancer, agent, await balancer.next_link()


def text_of(results: list[Json]) -> str:
    return "".join(
        text for result in results for tag, text in result.items() if tag.endswith("Token")
    )


async def test_a_whole_life_in_the_service_of_a_paddler_balancer() -> None:
    async with linked_agent() as (_, agent, link):
        registration = link.received[0]["Notification"]["RegisterAgent"]
        assert registration.keys() == {"name", "slot_aggregated_status_snapshot"}
        assert registration["name"] == "rack"
        first = registration["slot_aggregated_status_snapshot"]
        assert first.keys() == SNAPSHOT_FIELDS
        assert (first["desired_slots_total"], first["slots_total"]) == (SLOTS, 0)
        assert first["state_application_status"] == "Fresh"
        assert first["download_indeterminate"] is True

        await link.set_state(state(BUNDLED_MODEL))
        status = await link.wait_serving(SLOTS)
        assert status["state_application_status"] == "Applied"
        assert status["model_path"] == str(BUNDLED_MODEL)
        assert status["issues"] == []
        assert (status["download_current"], status["download_total"]) == (0, 0)

        await link.ask("raw", raw_prompt(5))
        *tokens, last = await link.wait_answer("raw")
        assert [[*token] for token in tokens] == [["UndeterminableToken"]] * 5
        usage = last["Done"]["usage"]
        assert usage.keys() == USAGE_FIELDS
        assert usage["undeterminable_tokens"] == 5
        assert usage["prompt_tokens"] > 0
        envelopes = [f["Response"] for f in link.received if "Response" in f]
        assert all(e.keys() == {"generated_by", "request_id", "response"} for e in envelopes)
        assert all(e["generated_by"] is None for e in envelopes)

        await link.ask("chat", conversation("Hello!"))
        results = await link.wait_answer("chat")
        assert {tag for result in results[:-1] for tag in result} == {"ContentToken"}
        assert "tiny demo model" in text_of(results)

        await link.ask("thinks", conversation("Hello!", enable_thinking=True, max_tokens=200))
        results = await link.wait_answer("thinks")
        assert {tag for result in results[:-1] for tag in result} == {
            "ReasoningToken",
            "ContentToken",
        }

        await link.ask("last", raw_prompt(200))
        await link.wait_results("last", 1)
        agent.signal(signal.SIGTERM)
        await link.wait_serving(0)
        *tokens, last = await link.wait_answer("last")
        assert (len(tokens), [*last]) == (200, ["Done"])
        await link.wait_closed()
        assert link.received[-1] == {"Notification": "DeregisterAgent"}
        versions = [status["version"] for status in link.statuses()]
        assert versions == sorted(versions)
        assert not [frame for frame in link.received if "Trio" in frame]
        with trio.fail_after(60):
            assert await trio.to_thread.run_sync(agent.wait) == 0


async def test_an_agent_speaks_at_least_once_a_second() -> None:
    async with linked_agent() as (_, _, link):
        await link.wait(lambda link: len(link.statuses()) >= 5, "five statuses")
        pauses_s = [later - earlier for earlier, later in pairwise(link.times_s)]
        assert max(pauses_s) < 1.5


async def test_a_stopped_request_ends_with_done_and_its_sibling_goes_on() -> None:
    async with linked_agent() as (_, _, link):
        await link.set_state(state(BUNDLED_MODEL, context_size=8192))
        await link.wait_serving(SLOTS)
        await link.ask("goes", raw_prompt(8000))
        await link.ask("stays", raw_prompt(400))
        await link.wait_results("goes", 3)
        await link.wait_results("stays", 3)
        await link.stop("goes")
        *tokens, last = await link.wait_answer("goes")
        assert "Done" in last
        assert len(tokens) == last["Done"]["usage"]["undeterminable_tokens"] < 8000
        *tokens, last = await link.wait_answer("stays")
        assert (len(tokens), [*last]) == (400, ["Done"])
        await link.stop("goes")
        await link.stop("never heard of")
        await link.ask("after", raw_prompt(1))
        assert len(await link.wait_answer("after")) == 2
        await link.wait_status(lambda s: s["slots_processing"] == 0, "no request left")


async def test_every_frame_that_asks_for_something_is_answered() -> None:
    async with linked_agent() as (_, _, link):
        await link.ask("none", "GetModelMetadata")
        assert await link.wait_results("none", 1) == [{"ModelMetadata": None}]
        await link.ask("unset", "GetChatTemplateOverride")
        assert await link.wait_results("unset", 1) == [{"ChatTemplateOverride": None}]

        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        await link.set_state(state(BUNDLED_MODEL, template=template))
        status = await link.wait_serving(SLOTS)
        assert status["uses_chat_template_override"] is True
        await link.ask("set", "GetChatTemplateOverride")
        expected = [{"ChatTemplateOverride": {"content": template}}]
        assert await link.wait_results("set", 1) == expected
        await link.ask("metadata", "GetModelMetadata")
        ((_, value),) = (await link.wait_results("metadata", 1))[0].items()
        assert value.keys() == {"metadata"}
        assert value["metadata"]["general.architecture"]
        assert all(isinstance(text, str) for text in value["metadata"].values())

        batch = {"input_batch": [{"id": "d", "content": "x"}], "normalization_method": "L2"}
        await link.ask("embed", {"GenerateEmbeddingBatch": batch})
        assert await link.wait_results("embed", 1) == [{"Embedding": "EmbeddingsDisabled"}]

        await link.ask("long", raw_prompt(300))
        await link.wait_results("long", 1)
        await link.say({"Request": {"id": "odd", "request": {"ContinueFromRawPrompt": {}}}})
        assert [*(await link.wait_answer("odd"))[-1]] == ["SamplerError"]
        await link.say("not json")
        await link.say({"Error": {"request_id": "x", "error": {"code": 1, "description": ""}}})
        for request_id, changes, tag in (
            ("a", {"grammar": {"type": "gbnf", "grammar": "root ::= (", "root": "root"}}, None),
            ("b", {"grammar": {"type": "json_schema", "schema": "{"}}, "GrammarSyntaxError"),
            ("c", {"max_tokens": 0}, "SamplerError"),
        ):
            await link.ask(request_id, conversation("Hello!", **changes))
            (ending,) = await link.wait_answer(request_id)
            assert [*ending] == [tag or "GrammarInitializationFailed"]
        *tokens, last = await link.wait_answer("long")
        assert (len(tokens), [*last]) == (300, ["Done"])


async def test_only_what_needs_another_engine_gets_one() -> None:
    async with linked_agent() as (_, agent, link):
        await link.set_state(state(BUNDLED_MODEL))
        await link.wait_serving(SLOTS)
        engine = agent.engine_pid
        seen = len(link.statuses())

        await link.set_state(state(BUNDLED_MODEL))
        await link.ask("same", raw_prompt(3))
        assert len(await link.wait_answer("same")) == 4
        assert agent.engine_pid == engine
        assert {s["slots_total"] for s in link.statuses()[seen:]} <= {SLOTS}

        await link.set_state(state(BUNDLED_MODEL, temperature=0.7))
        await link.ask("warm", raw_prompt(3))
        assert len(await link.wait_answer("warm")) == 4
        assert agent.engine_pid == engine

        seen = len(link.statuses())
        await link.set_state(state(BUNDLED_MODEL, context_size=2048))
        await link.wait_status(
            lambda s: s["state_application_status"] == "Fresh", "a new engine on its way"
        )
        await link.wait_status(  # the state before was applied, too, and may say so only now
            lambda s: (
                s["state_application_status"] == "Applied"
                and agent.engine_pid not in (None, engine)
            ),
            "the new engine in force",
        )
        assert {s["slots_total"] for s in link.statuses()[seen:]} == {SLOTS}, "beside the old one"

        await link.set_state(state(None))
        status = await link.wait_status(
            lambda s: s["model_path"] is None and s["state_application_status"] == "Applied",
            "no model",
        )
        assert status["slots_total"] == 0
        with trio.fail_after(20):
            while agent.engine_pids:  # noqa: ASYNC110  # reported before the process has ended
                await trio.sleep(0.02)


async def test_a_swap_waits_for_who_runs_and_not_for_who_waits_for_it() -> None:
    async with linked_agent("--load-beside=off") as (_, agent, link):
        await link.set_state(state(BUNDLED_MODEL))
        await link.wait_serving(SLOTS)
        engine = agent.engine_pid
        await link.ask("running", raw_prompt(200))
        await link.wait_results("running", 1)
        await link.set_state(state(BUNDLED_MODEL, context_size=2048))
        await link.wait_status(lambda s: s["slots_total"] == 0, "a drain")
        await link.ask("slipped in", raw_prompt(3))
        *tokens, last = await link.wait_answer("running")
        assert (len(tokens), [*last]) == (200, ["Done"])
        assert len(await link.wait_answer("slipped in")) == 4
        assert agent.engine_pid not in (None, engine)
        await link.wait_status(lambda s: s["slots_processing"] == 0, "no request left")


async def test_what_is_wrong_with_a_model_is_an_issue_until_it_is_right(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    corrupt = tmp_path / "corrupt.gguf"
    corrupt.write_bytes(BUNDLED_MODEL.read_bytes()[:100_000])
    bare = tmp_path / "bare.gguf"
    key = b"tokenizer.chat_template"
    bare.write_bytes(BUNDLED_MODEL.read_bytes().replace(key, b"tokenizer.chat_xxxxxxxx"))
    broken = "{% for %}"

    async with linked_agent() as (_, _, link):

        async def issue(desired: Json, *, slots: int = 0) -> Json:
            seen = len(link.statuses())
            await link.set_state(desired)
            await link.wait(
                lambda link: any(s["issues"] for s in link.statuses()[seen:]), "an issue"
            )
            status = await link.wait_status(
                lambda s: s["state_application_status"] in ("AttemptedAndRetrying", "Stuck"),
                "a failed attempt",
            )
            assert status["slots_total"] == slots
            return status["issues"]

        path = {"model_path": str(missing)}
        assert await issue(state(missing)) == [{"ModelFileDoesNotExist": path}]
        shutil.copy(BUNDLED_MODEL, missing)
        status = await link.wait_serving(SLOTS)
        assert (status["issues"], status["state_application_status"]) == ([], "Applied")

        path = {"model_path": str(corrupt)}
        assert await issue(state(corrupt), slots=SLOTS) == [{"ModelCannotBeLoaded": path}], (
            "it was refused before the old model went, which serves on"
        )
        await link.set_state(state(bare))
        status = await link.wait_status(applied, "ChatML for a model without a template")
        assert (status["issues"], status["slots_total"]) == ([], SLOTS)
        await link.set_state(state(bare, template="{{ messages[0].content }}"))
        status = await link.wait_status(
            lambda s: applied(s) and s["uses_chat_template_override"], "a template for it"
        )
        assert status["issues"] == []

        (found,) = await issue(state(BUNDLED_MODEL, template=broken), slots=SLOTS)
        details = found["ChatTemplateDoesNotCompile"]
        assert details.keys() == {"error", "model_path", "template_content"}
        assert details["model_path"] == {"model_path": str(BUNDLED_MODEL)}
        assert details["template_content"] == broken
        assert details["error"]
        await link.set_state(state(BUNDLED_MODEL))
        status = await link.wait_status(applied, "the model's own template")
        assert (status["issues"], status["slots_total"]) == ([], SLOTS)


def applied(status: Json) -> bool:
    return bool(status["state_application_status"] == "Applied")


@pytest.mark.parametrize(("reads_s", "forwards_s"), [(0.0, 0.002), (0.02, 0.001)])
async def test_an_agent_that_leaves_loses_nothing_of_its_last_answer(
    reads_s: float, forwards_s: float
) -> None:
    """A 4.1 balancer forwards nothing any more once an agent deregistered or closed, whatever it
    has read: so both must wait, also for one that reads slowly."""
    async with linked_agent() as (_, agent, link):
        await link.set_state(state(BUNDLED_MODEL))
        await link.wait_serving(SLOTS)
        heard: list[Json] = []

        async def client() -> None:
            heard.extend(await link.forward("last", forwards_s))

        async with trio.open_nursery() as nursery:
            await link.ask("last", raw_prompt(40))
            nursery.start_soon(client)
            await link.wait_results("last", 1)
            link.pause_s = reads_s
            agent.signal(signal.SIGTERM)
        assert len(heard) == 41
        assert [*heard[-1]["GeneratedToken"]] == ["Done"]
        await link.wait(lambda link: link.has_deregistered, "it deregisters")
        await link.wait_closed()
        assert await trio.to_thread.run_sync(agent.wait) == 0


@pytest.mark.parametrize("way", ["crash", "close"])
async def test_a_lost_balancer_is_dialled_again_and_finds_the_model_still_loaded(way: str) -> None:
    async with linked_agent() as (balancer, agent, link):
        await link.set_state(state(BUNDLED_MODEL))
        await link.wait_serving(SLOTS)
        engine = agent.engine_pid
        await link.ask("lost", raw_prompt(400))
        await link.wait_results("lost", 1)
        if way == "crash":
            await link.crash()
        else:
            await link.socket.aclose(1001, "Server shutting down")
        again = await balancer.next_link()
        assert again.agent_id == link.agent_id
        registration = again.received[0]["Notification"]["RegisterAgent"]
        assert registration["slot_aggregated_status_snapshot"]["slots_total"] == SLOTS
        await again.set_state(state(BUNDLED_MODEL))
        await again.ask("lost", raw_prompt(3))
        assert len(await again.wait_answer("lost")) == 4
        assert agent.engine_pid == engine
        await again.wait_status(lambda s: s["slots_processing"] == 0, "the lost request stopped")


async def test_a_killed_engine_costs_its_requests_and_comes_back() -> None:
    async with linked_agent() as (_, agent, link):
        await link.set_state(state(BUNDLED_MODEL, context_size=8192))
        await link.wait_serving(SLOTS)
        await link.ask("doomed", raw_prompt(4000))
        await link.wait_results("doomed", 1)
        engine = agent.engine_pid
        assert engine is not None
        os.kill(engine, signal.SIGKILL)
        *_, last = await link.wait_answer("doomed")
        assert [*last] == ["SamplerError"]
        await link.wait_status(lambda s: s["slots_total"] == 0, "no slots without an engine")
        await link.wait_serving(SLOTS)
        assert agent.engine_pid not in (None, engine)
        await link.ask("next", raw_prompt(3))
        assert len(await link.wait_answer("next")) == 4

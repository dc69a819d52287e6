"""Images through balancer, agent and engine, with a projector of random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet, FleetView, serving
from streams import CONVERSATION, Heard, listen, story, until_first_tokens

from sound_models import (
    flac_of_silence,
    mp3_of_silence,
    sound_part,
    tone,
    wav,
    wav_header,
    write_ear,
)
from vision_models import data_uri, encoded, picture, write_projector

Json: TypeAlias = Any  # answers are looked into freely; their shape is what is being tested

RED, GREEN = picture((250, 20, 10)), picture((10, 240, 30))
RED_URI, GREEN_URI = (data_uri(encoded(each)) for each in (RED, GREEN))


def desire(fleet: Fleet, projection: Path | None, **parameters: object) -> str:
    """The bundled model with this projection; returns the digest of the state."""
    url = f"{fleet.management_url}/api/v1/balancer_desired_state"
    with httpx.Client(trust_env=False, timeout=60) as http:
        state = http.get(url).raise_for_status().json()
        state["model"] = {"LocalToAgent": str(BUNDLED_MODEL)}
        state["multimodal_projection"] = (
            "None" if projection is None else {"LocalToAgent": str(projection)}
        )
        state["inference_parameters"] |= {"context_size": 4096, "temperature": 0.0, **parameters}
        answer = http.put(url, json=state)
    assert answer.status_code == 204, answer.text
    return str(answer.headers["X-Paddler-State-Digest"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_projector(tmp_path_factory.mktemp("projection") / "tiny.gguf")


@pytest.fixture(scope="module")
def one_agent() -> Iterator[Fleet]:
    with Fleet.start(model=None, slots=2) as fleet:
        yield fleet


@pytest.fixture
def fleet(one_agent: Fleet, tiny: Path) -> Fleet:
    """With the tiny projection, whatever the last test wanted."""
    desire(one_agent, tiny)
    one_agent.wait_serving()
    return one_agent


def conversation(*parts: Json, max_tokens: int = 12) -> Json:
    return {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": list(parts)}],
        "enable_thinking": False,
        "max_tokens": max_tokens,
    }


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def shown(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def results(fleet: Fleet, body: Json, path: str = CONVERSATION) -> list[Json]:
    answer = httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return [line["Response"]["response"]["GeneratedToken"] for line in lines]


def ask(fleet: Fleet, path: str, body: Json) -> Json:
    answer = httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def usage_of(found: list[Json]) -> Json:
    return found[-1]["Done"]["usage"]


def test_the_same_image_is_computed_once_and_counted_apart(fleet: Fleet) -> None:
    question = conversation(shown(RED_URI), text("What is this?"))
    first, again = results(fleet, question), results(fleet, question)
    other = results(fleet, conversation(shown(GREEN_URI), text("What is this?")))
    blind = results(fleet, conversation(text("What is this?")))
    assert usage_of(first)["input_image_tokens"] == 36
    assert usage_of(blind)["input_image_tokens"] == 0
    assert usage_of(again)["cached_prompt_tokens"] == usage_of(first)["prompt_tokens"] - 1
    assert usage_of(other)["cached_prompt_tokens"] < usage_of(first)["prompt_tokens"] - 1
    assert first[:-1] == again[:-1]


def test_images_in_the_middle_of_a_conversation(fleet: Fleet) -> None:
    """A turn later what was computed of the images serves, and every image is where it stood."""
    turns: list[Json] = [
        {"role": "system", "content": "You look at pictures."},
        {"role": "user", "content": [text("Look:"), shown(RED_URI), text("and"), shown(GREEN_URI)]},
    ]
    body = conversation()
    body["conversation_history"] = turns
    first = results(fleet, body)
    said = "".join(part.get("ContentToken", "") for part in first)
    body["conversation_history"] = [
        *turns,
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And what else?"},
    ]
    second = results(fleet, body)
    assert usage_of(first)["input_image_tokens"] == usage_of(second)["input_image_tokens"] == 72
    assert usage_of(second)["cached_prompt_tokens"] >= usage_of(first)["prompt_tokens"] - 8


def test_the_extended_surfaces_show_images_as_well(fleet: Fleet) -> None:
    messages = [{"role": "user", "content": [shown(RED_URI), text("Well?")]}]
    prompt = {"Conversation": {"messages": messages, "thinking": False}}
    found = results(fleet, {"prompt": prompt, "max_tokens": 4}, "/api/v2/generate")
    assert usage_of(found)["input_image_tokens"] == 36
    rendered = ask(fleet, "/api/v2/render_prompt", {"prompt": prompt})
    assert rendered["prompt"].count("<__media__>") == 1
    assert httpx.get(f"{fleet.inference_url}/api/v2/model", trust_env=False, timeout=60).json()[
        "can_see"
    ]
    completion = ask(fleet, "/v1/chat/completions", {"messages": messages, "max_tokens": 4})
    assert completion["usage"]["completion_tokens"] == 4
    broken = [{"role": "user", "content": [shown("data:image/png;base64,AAAA")]}]
    refused = httpx.post(
        f"{fleet.inference_url}/v1/chat/completions",
        json={"messages": broken},
        trust_env=False,
        timeout=60,
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_image")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.org/cat.png", "remote images are not fetched"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,***", "not base64"),
        (data_uri(b"GIF is what I am not"), "no known format"),
        (data_uri(encoded(RED)[:90]), "broken"),
        (data_uri(b"<svg><image href='/etc/hostname'/></svg>"), "must be data URIs"),
    ],
)
def test_what_is_no_image_ends_with_its_reason(fleet: Fleet, url: str, reason: str) -> None:
    (ending,) = results(fleet, conversation(text("Look:"), shown(url)))
    assert reason in ending["ImageDecodingFailed"]
    assert "messages[0].content[1]" in ending["ImageDecodingFailed"]


def test_an_image_of_more_tokens_than_a_batch_says_both_numbers(
    one_agent: Fleet, tmp_path: Path
) -> None:
    projection = write_projector(tmp_path / "large.gguf", side=48)
    desire(one_agent, projection, n_batch=100)
    one_agent.wait_serving()
    (ending,) = results(one_agent, conversation(shown(RED_URI)))
    assert ending == {"ImageExceedsBatchSize": {"image_tokens": 144, "n_batch": 100}}


async def test_words_flow_and_a_client_may_leave_while_an_image_is_encoded(
    one_agent: Fleet, tmp_path: Path
) -> None:
    projection = write_projector(tmp_path / "slow.gguf", side=160, layers=24)
    desire(one_agent, projection, n_batch=2048)
    one_agent.wait_serving()
    address = one_agent.inference
    async with trio.open_nursery() as nursery:
        looker, reader = Heard(), Heard()
        question = conversation(shown(RED_URI), max_tokens=2)
        await nursery.start(partial(listen, address, CONVERSATION, question, looker))
        await nursery.start(partial(listen, address, CONVERSATION, story(1), reader))
        await until_first_tokens([reader], 1)
        assert looker.tokens == 0, "the image was encoded before others went on"
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(
        partial(one_agent.wait_until, nobody_runs, what="both slots are free")
    )


def nobody_runs(view: FleetView) -> bool:
    return all(agent["slots_processing"] == 0 for agent in view["agents"])


def test_a_projection_that_cannot_be_used_is_an_issue_until_it_can(
    one_agent: Fleet, tmp_path: Path
) -> None:
    """The model serves words meanwhile, and sees as soon as the file is right."""
    fleet = one_agent
    path = tmp_path / "projection.gguf"
    issue = {"MultimodalProjectionCannotBeLoaded": {"model_path": str(path)}}

    def serves_with_it(view: FleetView) -> bool:
        """The state and the issues come in two frames."""
        return serving(view, 1) and view["agents"][0]["issues"] == [issue]

    desire(fleet, path)
    (agent,) = fleet.wait_until(serves_with_it, what="it serves words")["agents"]
    assert "there is no file" in (agent["detail"] or "")
    assert "Done" in results(fleet, conversation(text("Hello")))[-1]
    (ending,) = results(fleet, conversation(shown(RED_URI)))
    assert "without a multimodal projection" in ending["MultimodalNotSupported"]

    write_projector(tmp_path / "other.gguf", model_width=128)
    shutil.move(tmp_path / "other.gguf", path)
    fleet.wait_until(
        lambda view: "mismatch" in (view["agents"][0]["detail"] or ""), what="it is refused"
    )
    fleet.wait_until(serves_with_it, what="it serves words still")

    write_projector(tmp_path / "right.gguf")
    shutil.move(tmp_path / "right.gguf", path)
    fleet.wait_until(lambda view: view["agents"][0]["issues"] == [], what="the issue is gone")
    fleet.wait_serving()
    found = results(fleet, conversation(shown(RED_URI)))
    assert usage_of(found)["input_image_tokens"] == 36

    desire(fleet, None)
    fleet.wait_serving()
    (ending,) = results(fleet, conversation(shown(RED_URI)))
    assert "MultimodalNotSupported" in ending


BASE64 = RED_URI.partition(",")[2]
SEEN: dict[str, tuple[Json, Json, Callable[[Json], int]]] = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "What?"}], "max_tokens": 1},
        {"messages": [{"role": "user", "content": [shown(RED_URI), text("What?")]}]},
        lambda told: told["usage"]["prompt_tokens"],
    ),
    "/v1/responses": (
        {"input": "What?", "max_output_tokens": 1},
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": RED_URI},
                        {"type": "input_text", "text": "What?"},
                    ],
                }
            ]
        },
        lambda told: told["usage"]["input_tokens"],
    ),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "What?"}], "max_tokens": 1},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": BASE64,
                            },
                        },
                        text("What?"),
                    ],
                }
            ]
        },
        lambda told: sum(
            told["usage"].get(name) or 0
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        ),
    ),
    "/api/chat": (
        {
            "messages": [{"role": "user", "content": "What?"}],
            "stream": False,
            "options": {"num_predict": 1},
        },
        {"messages": [{"role": "user", "content": "What?", "images": [BASE64]}]},
        lambda told: told["prompt_eval_count"],
    ),
    "/api/generate": (
        {"prompt": "What?", "stream": False, "options": {"num_predict": 1}},
        {"images": [BASE64]},
        lambda told: told["prompt_eval_count"],
    ),
}


@pytest.mark.parametrize("path", SEEN)
def test_every_api_has_a_place_for_an_image(fleet: Fleet, path: str) -> None:
    blind, change, tokens = SEEN[path]
    assert tokens(ask(fleet, path, {**blind, **change})) - tokens(ask(fleet, path, blind)) >= 36


def test_a_model_that_sees_says_so_and_that_it_does_not_hear(fleet: Fleet) -> None:
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http:
        (listed,) = http.get("/v1/models").json()["data"]
        assert listed["architecture"]["input_modalities"] == ["text", "image"]
        modalities = http.get("/props").json()["modalities"]
        assert modalities == {"vision": True, "video": False, "audio": False}
        said = [{"role": "user", "content": [sound_part(wav(tone(440))), text("What is said?")]}]
        for path, body, param in (
            ("/v1/chat/completions", {"messages": said}, "messages[0].content[0].input_audio"),
            ("/v1/responses", {"input": said}, "input"),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["code"] == "unsupported_parameter"
            assert error["param"] == param
            assert "[0].content[0].input_audio: not supported" in error["message"]
        assert http.post("/v1/audio/transcriptions").status_code == 501


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_projector(tmp_path_factory.mktemp("ear") / "both.gguf", hears="gemma4ua")


HEARD: dict[str, tuple[str, Callable[[Json], Json], str]] = {
    "chat completions": (
        "/v1/chat/completions",
        lambda part: {"messages": [{"role": "user", "content": [part, text("?")]}]},
        "prompt_tokens",
    ),
    "responses": (
        "/v1/responses",
        lambda part: {"input": [{"role": "user", "content": [part]}]},
        "input_tokens",
    ),
}


def test_a_model_that_hears_is_played_sounds_and_says_so(one_agent: Fleet, ear: Path) -> None:
    desire(one_agent, ear)
    one_agent.wait_serving()
    low, high = (sound_part(wav(tone(hertz, seconds=2))) for hertz in (300, 3000))
    with httpx.Client(base_url=one_agent.inference_url, trust_env=False, timeout=60) as http:
        (listed,) = http.get("/v1/models").json()["data"]
        assert listed["architecture"]["input_modalities"] == ["text", "image", "audio"]
        modalities = http.get("/props").json()["modalities"]
        assert modalities == {"vision": True, "video": False, "audio": True}
        shown = http.post("/api/show", json={"model": "default"}).json()
        assert {"vision", "audio"} <= {*shown["capabilities"]}
        for path, body_of, counted in HEARD.values():
            few, many = (
                http.post(path, json=body_of(part) | {"temperature": 0}).raise_for_status().json()
                for part in (sound_part(wav(tone(300, seconds=1))), low)
            )
            assert many["usage"][counted] - few["usage"][counted] == 25
        chat = HEARD["chat completions"][1]
        usages = []
        for part in (low, low, high, {"type": "input_audio", "input_audio": {"url": uri(low)}}):
            answer = http.post("/v1/chat/completions", json=chat(part))
            usages.append(answer.raise_for_status().json()["usage"]["prompt_tokens_details"])
        assert [usage["audio_tokens"] for usage in usages] == [50] * 4
        assert usages[1]["cached_tokens"] > usages[2]["cached_tokens"]
        assert usages[3]["cached_tokens"] == usages[1]["cached_tokens"]
        for content, reason in {
            b"no sound": "no known format",
            wav(tone(1, seconds=0)): "0 samples",
            mp3_of_silence(seconds=3600): "more than 81.92 s together, for which one slot",
            wav_header(rate=0) + bytes(99): "broken",
            flac_of_silence(seconds=100): "more than 81.92 s together",
        }.items():
            answer = http.post("/v1/chat/completions", json=chat(sound_part(content)))
            assert answer.status_code == 400, answer.text
            assert reason in answer.json()["error"]["message"]
        many = [sound_part(wav(tone(9, seconds=0.1)))] * 33
        body = {"messages": [{"role": "user", "content": many}]}
        answer = http.post("/v1/chat/completions", json=body)
        assert "max_images is 32" in answer.json()["error"]["message"]
        pointed = {"type": "input_audio", "input_audio": {"url": "http://127.0.0.1:9/a.wav"}}
        answer = http.post("/v1/chat/completions", json=chat(pointed))
        assert answer.json()["error"]["code"] == "image_host_not_allowed"
        assert http.post("/v1/chat/completions", json=chat(low)).status_code == 200


def test_a_projection_may_hear_and_not_see(one_agent: Fleet, tmp_path: Path) -> None:
    desire(one_agent, write_ear(tmp_path / "ear.gguf", kind="qwen2a"))
    one_agent.wait_serving()
    with httpx.Client(base_url=one_agent.inference_url, trust_env=False, timeout=60) as http:
        (listed,) = http.get("/v1/models").json()["data"]
        assert listed["architecture"]["input_modalities"] == ["text", "audio"]
        said = [sound_part(wav(tone(440))), text("?")]
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 1}
        answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
        assert answer["usage"]["prompt_tokens_details"]["audio_tokens"] == 750
        body = {"messages": [{"role": "user", "content": [*said, shown(RED_URI)]}]}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "cannot see images" in answer.json()["error"]["message"]


def uri(part: Json) -> str:
    return f"data:audio/wav;base64,{part['input_audio']['data']}"

"""Images through both official clients, to a model that sees: a projector of random weights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fleet import BUNDLED_MODEL, Fleet

from vision_models import data_uri, encoded, picture, write_projector

TOKENS = 36
"""Of one image: the projector makes one of each patch."""
RED, GREEN = (encoded(picture(colour)) for colour in ((250, 20, 10), (10, 240, 30)))
PLAIN: Any = {"effort": "none"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One agent whose model sees, sampling greedily."""
    projection: Path = write_projector(tmp_path_factory.mktemp("projection") / "tiny.gguf")
    with Fleet.start(model=None, slots=2) as fleet:
        url = f"{fleet.management_url}/api/v1/balancer_desired_state"
        with httpx.Client(trust_env=False, timeout=10) as http:
            state = http.get(url).raise_for_status().json()
            state["model"] = {"LocalToAgent": str(BUNDLED_MODEL)}
            state["multimodal_projection"] = {"LocalToAgent": str(projection)}
            state["inference_parameters"] |= {"context_size": 4096, "temperature": 0.0}
            http.put(url, json=state).raise_for_status()
        fleet.wait_serving()
        yield fleet


@pytest.fixture(scope="module")
def http(seeing: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=seeing.inference_url, trust_env=False, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def claude(seeing: Fleet) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=seeing.inference_url,
        api_key="none",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


@pytest.fixture(scope="module")
def client(seeing: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{seeing.inference_url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def block(image: bytes) -> Any:
    data = base64.b64encode(image).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def words(text: str) -> Any:
    return {"type": "text", "text": text}


def said(*blocks: Any) -> Any:
    return [{"role": "user", "content": list(blocks)}]


# ---------------------------------------------------------------------------------- Anthropic's


def test_a_message_shows_an_image(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "m", "max_tokens": 12}
    blind = claude.messages.create(**asked, messages=said(words("What is this?")))
    shown = said(block(RED), words("What is this?"))
    seen = claude.messages.create(**asked, messages=shown)
    assert seen.content
    assert seen.content[0].type == "text"
    read = seen.usage.input_tokens + (seen.usage.cache_read_input_tokens or 0)
    without = blind.usage.input_tokens + (blind.usage.cache_read_input_tokens or 0)
    assert read >= without + TOKENS
    again = claude.messages.create(**asked, messages=shown)
    assert again.usage.input_tokens + (again.usage.cache_read_input_tokens or 0) == read
    assert again.content == seen.content
    with claude.messages.stream(**asked, messages=shown) as stream:
        assert stream.get_final_text() == seen.content[0].text


def test_a_tool_may_answer_with_an_image(claude: anthropic.Anthropic) -> None:
    def wish(*answer: Any) -> Any:
        use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [words("See:"), *answer]}
        tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
        return {
            "model": "m",
            "max_tokens": 8,
            "tools": [tool],
            "messages": [
                *said(words("Look.")),
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ],
        }

    seen = claude.messages.create(**wish(block(GREEN))).usage
    blind = claude.messages.create(**wish()).usage
    assert seen.input_tokens + (seen.cache_read_input_tokens or 0) >= (
        blind.input_tokens + (blind.cache_read_input_tokens or 0) + TOKENS
    )


def test_what_is_no_image_is_refused(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    with pytest.raises(anthropic.BadRequestError) as told:
        claude.messages.create(model="m", max_tokens=4, messages=said(block(b"no image")))
    assert told.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]  # JSON
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input=[part_message(b"no image")])
    assert (refused.value.param, refused.value.code) == ("input", "invalid_image")


# ------------------------------------------------------------------------------------ responses


def part_message(*images: bytes) -> Any:
    parts: list[Any] = [{"type": "input_text", "text": "What is this?"}]
    for image in images:
        parts.append({"type": "input_image", "image_url": data_uri(image), "detail": "auto"})
    return {"role": "user", "content": parts}


def test_a_response_shows_images(client: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "max_output_tokens": 12, "reasoning": PLAIN}
    blind = client.responses.create(**asked, input=[part_message()])
    one = client.responses.create(**asked, input=[part_message(RED)])
    two = client.responses.create(**asked, input=[part_message(RED, GREEN)])
    assert one.usage is not None
    assert two.usage is not None
    assert blind.usage is not None
    assert one.usage.input_tokens >= blind.usage.input_tokens + TOKENS
    assert two.usage.input_tokens >= one.usage.input_tokens + TOKENS
    assert one.output_text != "" or one.output
    with client.responses.stream(**asked, input=[part_message(RED)]) as stream:
        assert stream.get_final_response().output_text == one.output_text


def test_a_response_goes_on_after_an_image(client: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "max_output_tokens": 8, "reasoning": PLAIN}
    first = client.responses.create(**asked, input=[part_message(RED)])
    then = client.responses.create(**asked, input="And now?", previous_response_id=first.id)
    assert first.usage is not None
    assert then.usage is not None
    assert then.usage.input_tokens > first.usage.input_tokens


def test_a_function_may_answer_with_an_image(client: openai.OpenAI) -> None:
    def wish(*images: bytes) -> Any:
        shown = [{"type": "input_image", "image_url": data_uri(image)} for image in images]
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = [{"type": "input_text", "text": "See:"}, *shown]
        return {
            "model": "m",
            "max_output_tokens": 8,
            "reasoning": PLAIN,
            "input": [
                {"role": "user", "content": "Look."},
                call,
                {"type": "function_call_output", "call_id": "c1", "output": output},
            ],
        }

    seen, blind = (client.responses.create(**wish(*images)).usage for images in ((GREEN,), ()))
    assert seen is not None
    assert blind is not None
    assert seen.input_tokens >= blind.input_tokens + TOKENS


# ---------------------------------------------------------------------- what llama-server tells


def test_it_is_told_that_the_model_sees(http: httpx.Client) -> None:
    for path in ("/models", "/v1/models"):
        (model,) = http.get(path).json()["models"]
        assert model["capabilities"] == ["completion", "multimodal"]
    assert http.get("/props").json()["modalities"] == {
        "vision": True,
        "video": False,
        "audio": False,
    }


def test_tokens_of_a_conversation_with_an_image_are_counted(
    http: httpx.Client, claude: anthropic.Anthropic
) -> None:
    url = {"type": "image_url", "image_url": {"url": data_uri(RED)}}
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        told = http.post(path, json={"messages": said(words("What is this:"), url)})
        assert told.status_code == 200, told.text
        assert told.json()["input_tokens"] > 10
    counted = claude.messages.count_tokens(model="m", messages=said(block(RED), words("This?")))
    assert counted.input_tokens > 10


@pytest.mark.parametrize(
    "url", ["malformed", "data:text/html;base64,aGVsbG8=", "file://test.png", "data:image/png,"]
)
def test_what_is_no_address_of_an_image_is_refused(http: httpx.Client, url: str) -> None:
    shown = {"type": "image_url", "image_url": {"url": url}}
    answer = http.post("/chat/completions", json={"messages": said(words("test"), shown)})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("messages")

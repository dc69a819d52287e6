"""Requests of the shapes that known clients send are answered, each in its API's own way.

The shapes were recorded by ``make test.clients WRITE_SHAPES=1``; of their texts only the length is
kept. A model that writes what it was told to answers the generated requests: with a text, with the
call that a request demands, or with the JSON that it is held to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from fleet import Fleet

from request_shapes import Made
from scripted_model import Script, call, write_scripted_model

FILES = sorted((Path(__file__).parent / "client_shapes").glob("*.json"))
COUNT = "/v1/messages/count_tokens"
PATHS = {"/v1/chat/completions", "/v1/responses", "/v1/messages", COUNT}


@attrs.frozen
class Request:
    """One generated request, and what the model answers it with.

    ``name``: of the tool that is demanded. ``data``: its arguments, or the JSON that is demanded.
    """

    path: str
    body: dict[str, Any]
    name: str | None
    data: dict[str, Any] | None
    number: int

    @property
    def mark(self) -> str:
        """Return what the texts of this request begin with, by which the model knows it."""
        return f"[request {self.number}]"

    @property
    def text(self) -> str:
        """Return what the model writes."""
        if self.data is None:
            return f"This is answer {self.number}."
        data = json.dumps(self.data)
        return data if self.name is None else call(self.name, data)


def instance(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that satisfies a plain schema, members in its order."""
    values = {"string": "words", "integer": 20, "number": 1.5, "boolean": True}
    return {name: values[each["type"]] for name, each in schema["properties"].items()}


def demanded(body: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the name of the tool that has to be called, and the schema that holds the answer."""
    choice = body.get("tool_choice", "auto")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in {"required", "any", "tool", "function"}:
        tools = [each.get("function", each) for each in body["tools"]]
        tool = tools[-1]  # kits offer the tool of the answer's shape last
        return tool["name"], tool.get("input_schema", tool.get("parameters"))
    for form in (
        body.get("response_format"),
        body.get("text", {}).get("format"),
        body.get("output_config", {}).get("format"),
    ):
        if form is not None and form["type"] != "text":
            return None, form.get("json_schema", form).get("schema", {"properties": {}})
    return None, None


def all_requests() -> Iterator[tuple[str, Request]]:
    number = 0
    for file in FILES:
        for shape in json.loads(file.read_text()):
            number += 1
            body = Made(f"[request {number}]").of(shape["body"])
            name, schema = demanded(body)
            data = None if schema is None else instance(schema)
            yield file.stem, Request(shape["path"], body, name, data, number)


REQUESTS = list(all_requests())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    script = Script(by_phrase={each.mark: each.text for _, each in REQUESTS}, otherwise="Nothing.")
    model = write_scripted_model(tmp_path_factory.mktemp("model") / "scripted.gguf", script)
    with Fleet.start(agents=1, slots=2, model=model) as fleet:
        fleet.desire(model, context_size=131_072)
        fleet.wait_serving()
        yield fleet


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the JSON of a stream's events."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def of_chat(answer: httpx.Response, *, is_stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    if not is_stream:
        message = answer.json()["choices"][0]["message"]
        calls = [each["function"] for each in message.get("tool_calls") or ()]
        return message["content"] or "", [(c["name"], json.loads(c["arguments"])) for c in calls]
    assert answer.text.endswith("data: [DONE]\n\n")
    deltas = [c["delta"] for each in events(answer) for c in each["choices"]]
    text = "".join(each.get("content") or "" for each in deltas)
    parts = [part["function"] for each in deltas for part in each.get("tool_calls") or ()]
    names = [part["name"] for part in parts if part.get("name")]
    arguments = "".join(part.get("arguments") or "" for part in parts)
    return text, [(name, json.loads(arguments)) for name in names]


def of_responses(answer: httpx.Response, *, is_stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    whole = answer.json() if not is_stream else events(answer)[-1]["response"]
    assert whole["status"] == "completed"
    texts, calls = [], []
    for item in whole["output"]:
        if item["type"] == "message":
            texts += [part["text"] for part in item["content"]]
        else:
            calls.append((item["name"], json.loads(item["arguments"])))
    return "".join(texts), calls


def of_messages(answer: httpx.Response, *, is_stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    if not is_stream:
        blocks = answer.json()["content"]
        return "".join(each.get("text", "") for each in blocks), [
            (each["name"], each["input"]) for each in blocks if each["type"] == "tool_use"
        ]
    told = events(answer)
    assert told[-1]["type"] == "message_stop"
    begun = [each["content_block"] for each in told if each["type"] == "content_block_start"]
    deltas = [each["delta"] for each in told if each["type"] == "content_block_delta"]
    names = [each["name"] for each in begun if each["type"] == "tool_use"]
    text = "".join(each.get("text", "") for each in deltas)
    arguments = "".join(each.get("partial_json", "") for each in deltas)
    return text, [(name, json.loads(arguments)) for name in names]


READERS = {
    "/v1/chat/completions": of_chat,
    "/v1/responses": of_responses,
    "/v1/messages": of_messages,
}


def with_stored_items(body: dict[str, Any], url: str) -> dict[str, Any]:
    """Let each reference name an item of an answer that was really stored."""
    for item in body["input"] if isinstance(body.get("input"), list) else ():
        if item.get("type") == "item_reference":
            asked = {"model": "default", "input": "Hello."}
            stored = httpx.post(f"{url}/v1/responses", json=asked, timeout=60, trust_env=False)
            item["id"] = stored.json()["output"][0]["id"]
    return body


def test_every_known_client_has_its_shapes() -> None:
    assert len(FILES) == 8
    assert {each.path.partition("?")[0] for _, each in REQUESTS} == PATHS
    assert any(each.name for _, each in REQUESTS)
    assert any(each.data and not each.name for _, each in REQUESTS)


@pytest.mark.parametrize(
    "request_", [each for _, each in REQUESTS], ids=[f"{n}-{each.number}" for n, each in REQUESTS]
)
def test_a_request_of_a_known_client_is_answered(fleet: Fleet, request_: Request) -> None:
    api = request_.path.partition("?")[0]
    body = with_stored_items(request_.body, fleet.inference_url)
    answer = httpx.post(
        f"{fleet.inference_url}{request_.path}",
        json=body,
        headers={"anthropic-version": "2023-06-01"} if "/messages" in api else {},
        timeout=120,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    if api == COUNT:
        assert answer.json()["input_tokens"] > 0
        return
    is_stream = bool(body.get("stream"))
    text, calls = READERS[api](answer, is_stream=is_stream)
    if request_.name is not None:
        assert calls == [(request_.name, request_.data)]
    elif request_.data is not None:
        assert json.loads(text) == request_.data
    else:
        assert (text, calls) == (request_.text, [])

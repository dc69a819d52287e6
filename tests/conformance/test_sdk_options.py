"""What the official clients offer beside the plain call: options of requests, helpers, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fleet import Fleet
from pydantic import BaseModel

WHO: Any = [{"role": "user", "content": "Who are you?"}]
PLAIN: Any = {"effort": "none"}


class City(BaseModel):
    """What a structured answer is parsed into."""

    name: str
    inhabitants: int


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{fleet.inference_url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


@pytest.fixture(scope="module")
def strict() -> Iterator[Fleet]:
    """A balancer that refuses what it would ignore; it has nobody to ask."""
    options = ["--strict-openai-fields", "--max-buffered-requests=0"]
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def claude(fleet: Fleet) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=fleet.inference_url,
        api_key="none",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "m", "messages": WHO, "max_tokens": 8, "temperature": 0} | more
    asked.setdefault("extra_body", {"enable_thinking": False})
    return client.chat.completions.create(**asked)


# -------------------------------------------------------------------------- fields by their fate


@pytest.mark.parametrize(
    "field",
    [
        {"store": True},
        {"metadata": {"a": "b"}},
        {"user": "me"},
        {"safety_identifier": "me"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"service_tier": "flex"},
        {"modalities": ["text"]},
        {"modalities": ["text", "audio"]},
        {"audio": {"format": "wav", "voice": "alloy"}},
        {"moderation": {"model": "m"}},
        {"verbosity": "medium"},
        {"parallel_tool_calls": False},
        {"stop": ["\u2603", "\u2604", "\u2605", "\u2606"]},
        {"logit_bias": {}},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_asks_for_nothing_here_changes_nothing(
    client: openai.OpenAI, field: dict[str, Any]
) -> None:
    assert chat(client, **field).choices[0].message.content == (
        chat(client).choices[0].message.content
    )


@pytest.mark.parametrize(
    "field",
    [
        {"functions": [{"name": "f"}]},
        {"top_logprobs": 3},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_cannot_be_had_is_a_bad_request_that_names_it(
    client: openai.OpenAI, field: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        chat(client, **field)
    assert told.value.param == next(iter(field))
    assert told.value.request_id


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"image": {"detail": "low"}}, "image"),
    ],
)
def test_a_response_that_cannot_be_had_is_too(
    client: openai.OpenAI, field: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        client.responses.create(model="m", input="hi", max_output_tokens=4, **field)
    assert told.value.param == param


@pytest.mark.parametrize(
    ("path", "field", "name"),
    [
        ("/v1/chat/completions", {"usage": {"include": True}}, "usage"),
        ("/v1/chat/completions", {"verbosity": "low"}, "verbosity"),
        ("/v1/chat/completions", {"web_search_options": {}}, "web_search_options"),
        ("/v1/chat/completions", {"messages": [{**WHO[0], "id": "m"}]}, "messages[].id"),
        ("/v1/responses", {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}, "tools[].web_search"),
        ("/v1/messages", {"context_management": {"edits": []}}, "context_management"),
        ("/v1/messages", {"messages": [{**WHO[0], "id": "m"}]}, "messages[].id"),
        ("/v1/completions", {"provider": {}}, "provider"),
        ("/completion", {"n_keep": 5}, "n_keep"),
        ("/v1/embeddings", {"truncate": "END"}, "truncate"),
        ("/v1/rerank", {"return_raw": True}, "return_raw"),
        ("/tokenize", {"nix": 1}, "nix"),
    ],
)
def test_what_changes_nothing_is_named_in_a_header(
    fleet: Fleet, strict: Fleet, path: str, field: dict[str, Any], name: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": WHO, "max_tokens": 1},
        "/v1/responses": {"input": "hi", "max_output_tokens": 1},
        "/v1/messages": {"messages": WHO, "max_tokens": 1},
        "/v1/completions": {"prompt": "hi", "max_tokens": 1},
        "/completion": {"prompt": "hi", "max_tokens": 1},
        "/v1/embeddings": {"input": "hi"},
        "/v1/rerank": {"query": "q", "documents": ["d"]},
        "/tokenize": {"content": "hi"},
    }
    with httpx.Client(trust_env=False, timeout=30) as http:
        ways = [{}, {"stream": True}] if path.endswith(("completions", "ponses", "ages")) else [{}]
        for way in ways:
            body = {**bodies[path], **field, **way}
            told = http.post(f"{fleet.inference_url}{path}", json=body)
            assert told.status_code in (200, 501), told.text
            assert told.headers["x-paddler-ignored-fields"] == name
            refused = http.post(f"{strict.inference_url}{path}", json=body)
            assert refused.status_code == 400, refused.text
            assert "x-paddler-ignored-fields" not in refused.headers
        plain = http.post(f"{strict.inference_url}{path}", json={**bodies[path], "top_k": None})
        assert plain.status_code in (400, 501, 503, 504), "refused for nothing but its field"


def test_each_name_is_logged_once() -> None:
    """With a balancer of its own: one logs a bounded number of names in its life."""
    with Fleet.start(agents=1) as fleet:
        fleet.wait_serving()
        with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=30) as http:
            for _ in range(3):
                body = {"messages": WHO, "max_tokens": 1, "first_name": "x\n" * 1000}
                http.post("/v1/chat/completions", json=body).raise_for_status()
            last = {"messages": WHO, "max_tokens": 1, "last_name": 1}
            http.post("/v1/chat/completions", json=last).raise_for_status()
        fleet.balancer.wait_for_line("last_name")
        lines = [line for line in fleet.balancer.tail(200).splitlines() if "first_name" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 1000


def test_an_answer_is_replayed_as_the_client_dumps_it(client: openai.OpenAI) -> None:
    """What the packages make of an answer goes back into the next request as it is."""
    said = chat(client, extra_body={"enable_thinking": True}, max_tokens=60).choices[0].message
    parsed = client.chat.completions.parse(
        model="m", messages=WHO, max_tokens=60, response_format=City
    )
    for message in (said, parsed.choices[0].message):
        dumped = message.model_dump(warnings=False)
        history = [*WHO, dumped, {"role": "user", "content": "And then?"}]
        assert chat(client, messages=history).choices[0].message.content is not None
    first = client.responses.parse(
        model="m", input="hi", max_output_tokens=60, text_format=City, reasoning=PLAIN
    )
    items: Any = [item.model_dump(warnings=False) for item in first.output]
    again = client.responses.create(
        model="m", input=[*items, {"role": "user", "content": "And then?"}], max_output_tokens=8
    )
    assert again.status in ("completed", "incomplete")


def test_an_empty_conversation_is_answered(client: openai.OpenAI) -> None:
    assert chat(client, messages=[]).choices[0].finish_reason in ("stop", "length")


def test_labels_of_a_response_are_echoed(client: openai.OpenAI) -> None:
    labels: Any = {
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "max_tool_calls": 2,
    }
    told = client.responses.create(
        model="m", input="hi", max_output_tokens=4, reasoning=PLAIN, **labels
    )
    assert {name: getattr(told, name) for name in labels} == labels


# ------------------------------------------------------------------------------- ways of calling


def test_raw_and_streaming_responses(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "m", "messages": WHO, "max_tokens": 4}
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-request-id"] == raw.request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse().choices[0].finish_reason == "length"
    with client.chat.completions.with_streaming_response.create(**asked) as open_answer:
        assert open_answer.parse().usage is not None
    told = claude.messages.with_raw_response.create(**asked)
    assert told.headers["request-id"]
    assert told.parse()._request_id == told.headers["request-id"]  # documented so


def test_an_answer_that_was_cut_cannot_be_parsed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "messages": WHO, "response_format": City, "extra_body": {}}
    asked["extra_body"] = {"enable_thinking": False}
    whole = client.chat.completions.parse(**asked, max_tokens=80)
    assert isinstance(whole.choices[0].message.parsed, City)
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        client.chat.completions.parse(**asked, max_tokens=1)
    assert cut.value.completion.usage is not None
    assert cut.value.completion.usage.completion_tokens == 1


def test_a_stream_of_chunks_with_a_last_one_for_the_usage(client: openai.OpenAI) -> None:
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.completion_tokens) == ([], 8)
    assert all(chunk.usage is None for chunk in chunks)
    assert not any(chunk.usage for chunk in chat(client, stream=True))


def test_completion_tokens_may_be_bounded_by_the_newer_name(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="m", messages=WHO, max_completion_tokens=5)
    assert told.usage is not None
    assert told.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError, match="say different things"):
        chat(client, max_completion_tokens=5)


@contextmanager
def full(fleet: Fleet) -> Iterator[None]:
    """All four slots are taken, and stay so."""
    body = {"prompt": "Once", "n_predict": 4000, "ignore_eos": True, "stream": True}
    with ExitStack() as held:
        http = held.enter_context(httpx.Client(trust_env=False, timeout=60))
        url = f"{fleet.inference_url}/completion"
        answers = [held.enter_context(http.stream("POST", url, json=body)) for _ in range(4)]
        lines = [each.iter_lines() for each in answers]
        assert all(next(each) for each in lines)
        yield


class Watched:
    """Shows what comes before a client's library reads it."""

    def __init__(self, below: Any, seen: list[bytes], waits: threading.Event) -> None:
        self.below, self.seen, self.waits = below, seen, waits

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.below:
            self.seen.append(piece)
            if b": queued position=" in piece:
                self.waits.set()
            yield piece


def test_libraries_bear_the_comments_of_streams_that_wait(fleet: Fleet) -> None:
    seen = [list[bytes]() for _ in range(4)]
    waits = [threading.Event() for _ in range(4)]
    short: Any = {"model": "m", "stream": True}

    def events(number: int) -> list[Any]:
        def watch(response: Any) -> None:
            byte_stream = type(response.stream).__mro__[1]  # of httpx, or of the library's own
            watched = type("Stream", (Watched, byte_stream), {})
            response.stream = watched(response.stream, seen[number], waits[number])

        http = {"trust_env": False, "event_hooks": {"response": [watch]}}
        if number == 3:
            claude = anthropic.Anthropic(
                base_url=fleet.inference_url,
                api_key="none",
                http_client=anthropic.DefaultHttpxClient(**http),
            )
            with claude:
                return [*claude.messages.create(messages=WHO, max_tokens=8, **short)]
        base_url, openais = f"{fleet.inference_url}/v1", openai.DefaultHttpxClient(**http)
        with openai.OpenAI(base_url=base_url, api_key="none", http_client=openais) as client:
            match number:
                case 0:
                    return [*client.completions.create(prompt="Once", max_tokens=8, **short)]
                case 1:
                    return [*chat(client, stream=True)]
            return [*client.responses.create(input="Hi", max_output_tokens=8, **short)]

    with ThreadPoolExecutor(4) as pool:
        with full(fleet):
            answers = [pool.submit(events, number) for number in range(4)]
            assert all(each.wait(30) for each in waits)
        for answer, pieces in zip(answers, seen, strict=True):
            assert len(answer.result()) > 2
            assert pieces[0].startswith(b": queued position=")


def test_a_client_that_waits_no_longer_frees_its_slot(client: openai.OpenAI, fleet: Fleet) -> None:
    impatient = client.with_options(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        chat(impatient, max_tokens=900, extra_body={"ignore_eos": True})
    fleet.wait_until(
        lambda view: all(agent["slots_processing"] == 0 for agent in view["agents"]),
        what="no slot is taken",
    )


def test_unknown_paths_speak_the_dialect_they_are_under(
    fleet: Fleet, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError) as told:
        claude.messages.batches.list()
    assert told.value.body["type"] == "error"  # type: ignore[index]  # JSON
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http:
        wrong = http.get("/v1/messages")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["type"] == "invalid_request_error"
        assert wrong.json()["type"] == "error"
        assert http.get("/v1/files").json()["error"]["code"] == "unknown_url"

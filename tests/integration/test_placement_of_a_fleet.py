"""Two real agents: a conversation stays where its prefix is, and a client is told why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fleet import Fleet, serving

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

LIMIT_S = 120.0
WORDS = "The sea was calm and the wind came from the south. " * 16


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with Fleet.start(agents=2, slots=2, model=None) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=8192)
        fleet.wait_until(lambda view: serving(view, 2), nobody_ends=True)
        with httpx.Client(base_url=fleet.inference_url, timeout=LIMIT_S) as http:
            yield http


def ask(client: httpx.Client, messages: list[dict[str, str]], **headers: str) -> httpx.Response:
    return client.post(
        "/v1/chat/completions",
        json={"model": "default", "messages": messages, "max_tokens": 8, "temperature": 0},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_conversations_that_alternate_stay_where_they_began(client: httpx.Client) -> None:
    talks = {name: [{"role": "user", "content": f"{name}. {WORDS}"}] for name in ("one", "two")}
    homes: dict[str, set[str]] = {name: set() for name in talks}
    for turn in range(3):
        for name, messages in talks.items():
            response = ask(client, messages, X_Paddler_Explain="1")
            answer: dict[str, Any] = response.raise_for_status().json()
            why = response.headers["x-paddler-placement"]
            agent = why.split(":")[0]
            homes[name].add(agent)
            assert agent in ("a1", "a2")
            if turn:
                assert "tokens are there, predicted" in why
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached > 0.7 * answer["usage"]["prompt_tokens"]
            messages += [
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""},
                {"role": "user", "content": "Go on, and say a little more of the same."},
            ]
    assert sorted(map(len, homes.values())) == [1, 1]
    assert homes["one"] != homes["two"]


def test_nothing_is_told_to_who_did_not_ask(client: httpx.Client) -> None:
    response = ask(client, [{"role": "user", "content": "Hello"}]).raise_for_status()
    assert "x-paddler-placement" not in response.headers


def test_a_client_that_waits_no_longer_is_answered_so(client: httpx.Client) -> None:
    began = [{"role": "user", "content": f"three. {WORDS}"}]
    response = ask(client, began, X_Request_Timeout="0.001")
    assert response.status_code in (503, 504)
    assert "X-Request-Timeout" in response.json()["error"]["message"]
    assert response.status_code == 504 or int(response.headers["retry-after"]) >= 1
    ask(client, began, X_Request_Timeout="60").raise_for_status()


def test_a_timeout_that_is_none_is_refused(client: httpx.Client) -> None:
    response = ask(client, [{"role": "user", "content": "Hello"}], X_Request_Timeout="soon")
    assert response.status_code == 400
    assert "X-Request-Timeout is 'soon'" in response.json()["error"]["message"]

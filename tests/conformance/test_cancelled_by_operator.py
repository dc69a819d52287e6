"""What an operator cancels is told to each client in its own shape, and none sends it again.

The official libraries run with the retries that they have by default, and are the judge.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from fleet import Fleet

from no_tls import NO_TLS

RETRIES = 2
"""The default of both libraries."""
ASKED: Any = [{"role": "user", "content": "Who are you?"}]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def waiting() -> Iterator[Fleet]:
    """A balancer without agents, in which requests wait for as long as a test needs."""
    with Fleet.start(agents=0, model=None) as fleet:
        yield fleet


def http() -> httpx.Client:
    return httpx.Client(verify=NO_TLS, trust_env=False, timeout=WAIT_S)


def records(fleet: Fleet, state: str) -> list[dict[str, Any]]:
    with http() as client:
        url = f"{fleet.management_url}/api/v2/requests?state={state}"
        return list(client.get(url).raise_for_status().json()["requests"])


def cancelled(fleet: Fleet, ask: Callable[[], object], *, tokens: int = 0) -> BaseException:
    """What ``ask`` raises as its only request is cancelled, once it has so many tokens; it was sent
    once."""
    before = len(records(fleet, "finished"))
    with ThreadPoolExecutor(1) as pool, http() as client:
        asking = pool.submit(ask)
        give_up_s = time.monotonic() + WAIT_S
        while not (flying := records(fleet, "in_flight")) or flying[0]["tokens"] < tokens:
            assert time.monotonic() < give_up_s
            assert not asking.done(), asking.exception()
        path = f"/api/v2/requests/{flying[0]['key']}"
        assert client.delete(f"{fleet.management_url}{path}").status_code == 204
        error = asking.exception(WAIT_S)
    assert error is not None
    while flying := records(fleet, "in_flight"):  # its agent confirms that it has stopped
        assert flying[0]["phase"] in ("stopping", "ended"), "it was sent again"
        assert time.monotonic() < give_up_s
    ended = records(fleet, "finished")
    assert len(ended) == before + 1, "it was sent again"
    assert ended[0]["ending"]["kind"] == "cancelled"
    return error


OPENAI: dict[str, Callable[[openai.OpenAI], object]] = {
    "chat": lambda c: c.chat.completions.create(model="m", messages=ASKED),
    "chat, streamed": lambda c: list(
        c.chat.completions.create(model="m", messages=ASKED, stream=True)
    ),
    "completions": lambda c: c.completions.create(model="m", prompt="Once"),
    "responses": lambda c: c.responses.create(model="m", input="Once"),
}


@pytest.mark.parametrize("name", OPENAI)
def test_the_library_of_openai_gives_up_at_once(waiting: Fleet, name: str) -> None:
    with openai.OpenAI(
        api_key="any",
        base_url=f"{waiting.inference_url}/v1",
        max_retries=RETRIES,
        http_client=http(),
    ) as client:
        error = cancelled(waiting, lambda: OPENAI[name](client))
    assert isinstance(error, openai.APIStatusError)
    assert (error.status_code, error.code) == (499, "cancelled_by_operator")
    assert error.type == "request_cancelled"
    assert error.response.headers["x-should-retry"] == "false"
    assert "operator cancelled" in error.message


def test_the_library_of_anthropic_gives_up_at_once(waiting: Fleet) -> None:
    with anthropic.Anthropic(
        api_key="any",
        base_url=waiting.inference_url,
        max_retries=RETRIES,
        http_client=httpx2.Client(trust_env=False, timeout=WAIT_S),
    ) as client:
        error = cancelled(
            waiting, lambda: client.messages.create(model="m", max_tokens=5, messages=ASKED)
        )
    assert isinstance(error, anthropic.APIStatusError)
    assert error.status_code == 499
    assert error.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "An operator cancelled this request",
        },
    }


def test_a_client_of_llama_server_reads_a_status_that_nothing_retries(waiting: Fleet) -> None:
    def ask() -> None:
        with http() as client:
            url = f"{waiting.inference_url}/completion"
            client.post(url, json={"prompt": "Once"}).raise_for_status()

    error = cancelled(waiting, ask)
    assert isinstance(error, httpx.HTTPStatusError)
    assert error.response.status_code == 499
    assert error.response.json()["error"]["code"] == "cancelled_by_operator"


def test_a_stream_that_has_begun_ends_with_the_error(fleet: Fleet) -> None:
    body = {"model": "m", "messages": ASKED, "stream": True, "ignore_eos": True}

    def ask() -> None:
        events: list[Any] = []
        url = f"{fleet.inference_url}/v1/chat/completions"
        with http() as client, client.stream("POST", url, json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
        raise AssertionError(events[-1]["error"]["code"])

    assert str(cancelled(fleet, ask, tokens=3)) == "cancelled_by_operator"

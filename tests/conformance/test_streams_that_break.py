"""An agent that dies in the middle of a stream: each official client raises its own exception."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

LONG: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
"""Seconds of tokens: nobody is done before the agent is gone."""


def follow(stream: Iterable[Any], mortal: Fleet) -> Iterator[str]:
    """The types of the events; the agent dies at the first that carries a token."""
    for event in stream:
        yield event.type
        if event.type.endswith("delta"):
            mortal.agents["a1"].signal(signal.SIGKILL)


@contextmanager
def read_once(client: openai.OpenAI) -> Iterator[None]:
    """The client builds what it reads events with at the first ones. On a busy machine that takes
    so long that a stream which does not wait ends for a slow reader."""
    for _ in client.responses.create(model="m", input="Hello.", max_output_tokens=2, stream=True):
        pass
    yield


@pytest.fixture
def mortal() -> Iterator[Fleet]:
    """One agent, and nobody to go on after it."""
    with Fleet.start(agents=1, slots=1, balancer_options=["--max-continuations=0"]) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096)
        fleet.wait_serving()
        yield fleet


def test_a_response_ends_with_an_error_event(mortal: Fleet) -> None:
    http = openai.DefaultHttpxClient(trust_env=False)
    url = f"{mortal.inference_url}/v1"
    kinds: list[str] = []
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client,
        read_once(client),
        client.responses.create(
            model="m", input="Tell a story.", max_output_tokens=3500, stream=True, **LONG
        ) as stream,
        pytest.raises(openai.APIError) as lost,
    ):
        kinds.extend(follow(stream, mortal))
    assert "response.created" in kinds
    assert "response.completed" not in kinds
    assert lost.value.code == "agent_lost"


def test_a_message_ends_with_an_error_event(mortal: Fleet) -> None:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    url = mortal.inference_url
    kinds: list[str] = []
    asked: Any = {"role": "user", "content": "Tell a story."}
    with (
        anthropic.Anthropic(
            base_url=url, api_key="none", max_retries=0, http_client=http
        ) as client,
        client.messages.create(
            model="m", messages=[asked], max_tokens=3500, stream=True, **LONG
        ) as stream,
        pytest.raises(anthropic.APIStatusError) as lost,
    ):
        kinds.extend(follow(stream, mortal))
    assert kinds[0] == "message_start"
    assert "message_stop" not in kinds
    assert isinstance(lost.value.body, dict)
    assert lost.value.body["error"]["type"] == "api_error"


def test_a_client_that_leaves_gives_its_slot_back(mortal: Fleet) -> None:
    http = openai.DefaultHttpxClient(trust_env=False)
    url = f"{mortal.inference_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        with client.responses.create(
            model="m", input="Tell a story.", max_output_tokens=3500, stream=True, **LONG
        ) as stream:
            next(iter(stream))
        mortal.wait_until(
            lambda view: view["agents"][0]["slots_processing"] == 0, what="the slot is free"
        )
        assert client.responses.create(model="m", input="Hi", max_output_tokens=8).output

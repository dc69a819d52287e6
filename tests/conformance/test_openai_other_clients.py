"""Clients that other people wrote over the same API: JavaScript's, LangChain's, and asyncio's."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fleet import Fleet
from openai import AsyncOpenAI
from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

SCRIPT = Path(__file__).with_name("openai_client.mjs")
NPM_S = 60


def no_slot_is_taken(fleet: Fleet) -> None:
    fleet.wait_until(
        lambda view: all(agent["slots_processing"] == 0 for agent in view["agents"]),
        what="every slot is free",
    )


# -------------------------------------------------------------------------------- JavaScript


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which node finds the official client; skipped where there is none to be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(SCRIPT, folder)
    wish = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
    try:
        installed = subprocess.run(
            [*wish, "openai@6"], capture_output=True, text=True, timeout=NPM_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install the client within {NPM_S} s")
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the client: {installed.stderr.strip()[:200]}")
    return folder


def test_the_javascript_client(fleet: Fleet, node: Path) -> None:
    ended = subprocess.run(
        ["node", SCRIPT.name, f"{fleet.inference_url}/v1"],
        cwd=node,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert "paddler" in told["content"]
    assert told["streamed"] == told["content"]
    assert told["usage"]["completion_tokens"] > 0
    assert told["call"]["name"] == "get_weather"
    assert json.loads(told["call"]["arguments"]) == {"city": "Paris"}
    assert told["finish"] == "tool_calls"
    assert "paddler" in told["response"]
    assert told["deltas"] == told["finalResponse"] == told["response"]
    assert told["sameId"] is True
    assert told["ignored"] == "no_such_field"
    assert told["refused"] == "n"
    assert told["unknown"] == "model_not_found"
    assert told["models"] == ["paddler-demo"]
    assert told["requestId"].startswith("req_")
    assert told["left"] is True
    no_slot_is_taken(fleet)


# --------------------------------------------------------------------------------- LangChain


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """LangChain never closes what it makes itself."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        yield client


def langchain(fleet: Fleet, http: httpx.Client, **more: Any) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI  # slow: not while tests are collected

    return ChatOpenAI(
        model="any-name",
        base_url=f"{fleet.inference_url}/v1",
        api_key=SecretStr("any"),
        temperature=0,
        max_retries=0,
        http_client=http,
        extra_body={"enable_thinking": False},
        **more,
    )


def test_langchain_chats_streams_and_counts(fleet: Fleet, http: httpx.Client) -> None:
    model = langchain(fleet, http, max_tokens=40, stream_usage=True)
    answer = model.invoke("Who are you?")
    assert "paddler" in str(answer.content)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    pieces = list(model.stream("Who are you?"))
    assert "".join(str(piece.content) for piece in pieces) == answer.content
    assert len(pieces) > 3


def test_langchain_calls_tools_and_parses_answers(fleet: Fleet, http: httpx.Client) -> None:
    from langchain_core.tools import tool

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city"""
        return f"Sunny in {city}."

    model = langchain(fleet, http, max_tokens=200)
    asked = model.bind_tools([get_weather]).invoke("What is the weather in Paris?")
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [
        ("get_weather", {"city": "Paris"})
    ]
    told = model.with_structured_output(City, method="json_schema").invoke("Name a city.")
    assert isinstance(told, City)


# ----------------------------------------------------------------------------------- asyncio


def test_many_at_once_with_asyncio(fleet: Fleet) -> None:
    async def ask(client: AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": f"Count from {number}."}],
            max_tokens=12,
            stream=True,
        )
        text = ""
        async for event in stream:
            delta: Any = event.choices[0].delta
            text += delta.content or getattr(delta, "reasoning_content", None) or ""
        return text

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(
            api_key="any",
            base_url=f"{fleet.inference_url}/v1",
            max_retries=0,
            http_client=httpx.AsyncClient(trust_env=False, timeout=60),
        ) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(12)))

    assert all(asyncio.run(ask_all()))
    no_slot_is_taken(fleet)

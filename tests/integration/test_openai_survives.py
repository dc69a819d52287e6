"""A chat stream over the OpenAI surface survives its agent, as native ones do."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from fleet import BUNDLED_MODEL, Fleet

TOKENS = 1200


def chat(fleet: Fleet, has_begun: threading.Barrier) -> list[dict[str, Any]]:
    """The events of one long stream; the barrier is met when its first token is here."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "enable_thinking": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events: list[dict[str, Any]] = []
    url = f"{fleet.inference_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        for number, line in enumerate(lines):
            if number == 3:
                has_begun.wait(60)
            if line == "data: [DONE]":
                return events
            events.append(json.loads(line.removeprefix("data: ")))
    raise AssertionError(f"the stream ended without [DONE]: {events[-1:]}")


def test_a_killed_agent_costs_no_stream_a_token() -> None:
    with Fleet.start(agents=2, slots=1) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, temperature=0.0)
        fleet.wait_serving()
        has_begun = threading.Barrier(3)
        with ThreadPoolExecutor(2) as clients:
            told = [clients.submit(chat, fleet, has_begun) for _ in range(2)]
            has_begun.wait(60)
            os.kill(fleet.agents["a1"].pid, signal.SIGKILL)
            for future in told:
                *events, last = future.result(100)
                assert events[-1]["choices"][0]["finish_reason"] == "length"
                assert last["usage"]["completion_tokens"] == TOKENS
                assert len({event["id"] for event in events}) == 1
        lost = fleet.balancer.wait_for_log("agent lost under a request")
        assert lost["given_up"] is None

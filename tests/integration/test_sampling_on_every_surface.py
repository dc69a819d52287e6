"""Numbers that llama.cpp would make memory of, from operators and from clients of every surface."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fleet import BUNDLED_MODEL, Fleet

SPARE_BYTES = 512 * 1024 * 1024
LARGEST = 2**31 - 1
EVERYTHING = {
    "repeat_last_n": LARGEST,
    "repeat_penalty": 1.2,
    "dry_multiplier": 0.8,
    "dry_penalty_last_n": LARGEST,
    "dry_allowed_length": LARGEST,
    "top_k": LARGEST,
}
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}
NATIVE = {
    "prompt": {"Text": {"text": "Who are you?"}},
    "max_tokens": 4,
    "sampling": {
        "penalty_last_n": LARGEST,
        "penalty_repeat": 1.2,
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": LARGEST,
        "min_keep": LARGEST,
    },
}
RAW = {"raw_prompt": "Who are you?", "max_tokens": 4}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The operator's own window is as large as any; the engine may map little more than it has."""
    with Fleet.start(agents=1, slots=4) as fleet:
        fleet.desire(BUNDLED_MODEL, penalty_last_n=LARGEST, penalty_repeat=1.1, top_k=LARGEST)
        fleet.wait_serving()
        pid = engine_pid(fleet)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + SPARE_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
        yield fleet


def engine_pid(fleet: Fleet) -> int:
    pid = fleet.agents["a1"].engine_pid
    assert pid is not None
    return pid


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/continue_from_raw_prompt", RAW),
        ("/api/v2/generate", NATIVE),
        ("/completion", {"prompt": "Who are you?", "n_predict": 4, **EVERYTHING}),
        ("/v1/completions", {"prompt": "Who are you?", "max_tokens": 4, **EVERYTHING}),
        ("/v1/chat/completions", {**CHAT, **EVERYTHING}),
        ("/v1/messages", {**CHAT, "top_k": LARGEST}),
        ("/v1/responses", {"input": "Who are you?", "max_output_tokens": 4}),
    ],
)
def test_the_largest_numbers_are_answered_by_the_same_engine(
    fleet: Fleet, path: str, body: dict[str, object]
) -> None:
    pid = engine_pid(fleet)
    answer = httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "Error" not in answer.text, answer.text
    assert '"error":{' not in answer.text, answer.text
    assert engine_pid(fleet) == pid

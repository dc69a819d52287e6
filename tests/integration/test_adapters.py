"""Adapters of a deployment, chosen by requests of every API, also while agents change to others."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_client import STORY
from fleet import BUNDLED_MODEL, Fleet
from rollouts import apply, deployment, ends, follow

from lora_adapters import write_lora

AGENTS = 2
FIRST = {"a": "Your", "b": " ", "c": "I", "plain": "Once"}
"""What a story of the bundled model begins with; the next likely token is far off."""
PRESET = {"name": "as-b", "lora": [{"name": "b"}]}
SEEDS = {"a": 1, "b": 31, "c": 40}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_lora(folder / f"{name}.gguf", BUNDLED_MODEL, seed=seed)
        for name, seed in SEEDS.items()
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Iterator[Fleet]:
    state = tmp_path_factory.mktemp("state") / "state.json"
    options = (f"--state-database=file://{state}", "--max-buffered-requests=1000")
    with Fleet.start(agents=AGENTS, slots=4, model=None, balancer_options=options) as running:
        change(running, files, "ab")
        yield running


@pytest.fixture
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as client:
        yield client


def change(
    fleet: Fleet, files: dict[str, Path], names: str, *, model: Path = BUNDLED_MODEL
) -> None:
    """Let the deployment have these adapters, in this order, and wait until all agents do."""
    adapters = [
        {"name": name, "source": {"LocalToAgent": str(files[name])}, "scale": 1} for name in names
    ]
    revision = apply(fleet, deployment(model, adapters=adapters, presets=[PRESET]))
    follow(fleet, ends("complete", revision))


def first(http: httpx.Client, lora: object = None, **fields: object) -> str:
    """Return what a completion with these adapters begins with."""
    body: dict[str, Any] = {"prompt": STORY, "n_predict": 1, "temperature": 0, **fields}
    answer = http.post("/completion", json=body if lora is None else {**body, "lora": lora})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["content"]
    return text


def test_requests_choose_by_name_or_by_id(http: httpx.Client) -> None:
    assert first(http) == FIRST["plain"]
    assert first(http, []) == FIRST["plain"]
    assert first(http, [{"name": "a"}]) == FIRST["a"]
    assert first(http, [{"id": 1, "scale": 1.0}]) == FIRST["b"]
    assert first(http, [{"id": 0, "scale": 0}, {"name": "b"}]) == FIRST["b"]
    assert first(http, [{"id": 0, "scale": 0.0}]) == FIRST["plain"]


def test_a_preset_chooses_for_requests_that_do_not(http: httpx.Client) -> None:
    assert first(http, model="as-b") == FIRST["b"]
    assert first(http, [{"name": "a"}], model="as-b") == FIRST["a"]


def test_they_are_listed_as_llama_server_does_it(http: httpx.Client) -> None:
    told = http.get("/lora-adapters").json()
    assert [(each["id"], each["name"], each["path"], each["scale"]) for each in told] == [
        (0, "a", "a.gguf", 1.0),
        (1, "b", "b.gguf", 1.0),
    ]
    assert not any(each["is_applied"] for each in told)


APIS = {
    "/completion": {"prompt": STORY, "n_predict": 8, "temperature": 0},
    "/v1/completions": {"prompt": STORY, "max_tokens": 8, "temperature": 0},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 8,
        "temperature": 0,
    },
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 8,
        "temperature": 0,
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": False,
        "options": {"num_predict": 8, "temperature": 0},
    },
    "/api/generate": {
        "prompt": "Tell me a story.",
        "stream": False,
        "options": {"num_predict": 8, "temperature": 0},
    },
    "/api/v2/generate": {
        "prompt": {"Text": {"text": STORY}},
        "max_tokens": 8,
        "sampling": {"temperature": 0},
    },
}
TEXTS = {
    "/completion": lambda told: told["content"],
    "/v1/completions": lambda told: told["choices"][0]["text"],
    "/v1/chat/completions": lambda told: told["choices"][0]["message"],
    "/v1/responses": lambda told: [
        part for item in told["output"] for part in item.get("content") or item.get("summary")
    ],
    "/v1/messages": lambda told: told["content"],
    "/api/chat": lambda told: told["message"],
    "/api/generate": lambda told: [told["response"], told.get("thinking")],
}


@pytest.mark.parametrize("path", APIS)
def test_every_api_takes_them(http: httpx.Client, path: str) -> None:
    def said(lora: object) -> object:
        answer = http.post(path, json={**APIS[path], "lora": lora})
        assert answer.status_code == 200, answer.text
        if path == "/api/v2/generate":
            lines = [json.loads(line) for line in answer.text.splitlines()]
            results = [line["Response"]["response"]["GeneratedToken"] for line in lines]
            return [each for each in results if next(iter(each)).endswith("Token")]
        return TEXTS[path](answer.json())

    plain, a, b = said([]), said([{"name": "a"}]), said([{"id": 1}])
    assert len({repr(plain), repr(a), repr(b)}) == 3
    assert said([{"name": "b", "scale": 1}]) == b


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ([{"name": "z"}], ["'z'", "0 is 'a', 1 is 'b'"]),
        ([{"id": 2, "scale": 1}], ["2", "0 is 'a', 1 is 'b'"]),
        ([{"id": 0}, {"name": "a"}], ["'a' is chosen twice"]),
        ([{"id": 0, "name": "a"}], ["id", "name", "one of them"]),
        ([{}], ["id", "name", "one of them"]),
        ([{"id": 0, "scale": 101}], ["101", "-100", "100"]),
        ([{"id": 0}] * 17, ["17", "16"]),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_value_and_limit(
    http: httpx.Client, path: str, lora: object, words: list[str]
) -> None:
    answer = http.post(path, json={**APIS[path], "lora": lora})
    assert answer.status_code == 400, answer.text
    for word in ["lora", *words]:
        assert word in answer.text


@pytest.mark.parametrize("scale", ["NaN", "1e999", '"much"'])
def test_a_scale_is_a_finite_number(http: httpx.Client, scale: str) -> None:
    body = f'{{"prompt": "Once", "n_predict": 1, "lora": [{{"id": 0, "scale": {scale}}}]}}'
    answer = http.post("/completion", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text


def test_no_answer_is_of_another_adapter_while_agents_change_weights_and_adapters(
    fleet: Fleet, files: dict[str, Path], tmp_path: Path
) -> None:
    other = shutil.copyfile(BUNDLED_MODEL, tmp_path / "other.gguf")
    is_over = threading.Event()

    def ask(seed: int) -> dict[str, int]:
        """Ask until it is over; the number of answers of each."""
        dice, counts = random.Random(seed), dict.fromkeys(FIRST, 0)
        with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as client:
            while not is_over.is_set():
                name = dice.choice(["a", "b", "plain"])
                lora = None if name == "plain" else [{"name": name}]
                assert first(client, lora) == FIRST[name], f"asked for {name}"
                counts[name] += 1
        return counts

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, seed) for seed in range(6)]
        try:
            change(fleet, files, "bac")  # ids are others, and there is one more
            with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as client:
                assert first(client, [{"id": 0}]) == FIRST["b"]
                assert first(client, [{"name": "c"}]) == FIRST["c"]
            change(fleet, files, "ab", model=other)
            change(fleet, files, "ba", model=other)
            change(fleet, files, "ab")
        finally:
            is_over.set()
        counts = [each.result() for each in asking]
    for name in ("a", "b", "plain"):
        assert sum(each[name] for each in counts) > 10


def test_a_choice_of_what_is_only_just_desired_waits_for_it(
    fleet: Fleet, files: dict[str, Path]
) -> None:
    adapters = [
        {"name": name, "source": {"LocalToAgent": str(files[name])}} for name in ("a", "b", "c")
    ]
    revision = apply(fleet, deployment(BUNDLED_MODEL, adapters=adapters))
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as client:
        assert first(client, [{"name": "c"}]) == FIRST["c"]
    follow(fleet, ends("complete", revision))
    change(fleet, files, "ab")


def test_an_adapter_that_is_missing_fails_the_rollout_and_not_the_answers(
    fleet: Fleet, files: dict[str, Path], http: httpx.Client, tmp_path: Path
) -> None:
    nowhere = {"name": "a", "source": {"LocalToAgent": str(tmp_path / "nowhere.gguf")}}
    revision = apply(fleet, deployment(BUNDLED_MODEL, adapters=[nowhere]))
    shown = follow(fleet, ends("rolled_back", revision))
    assert "nowhere.gguf" in shown[-1]["reason"]
    assert first(http, [{"name": "a"}]) == FIRST["a"]
    assert first(http) == FIRST["plain"]

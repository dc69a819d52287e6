"""Two real agents: what came to them is recorded, measured and asked about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import Fleet, serving

from cli_in_process import Ended, invoke
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

LIMIT_S = 120.0
WORDS = "The sea was calm and the wind came from the south. " * 16


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two agents that have answered: six prompts that begin alike, one after the other."""
    with Fleet.start(agents=2, slots=2, model=None) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=8192)
        fleet.wait_until(lambda view: serving(view, 2), nobody_ends=True)
        unknown = ask(fleet, "--p95-ttft", "2s", "--rate", "1")
        assert unknown.exit_code == 2
        assert "no agent of 'default' was measured" in unknown.stderr
        with httpx.Client(base_url=fleet.inference_url, timeout=LIMIT_S) as http:
            for number in range(6):
                body = {
                    "prompt": f"{WORDS} {number}",
                    "n_predict": 12 + number,
                    "temperature": 0,
                    "ignore_eos": True,
                }
                http.post("/completion", json=body).raise_for_status()
        yield fleet


def ask(fleet: Fleet, *words: str) -> Ended:
    return invoke("capacity", "--management-addr", fleet.management, *words)


def post(fleet: Fleet, body: object) -> httpx.Response:
    return httpx.post(
        f"{fleet.management_url}/api/v2/capacity", json=body, timeout=LIMIT_S, trust_env=False
    )


def test_what_came_is_a_file_of_times_and_lengths_that_can_be_asked_about(
    fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "arrivals.json"
    assert ask(fleet, "--export", str(file)).exit_code == 0
    found: dict[str, Any] = json.loads(file.read_text())
    rows = found["rows"]
    assert [row[2] for row in rows] == list(range(12, 18))
    assert rows[0][4:] == [-1, 0]
    assert all(row[4] >= 0 and row[5] > 0.8 * row[1] for row in rows[1:])
    assert all(type(value) in (int, float) for row in rows for value in row)
    asked = ask(fleet, "--p95-ttft", "1m", "--arrivals", str(file), "--json")
    assert asked.exit_code == 0, asked.output
    answer: dict[str, Any] = json.loads(asked.stdout)
    assert answer["replayed"]["requests"] == 6
    assert [site["name"] for site in answer["sites"]] == ["a1", "a2"]
    assert all(site["speed"]["tokens_per_s"] > 0 for site in answer["sites"])


def test_what_came_is_asked_about_as_it_was_and_with_more(fleet: Fleet) -> None:
    held = ask(fleet, "--p95-ttft", "1m", "--at", "1.5x", "--agents", "+2", "--slots", "8")
    assert held.exit_code == 0, held.output
    assert "new 2, as a2" in held.stdout
    assert "\nholds: TTFT p95 " in held.stdout
    assert "6 requests in " in held.stdout
    late = ask(fleet, "--p95-ttft", "1ms")
    assert late.exit_code == 1, late.output
    assert "does not hold" in late.stdout
    assert "breaks first: first token" in late.stdout
    assert "would hold: nothing that was tried" in late.stdout


def test_a_given_mix_that_is_too_much_is_told_what_would_hold_it(fleet: Fleet) -> None:
    flags = ("--rate", "1000", "--prompt-tokens", "50", "--answer-tokens", "300")
    found = ask(fleet, "--p95-ttft", "100ms", *flags, "--json")
    assert found.exit_code == 1, found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    assert answer["replayed"]["breaks"]["kind"] in ("queue full", "waits")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "give the time that shall be kept"),
        (("--p95-ttft", "2"), "'2', must be a number with its unit"),
        (("--p95-ttft", "2s", "--at", "fast"), "'fast', must be a number such as 1.5x"),
        (("--p95-ttft", "2s", "--at", "1000x"), "at is 1000.0, must be a number from 0.01 to 100"),
        (("--p95-ttft", "2s", "--last", "long"), "last is 'long', must be a number with its unit"),
        (("--p95-ttft", "2s", "--deployment", "x"), "there is no deployment 'x'"),
    ],
)
def test_bad_flags_are_named(fleet: Fleet, words: tuple[str, ...], what: str) -> None:
    found = ask(fleet, *words)
    assert found.exit_code == 2
    assert what in " ".join(found.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ([], 400, "the body must be an object"),
        ({}, 400, "p95_ttft_s is missing"),
        ({"p95_ttft_s": "2"}, 400, "p95_ttft_s is '2', must be a number from 0.001 to 3600"),
        ({"p95_ttft_s": 2, "slots": 1.5}, 400, "slots is 1.5, must be a whole number"),
        ({"p95_ttft_s": 2, "speed": 1}, 400, "'speed' is no field"),
        ({"p95_ttft_s": 2, "arrivals": [[0, 1]]}, 400, "arrivals: row 0 must be a list"),
        ({"p95_ttft_s": 2, "arrivals": {}}, 400, "arrivals"),
        ({"p95_ttft_s": 2, "last": 3}, 400, "last is 3, must be text"),
    ],
)
def test_bad_questions_are_refused(fleet: Fleet, body: object, status: int, what: str) -> None:
    answer = post(fleet, body)
    assert answer.status_code == status
    assert what in answer.text

"""Extras of the desired state: set at the balancer, in force on every agent of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import forked_processes
import httpx
import pytest
from fleet import END_S, Fleet, serving

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

Json: TypeAlias = Any
HELLO = {"Conversation": {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}}


@pytest.fixture(scope="module")
def tuned_fleet() -> Iterator[Fleet]:
    """One agent that draws greedily; every test here says first what it wishes."""
    with Fleet.start(agents=1, slots=2) as fleet:
        fleet.desire(BUNDLED_MODEL, temperature=0.0)
        fleet.wait_serving()
        yield fleet


def url(fleet: Fleet, version: str = "v2") -> str:
    return f"{fleet.management_url}/api/{version}/balancer_desired_state"


def both(fleet: Fleet) -> Json:
    answer = httpx.get(url(fleet), trust_env=False, timeout=END_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def put(fleet: Fleet, body: Json, version: str = "v2") -> httpx.Response:
    return httpx.put(url(fleet, version), json=body, trust_env=False, timeout=END_S)


def wish(fleet: Fleet, extras: Json) -> str:
    """Store them and wait until they are in force; the digest."""
    answer = put(fleet, {"state": both(fleet)["state"], "extras": extras})
    assert answer.status_code == 204, answer.text
    view = fleet.wait_serving()
    assert view["desired_state_digest"] == answer.headers["X-Paddler-State-Digest"]
    return view["desired_state_digest"]


def answer_of(fleet: Fleet) -> dict[str, str]:
    """The texts of an answer by their tag."""
    body = {"prompt": HELLO, "max_tokens": 60}
    answer = httpx.post(
        f"{fleet.inference_url}/api/v2/generate", json=body, trust_env=False, timeout=60
    )
    assert answer.status_code == 200, answer.text
    texts: dict[str, str] = {}
    for line in answer.text.splitlines():
        ((tag, value),) = json.loads(line)["Response"]["response"]["GeneratedToken"].items()
        if tag.endswith("Token"):
            texts[tag] = texts.get(tag, "") + value
    return texts


def test_wishes_for_the_engine_load_it_anew_and_it_serves(tuned_fleet: Fleet) -> None:
    agent = tuned_fleet.agents["a1"]
    plain_digest = wish(tuned_fleet, {})
    plain, engine = answer_of(tuned_fleet), agent.engine_pid
    digest = wish(tuned_fleet, {"engine": {"unified": True}})
    unified_engine = agent.engine_pid
    assert digest != plain_digest
    assert unified_engine != engine
    assert answer_of(tuned_fleet) == plain
    assert wish(tuned_fleet, {"engine": {"unified": True}}) == digest
    assert agent.engine_pid == unified_engine, "the same wish again loads nothing"
    assert wish(tuned_fleet, {}) == plain_digest
    assert agent.engine_pid != unified_engine


def test_a_wish_that_no_engine_can_fulfil_is_told_and_can_be_taken_back(
    tuned_fleet: Fleet,
) -> None:
    body = {"state": both(tuned_fleet)["state"], "extras": {"engine": {"lora": ["/nowhere.gguf"]}}}
    assert put(tuned_fleet, body).status_code == 204
    view = tuned_fleet.wait_until(lambda view: view["agents"][0]["phase"] == "failed")
    assert "/nowhere.gguf" in str(view["agents"][0]["detail"])
    assert not view["agents"][0]["is_accepting"]
    wish(tuned_fleet, {})
    assert answer_of(tuned_fleet)


def test_markers_say_what_an_answer_means_and_load_nothing(tuned_fleet: Fleet) -> None:
    wish(tuned_fleet, {})
    engine = tuned_fleet.agents["a1"].engine_pid
    plain = answer_of(tuned_fleet)
    assert plain["ReasoningToken"]
    assert plain["ContentToken"]
    wish(tuned_fleet, {"markers": {"reasoning_close": ""}})
    without = answer_of(tuned_fleet)
    assert "ReasoningToken" not in without
    assert plain["ContentToken"] in "".join(without.values())
    wish(tuned_fleet, {})
    assert answer_of(tuned_fleet) == plain
    assert tuned_fleet.agents["a1"].engine_pid == engine


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"engine": {"max_drafts": 65}}, ["0..64, got 65", "$.extras.engine.max_drafts"]),
        ({"engine": {"turbo": 1}}, ["unknown field 'turbo'", "$.extras.engine"]),
        ({"engine": {"flash_attention": "maybe"}}, ["'maybe'", "auto", "flash_attention"]),
        ({"engine": {"target_pass_ms": 0}}, ["is 0, must be at least 1", "target_pass_ms"]),
        (None, ["$.extras"]),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_nothing_changes(
    tuned_fleet: Fleet, extras: Json, words: list[str]
) -> None:
    before = both(tuned_fleet)
    answer = put(tuned_fleet, {"state": before["state"], "extras": extras})
    assert answer.status_code == 400
    for word in words:
        assert word in answer.text
    assert both(tuned_fleet) == before


def test_paddlers_route_leaves_extras_as_they_are(tuned_fleet: Fleet) -> None:
    wished = {"engine": {"image_cache_bytes": 0}, "markers": {"tool_open": "<call>"}}
    digest = wish(tuned_fleet, wished)
    state = both(tuned_fleet)["state"]
    assert httpx.get(url(tuned_fleet, "v1"), trust_env=False, timeout=60).json() == state
    state["inference_parameters"]["top_k"] += 1
    answer = put(tuned_fleet, state, "v1")
    assert answer.status_code == 204
    assert answer.headers["X-Paddler-State-Digest"] != digest
    tuned_fleet.wait_serving()
    assert both(tuned_fleet) == {"state": state, "extras": wished}


def test_extras_survive_a_restart_beside_paddlers_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    options = [f"--state-database=file://{file}"]
    wished = {"engine": {"unified": True}}
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL)
        # a file that begins with a dot is being written: the rollout is stored meanwhile
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
        beside = {"state.json.lock", "state.json.handover", "state.json.fleet.json"}
        assert names == {"state.json", *beside}
        state = both(fleet)["state"]
        answer = put(fleet, {"state": state, "extras": wished})
        digest = answer.headers["X-Paddler-State-Digest"]
    assert json.loads(file.read_text()) == {"balancer_desired_state": state, "version": "1"}
    beside = json.loads((tmp_path / "state.json.fleet.json").read_text())
    assert [spec["extras"] for spec in beside["specs"]] == [wished, {"engine": {}}]
    with Fleet.start(agents=1, model=None, balancer_options=options) as fleet:
        view = fleet.wait_until(lambda view: serving(view, 1))
        assert view["desired_state_digest"] == digest
        assert both(fleet) == {"state": state, "extras": wished}


def test_the_command_line_sets_and_shows_them(tuned_fleet: Fleet, tmp_path: Path) -> None:
    wish(tuned_fleet, {})
    file = tmp_path / "extras.json"
    file.write_text('{"engine": {"unified": true}, "markers": {"tool_open": "<call>"}}')
    swapped = cli(tuned_fleet, "swap", BUNDLED_MODEL, "--extras", file)
    assert swapped.returncode == 0, swapped.stderr
    *changes, stored, served = swapped.stdout.splitlines()
    assert changes == [
        "engine.unified: not set -> yes",
        "markers.tool_open: not set -> '<call>'",
    ]
    assert "load the model anew" in stored
    assert served.startswith("served by a1")
    shown = json.loads(cli(tuned_fleet, "show", "--json").stdout)
    assert shown["extras"] == json.loads(file.read_text())
    again = cli(tuned_fleet, "swap", BUNDLED_MODEL)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("already desired")
    gone = cli(tuned_fleet, "set", BUNDLED_MODEL, "--extras", "-", stdin="{}")
    assert gone.returncode == 0, gone.stderr
    assert both(tuned_fleet)["extras"] == {"engine": {}}
    wrong = cli(tuned_fleet, "set", "none", "--extras", "-", stdin='{"engine": {"max_drafts": 99}}')
    assert wrong.returncode == 2
    assert "max_drafts" in wrong.stderr
    assert "99" in wrong.stderr


def cli(fleet: Fleet, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked_processes.run(
        "model", *arguments, "--management-addr", fleet.management, stdin=stdin
    )

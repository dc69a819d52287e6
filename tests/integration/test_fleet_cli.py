"""An operator's day with a fleet: one balancer, one agent, two deployments of the bundled model.

The tests are one story, in this order: each begins where the one before it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet

from cli_in_process import Ended, invoke
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

DONE, ROLLED_BACK, TIMED_OUT, REFUSED = 0, 3, 4, 5

TOML = f"""
note = "two of them"

[[deployments]]
name = "default"
model = "{BUNDLED_MODEL}"
parameters = {{ context_size = 1024 }}

[[deployments]]
name = "small"
model = "{BUNDLED_MODEL}"
parameters = {{ context_size = 512 }}
aliases = ["tiny"]
slots = 1
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(agents=1, model=None) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(TOML)
    return path


def run(fleet: Fleet, *words: object) -> Ended:
    return invoke(*words, "--management-addr", fleet.management)


def test_a_dry_run_counts_and_stores_nothing(fleet: Fleet, file: Path) -> None:
    told = json.loads(run(fleet, "fleet", "apply", file, "--dry-run", "--json").stdout)
    assert [(each["deployment"], each["change"]) for each in told["changes"]] == [
        ("default", "added"),
        ("small", "added"),
    ]
    for each in told["changes"]:
        (agent,) = each["agents"]
        assert (agent["fits"], agent["problem"], agent["fetch_bytes"]) == (True, None, 0)
    assert "nothing is deployed" in run(fleet, "fleet", "show").stdout


def test_two_deployments_are_applied_and_shown(fleet: Fleet, file: Path) -> None:
    ended = run(fleet, "fleet", "apply", file)
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.endswith("complete: default, small\n")
    assert "small, a1" in ended.stderr
    shown = run(fleet, "fleet", "show").stdout
    head, _, default, small = shown.splitlines()
    assert head.endswith("two of them")
    assert "1/1" in default
    assert "1/1" in small
    assert "tiny" in small
    assert run(fleet, "fleet", "diff", file).stdout.endswith("is this already\n")
    agents = {
        each["deployment"] for each in json.loads(run(fleet, "agents", "--json").stdout)["agents"]
    }
    assert agents == {"default", "small"}


def test_sampling_is_changed_in_place_and_undone(fleet: Fleet, file: Path) -> None:
    file.write_text(TOML.replace("context_size = 512", "context_size = 512, temperature = 0.1"))
    ended = run(fleet, "fleet", "apply", file, "--note", "cooler")
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.splitlines()[:2] == [
        "small: in place: agents apply it to the running model, nothing is loaded anew",
        "  temperature: 0.8 -> 0.1",
    ]
    undone = run(fleet, "fleet", "undo", "--no-wait")
    assert undone.exit_code == DONE, undone.output
    assert "temperature: 0.1 -> 0.8" in undone.stdout
    told = json.loads(run(fleet, "fleet", "show", "--json").stdout)
    number = told["revision"]["revision"]
    same = run(fleet, "fleet", "undo", "--to-revision", number)
    assert same.stdout == f"revision {number} is this already: nothing to do\n", same.output
    same = run(fleet, "fleet", "undo", "--to-revision", number, "--json")
    assert json.loads(same.stdout)["stored"] is False
    notes = [line.strip() for line in run(fleet, "fleet", "history").stdout.splitlines()]
    assert notes[2].endswith("cooler")
    assert notes[3].endswith("two of them")


def test_a_swap_to_what_is_not_there_is_rolled_back(fleet: Fleet) -> None:
    preview = run(fleet, "model", "swap", "/no/such.gguf", "--dry-run")
    assert preview.exit_code == 1
    assert "a1: does not load: there is no file at /no/such.gguf" in preview.stdout
    ended = run(fleet, "model", "swap", "/no/such.gguf")
    assert ended.exit_code == ROLLED_BACK, ended.output
    assert "/no/such.gguf" in ended.stderr
    assert "what was served before is served again" in ended.stderr
    assert run(fleet, "model", "show").stdout.split()[1] == str(BUNDLED_MODEL)
    watched = run(fleet, "rollout", "--watch")
    assert watched.exit_code in {DONE, ROLLED_BACK}
    assert "default: rolled back, revision 1 -> 4" in watched.stdout, "not 5, which stored 1 again"
    head, went_back, tried, *_ = run(fleet, "fleet", "history").stdout.splitlines()
    column = head.index("failed")
    assert went_back[column:].split()[0] == "-"
    assert tried[column:].split()[0] == "default"


def test_a_swap_is_shown_live_and_has_a_deadline(fleet: Fleet) -> None:
    early = run(fleet, "model", "swap", BUNDLED_MODEL, "--context-size", 2048, "--timeout", 0)
    assert early.exit_code == TIMED_OUT, early.output
    ended = run(fleet, "model", "swap", BUNDLED_MODEL)
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.endswith(f"served by a1: {BUNDLED_MODEL}\n")


def test_what_cannot_be_is_refused(fleet: Fleet) -> None:
    refused = run(fleet, "rollout", "resume", "small")
    assert refused.exit_code == REFUSED
    assert "(409)" in refused.stderr
    assert run(fleet, "rollout", "pause", "none-such").exit_code == REFUSED

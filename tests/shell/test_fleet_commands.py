"""``fleet``, ``rollout``, ``model swap`` against a double of a balancer: output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_double import AGENT, CUT, FIT, REFUSED, FleetDouble, rollout, shown

from cli_in_process import Ended, invoke
from paddler_trio.cli.fleet import rollout_run

DONE, FAILED, USAGE, ROLLED_BACK, TIMED_OUT, BY_BALANCER = range(6)
TWO = """
note = "two models"

[[deployments]]
name = "default"
model = "/models/new.gguf"

[[deployments]]
name = "coder"
model = "hf:org/repo/coder.gguf@main"
parameters = { context_size = 32768 }
aliases = ["gpt-4o"]
replicas = 1
where = ["gpu=yes"]
"""
BOTH_COMPLETE = shown(
    rollout("complete", "a1:serving", "a2:serving"),
    rollout("complete", "a1.coder:serving", deployment="coder"),
)


@pytest.fixture
def double() -> Iterator[FleetDouble]:
    with FleetDouble().running() as running:
        yield running


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_run, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(TWO)
    return path


def run(double: FleetDouble, *arguments: object, stdin: str = "") -> Ended:
    return invoke(*arguments, "--management-addr", double.address, stdin=stdin)


# ---------------------------------------------------------------------------------- apply


def test_a_file_is_applied_and_followed_to_its_end(double: FleetDouble, file: Path) -> None:
    double.connections = [
        [
            shown(),
            shown(rollout("canary", "a1:loading", "a2:waiting")),
            shown(
                rollout("rolling", "a1:serving", "a2:draining"),
                rollout("prefetching", "a1.coder:prefetching", deployment="coder"),
            ),
            BOTH_COMPLETE,
        ]
    ]
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.splitlines() == [
        "default: added: agents load it",
        "  model: not set -> /models/new.gguf",
        "coder: added: agents load it",
        "  model: not set -> hf:org/repo/coder.gguf@main",
        "  aliases: not set -> gpt-4o",
        "  replicas: all -> 1",
        "  where: not set -> gpu=yes",
        "  context_size: 8192 -> 32768",
        "stored as revision 2",
        "complete: default, coder",
    ]
    assert ended.stderr.splitlines() == [
        "default: canary, revision 1 -> 2",
        "default, a1: loading",
        "default, a2: waiting",
        "default: rolling, revision 1 -> 2",
        "default, a1: serving",
        "default, a2: draining",
        "coder: prefetching, revision 1 -> 2",
        "coder, a1.coder: prefetching",
        "default: complete, revision 1 -> 2",
        "default, a2: serving",
        "coder: complete, revision 1 -> 2",
        "coder, a1.coder: serving",
    ]
    assert "\x1b" not in ended.output, "no colours in a pipe"
    assert double.revisions[-1]["note"] == "two models"


def test_what_is_applied_already_is_not_stored_again(double: FleetDouble, file: Path) -> None:
    run(double, "fleet", "apply", file, "--no-wait", "--note", "mine")
    assert double.revisions[-1]["note"] == "mine"
    again = run(double, "fleet", "apply", file)
    assert (again.exit_code, len(double.revisions)) == (DONE, 2)
    assert again.stdout == "revision 2 is this already: nothing to do\n"
    told = json.loads(run(double, "fleet", "apply", file, "--json").stdout)
    assert told == {
        "stored": False,
        "revision": 2,
        "changes": [],
        "outcome": "complete",
        "deployments": [],
    }


def test_a_file_from_standard_input_is_compared_and_nothing_is_stored(double: FleetDouble) -> None:
    ended = run(double, "fleet", "diff", "-", stdin=TWO)
    assert ended.exit_code == DONE
    assert ended.stdout.startswith("default: added: agents load it\n")
    told = json.loads(run(double, "fleet", "diff", "-", "--json", stdin=TWO).stdout)
    assert [each["deployment"] for each in told["changes"]] == ["default", "coder"]
    assert len(double.revisions) == 1


def test_a_change_is_shown_with_its_class_and_old_and_new(double: FleetDouble, file: Path) -> None:
    run(double, "fleet", "apply", file, "--no-wait")
    file.write_text(
        TWO.replace("32768", "65536").replace('"/models/new.gguf"', '"/models/new.gguf"\nslots = 2')
    )
    assert run(double, "fleet", "diff", file).stdout.splitlines() == [
        "default: context: agents make a new context over the same weights",
        "  slots: not set -> 2",
        "coder: context: agents make a new context over the same weights",
        "  context_size: 32768 -> 65536",
    ]
    file.write_text(TWO.partition('[[deployments]]\nname = "coder"')[0])
    assert run(double, "fleet", "diff", file).stdout.splitlines() == [
        "coder: removed: agents unload it once its running answers have finished",
        "  model: hf:org/repo/coder.gguf@main -> not set",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing = 1", "unknown field 'nothing'"),
        ("[[deployments]\n", "not valid TOML"),
        ('[[deployments]]\nname = "coder"\nmodel = "coder.gguf"', "relative path"),
        ('[[deployments]]\nname = "Coder"\nmodel = "/m"', "'Coder'"),
        ('[[deployments]]\nname = "c"\nmodel = "/m"\ntemplate = {file = "no"}', "No such file"),
        ('[[deployments]]\nname = "c"\nmodel = "/m"\nreplicas = "3..1"', "replicas"),
        ('note = "\xff"', "UTF-8"),
        ("#" * (1024 * 1024 + 1), "the limit is 1048576"),
    ],
    ids=lambda text: text[:20],
)
def test_a_bad_file_is_a_usage_error_and_nothing_is_asked(
    double: FleetDouble, file: Path, text: str, words: str
) -> None:
    file.write_bytes(text.encode("latin-1"))
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == USAGE
    assert words in " ".join(ended.stderr.replace("│", "").split())
    assert double.requests == []


def test_a_repository_becomes_a_file_and_a_commit_where_the_command_runs(
    double: FleetDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    text = '[[deployments]]\nname = "coder"\nmodel = "hf:org/repo:Q4_K_M"\n'
    unknown = run(double, "fleet", "diff", "-", stdin=text)
    assert unknown.exit_code == USAGE
    assert "deployment 'coder'" in unknown.stderr
    assert double.requests == []

    commit = "c0ffee" * 6 + "c0de"
    snapshot = tmp_path / "models--org--repo" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    refs = tmp_path / "models--org--repo" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    ended = run(double, "fleet", "diff", "-", stdin=text)
    assert ended.stdout.splitlines() == [
        "coder: added: agents load it",
        f"  model: not set -> hf:org/repo/m-Q4_K_M.gguf@{commit}",
    ]
    assert ended.stderr == "choosing a file of hf:org/repo:Q4_K_M\n"


def test_a_missing_file_is_a_usage_error(double: FleetDouble, tmp_path: Path) -> None:
    assert run(double, "fleet", "apply", tmp_path / "none.toml").exit_code == USAGE


def test_what_the_balancer_refuses_has_a_code_of_its_own(double: FleetDouble, file: Path) -> None:
    double.refusals["PUT", "/api/v2/fleet"] = 400, "deployment 'coder': slots are 9999"
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == BY_BALANCER
    assert "(400): deployment 'coder': slots are 9999" in ended.stderr


def test_a_revision_that_comes_between_is_a_conflict_and_says_what_to_do(
    double: FleetDouble, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = FleetDouble._put

    def put(self: FleetDouble, body: Any, *, is_dry: bool) -> Any:
        answer = changes(self, body, is_dry=is_dry)
        if is_dry:  # somebody else is quicker
            self.store({"deployments": []}, note="", author="bob")
        return answer

    monkeypatch.setattr(FleetDouble, "_put", put)
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == BY_BALANCER
    assert "(409): expected_revision is 1, in force is 2" in ended.stderr
    assert "fleet diff" in ended.stderr


@pytest.mark.parametrize(
    ("last", "code", "words"),
    [
        (
            rollout("rolled_back", "a1:failed", reason="a1: no such file"),
            ROLLED_BACK,
            "rolled back: a1: no such file; what was served before is served again",
        ),
        (
            rollout("aborted", "a1:serving", reason="by alice"),
            FAILED,
            "aborted: by alice",
        ),
        (
            rollout("paused", "a1:failed", detail="out of memory"),
            FAILED,
            "paused: a1: out of memory; `paddler-trio rollout resume` goes on",
        ),
    ],
    ids=["rolled back", "aborted", "paused"],
)
def test_how_a_rollout_ends_is_the_exit_code(
    double: FleetDouble, last: dict[str, Any], code: int, words: str
) -> None:
    double.connections = [[shown(rollout("canary", "a1:loading")), shown(last)]]
    text = '[[deployments]]\nname = "default"\nmodel = "/m"\n'
    ended = run(double, "fleet", "apply", "-", stdin=text)
    assert ended.exit_code == code, ended.output
    assert f"default: {words}" in ended.stderr
    double.streams = 0
    double.store({"deployments": []}, note="")
    double.connections = [[shown({**last, "to": 4})]]
    told = json.loads(run(double, "fleet", "apply", "-", "--json", stdin=text).stdout)
    assert told["outcome"] == last["phase"].replace("_", " ")


def test_time_that_is_up_has_a_code_of_its_own(double: FleetDouble, file: Path) -> None:
    double.connections = [[shown(rollout("canary", "a1:loading", "a2:waiting"))]]
    ended = run(double, "fleet", "apply", file, "--timeout", 0.2)
    assert ended.exit_code == TIMED_OUT
    assert (
        "default: timed out: canary (loading: a1, waiting: a2); the rollout goes on" in ended.stderr
    )


def test_a_pause_by_an_operator_is_waited_for(double: FleetDouble) -> None:
    double.connections = [
        [
            shown(rollout("paused", "a1:serving", "a2:waiting", reason="paused by bob")),
            shown(rollout("complete", "a1:serving", "a2:serving")),
        ]
    ]
    text = '[[deployments]]\nname = "default"\nmodel = "/m"\n'
    ended = run(double, "fleet", "apply", "-", stdin=text)
    assert ended.exit_code == DONE
    assert "default: paused, revision 1 -> 2, paused by bob" in ended.stderr


def test_a_connection_that_breaks_and_a_balancer_that_restarts_are_waited_for(
    double: FleetDouble, file: Path
) -> None:
    double.connections = [
        [shown(rollout("canary", "a1:loading")), CUT],
        REFUSED,
        [shown(rollout("canary", "a1:loading"))],
        [shown(rollout("canary", "a1:serving")), BOTH_COMPLETE],
    ]
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == DONE, ended.output
    lines = ended.stderr.splitlines()
    assert lines.count("default, a1: loading") == 1, "what is known is not said again"
    assert lines.count("the balancer is back") == 2
    assert sum("the rollout goes on, and this command looks again" in line for line in lines) == 2


def test_a_balancer_that_stays_away_is_given_up(
    double: FleetDouble, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_run, "LOST_S", 0.05)
    double.connections = [REFUSED]
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == FAILED
    assert "look later with `paddler-trio rollout`" in ended.stderr


def test_rollouts_that_a_restarted_balancer_has_forgotten_are_looked_up(
    double: FleetDouble, file: Path
) -> None:
    double.served = {"default": (2, 2), "coder": (1, 1)}
    double.connections = [[shown()]]
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.endswith("complete: default, coder\n")


def test_another_revision_ends_the_wait(
    double: FleetDouble, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FleetDouble.store

    def twice(self: FleetDouble, state: Any, *, note: str, author: str = "alice") -> Any:
        stored = store(self, state, note=note, author=author)
        store(self, {"deployments": []}, note="mine", author="bob")
        return stored

    monkeypatch.setattr(FleetDouble, "store", twice)
    double.connections = [[shown()]]
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == FAILED
    assert "default: superseded: revision 3 by bob took its place" in ended.stderr


def test_without_agents_there_is_nothing_to_wait_for(double: FleetDouble, file: Path) -> None:
    double.agents = []
    ended = run(double, "fleet", "apply", file)
    assert ended.exit_code == FAILED
    assert "start one with `paddler-trio agent`" in ended.stderr


# -------------------------------------------------------------------------- show, history, undo


def test_the_fleet_its_history_and_the_way_back(double: FleetDouble, file: Path) -> None:
    assert "nothing is deployed" in run(double, "fleet", "show").stdout
    run(double, "fleet", "apply", file, "--no-wait")
    double.served = {"default": (2, 3), "coder": (1, 1)}
    head, columns, default, coder = run(double, "fleet", "show").stdout.splitlines()
    assert head.startswith("revision 2, ")
    assert head.endswith(", by alice: two models")
    assert columns.split() == ["deployment", "model", "replicas", "phase", "aliases", "where"]
    assert default.split() == ["default", "/models/new.gguf", "2/3", "(all)", "serving", "-", "-"]
    assert coder.split()[2:] == ["1/1", "serving", "gpt-4o", "gpu=yes"]
    assert json.loads(run(double, "fleet", "show", "--json").stdout)["revision"]["revision"] == 2

    rows = run(double, "fleet", "history").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["revision", "2", "1"]
    assert "default, coder" in rows[1]
    assert rows[1].rstrip().endswith("two models")

    undone = run(double, "fleet", "undo", "--no-wait")
    assert undone.exit_code == DONE
    assert undone.stdout.splitlines()[-1] == "stored as revision 3: undo: 1 again"
    assert "coder: removed" in undone.stdout
    assert double.revisions[-1]["state"] == {"deployments": []}
    again = run(double, "fleet", "undo", "--to-revision", 2, "--no-wait")
    assert again.stdout.splitlines()[-1] == "stored as revision 4: undo: 2 again"


# ------------------------------------------------------------------------------------ rollout


def test_rollouts_are_shown_as_they_are(double: FleetDouble) -> None:
    assert "no rollout is under way" in run(double, "rollout").stdout
    double.connections = [[shown(rollout("rolling", "a2:serving", "a1:failed", detail="no file"))]]
    lines = run(double, "rollout").stdout.splitlines()
    assert lines[0] == "default: rolling, revision 1 -> 2"
    assert [line.split() for line in lines[1:]] == [
        ["a1", "failed", "no", "file"],
        ["a2", "serving"],
    ]
    assert json.loads(run(double, "rollout", "--json").stdout) == double._rollouts()


def test_watching_ends_with_the_rollouts(double: FleetDouble) -> None:
    frames = [
        shown(rollout("rolling", "a1:loading")),
        shown(rollout("rolling_back", "a1:failed", reason="a1: it crashed")),
        shown(rollout("rolled_back", "a1:rolled_back", reason="a1: it crashed")),
    ]
    double.connections = [frames]
    watched = run(double, "rollout", "--watch")
    assert watched.exit_code == ROLLED_BACK
    assert watched.stdout.splitlines()[-2:] == [
        "default: rolled back, revision 1 -> 2, a1: it crashed",
        "default, a1: rolled back",
    ]
    double.streams = 0
    as_json = run(double, "rollout", "--watch", "--json")
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == frames
    double.connections, double.streams = [[frames[0]]], 0
    assert run(double, "rollout", "--watch", "--timeout", 0.1).exit_code == TIMED_OUT
    assert run(double, "rollout", "--timeout", 0.1).exit_code == USAGE
    double.connections, double.streams = [[shown(rollout("paused", reason="a1: it crashed"))]], 0
    assert run(double, "rollout", "--watch").exit_code == FAILED


@pytest.mark.parametrize("command", ["pause", "resume", "abort", "undo"])
def test_commands_name_the_deployment_and_the_next_step(double: FleetDouble, command: str) -> None:
    ended = run(double, "rollout", command)
    assert ended.exit_code == DONE
    assert ended.stdout.startswith("default: ")
    assert "`paddler-trio " in ended.stdout
    run(double, "rollout", command, "coder")
    assert [path for _, path, _ in double.requests] == [
        f"/api/v2/rollout/{name}/{command}" for name in ("default", "coder")
    ]
    path = f"/api/v2/rollout/coder/{command}"
    double.refusals["POST", path] = 409, f"coder has no rollout to {command}"
    refused = run(double, "rollout", command, "coder")
    assert refused.exit_code == BY_BALANCER
    assert f"coder has no rollout to {command}" in refused.stderr


def test_flags_before_the_command_are_not_ignored(double: FleetDouble) -> None:
    ended = invoke("rollout", "--management-addr", double.address, "pause")
    assert ended.exit_code == USAGE
    assert "write it after pause" in ended.output
    assert double.requests == []


# --------------------------------------------------------------------------------------- swap


def test_a_swap_is_followed_agent_by_agent(double: FleetDouble) -> None:
    double.connections = [
        [
            shown(rollout("canary", "a1:loading", to=1)),
            shown(rollout("complete", "a1:serving", to=1)),
        ]
    ]
    double.agents = [{**AGENT, "served_state": "new", "wanted_state": "new"}]
    ended = run(double, "model", "swap", "/models/new.gguf")
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.splitlines()[-1] == "served by a1: /models/new.gguf"
    assert "default, a1: loading" in ended.stderr
    double.streams = 0
    told = json.loads(run(double, "model", "swap", "/models/new.gguf", "--json").stdout)
    assert told["outcome"] == "all serve"
    assert [(agent["name"], agent["verdict"]) for agent in told["agents"]] == [("a1", "serving")]


def test_a_swap_that_is_rolled_back_says_why(double: FleetDouble) -> None:
    double.connections = [
        [shown(rollout("rolled_back", "a1:rolled_back", to=1, reason="a1: no such file"))]
    ]
    ended = run(double, "model", "swap", "/models/new.gguf")
    assert ended.exit_code == ROLLED_BACK
    assert "default: rolled back: a1: no such file" in ended.stderr
    assert "served by" not in ended.stdout


def test_a_balancer_without_a_fleet_is_named(double: FleetDouble) -> None:
    double.has_fleet = False
    refused = run(double, "fleet", "show")
    assert refused.exit_code == BY_BALANCER
    assert "it has no /api/v2/fleet" in refused.stderr


# ------------------------------------------------------------------------------------ dry run


def stored(double: FleetDouble) -> list[str]:
    """What changed anything."""
    return [
        f"{verb} {path}"
        for verb, path, _ in double.requests
        if verb == "PUT" and not path.endswith("dry_run=true")
    ]


def test_a_dry_run_of_a_swap_stores_nothing_and_counts(double: FleetDouble) -> None:
    ended = run(double, "model", "swap", "hf:org/repo/m.gguf", "--dry-run")
    assert ended.exit_code == DONE, ended.output
    lines = ended.stdout.splitlines()
    assert lines[0] == "model: none -> hf:org/repo/m.gguf@main"
    assert "class of change: added: agents load it" in lines
    assert any(line.startswith("a1: fits") for line in lines)
    assert "a1: fetches 4.7 GB; loads in about 16 s; old and new model fit side by side" in lines
    assert lines[-1] == (
        "default: expected gap: none: the new model loads beside the old one, which serves "
        "meanwhile"
    )
    assert stored(double) == []


def test_a_dry_run_finds_what_is_on_the_disk_and_what_does_not_fit_beside(
    double: FleetDouble,
) -> None:
    double.cached = [
        {"source": "hf:org/repo/m.gguf@c0ffee", "state": "whole", "revisions": ["main"]}
    ]
    double.fit["devices"] = [{**FIT["devices"][0], "free_now": 6 << 30}]
    ended = run(double, "model", "swap", "hf:org/repo/m.gguf", "--dry-run", "--json")
    told = json.loads(ended.stdout)
    (agent,) = told["agents"]
    assert (agent["fetch_bytes"], agent["beside"], agent["load_s"]) == (0, False, 16.0)
    assert told["expected_gap_s"] == 16.0
    assert stored(double) == []


def test_a_dry_run_of_what_does_not_fit_fails(double: FleetDouble) -> None:
    double.fit |= {"fits": False, "problem": "needs 80 GiB on CUDA0, 22 GiB are available"}
    ended = run(double, "model", "swap", "/m.gguf", "--dry-run")
    assert ended.exit_code == FAILED
    assert "a1: does not fit" in ended.stdout
    assert "needs 80 GiB on CUDA0" in ended.stdout


def test_a_dry_run_of_sampling_asks_no_agent(double: FleetDouble) -> None:
    base = {"name": "default", "model": "None", "replicas": "all"}
    double.store({"deployments": [base]}, note="")
    ended = run(double, "model", "swap", "none", "--temperature", 0.1, "--dry-run")
    assert ended.exit_code == DONE, ended.output
    assert ended.stdout.splitlines()[-2:] == [
        "class of change: in place: agents apply it to the running model, nothing is loaded anew",
        "default: expected gap: none: agents apply it to the running model",
    ]
    assert not any("fit" in path for _, path, _ in double.requests)


def test_a_dry_run_of_a_fleet_judges_each_deployment(double: FleetDouble, file: Path) -> None:
    second = {**AGENT, "id": "2", "host": "2", "name": "a2", "labels": {}}
    double.agents = [dict(AGENT), second]
    ended = run(double, "fleet", "apply", file, "--dry-run")
    assert ended.exit_code == DONE, ended.output
    gaps = [line for line in ended.stdout.splitlines() if "expected gap" in line]
    assert gaps[0].startswith("default: expected gap: none: agents change in turn")
    fits = [path for _, path, _ in double.requests if path.endswith("/fit")]
    assert sorted(fits) == [
        "/api/v2/agents/1/fit",  # coder is for gpu=yes alone
        "/api/v2/agents/1/fit",
        "/api/v2/agents/2/fit",
    ]
    assert len(double.revisions) == 1
    told = json.loads(run(double, "fleet", "apply", file, "--dry-run", "--json").stdout)
    assert [each["change"] for each in told["changes"]] == ["added", "added"]


def test_a_dry_run_does_not_push(double: FleetDouble, tmp_path: Path) -> None:
    ended = run(double, "model", "swap", tmp_path / "m.gguf", "--push", "--dry-run")
    assert ended.exit_code == USAGE

"""Lists in a terminal of 80 columns: each row is one line, and what matters is in it."""

from __future__ import annotations

from pathlib import Path

import forked_processes
import httpx
import pytest
from fleet import Fleet
from person_at_terminal import person

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

NAME = BUNDLED_MODEL.name


def look(fleet: Fleet, *words: str) -> list[str]:
    with person(*words, "--management-addr", fleet.management, columns=80) as someone:
        assert someone.waits_for_end() == 0
    return [line.rstrip() for line in someone.lines if line.strip()]


def test_agents_fit(shared_fleet: Fleet) -> None:
    header, row, hidden = look(shared_fleet, "agents")
    assert max(map(len, (header, row, hidden))) <= 80
    assert header.split()[0] == "name"
    assert row.split()[0] == "a1"
    assert "serving" in row
    assert f"{NAME} " in f"{row} ", "of a path, the end is what tells models apart"
    assert hidden.startswith("not shown: ")
    assert "--wide" in hidden
    assert "id" in hidden


def test_wide_shows_all_of_it(shared_fleet: Fleet) -> None:
    shown = "".join(look(shared_fleet, "agents", "--wide"))
    assert str(BUNDLED_MODEL) in shown
    assert shared_fleet.agent_view("a1")["id"] in shown
    assert "not shown" not in shown


@pytest.mark.parametrize("columns", [80, 100])
def test_requests_fit(shared_fleet: Fleet, columns: int) -> None:
    httpx.post(
        f"{shared_fleet.inference_url}/v1/chat/completions",
        json={"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
        trust_env=False,
        timeout=60,
    ).raise_for_status()
    with person(
        "requests", "--management-addr", shared_fleet.management, columns=columns
    ) as someone:
        assert someone.waits_for_end() == 0
    lines = [line.rstrip() for line in someone.lines if line.strip()]
    assert max(map(len, lines)) <= columns
    assert {"key", "phase", "agent", "total", "ending"} <= set(lines[0].split())
    assert lines[1].split()[0].isdigit()


def test_models_of_caches_fit(shared_fleet: Fleet) -> None:
    shown = look(shared_fleet, "model", "list")
    assert max(map(len, shown)) <= 80


def test_deployments_and_revisions_fit(tmp_path: Path) -> None:
    with Fleet.start(agents=0) as fleet:
        file = tmp_path / "fleet.toml"
        note = "a note that says at some length why this was done, and by whom it was asked for"
        long = "/srv/models/of/some/organisation/with-a-long-name"
        file.write_text(
            f'note = "{note}"\n'
            + "".join(
                f'[[deployments]]\nname = "deployment-{number}"\nmodel = "{long}/{number}.gguf"\n'
                f'where = ["rack=of-the-cellar-{number}"]\naliases = ["another-name-{number}"]\n'
                for number in range(3)
            )
        )
        there = ("--management-addr", fleet.management)
        applied = forked_processes.run("fleet", "apply", file, "--no-wait", *there, timeout_s=60)
        assert applied.returncode == 0, applied.stderr
        shown = look(fleet, "fleet", "show")
        assert max(map(len, shown)) <= 80
        assert [line.split()[1][-7:] for line in shown if line.startswith("deployment-")] == [
            f"/{number}.gguf" for number in range(3)
        ]
        assert "not shown: " in shown[-1]
        wide = "".join(look(fleet, "fleet", "show", "--wide"))
        assert "another-name-2" in wide
        revisions = look(fleet, "fleet", "history")
        assert max(map(len, revisions)) <= 80
        assert revisions[1].split()[0].isdigit()
        piped = forked_processes.run("fleet", "history", *there, timeout_s=60)
        assert note in piped.stdout, "nothing is cut in a pipe"

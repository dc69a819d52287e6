"""A real bash completes commands, flags and values with the script that is printed for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import forked_processes
import pytest
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

COMPLETE = """
eval "$(paddler-trio completion bash)"
complete -p paddler-trio
for line in "$@"; do
    COMP_WORDS=()
    while IFS= read -r word; do COMP_WORDS+=("$word"); done <<< "${line// /$'\\n'}"
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _paddler_trio_completion paddler-trio
    echo "$line: ${COMPREPLY[*]}"
done
"""
COMPLETED = {
    "paddler-trio bal": "balancer",
    "paddler-trio agent --tls-c": "--tls-ca --tls-client-cert --tls-client-key",
    "paddler-trio agent --slots 4 --log-level ": "debug info warning error",
}


def test_bash_completes_with_the_printed_script(tmp_path: Path) -> None:
    program = tmp_path / "paddler-trio"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m paddler_trio "$@"\n')
    program.chmod(0o755)
    broken = tmp_path / "broken.toml"
    broken.write_text("[balancer]\nno-such-setting = 1\n")
    ended = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", *COMPLETED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            # who types a command line is not told what is wrong with a file
            "PADDLER_TRIO_CONFIG": str(broken),
        },
    )
    assert ended.stderr == ""
    registered, *shown = ended.stdout.splitlines()
    assert registered == "complete -o default -F _paddler_trio_completion paddler-trio"
    words = {line: " ".join(found.split()) for line, _, found in (x.partition(": ") for x in shown)}
    assert words == COMPLETED


def completed(*words: str) -> list[str]:
    """Return what bash offers for the last word."""
    environment = {
        "_PADDLER_TRIO_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("paddler-trio", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ended = forked_processes.run(env=environment, timeout_s=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.split()


def test_names_are_those_that_the_balancer_knows(shared_fleet: Fleet) -> None:
    there = ("--management-addr", shared_fleet.management)
    assert completed("agent", "drain", *there, "") == ["a1"]
    assert completed("requests", *there, "--agent", "") == ["a1"]
    assert completed("requests", *there, "--agent", "b") == []
    assert completed("requests", *there, "--deployment", "d") == ["default"]
    assert completed("rollout", "pause", *there, "") == ["default"]
    assert completed("model", "fit", *there, "x", "--agent", "a") == ["a1"]


def test_models_are_those_that_are_kept(tmp_path: Path) -> None:
    options = ("--model-store", str(tmp_path), "--model-store-size=1GB")
    with Fleet.start(agents=0, balancer_options=options) as fleet:
        there = ("--management-addr", fleet.management)
        pushed = forked_processes.run("model", "push", str(BUNDLED_MODEL), *there, timeout_s=60)
        assert pushed.returncode == 0, pushed.stderr
        (source,) = completed("model", "pin", *there, "")
        assert BUNDLED_MODEL.name in source


def test_where_no_balancer_is_nothing_is_offered_and_nothing_said() -> None:
    assert completed("agent", "drain", "--management-addr", "127.0.0.1:1", "") == []
    assert completed("agent", "drain", "--management-addr", "nonsense", "") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_what_the_other_shells_ask_is_answered(shell: str) -> None:
    script = forked_processes.run("completion", shell, timeout_s=60)
    assert script.returncode == 0
    assert f"_PADDLER_TRIO_COMPLETE=complete_{shell}" in script.stdout
    environment = {
        "_PADDLER_TRIO_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "paddler-trio balancer --drain-t",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert "--drain-timeout" in forked_processes.run(env=environment, timeout_s=60).stdout


def test_a_shell_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    ended = forked_processes.run("completion", "tcsh", timeout_s=60)
    assert ended.returncode == 2
    assert "'bash', 'zsh', 'fish'" in " ".join(ended.stderr.replace("│", "").split())

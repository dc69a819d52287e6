"""docs/cli.md says what ``--help`` says: every flag of every command, exactly once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import forked_processes
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
SECTIONS = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))

PURE_GROUPS = ("config", "fleet", "join-token", "key", "model", "template", "tls")
"""Commands that do nothing without a sub-command."""


def paddler_trio(*arguments: str) -> str:
    environment = {"PATH": "", "COLUMNS": "300"}
    with forked_processes.start(
        "paddler_trio", arguments, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        shown = process.stdout.read().decode()
        assert process.wait(60) == 0
    return shown


def commands_in(*path: str) -> list[str]:
    """The commands that the help of ``path`` lists."""
    panel = paddler_trio(*path, "--help").partition(" Commands ")[2]
    return re.findall(r"^│ ([a-z-]+) ", panel, re.M)


def test_every_command_has_its_section() -> None:
    commands = [
        " ".join((*path, name))
        for path in ((), *((group,) for group in ("agent", "agents", "rollout", *PURE_GROUPS)))
        for name in commands_in(*path)
        if name not in PURE_GROUPS
    ]
    assert len(commands) >= 9
    assert set(commands) == set(SECTIONS)


@pytest.mark.parametrize("command", SECTIONS)
def test_every_flag_of_the_help_is_documented_exactly_once(command: str) -> None:
    shown = paddler_trio(*command.split(), "--help")
    rows = [line for line in shown.splitlines() if re.match(r"│ -", line)]
    flags = {flag for row in rows for flag in re.findall(r"(?<!\S)--[\w-]+", row)} - {"--help"}
    assert flags or command == "completion"
    table = [line for line in SECTIONS[command].splitlines() if line.startswith("| `--")]
    documented = Counter(
        flag for line in table for flag in re.findall(r"`(--[\w-]+)`", line.split("|")[1])
    )
    assert documented == Counter(flags)


def test_the_page_is_what_the_commands_say_today() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "document_cli.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}: run tools/document_cli.py"


def modules_after(*words: str) -> set[str]:
    """What this command line has imported by its end."""
    script = (
        "import sys, paddler_trio.cli as cli\n"
        f"sys.argv[1:] = {list(words)!r}\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(ended.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_need_nothing_that_only_daemons_need(flag: str) -> None:
    """So that they are there at once."""
    heavy = {"trio", "numpy", "quart", "hypercorn", "llama_cpp", "structlog"}
    assert not modules_after(flag) & heavy


@pytest.mark.parametrize("command", ["balancer", "agent", "agents", "key"])
def test_a_command_needs_no_other_one(command: str) -> None:
    others = {
        "bench.bench_command",
        "doctor",
        "daemons.demo",
        "live.explain",
        "fleet.fleet_command",
    }
    assert not modules_after(command, "--help") & {f"paddler_trio.cli.{name}" for name in others}

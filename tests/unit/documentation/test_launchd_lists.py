"""What launchd is given for each daemon is a property list whose command is ours."""

from __future__ import annotations

import plistlib
import re
from pathlib import Path

import pytest
import typer.main

from paddler_trio.cli.commands import command_line

ROOT = Path(__file__).parents[3]
KEYS = {
    *("Label", "ProgramArguments", "WorkingDirectory", "StandardErrorPath", "RunAtLoad"),
    *("KeepAlive", "ThrottleInterval", "ExitTimeOut", "ProcessType", "Umask"),
    "SoftResourceLimits",
}
"""Of launchd.plist(5); it ignores what it does not know, and says nothing."""


@pytest.mark.parametrize("daemon", ["balancer", "agent"])
def test_launchd_starts_a_daemon_with_a_command_line_of_ours(daemon: str) -> None:
    path = ROOT / "launchd" / f"paddler-trio.{daemon}.plist"
    listed = plistlib.loads(path.read_bytes())
    assert listed.keys() == KEYS
    assert listed["Label"] == path.stem
    program, name, *arguments = listed["ProgramArguments"]
    assert Path(program).name == "paddler-trio"
    assert name == daemon
    command = typer.main.get_command(command_line()).commands[name]  # type: ignore[attr-defined]
    options = command.make_context(name, arguments).params
    assert listed["ExitTimeOut"] > options["drain_timeout"] / 1000
    assert listed["Umask"] == 0o077
    assert listed["KeepAlive"] == {"SuccessfulExit": False}, "SIGTERM ends it for good"
    paths = [program, listed["WorkingDirectory"], listed["StandardErrorPath"]]
    assert all(each.startswith("/Users/YOU/") for each in paths), "one word to be replaced"
    assert not re.search(r"[~$]", " ".join([*listed["ProgramArguments"], *paths]))

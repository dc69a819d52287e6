"""A process that tests start by forking says and does what the command itself would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import forked_processes
import pytest
from fleet import Daemon

BALANCER = ("balancer", "--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0")
KEY_FILE = {"PADDLER_TRIO_KEY_FILE": "no-such-file"}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("key", "new", "me", "--scope=inference", "--file=here/keys"), 1),
        (("agents", "--management-addr=127.0.0.1:1"), 1),  # reads the environment
        ((*BALANCER, "--max-connections=none"), 2),
        ((*BALANCER, "--state-database=file:///nowhere/state.json"), 1),
    ],
)
def test_a_fork_says_what_the_command_says(
    arguments: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked = forked_processes.run(*arguments, env=KEY_FILE)
    real = subprocess.run(
        [sys.executable, "-m", "paddler_trio", *arguments],
        env={**os.environ, **KEY_FILE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert forked.returncode == real.returncode == status
    assert (forked.stdout, forked.stderr) == (real.stdout, real.stderr)
    assert ("no-such-file" in forked.stderr) == (arguments[0] == "agents")


def test_a_fork_leads_a_session_and_ends_by_its_own_signals() -> None:
    daemon = Daemon.start("balancer", [*BALANCER, "--log-json"], {})
    try:
        daemon.wait_for_log("balancer up")
        assert os.getsid(daemon.pid) == daemon.pid
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    finally:
        daemon.end()
    killed = Daemon.start("balancer", [*BALANCER, "--log-json"], {})
    killed.wait_for_log("balancer up")
    killed.end()
    assert killed.wait() == -signal.SIGKILL
    assert not Path(f"/proc/{killed.pid}").exists()

"""A balancer, an agent, its engine and its preparation, with everything switched off that only
Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 180.0
ELSEWHERE = """
import subprocess, sys, sysconfig, trio
sysconfig.get_config_vars()  # trio, subprocess and this ask for the system when they are imported
sys.platform = "freebsd14"
print("elsewhere", file=open(__file__ + ".processes", "a"))
"""


def test_a_request_is_answered_the_portable_way(tmp_path: Path) -> None:
    here = tmp_path / "sitecustomize.py"
    here.write_text(ELSEWHERE)
    ports = ["--inference-addr", "127.0.0.1:0", "--management-addr", "127.0.0.1:0"]
    ended = subprocess.run(
        [sys.executable, "-m", "paddler_trio", "demo", "--once", *ports],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "A slot is" in ended.stdout
    processes = Path(f"{here}.processes").read_text().splitlines()
    assert len(processes) >= 3, "the daemons, the engine, and what prepares requests"

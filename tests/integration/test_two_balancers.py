"""A second balancer on the state file of a running one ends at once, and says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fleet import Fleet


def test_a_second_balancer_on_one_state_file_ends_with_an_error(tmp_path: Path) -> None:
    database = f"--state-database=file://{tmp_path}/state.json"
    with Fleet.start(agents=0, model=None, balancer_options=[database]) as fleet:
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "paddler_trio",
                "balancer",
                "--inference-addr=127.0.0.1:0",
                "--management-addr=127.0.0.1:0",
                database,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert (
            f"paddler-trio: another balancer (process {fleet.balancer.pid}) uses "
            f"{tmp_path}/state.json and holds the lock on {tmp_path}/state.json.lock: stop it, or "
            "give this one a --state-database of its own"
        ) in second.stderr
        fleet.balancer.end()
    with Fleet.start(agents=0, model=None, balancer_options=[database]):
        pass

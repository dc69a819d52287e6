"""Whoever starts us may have limits that are lower than ours: those stay, and nothing fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

GIB = 1024**3
JOB = (
    "from paddler_trio.processes.preparation.job_limits import cpu_limited\n"
    "def ours():\n"
    "    with cpu_limited(1): pass\n"
)
DRY_RUN = (
    "from paddler_trio.processes.engine.memory.dry_run import limit_processor_time\n"
    "def ours(): limit_processor_time(60)\n"
)


@pytest.mark.parametrize(
    ("limit", "most", "ours"),
    [
        (
            "RLIMIT_AS",
            GIB,
            "from paddler_trio.processes.preparation.job_limits import limit_memory as ours",
        ),
        ("RLIMIT_CPU", 3600, JOB),
        (
            "RLIMIT_DATA",
            GIB,
            "from paddler_trio.processes.engine.memory.dry_run import _limit_myself as ours",
        ),
        ("RLIMIT_CPU", 3600, DRY_RUN),
    ],
    ids=["memory of a worker", "time of a job", "memory of a dry run", "time of a dry run"],
)
@pytest.mark.parametrize("is_low", [True, False])
def test_a_limit_in_force_is_kept(limit: str, most: int, ours: str, is_low: bool) -> None:
    """Whether it is lower than what our code asks for, or higher."""
    program = (
        f"import resource\n{ours}\n"
        f"which, most = resource.{limit}, {most}\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        f"if {is_low} and which == resource.RLIMIT_AS:\n"
        "    most = pages * resource.getpagesize() + 16_000_000\n"
        f"elif {is_low}:\n"
        "    most //= 100\n"
        "resource.setrlimit(which, (most, most))\n"
        "ours()\n"
        "soft, hard = resource.getrlimit(which)\n"
        "print(0 < soft <= most and 0 < hard <= most)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("True\n", "")

"""Small files are written as a whole, and what a killed writer left does not stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from paddler_trio.models.durable import write_durably

KILLED = """
import os, signal, sys
from pathlib import Path
from paddler_trio.models import durable

durable.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
durable.write_durably(Path(sys.argv[1]), b"half")
"""


def left_by_a_killed_writer(path: Path, *, age_s: float) -> Path:
    before = set(path.parent.iterdir())
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    assert killed.wait(60) < 0
    (left,) = set(path.parent.iterdir()) - before
    assert str(killed.pid) in left.name
    age(left, age_s)
    return left


def age(path: Path, age_s: float) -> None:
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    left = left_by_a_killed_writer(path, age_s=7200)
    write_durably(path, b"whole")
    assert not left.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_what_may_still_be_written_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    young = left_by_a_killed_writer(path, age_s=60)  # in another container it may be alive
    alive = tmp_path / f".memory.json.{os.getppid()}.fresh"
    others = [
        tmp_path / ".memory.json.old.fresh",
        tmp_path / f".memory.json.bak.{2**22}.fresh",
        tmp_path / f".other.json.{2**22}.fresh",
    ]
    for file in (alive, *others):
        file.write_text("x")
        age(file, 7200)
    write_durably(path, b"whole")
    assert all(file.exists() for file in (young, alive, *others))

"""Small files are written as a whole, also by several threads at once, and what a killed writer
left does not stay."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddler_trio.system import durable
from paddler_trio.system.durable import write_durably

KILLED = """
import os, signal, sys
from pathlib import Path
from paddler_trio.system import durable

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
        tmp_path / ".memory.json..7.fresh",
        tmp_path / f".memory.json.bak.{2**22}.fresh",
        tmp_path / f".other.json.{2**22}.fresh",
    ]
    for file in (alive, *others):
        file.write_text("x")
        age(file, 7200)
    write_durably(path, b"whole")
    assert all(file.exists() for file in (young, alive, *others))


def test_two_threads_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have written before one of them renames."""
    path, both = tmp_path / "folder" / "file", threading.Barrier(2)
    sync = durable.sync

    def sync_together(place: Path) -> None:
        sync(place)
        if place.is_file():
            both.wait(10)

    monkeypatch.setattr(durable, "sync", sync_together)
    texts = [b"one" * 1000, b"two" * 2000]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda text: write_durably(path, text), texts))
    assert path.read_bytes() in texts
    assert list(path.parent.iterdir()) == [path], "nothing else is left"

"""Two agents of one machine do not load into the same free memory."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from paddler_trio.agent.model import memory_promises
from paddler_trio.agent.model.memory_promises import FOLDER_LOCK, MAX_NOTES, MemoryPromises

NEEDED = {"host": 100, "GPU0": 7}


def always(others: Mapping[str, int]) -> bool:
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "loading"


def test_the_second_one_is_asked_with_what_the_first_one_takes(folder: Path) -> None:
    one, other = MemoryPromises(folder), MemoryPromises(folder)
    seen: list[Mapping[str, int]] = []
    assert one.promise(NEEDED, lambda others: seen.append(dict(others)) is None)
    assert not other.promise(NEEDED, lambda others: seen.append(dict(others)) is not None)
    assert seen == [{}, NEEDED]
    assert other.of_others() == NEEDED
    assert one.promise({"host": 3}, always), "a new promise takes the place of the old one"
    assert other.of_others() == {"host": 3}
    one.drop()
    assert other.of_others() == {}
    assert [path.name for path in folder.iterdir()] == [FOLDER_LOCK], (
        "what is out of date is removed"
    )


def test_a_process_that_is_killed_promises_nothing_any_more(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from paddler_trio.agent.model.memory_promises import MemoryPromises;"
        "promises = MemoryPromises(Path(sys.argv[1]));"
        "promises.promise({'host': 5}, lambda others: True);"
        "print('noted', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"noted\n"
        assert MemoryPromises(folder).of_others() == {"host": 5}
        process.kill()
    assert MemoryPromises(folder).of_others() == {}


def test_a_folder_that_cannot_be_used_keeps_nobody_from_loading(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    promises = MemoryPromises(tmp_path / "file" / "loading")
    assert promises.promise(NEEDED, always)
    assert not promises.promise(NEEDED, lambda others: False)
    assert promises.of_others() == {}
    promises.drop()


@pytest.mark.parametrize("note", [b"", b"[]", b"{", b'{"host": "much"}', b'{"host": -5}', b"\xff"])
def test_a_note_of_somebody_else_is_nothing(note: bytes, folder: Path) -> None:
    promises = MemoryPromises(folder)
    promises.promise(NEEDED, always)
    (path,) = folder.glob("*.json")
    path.write_bytes(note)
    assert MemoryPromises(folder).of_others() == {}
    promises.drop()


def test_notes_are_looked_at_up_to_a_limit(folder: Path) -> None:
    all_promises = [MemoryPromises(folder) for _ in range(MAX_NOTES + 1)]
    for each in all_promises:
        assert each.promise({"host": 1}, always)
    assert MemoryPromises(folder).of_others() == {"host": MAX_NOTES}
    for each in all_promises:
        each.drop()


def test_a_process_that_keeps_the_lock_stops_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stopped in the middle of its look."""
    monkeypatch.setattr(memory_promises, "LOCK_S", 0.0)
    folder.mkdir(parents=True)
    promises = MemoryPromises(folder)
    with (folder / FOLDER_LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert promises.promise(NEEDED, always)
        assert promises.of_others() == {}
    assert promises.promise(NEEDED, always)
    assert MemoryPromises(folder).of_others() == NEEDED
    promises.drop()

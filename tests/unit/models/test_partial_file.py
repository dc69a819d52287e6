"""A journal tells what is here, whatever happened to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddler_trio.models.download import partial_file
from paddler_trio.models.download.partial_file import (
    HEADER_BYTES,
    MAX_VALIDATOR_CHARS,
    PartialFile,
    read_journal,
)


def opened(folder: Path, *, knows_hash: bool = True) -> PartialFile:
    return PartialFile.open(folder, "key", knows_hash=knows_hash)


def begun(folder: Path) -> None:
    partial = opened(folder)
    partial.begin(25, '"e"', block_bytes=10)
    partial.write(10, [b"01234", b"56789"], block=1)
    partial.close()


def test_blocks_that_were_written_are_here_in_the_next_process(tmp_path: Path) -> None:
    begun(tmp_path)
    partial = opened(tmp_path)
    assert partial.journal is not None
    assert list(partial.journal.here) == [0, 1, 0]
    assert partial.journal.here_bytes == 10
    assert partial.journal.etag == '"e"'
    space = memoryview(bytearray(10))
    assert partial.read_into(10, space) == 10
    assert bytes(space) == b"0123456789"
    partial.close()


@pytest.mark.parametrize("letter", ["\xff", '"', "\\", "\t", "e"])
def test_an_etag_of_any_letters_fits_into_the_header(tmp_path: Path, letter: str) -> None:
    partial = opened(tmp_path)
    partial.begin(25, letter * 5000, block_bytes=10)
    partial.close()
    journal = read_journal(tmp_path / "key.journal")
    assert journal is not None
    assert journal.etag == letter * MAX_VALIDATOR_CHARS
    assert (tmp_path / "key.journal").stat().st_size == HEADER_BYTES + 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes() + b"\1"),
        lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\7"),
        lambda file: file.write_bytes(b"[]".ljust(HEADER_BYTES) + b"\0\0\0"),
        lambda file: file.write_bytes(file.read_bytes().replace(b"25", b"24", 1)),
        lambda file: file.write_bytes(file.read_bytes().replace(b"10", b"-9", 1)),
        lambda file: file.with_suffix(".partial").write_bytes(b"short"),
        lambda file: file.with_suffix(".partial").unlink(),
    ],
)
def test_a_damaged_journal_is_a_new_start(tmp_path: Path, damage: object) -> None:
    begun(tmp_path)
    damage(tmp_path / "key.journal")  # type: ignore[operator]
    partial = opened(tmp_path)
    assert partial.journal is None
    partial.close()
    assert not (tmp_path / "key.journal").exists()
    assert (tmp_path / "key.partial").stat().st_size == 0


def test_after_a_crash_of_the_machine_a_journal_counts_only_with_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    monkeypatch.setattr(partial_file, "boot_id", lambda: "another boot")
    with_hash = opened(tmp_path)
    assert with_hash.journal is not None
    with_hash.close()
    without = opened(tmp_path, knows_hash=False)
    assert without.journal is None
    without.close()


def test_a_link_in_the_place_of_the_partial_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "key.partial").symlink_to(victim)
    partial = opened(tmp_path)
    partial.begin(3, "")
    partial.close()
    assert victim.read_text() == "mine"


def test_reading_a_journal_that_is_not_there(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") is None
    assert read_journal(tmp_path) is None

"""What has arrived of an upload is a start of the file, however often it broke off."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from effort import examples
from paddler_trio.processes.model_store import upload_file
from paddler_trio.processes.model_store.upload_file import (
    EXPIRY_S,
    UploadFile,
    expired_uploads,
    here_bytes,
)

DATA = os.urandom(4096)


class Uploading(RuleBasedStateMachine):
    """Clients come, send some bytes and break off; the store may be killed at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "x.partial"
        self.open: UploadFile | None = None
        self.kept = upload_file.HASHED_NOW_BYTES

    @initialize(hashed_now=st.sampled_from([0, 100, 10**6]))
    def begin(self, hashed_now: int) -> None:
        upload_file.HASHED_NOW_BYTES = hashed_now  # type: ignore[misc]

    @precondition(lambda self: self.open is None)
    @rule(start=st.integers(0, len(DATA)))
    def a_client_comes(self, start: int) -> None:
        here = here_bytes(self.path)
        self.open = UploadFile.open(self.path, start)
        assert (self.open is None) == (start > here), "no gap, ever"
        assert here_bytes(self.path) == (here if self.open is None else start)

    @precondition(lambda self: self.open is not None)
    @rule(counts=st.lists(st.integers(0, 700), max_size=4))
    def it_sends(self, counts: list[int]) -> None:
        assert self.open is not None
        pieces, position = [], self.open.position
        for count in counts:
            pieces.append(DATA[position : position + count])
            position += len(pieces[-1])
        self.open.write(pieces)
        assert self.open.position == position

    @precondition(lambda self: self.open is not None)
    @rule()
    def it_breaks_off(self) -> None:
        assert self.open is not None
        self.open.close()
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def the_hash_is_of_what_is_here(self) -> None:
        assert self.open is not None
        expected = hashlib.sha256(DATA[: self.open.position]).hexdigest()
        assert self.open.sha256(lambda count: None) == expected

    @invariant()
    def what_is_here_is_a_start_of_the_file(self) -> None:
        if self.path.exists():
            assert DATA.startswith(self.path.read_bytes())

    def teardown(self) -> None:
        if self.open is not None:
            self.open.close()
        upload_file.HASHED_NOW_BYTES = self.kept  # type: ignore[misc]
        self.folder.cleanup()


Uploading.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=20)
test_uploads = Uploading.TestCase


def test_a_link_in_the_place_of_an_upload_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "x.partial").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        UploadFile.open(tmp_path / "x.partial", 0)
    assert (tmp_path / "secret").read_text() == "secret"


def test_what_is_written_now_never_expires(tmp_path: Path) -> None:
    for name in ("old", "now", "young"):
        (tmp_path / f"{name}.partial").write_bytes(b"x")
        age_s = 0 if name == "young" else EXPIRY_S + 60
        at_s = (tmp_path / f"{name}.partial").stat().st_mtime - age_s
        os.utime(tmp_path / f"{name}.partial", (at_s, at_s))
    assert expired_uploads(tmp_path, frozenset({"now"})) == ["old"]

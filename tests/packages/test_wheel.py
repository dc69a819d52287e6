"""What `make wheel` builds: the same bytes every time, and all that is needed to run."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from source_tree import build, copy_tree, tracked_files

Built = tuple[Path, Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("first")
    return build(copy_tree(folder / "tree"), folder / "dist")


def test_two_clones_make_the_same_bytes(built: Built, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "a folder elsewhere")
    for file in ("README.md", "src/paddler_trio/__init__.py"):
        (tree / file).chmod(0o664)  # as a clone under another umask leaves it
    again = build(tree, tmp_path / "dist", umask=0o077)
    assert [each.name for each in again] == [each.name for each in built]
    assert [each.read_bytes() for each in again] == [each.read_bytes() for each in built]


def test_the_wheel_of_the_source_archive_is_the_wheel_of_the_tree(
    built: Built, tmp_path: Path
) -> None:
    wheel, archive = built
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    assert build(unpacked, tmp_path / "dist")[0].read_bytes() == wheel.read_bytes()


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built[0]) as packed:
        assert packed.testzip() is None
        held = {info.filename: info for info in packed.infolist()}
    ours = {str(p.relative_to("src")) for p in tracked_files() if p.parts[0] == "src"}
    assert {name for name in held if name.startswith("paddler_trio/")} == ours
    others = {name.partition("/")[0] for name in held.keys() - ours}
    assert len(others) == 1  # the dist-info
    for name, info in held.items():
        mode = stat.S_IMODE(info.external_attr >> 16)
        assert mode & 0o044 == 0o044, f"{name} cannot be read by everybody: {mode:o}"


def test_the_wheel_runs_on_the_pythons_that_are_tested_and_needs_no_compiler(built: Built) -> None:
    with zipfile.ZipFile(built[0]) as packed:
        [name] = [each for each in packed.namelist() if each.endswith(".dist-info/METADATA")]
        text = packed.read(name)
    metadata = Metadata.from_email(text, validate=True)
    versions = [
        each.rpartition(" :: ")[2]
        for each in metadata.classifiers or []
        if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert versions == ["3.11", "3.12", "3.13"]
    assert all(metadata.requires_python and each in metadata.requires_python for each in versions)
    always = [each for each in metadata.requires_dist or [] if each.marker is None]
    assert "llama-cpp-python" not in [each.name for each in always]
    assert message_from_bytes(text)["License-Expression"] == "Apache-2.0"

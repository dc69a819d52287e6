"""Copies of the source tree as a fresh clone has it, and what is built from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMMIT_TIME: Final = "1767225600"
"""Stands for the time of the last commit; any fixed one does."""


def tracked_files() -> list[Path]:
    """What belongs to the project, relative to its root; new files count as well."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = listed.stdout.split("\0")
    return [Path(name) for name in names if name and (ROOT / name).is_file()]


def copy_tree(folder: Path) -> Path:
    """A copy whose files were written now, as after a clone."""
    for file in tracked_files():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)
        target.chmod(0o755 if os.access(ROOT / file, os.X_OK) else 0o644)
    return folder


def build(tree: Path, folder: Path, *, umask: int = 0o022) -> tuple[Path, Path]:
    """The wheel and the source archive that `make wheel` builds of ``tree``."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=tree,
        env=os.environ | {"SOURCE_DATE_EPOCH": COMMIT_TIME},
        stdout=subprocess.DEVNULL,
        umask=umask,
        check=True,
    )
    [wheel], [archive] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive

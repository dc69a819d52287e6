"""The chat templates of llama.cpp, from the source archive of the llama-cpp-python in use.

They are other people's work, so this repository holds none of them: the archive is fetched once
with pip, and what tests read of it is kept in the user's cache.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from paddler_trio.processes.llama_setup.recipes import DISTRIBUTION, VERSION

TEMPLATES = "vendor/llama.cpp/models/templates/"
FETCH_S = 240


@functools.cache
def templates_folder() -> Path:
    """Return the folder of llama.cpp's chat templates; fetch the archive if it is not kept yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = base / "paddler-trio" / "sources" / f"{DISTRIBUTION}-{VERSION}" / "templates"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            _unpack(_fetch(Path(folder)), Path(folder) / "templates")
            try:
                Path(folder, "templates").rename(kept)
            except OSError:  # another worker of the same run was first
                if not kept.is_dir():
                    raise
    return kept


def template_names() -> list[str]:
    """Return the file names of all templates, sorted."""
    return sorted(path.name for path in templates_folder().glob("*.jinja"))


def template_text(name: str) -> str:
    """Return the text of one template: its file name, or a path of llama.cpp that ends with it."""
    return (templates_folder() / name.rpartition("/")[2]).read_text(encoding="utf-8")


def _fetch(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    command += ["--no-binary", DISTRIBUTION, f"{DISTRIBUTION}=={VERSION}"]
    subprocess.run(command, check=True, timeout=FETCH_S)
    return next(folder.glob("*.tar.gz"))


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(archive) as source:
        for member in source:
            _, found, name = member.name.partition(TEMPLATES)
            if found and name.endswith(".jinja") and "/" not in name:
                content = source.extractfile(member)
                assert content is not None
                with (folder / name).open("wb") as file:
                    shutil.copyfileobj(content, file)

"""Wheels that were proven on this machine, kept for its next environment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paddler_trio.processes.llama_setup.wheel_build import say


def wheel_folder(key: str) -> Path:
    """Where a proven wheel is kept; XDG asks for relative values to be ignored."""
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = told if told.is_absolute() else Path("~/.cache").expanduser()
    return base / "paddler-trio" / "wheels" / key


def find_kept(key: str) -> Path | None:
    """The wheel that was built in this way before."""
    return next(wheel_folder(key).glob("*.whl"), None)


def keep_wheel(wheel: Path, key: str) -> None:
    """Keep a proven wheel; a cache that cannot be written is no failure."""
    folder = wheel_folder(key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        partial.rename(folder / wheel.name)
    except OSError as error:
        say(f"    (the wheel is not kept for other environments: {error})")

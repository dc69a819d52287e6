"""Programs that are started in a folder with somebody else's Python files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PATIENCE_S = 120.0
NAMES = ("jinja2.py", "llama_cpp.py", "numpy.py", "queue.py", "trio.py")
"""Of modules that the engine and the preparation import."""


def test_nothing_of_the_folder_is_run(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).write_text("raise SystemExit('foreign code')\n")
    ports = ["--inference-addr", "127.0.0.1:0", "--management-addr", "127.0.0.1:0"]
    ended = subprocess.run(
        # without the folder on its own path, as a console script is
        [sys.executable, "-P", "-m", "paddler_trio", "demo", "--once", *ports],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "foreign code" not in ended.stderr
    assert ended.returncode == 0
    assert "A slot is" in ended.stdout

"""The commands of README and of the guides, run as they stand there, with the documented ports.

The blocks of one page run in order in one shell, which stops at the first command that fails. An
HTTP error of ``curl`` is a failure.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import isolated_shell
import pytest

from documented_blocks import DOCS, ROOT, Block, blocks
from paddler_trio.engine.proof import BUNDLED_MODEL

RUN = [
    page
    for page in (ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md")))
    if any(block.is_commands and not block.reason for block in blocks(page))
]
"""Pages whose blocks run."""
SHOWN_LINES = 60

PREAMBLE = """\
set -euo pipefail -m
at() {  # what a shell on that machine would know
  unset ${!PADDLER_TRIO_@}
  export HOME="$2" PLACE="$1"
  cd "$HOME"
  if [ -f .exported ]; then . ./.exported; fi
  echo "@@ $PLACE"
}
keep() { export -p | sed -n 's/^declare -x PADDLER_TRIO_/export PADDLER_TRIO_/p' > .exported; }
curl() { command curl --fail-with-body --max-time 60 "$@"; }
trap 'echo "@@ failed: $PLACE"' ERR
"""


def script_of(page: Iterable[Block], home: Path) -> str:
    """All blocks of a page that run, each in the home of its machine."""
    parts = [PREAMBLE]
    for block in page:
        if not block.is_commands or block.reason:
            continue
        folder = home / (block.machine or "here")
        folder.mkdir(parents=True, exist_ok=True)
        place, at_home = shlex.quote(block.place), shlex.quote(str(folder))
        parts += [f"at {place} {at_home}\n", block.text, "keep\n"]
    return "".join(parts)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_as_they_stand_there(page: Path, tmp_path: Path) -> None:
    namespaces = isolated_shell.unshare()
    if namespaces is None:
        pytest.skip("this machine lets nobody have a network of their own (unshare --net)")
    script, log = tmp_path / "page.sh", tmp_path / "log"
    script.write_text(script_of(blocks(page), tmp_path / "homes"))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "BUNDLED_MODEL": str(BUNDLED_MODEL),
        "LANG": "C.UTF-8",
    }
    status = isolated_shell.run(namespaces, script, environment, log)
    shown = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
    assert status == 0, f"exit status {status}\n{shown}"

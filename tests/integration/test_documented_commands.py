"""The commands of README and of the guides, run as they stand there, with the documented ports.

The blocks of one page run in order in one shell, which stops at the first command that fails. An
HTTP error of ``curl`` is a failure.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import isolated_shell
import pytest

from documented_blocks import DOCS, ROOT, Block, blocks
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

USE_THE_FLEET_OF = {"clients": ["api_v2.md", "requests.md"]}
"""Pages whose commands ask the fleet that a guide has started."""
RUN = [
    page
    for page in (ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md")))
    if any(block.is_commands and not block.reason for block in blocks(page))
]
"""Pages whose blocks run, each in a network of its own."""
SHOWN_LINES = 60

SERVER_WITHOUT_THE_PAGE = """\
python3 -m http.server --bind 192.0.2.2 80 &
curl -s --retry 9 --retry-delay 1 --retry-connrefused http://192.0.2.2/nothing-is-there"""
PREAMBLE = """\
set -Eeuo pipefail -m  # E: also in curl() below
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


def run(page: Iterable[Block], folder: Path) -> tuple[int, str]:
    """The exit status of a page's commands, and the end of what they wrote."""
    namespaces = isolated_shell.unshare()
    if namespaces is None:
        pytest.skip("this machine lets nobody have a network of their own (unshare --net)")
    script, log = folder / "page.sh", folder / "log"
    script.write_text(script_of(page, folder / "homes"))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "BUNDLED_MODEL": str(BUNDLED_MODEL),
        "LANG": "C.UTF-8",
    }
    status = isolated_shell.run(namespaces, script, environment, log)
    return status, "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_as_they_stand_there(page: Path, tmp_path: Path) -> None:
    pages = [page, *(DOCS / name for name in USE_THE_FLEET_OF.get(page.stem, ()))]
    status, shown = run(chain.from_iterable(map(blocks, pages)), tmp_path)
    assert status == 0, f"exit status {status}\n{shown}"


@pytest.mark.parametrize(
    "wrong",
    [
        "false | cat",
        "paddler-trio no-such-command",
        "curl -sS http://192.0.2.9:1/",
        SERVER_WITHOUT_THE_PAGE,
    ],
)
def test_a_command_that_fails_ends_the_page_and_is_named(wrong: str, tmp_path: Path) -> None:
    lines = {3: "export PADDLER_TRIO_X=1", 7: 'test "$PADDLER_TRIO_X" = 1', 9: wrong, 12: "echo on"}
    page = [Block(ROOT / "page.md", line, "sh", f"{text}\n") for line, text in lines.items()]
    status, shown = run(page, tmp_path)
    assert status != 0
    assert "@@ failed: page.md:9" in shown
    assert "page.md:12" not in shown


def test_each_machine_of_a_page_has_a_home_and_variables_of_its_own(tmp_path: Path) -> None:
    page = [
        Block(ROOT / "page.md", 1, "sh", "export PADDLER_TRIO_X=a; echo a > file\n", "front"),
        Block(ROOT / "page.md", 2, "sh", 'test -z "${PADDLER_TRIO_X-}"; test ! -e file\n', "gpu-1"),
        Block(ROOT / "page.md", 3, "sh", 'test "$PADDLER_TRIO_X" = a; test -e file\n', "front"),
        Block(ROOT / "page.md", 4, "sh", "false\n", reason="needs-root"),
    ]
    assert run(page, tmp_path)[0] == 0

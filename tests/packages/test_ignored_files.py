"""What the guides make in a checkout, secrets among it, is not offered to `git add`."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from documented_blocks import DOCS, ROOT, blocks

PAGES = [DOCS / "start.md", *sorted((DOCS / "guides").glob("*.md"))]
_MADE = re.compile(
    r"(?<!>)> ([\w.-]+)$"  # what a command prints
    r"|--(?:file|folder) ([\w.-]+)"
    r"|(?<=[ \"/])\$PWD/([\w.-]+)",
    re.M,
)


def made_by_guides() -> set[str]:
    """The first part of each path, below the folder in which a page is followed."""
    texts = [block.text for page in PAGES for block in blocks(page) if block.is_commands]
    return {next(filter(None, found)) for text in texts for found in _MADE.findall(text)} - {
        ".venv"  # of the checkout itself
    }


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="this is no checkout"
)
def test_what_the_guides_make_is_ignored() -> None:
    made = made_by_guides()
    assert {"keys.json", "ops.key", "tls", "state.json"} <= made
    made |= {"state.json.agents.json", "tls/ca.key"}
    for name in sorted(made):
        path = f"{name}/file" if name in {"tls", "models"} else name
        checked = subprocess.run(
            ["git", "-C", str(ROOT), "check-ignore", "--quiet", path], check=False
        )
        assert checked.returncode == 0, f"{path} is not ignored"


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="this is no checkout"
)
def test_nothing_of_the_program_is_ignored() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--ignored", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert listed.stdout == ""

"""What the site shows of a page, and what its pages may not load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from documented_blocks import DOCS, ROOT, blocks

sys.path.insert(0, str(ROOT / "tools"))

from site_text import foreign_loads, shown


def test_a_block_of_a_machine_gets_a_title_and_reasons_are_not_shown() -> None:
    page = "```sh on=gpu-1\na\n```\n```sh no-run=needs-root\nb\n```\n```json\n{}\n```\n"
    assert shown(page) == '```sh title="on gpu-1"\na\n```\n```sh\nb\n```\n```json\n{}\n```\n'


def test_commands_that_only_tests_need_are_not_shown() -> None:
    assert shown("a\n<!-- run on=front\ncp x y\n-->\nb\n<!-- note -->\n") == "a\nb\n<!-- note -->\n"
    hidden = [page for page in (DOCS / "guides").glob("*.md") if "<!-- run" in page.read_text()]
    assert hidden
    for page in hidden:
        assert "<!-- run" not in shown(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("html", "foreign"),
    [
        ('<script src="https://cdn.example.org/a.js"></script>', ["https://cdn.example.org/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example.org/a">', ["//fonts.example.org/a"]),
        ('<link rel="canonical" href="https://docs.example.org/">', []),
        ('<a href="https://example.org/">there</a><img src="images/a.png">', []),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(html: str, foreign: list[str]) -> None:
    assert foreign_loads(html) == foreign


def test_a_block_with_an_unknown_reason_is_refused(tmp_path: Path) -> None:
    page = DOCS / "start.md"
    assert any(block.reason == "builds" for block in blocks(page))
    wrong = tmp_path / "page.md"
    wrong.write_text("```sh no-run=i-do-not-like-it\nx\n```\n")
    with pytest.raises(ValueError, match="a block may have on=NAME"):
        list(blocks(wrong))

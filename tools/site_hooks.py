"""What MkDocs does beyond mkdocs.yml: the list of decisions, titles of blocks, and a last look.

Blocks of commands carry more than a language in their first line (`on=NAME`, `no-run=REASON`; see
docs/decisions/0073-documentation-that-runs.md). Here that becomes a title, which readers see.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DECISIONS = "decisions/index.md"
FENCE = re.compile(r"^(?P<fence> *```)(?P<language>sh|console) (?P<words>[^`\n]+)$", re.M)
HIDDEN = re.compile(r"^<!-- run\n.*?^-->\n", re.M | re.S)
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


def on_files(files: Any, config: Any) -> Any:
    """The panel's icon is the site's."""
    icon = ROOT / "panel" / "src" / "icon.svg"
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(icon)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """What readers see of a page."""
    if page.file.src_uri == DECISIONS:
        markdown += "\n" + _decisions(Path(config.docs_dir) / "decisions")
    return FENCE.sub(_titled, HIDDEN.sub("", markdown))


def on_post_build(config: Any) -> None:
    """PluginError if a page loads something from elsewhere: the site works without the internet."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        if loads.foreign:
            name = page.relative_to(config.site_dir)
            raise PluginError(f"{name} loads {', '.join(loads.foreign)}")


class _Loads(HTMLParser):
    """What a page loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") in {"canonical", "prev", "next"}:
            return
        target = values.get(LOADS.get(tag, "")) or ""
        if re.match(r"(?:[a-z]+:)?//", target):
            self.foreign.append(target)


def _decisions(folder: Path) -> str:
    lines = ["| | decision |", "|---|---|"]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        number, _, name = title.removeprefix("# ").partition(". ")
        lines.append(f"| {number} | [{name}]({path.name}) |")
    return "\n".join([*lines, ""])


def _titled(fence: re.Match[str]) -> str:
    """`sh on=gpu-1 no-run=needs-root` becomes `sh title="on gpu-1"`."""
    named = dict(word.partition("=")[::2] for word in fence["words"].split())
    title = f' title="on {named["on"]}"' if "on" in named else ""
    return f"{fence['fence']}{fence['language']}{title}"

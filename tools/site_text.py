"""What readers of the site see of a page, and what a built page may not load.

Blocks of commands carry more than a language in their first line (``on=NAME``, ``no-run=REASON``;
see docs/decisions/0073-documentation-that-runs.md). On the site that becomes a title.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

FENCE = re.compile(r"^(?P<fence> *```)(?P<language>sh) (?P<words>[^`\n]+)$", re.M)
HIDDEN = re.compile(r"^<!-- run[^\n]*\n.*?^-->\n", re.M | re.S)
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
ONLY_NAMED = {"canonical", "prev", "next"}
"""Relations of links that a browser does not follow by itself."""


def shown(markdown: str) -> str:
    """A page without commands that only tests need, its blocks with titles."""
    return FENCE.sub(_titled, HIDDEN.sub("", markdown))


def foreign_loads(html: str) -> list[str]:
    """What a page makes a browser load from other hosts."""
    reader = _Loads()
    reader.feed(html)
    return reader.foreign


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ONLY_NAMED:
            return
        target = values.get(LOADS.get(tag, "")) or ""
        if re.match(r"(?:[a-z]+:)?//", target):
            self.foreign.append(target)


def _titled(fence: re.Match[str]) -> str:
    """``sh on=gpu-1 no-run=needs-root`` becomes ``sh title="on gpu-1"``."""
    named = dict(word.partition("=")[::2] for word in fence["words"].split())
    title = f' title="on {named["on"]}"' if "on" in named else ""
    return f"{fence['fence']}{fence['language']}{title}"

"""Links of README and docs lead somewhere, on the site and in a repository's browser alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from markdown_it import MarkdownIt

from documented_blocks import DOCS, ROOT, pages

pytestmark = pytest.mark.thorough  # all pages are parsed

PAGES = pages()
FOREIGN = {"http", "https", "mailto"}


class _AnyTag(yaml.SafeLoader):
    """MkDocs names Python objects in its settings; none of them matters here."""


_AnyTag.add_multi_constructor("!", lambda loader, suffix, node: suffix)


@cache
def _tokens(page: Path) -> list[object]:
    parser = MarkdownIt("commonmark").enable("table")
    return list(parser.parse(page.read_text(encoding="utf-8")))


def links(page: Path) -> Iterator[str]:
    """Where the links and the pictures of a page lead."""
    for token in _tokens(page):
        for inner in getattr(token, "children", None) or ():
            if inner.type == "link_open":
                yield str(inner.attrs["href"])
            elif inner.type == "image":
                yield str(inner.attrs["src"])


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings that MkDocs and GitHub agree upon."""
    of_site: list[str] = []
    of_github: list[str] = []
    tokens = _tokens(page)
    for token, following in pairwise(tokens):
        if getattr(token, "type", "") == "heading_open":
            text = "".join(
                each.content
                for each in getattr(following, "children", None) or ()
                if each.type in {"text", "code_inline"}
            )
            of_site.append(_numbered(_site_name(text), of_site, "_"))
            of_github.append(_numbered(_github_name(text), of_github, "-"))
    return frozenset(of_site) & frozenset(of_github)


def _site_name(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _github_name(text: str) -> str:
    return re.sub(r"[^\w\s-]", "", text.strip().lower()).replace(" ", "-")


def _numbered(name: str, taken: list[str], mark: str) -> str:
    known = [each for each in taken if re.fullmatch(rf"{re.escape(name)}({mark}\d+)?", each)]
    return f"{name}{mark}{len(known)}" if known else name


def _in_nav(entry: object) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case list():
            for each in entry:
                yield from _in_nav(each)
        case dict():
            for each in entry.values():
                yield from _in_nav(each)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme in FOREIGN, link
            assert parts.scheme == "mailto" or re.fullmatch(r"[\w.-]+(:\d+)?", parts.netloc), link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{link}: there is no {target}"
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link} leaves docs/: the site does not have it"
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in anchors(target), f"{link}: {target.name} has no such heading"


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), _AnyTag)
    listed = list(_in_nav(settings["nav"]))
    decisions = re.compile(r"decisions/\d{4}-.*\.md")
    there = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    wanted = {name for name in there if not decisions.fullmatch(name)}
    assert sorted(listed) == sorted(wanted), "name each page of docs/ once in `nav` of mkdocs.yml"

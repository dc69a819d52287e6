"""Only a line feed ends a line of a balancer's answer, and nothing invisible reaches a terminal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.balancer_http import BalancerUnreachableError, async_lines_of, lines_of
from paddler_trio.cli.live.feed_link import FeedLink
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import printable
from paddler_trio.wire.visible_text import visible

ODD: Final = "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\x1dh\x1ei"
"""With all at which ``str.splitlines`` ends a line, but for the usual two."""


@given(st.lists(st.text().map(lambda text: text.replace("\n", "").rstrip("\r"))), st.data())
def test_lines_are_the_same_however_they_are_cut(texts: list[str], data: st.DataObject) -> None:
    whole = "".join(f"{text}\n" for text in texts).encode(errors="replace")
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    edges = zip([0, *places], [*places, len(whole)], strict=True)
    pieces = [whole[start:end] for start, end in edges]
    expected = [text.encode(errors="replace").decode() for text in texts]
    assert list(lines_of(pieces)) == expected
    assert trio.run(_collected, pieces) == expected


async def _collected(pieces: Iterable[bytes]) -> list[str]:
    async def come() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [line async for line in async_lines_of(come())]


def test_a_line_that_nothing_ends_is_one_and_carriage_returns_belong_to_the_end() -> None:
    assert list(lines_of([b"one\r\ntw", b"o\n\n", b"thr", b"ee"])) == ["one", "two", "", "three"]


def test_names_with_separators_end_no_event_of_a_stream() -> None:
    document = json.dumps({"agents": [{"name": ODD}]}, ensure_ascii=False)
    answers = httpx.MockTransport(lambda _: httpx.Response(200, text=f"data: {document}\n\n"))
    with httpx.Client(transport=answers, base_url="http://here") as http:
        assert next(ManagementClient("here", http).events("/any")) == json.loads(document)


async def test_names_with_separators_end_no_event_of_the_feed() -> None:
    document = json.dumps({"client": ODD}, ensure_ascii=False)
    answers = httpx.MockTransport(lambda _: httpx.Response(200, text=f"data: {document}\n\n"))
    async with httpx.AsyncClient(transport=answers, base_url="http://here") as http:
        found: list[object] = []

        async def read() -> None:
            async for event in FeedLink("here", http).events(["requests"]):
                found.append(event)

        with pytest.raises(BalancerUnreachableError, match="ended the stream"):
            await read()
        assert found == [{"client": ODD}]


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\x9b2J", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u202a", "\x7f"]
)
def test_what_moves_a_terminal_is_shown_as_what_it_is_not(text: str) -> None:
    assert printable(f"a{text}b") == f"a\ufffd{text[1:]}b"
    usual = "tab\tline\n\u05d0\u200fmark \U0001f469\u200d\U0001f4bb"
    assert printable(usual) == usual


@given(st.text(st.characters()))
def test_a_visible_name_has_nothing_that_cannot_be_seen(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)
    assert text.isprintable() is (visible(text) == text)

"""What a terminal sends becomes keys, however it is cut into pieces; the terminal is put back."""

from __future__ import annotations

import os
import pty
import termios
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.live.top_run import KeyDecoder, single_keys

TYPED = "a\x1b[A\x1bOB\x1b[5~\x1b[Z\r\t\x7f\x15é/\x1b[99;5Xq"
KEYS = [
    "a",
    "up",
    "down",
    "page up",
    "back tab",
    "enter",
    "tab",
    "backspace",
    "clear",
    "é",
    "/",
    "q",
]


def test_sequences_are_keys_and_unknown_ones_are_none() -> None:
    assert KeyDecoder().feed(TYPED) == KEYS


@given(st.lists(st.integers(min_value=0, max_value=len(TYPED)), max_size=5))
def test_pieces_change_nothing(cuts: list[int]) -> None:
    decoder, keys = KeyDecoder(), list[str]()
    places = sorted({0, *cuts, len(TYPED)})
    for first, last in pairwise(places):
        keys += decoder.feed(TYPED[first:last])
    assert keys == KEYS


def test_esc_alone_is_a_key_once_nothing_follows() -> None:
    decoder = KeyDecoder()
    assert decoder.feed("\x1b") == []
    assert decoder.is_waiting
    assert decoder.flush() == ["escape"]
    assert not decoder.is_waiting
    assert decoder.feed("\x1b\t\x1b\x1b[A") == ["escape", "tab", "escape", "up"]
    assert decoder.feed("\x1b[") == []
    assert decoder.flush() == []


@given(st.text(max_size=60))
def test_nothing_that_is_typed_fails_or_is_kept_for_ever(text: str) -> None:
    decoder = KeyDecoder()
    decoder.feed(text)
    decoder.flush()
    assert not decoder.is_waiting
    assert decoder.feed("q") == ["q"]


def test_a_terminal_is_what_it_was_also_after_an_error() -> None:
    ours, its = pty.openpty()
    try:
        before = termios.tcgetattr(its)
        with single_keys(its):
            assert termios.tcgetattr(its)[3] & (termios.ICANON | termios.ECHO) == 0
        assert termios.tcgetattr(its) == before
        with pytest.raises(KeyError), single_keys(its):
            raise KeyError
        assert termios.tcgetattr(its) == before
    finally:
        os.close(ours)
        os.close(its)

"""Names of agents on the command line: those that people could not tell apart are refused."""

from __future__ import annotations

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import check_display_name


@pytest.mark.parametrize("name", ["a", "host 7", "größer", "x" * 256])
def test_any_text_is_a_name_as_for_paddlers_agents(name: str) -> None:
    check_display_name(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "'' is no name: give one, or leave the option out"),
        (" \t", r"' \\t' is no name"),
        ("x" * 257, r"'x{40}'\.\.\. has 257 characters, the limit is 256"),
    ],
)
def test_others_are_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_display_name(name)

"""The page of symptoms quotes words that the program really says."""

from __future__ import annotations

import re

import pytest

from documented_blocks import DOCS, blocks
from texts_in_code import is_in_code

pytestmark = pytest.mark.thorough  # all sources are parsed
PAGE = DOCS / "troubleshooting.md"
QUOTED = [
    re.sub(r"^\d{3} ", "", line)
    for block in blocks(PAGE)
    if block.language == "text"
    for line in block.text.splitlines()
]
SYMPTOMS = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_one_sees_is_what_the_program_says(quoted: str) -> None:
    assert is_in_code(quoted)


def test_each_symptom_says_what_to_do() -> None:
    assert len(SYMPTOMS) >= 20
    lacking = [each.partition("\n")[0] for each in SYMPTOMS if "**What to do.**" not in each]
    assert not lacking


@pytest.mark.parametrize(
    "invented",
    ["Waiting for available slots timed out", "cannot listen on …: the port is taken", "…: pray"],
)
def test_words_that_nobody_says_are_found(invented: str) -> None:
    assert not is_in_code(invented)

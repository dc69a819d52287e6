"""The page of errors has every error, and neither it nor that of symptoms words that nobody says.

They are one file of tests: a process that has looked through all sources knows them for both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

import pytest

from documented_blocks import DOCS, blocks
from paddler_trio.balancer.apis import api_errors
from paddler_trio.wire.paddler.agent_issue import AgentIssue
from texts_in_code import SOURCES, is_in_code, joined, sources

pytestmark = pytest.mark.thorough  # all sources are parsed
PAGE = DOCS / "reference" / "errors.md"
SECTIONS = {
    part.partition("\n")[0]: part
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
}
TROUBLESHOOTING = DOCS / "troubleshooting.md"
QUOTED = [
    re.sub(r"^\d{3} ", "", line)
    for block in blocks(TROUBLESHOOTING)
    if block.language == "text"
    for line in block.text.splitlines()
]
SYMPTOMS = re.split(r"^### ", TROUBLESHOOTING.read_text(encoding="utf-8"), flags=re.M)[1:]
RESPONSES = {"HttpProblem", "ApiError", "Failure"}


def rows(section: str) -> Iterator[list[str]]:
    """The cells of each row of a section's table."""
    for line in SECTIONS[section].splitlines():
        if line.startswith("| ") and not line.startswith("|--"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def quoted(section: str, column: int = 0) -> list[str]:
    """What a column of a table has in backquotes."""
    return [
        each for row in list(rows(section))[1:] for each in re.findall(r"`([^`]+)`", row[column])
    ]


def statuses() -> set[str]:
    """Every status with which the sources refuse something."""
    found = {
        str(call.args[0].value)
        for _, name, call in sources().calls
        if name in RESPONSES and call.args and isinstance(call.args[0], ast.Constant)
    }
    return found | {str(status) for status in api_errors._OF_STATUS}


def codes() -> set[str]:
    """Every code of the APIs' errors."""
    named = {
        keyword.value.value
        for path, _, call in sources().calls
        for keyword in call.keywords
        if path.is_relative_to(SOURCES / "balancer" / "apis")
        and keyword.arg == "code"
        and isinstance(keyword.value, ast.Constant)
    }
    usual = {code for _, code in api_errors._OF_STATUS.values() if code is not None}
    return named | usual | {each.code for each in api_errors._MEANINGS.values()}


def test_every_status_is_listed_and_no_other() -> None:
    assert len(statuses()) > 15
    assert statuses() == {row[0] for row in list(rows("Statuses"))[1:]}


def test_every_code_of_the_apis_is_listed_and_no_other() -> None:
    assert sorted(quoted("Codes of OpenAI's API")) == sorted(codes())


def test_every_ending_of_a_stream_is_listed_with_its_code() -> None:
    listed = {
        name: row[1]
        for row in list(rows("Endings in Paddler's streams"))[1:]
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert set(listed) == set(api_errors._MEANINGS)
    for name, meaning in api_errors._MEANINGS.items():
        assert f"`{meaning.code}`" in listed[name], name


def test_every_issue_of_an_agent_is_listed() -> None:
    assert sorted(quoted("Issues of agents")) == sorted(
        each.__name__ for each in get_args(AgentIssue)
    )


def test_every_ending_that_the_balancer_gives_is_listed() -> None:
    listed = [each[4:] for each in quoted("How a request ends without an answer")]
    given = [
        call
        for path, name, call in sources().calls
        if name == "Failure" and path.parts[len(SOURCES.parts)] in {"balancer", "nursery_tree"}
    ]
    said = {text for call in given if len(call.args) > 1 and (text := joined(call.args[1]))}
    assert len(said) >= 7
    assert said <= set(listed)


@pytest.mark.parametrize(
    ("section", "column"),
    [
        ("How a request ends without an answer", 0),
        ("Issues of agents", 1),
        ("A daemon or a command that ends", 0),
    ],
)
def test_what_the_page_quotes_is_what_the_program_says(section: str, column: int) -> None:
    texts = [re.sub(r"^\d{3} ", "", each) for each in quoted(section, column)]
    assert texts
    assert [each for each in texts if not is_in_code(each)] == []


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

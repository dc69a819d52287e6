"""``paddler-trio problems``: everything that is wrong with a fleet, and what to do about each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import attrs

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stdout

PATH = "/api/v2/problems"
INDENT = "  "
PIPE_WIDTH = 100


@attrs.frozen(kw_only=True)
class ProblemView:
    """One thing that is wrong, as the balancer says it."""

    id: str = ""
    subject: str = ""
    severity: str = ""
    sentence: str = ""
    follows: str = ""
    todo: str = ""


@attrs.frozen(kw_only=True)
class ProblemsView:
    """All of them, the worst first."""

    problems: list[ProblemView]


@with_flags
def problems(*, as_json: JsonOption = False, management: ManagementFlags) -> None:
    """Show what is wrong, the worst first: what it is, what clients notice, and what to do.

    It is what the panel shows on its page Problems.
    """
    with one_line_errors(), ManagementClient.open(management) as client:
        raw = client.ask("GET", PATH)
        if as_json:
            print_json(raw)
            return
        found = client.structured(raw, ProblemsView).problems
        if not found:
            stdout().print("no problem")
        width = stdout().width if stdout().is_terminal else PIPE_WIDTH
        for problem in found:
            for line in problem_lines(problem, width):
                stdout().print(line, soft_wrap=True, highlight=False)


def problem_lines(problem: ProblemView, width: int) -> Iterator[str]:
    """Yield one problem for people, in lines of this width where that is possible."""
    mark = "!!" if problem.severity == "bad" else " !"
    parts = (
        f"{mark} {problem.subject}: {problem.sentence}",
        f"{INDENT * 2}for clients: {problem.follows}" if problem.follows else "",
        f"{INDENT * 2}what to do: {problem.todo}" if problem.todo else "",
    )
    for part in filter(None, parts):
        indent = INDENT * 3
        yield from textwrap.wrap(
            printable(part),
            max(40, width),
            subsequent_indent=indent,
            break_on_hyphens=False,  # a path is copied from here
            break_long_words=False,
        )

"""The commands about cached models: what is asked for, and what is printed."""

from __future__ import annotations

import pytest
import typer
from rich.console import Console

from paddler_trio.cli.cache_display import ProgressTable, follow, size_words, when_words
from paddler_trio.cli.cache_run import AgentResult, one_of_each_cache, result_code, rows
from paddler_trio.cli.model_cache import keep_rules

MODEL = {
    "source": "hf:o/r/m.gguf@" + "a" * 40,
    "cache": "c1",
    "state": "whole",
    "path": "/m.gguf",
    "size_bytes": 4_700_000_000,
    "total_bytes": None,
    "missing_files": 0,
    "revisions": ["main"],
    "last_used_s": None,
    "verified_s": None,
    "in_use": True,
    "is_desired": False,
}


def result(name: str, *models: dict[str, object], caches: tuple[str, ...] = ("c1",)) -> AgentResult:
    return AgentResult(name, name, {"caches": list(caches), "models": list(models)}, None, 0)


def problem(name: str, code: int) -> AgentResult:
    return AgentResult(name, name, None, "why", code)


def test_keep_takes_numbers_ages_and_sources() -> None:
    assert keep_rules(["5", "3"]) == {"newest": 5, "sources": []}
    assert keep_rules(["30d", "12h", "hf:o/r"]) == {
        "used_within_s": 2_592_000,
        "sources": ["hf:o/r"],
    }
    for bad in ([], ["ftp://x"], ["none"], [""]):
        with pytest.raises(typer.BadParameter):
            keep_rules(bad)


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (4_700_000_000, "4.7 GB"),
        (2 * 10**12, "2.0 TB"),
        (None, "? bytes"),
    ],
)
def test_sizes_are_decimal(size_bytes: int | None, words: str) -> None:
    assert size_words(size_bytes) == words


@pytest.mark.parametrize(
    ("ago_s", "words"),
    [(-5, "now"), (59, "now"), (60, "1 min ago"), (7300, "2 h ago"), (3 * 86_400, "3 d ago")],
)
def test_times_have_one_unit(ago_s: int, words: str) -> None:
    assert when_words(1000, 1000.0 + ago_s) == words


def test_agents_that_share_a_cache_are_one_row_and_one_of_them_is_asked() -> None:
    both = result("a1", dict(MODEL)), result("a2", dict(MODEL) | {"is_desired": True})
    other = result(
        "b1",
        dict(MODEL) | {"cache": "c2", "state": "partial", "total_bytes": 9_400_000_000},
        caches=("c2",),
    )
    first, second = rows([*both, other])
    assert first[1:] == (
        "4.7 GB",
        "a1, a2 (one cache)",
        "never",
        "never",
        "desired, in use, is main",
    )
    assert second[2] == "b1"
    assert second[5].startswith("partial 50%")
    assert one_of_each_cache([*both, other, problem("p", 501)]) == ["a1", "b1", "p"]


def test_an_agent_that_cannot_is_no_failure_unless_it_was_named() -> None:
    able = result("a1", dict(MODEL))
    assert result_code([able, problem("p", 501)], named=False, as_json=True) == 0
    assert result_code([able, problem("p", 501)], named=True, as_json=True) == 1
    assert result_code([able, problem("p", 502)], named=False, as_json=True) == 1
    assert result_code([problem("p", 501)], named=False, as_json=True) == 1
    assert result_code([], named=False, as_json=True) == 1


def progress(phase: str, done: int) -> dict[str, object]:
    fields = {"phase": phase, "filename": "m.gguf", "source": "host", "current_bytes": done}
    return {"agent": "a1", "progress": {**fields, "total_bytes": 100, "file_count": 1}}


def test_a_pipe_gets_a_line_for_each_step_and_a_terminal_gets_bars() -> None:
    steps = [progress("downloading", 1), progress("downloading", 50), progress("saving", 100)]
    console = Console(width=200, no_color=True, force_terminal=False)
    with console.capture() as capture:
        last = follow([*steps, {"agent": "a1", "answer": {}}], console)
    assert last == [{"agent": "a1", "answer": {}}]
    assert capture.get().splitlines() == [
        "a1: downloading m.gguf (100 bytes) from host",
        "a1: saving m.gguf (100 bytes) from host",
    ]
    table = ProgressTable()
    table.look(steps[1])
    with console.capture() as capture:
        console.print(table.table())
    assert "50 bytes of 100 bytes" in capture.get()
    assert "downloading" in capture.get()


def test_control_characters_of_agents_reach_no_terminal() -> None:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        follow(
            [{"agent": "\x1b[2J", "progress": {"filename": "\x1b]0;x\x07", "phase": "p"}}], console
        )
    assert "\x1b" not in capture.get()

"""The commands about cached models: what is asked for, and what is printed."""

from __future__ import annotations

from typing import cast

import pytest
import typer
from rich.console import Console

from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.cache_display import ProgressTable, follow, size_words, when_words
from paddler_trio.cli.model.cache_run import (
    AgentResult,
    one_of_each_cache,
    result_code,
    rows,
    verify_caches,
)
from paddler_trio.cli.model.model_cache import keep_rules
from paddler_trio.cli.model.store_rows import store_rows

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


def stored(key: str, *names: str, **fields: object) -> dict[str, object]:
    usual = {"key": key, "names": list(names), "size_bytes": 1_000_000, "last_use_s": 0.0}
    flags = {"is_verified": True, "is_whole": True, "is_pinned": False, "is_desired": False}
    return {**usual, **flags, "is_in_use": False, **fields}


def test_the_store_has_a_row_for_each_model_whatever_its_files_are() -> None:
    commit, hex_1, hex_2 = "a" * 40, "1" * 64, "2" * 64
    one, two = f"store://sha256/{hex_1}/mine.gguf", f"store://sha256/{hex_2}/yours.gguf"
    part = f"hf:o/r/m-0000{{}}-of-00003.gguf@{commit}".format
    files = [
        stored("b1", part(1), is_in_use=True),
        stored("b2", part(2), is_verified=False),
        stored("b3", one, two, is_desired=True),
        stored(f"pushed/manifests/{hex_1}"),
        stored(f"pushed/manifests/{hex_2}", is_desired=True),
        stored("hub/models--o--r/blobs/left", is_whole=False),
    ]
    arriving = [{"source": "hf:o/r/n.gguf", "size_bytes": 5}]
    shown = store_rows({"files": files, "arriving": arriving})
    assert [(row[0], row[1], row[4], row[5]) for row in shown] == [
        (part(1), "2.0 MB", "-", "2 of 3 files, in use"),
        (one, "2.0 MB", "yes", ""),
        (two, "2.0 MB", "yes", "desired"),
        ("hub/models--o--r/blobs/left", "1.0 MB", "yes", "left of a download"),
        ("hf:o/r/n.gguf", "5 bytes", "-", "arriving"),
    ]
    assert store_rows({"files": [None, {}], "arriving": 3}) == []
    assert store_rows({}) == []


class Verified:
    """A balancer that has one agent, which hashes two models."""

    def command_caches(self, what: str | None, fields: dict[str, object]) -> list[object]:
        parts = [f"/c/m-0000{i}-of-00002.gguf" for i in (1, 2)]
        files = [
            {"source": "hf:o/r/m-00001-of-00002.gguf", "path": path, "result": "matches"}
            for path in parts
        ] + [{"source": "hf:o/r/n.gguf", "path": "/c/n.gguf", "result": "matches"}]
        answer = {"files": files} if what == "verify" else {"caches": ["c1"], "models": []}
        return [{"agent": "a1", "name": "a1", "answer": answer}]


def test_each_part_of_a_model_that_was_hashed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    client = cast("ManagementClient", Verified())
    assert verify_caches(client, [], agents=None, as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a1: hf:o/r/m-00001-of-00002.gguf: m-00001-of-00002.gguf: matches",
        "a1: hf:o/r/m-00001-of-00002.gguf: m-00002-of-00002.gguf: matches",
        "a1: hf:o/r/n.gguf: matches",
    ]


def test_an_agent_that_cannot_is_no_failure_unless_it_was_named() -> None:
    able = result("a1", dict(MODEL))
    assert result_code([able, problem("p", 501)], named=False, as_json=True) == 0
    assert result_code([able, problem("p", 501)], named=True, as_json=True) == 1
    assert result_code([able, problem("p", 502)], named=False, as_json=True) == 1
    assert result_code([problem("p", 501)], named=False, as_json=True) == 1
    assert result_code([], named=False, as_json=True) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_without_agents_the_reason_of_the_failure_is_told(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    assert result_code([], named=False, as_json=as_json) == 1
    told = capsys.readouterr()
    assert not told.out
    assert told.err.startswith("no agent that keeps models is connected")


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

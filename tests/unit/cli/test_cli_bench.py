"""What ``bench`` refuses before it sends anything, and the table that it prints."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from bench_reports import report
from cli_in_process import invoke
from paddler_trio.cli.bench.bench_order import check_writable
from paddler_trio.cli.bench.plan import parse_levels, parse_workloads
from paddler_trio.cli.bench.report.report_json import fitting, notes, tables
from paddler_trio.cli.bench.workloads import Workload
from paddler_trio.errors import ConfigurationError


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--inference-addr", "nowhere"], "--inference-addr: 'nowhere' is no base URL"),
        (["--against", "x y"], "--against: 'x y' is no base URL"),
        (["--concurrency", "1,two"], "--concurrency '1,two' must be numbers"),
        (["--concurrency", "1,,2"], "must be numbers with commas"),
        (["--timeout", "nan"], "Invalid value for '--timeout'"),
        (["--inference-addr", "a..b:80"], "cannot find the host of http://a..b:80"),
        (["--concurrency", "0"], "must have numbers from 1 to 1024"),
        (["--workload", "heavy"], "--workload 'heavy' is not known: give plain, prefix, mixed"),
        (["--fail-if", "speed>3"], "--fail-if 'speed>3' is no condition"),
        (["--fail-if", "ttft_p95@32>1s"], "is about 32 clients, and no run has so many"),
        (["--against-model", "m"], "give --against URL"),
        (["--against", "127.0.0.1:8061"], "both servers have one name"),
        (["--against", "127.0.0.1:1", "--name", "x" * 41], "is no name: at most 40"),
        (["--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json"),
        (["--html", "-"], "cannot write -: it must be a file"),
        (["--html", "/no/such/folder/x"], "cannot write /no/such/folder/x"),
        (["--html", "a", "--json", "./a"], "--html and --json are both a"),
        (["--json", "/"], "cannot write /: it must be a file"),
        (["--tls-fingerprint", "0" * 64], "has no TLS, and a flag --tls-* is given"),
        (["--inference-addr", "8.8.8.8:80"], "give --allow-public if it is yours"),
        (["--against", "http://8.8.8.8"], "give --allow-public if it is yours"),
        (["--requests", "10000", "--concurrency", "1024"], "and 200000 are the limit"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(flags: list[str], words: str) -> None:
    ended = invoke("bench", "--inference-addr", "127.0.0.1:8061", *flags)
    assert ended.exit_code == 2
    assert words in " ".join(ended.stderr.split())
    assert ended.stdout == ""


def test_a_key_that_is_not_there_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    ended = invoke("bench", "--key-file", tmp_path / "none", "--inference-addr", "127.0.0.1:1")
    assert ended.exit_code == 2
    assert "cannot read the key in" in ended.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    old = tmp_path / "old.html"
    old.touch(0o400)
    check_writable(tmp_path / "new.html")
    tmp_path.chmod(0o500)
    for path in (old, tmp_path / "new.html"):
        with pytest.raises(ConfigurationError, match=f"cannot write {path}: Permission denied"):
            check_writable(path)


def test_levels_and_workloads_are_lists() -> None:
    assert parse_levels("1, 2,16") == (1, 2, 16)
    assert parse_workloads("mixed, plain") == (Workload.mixed, Workload.plain)
    assert parse_workloads("all") == tuple(Workload)
    for text in ("1" * 300, "1" + " " * 200 + ",2"):
        with pytest.raises(ConfigurationError, match="must be numbers with commas"):
            parse_levels(text)


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for each in tables(report(), width):
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_two_servers_stand_next_to_each_other_with_the_ratio_below() -> None:
    lines = [line.split() for line in printed(300).splitlines()]
    first = next(number for number, words in enumerate(lines) if words[:2] == ["2", "ours"])
    ours, other, ratio = lines[first : first + 3]
    assert ours[2:6] == ["80.0", "60.0", "2.00", "200"]
    assert other[:5] == ["<b>other</b>", "80.0", "60.0", "2.00", "400"]
    assert ratio[:7] == ["first", "/", "second", "1.00x", "1.00x", "1.00x", "0.50x"]


def test_narrow_terminals_lose_the_least_important_columns() -> None:
    told = report()
    titles = [column.title for column in fitting(told, 300)]
    assert "queue\np50" in titles
    narrow = [column.title for column in fitting(told, 80)]
    assert narrow == ["tokens/s\nout", "TTFT\np50", "TTFT\np95", "ITL\np50", "ITL\np95"]
    assert [column.title for column in fitting(told, 20)] == [
        "tokens/s\nout",
        "TTFT\np50",
        "ITL\np50",
    ]
    for line in printed(100).splitlines():
        assert len(line.rstrip()) <= 100


def test_notes_name_failures_and_what_was_left_out() -> None:
    found = list(notes(report(stopped="--max-time 5 was over")))
    assert found == [
        "ours: 2 requests failed (status 503): no <slot>",
        "<b>other</b>: 2 requests failed (status 503): no <slot>",
        "not all runs were done: --max-time 5 was over",
    ]

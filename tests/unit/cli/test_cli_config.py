"""``paddler-trio config check`` and ``--config`` of the daemons refuse the same files alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_in_process import invoke

WRONG = """
[balancer]
max-buffered-requests = -1
[agent]
slot = 4
"""


@pytest.fixture
def wrong_file(tmp_path: Path) -> Path:
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    return file


def expected(file: Path) -> list[str]:
    return [
        f"paddler-trio: {file}: {problem}"
        for problem in (
            "[balancer] max-buffered-requests = -1: Input should be greater than or equal to 0",
            "[agent] slot = 4: no such setting; slots may be meant",
        )
    ]


def test_check_ends_with_2_and_a_line_for_each_problem(wrong_file: Path) -> None:
    ended = invoke("config", "check", wrong_file)
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == expected(wrong_file)


@pytest.mark.parametrize("daemon", ["balancer", "agent"])
def test_a_daemon_does_not_start_with_such_a_file_and_says_the_same(
    daemon: str, wrong_file: Path
) -> None:
    ended = invoke(daemon, "--config", wrong_file)
    assert ended.exit_code == 2
    assert ended.stderr.splitlines() == expected(wrong_file)


def test_check_tells_scripts_the_same(wrong_file: Path, tmp_path: Path) -> None:
    ended = invoke("config", "check", "--json", wrong_file)
    assert ended.exit_code == 2
    assert json.loads(ended.stdout)["problems"][1] == {
        "table": "agent",
        "key": "slot",
        "value": "4",
        "reason": "no such setting; slots may be meant",
    }
    right = tmp_path / "right.toml"
    right.write_text("")
    ended = invoke("config", "check", "--json", right)
    assert (ended.exit_code, ended.stdout) == (0, '{"problems":[]}\n')


def test_check_says_what_a_right_file_has(tmp_path: Path) -> None:
    file = tmp_path / "right.toml"
    file.write_text("[balancer]\ndrain-timeout = 5\nlog-json = true\n[agent]\n")
    ended = invoke("config", "check", file)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == f"{file}: [balancer] 2 settings, [agent] 0 settings\n"


def test_check_reads_the_file_that_the_daemons_would_read(
    wrong_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLER_TRIO_CONFIG", str(wrong_file))
    assert invoke("config", "check").stderr.splitlines() == expected(wrong_file)


def test_a_file_that_is_missing_or_no_toml_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "none.toml"
    for words in (("config", "check", file), ("balancer", "--config", file)):
        ended = invoke(*words)
        assert ended.exit_code == 2
        assert ended.stderr == f"paddler-trio: cannot read {file}: No such file or directory\n"


def test_text_from_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[balancer]\n"\\u001b[31mred" = 1\n')
    assert "\x1b" not in invoke("config", "check", file).stderr

"""What a log never shows, however it is rendered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from paddler_trio.system.logs.logs import FirstTimes

SCRIPT = """
import logging, structlog
from paddler_trio.system.logs.logs import configure_logs

configure_logs(level="debug", as_json={as_json})

def fails(headers):
    secret = headers["authorization"]
    raise ValueError("no secret in these words")

try:
    fails({{"authorization": "Bearer pt-" + "abc" * 5}})
except ValueError as error:
    structlog.get_logger("a").error("ours", exc_info=error)
    logging.getLogger("b").error("theirs", exc_info=error)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_values(as_json: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(as_json=as_json)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr.count("ValueError: no secret in these words") == 2
    assert "in fails" in ended.stderr
    assert "pt-abcabc" not in ended.stderr


STRANGERS = """
import logging, structlog
from paddler_trio.system.logs.logs import configure_logs

configure_logs(level="debug", as_json={as_json})
name = "first\\nsecond \\x1b[31m\\ud800"
structlog.get_logger("a").info("ours", agent=name, long="x" * 20_000_000, many=[name] * 1000)
logging.getLogger("b").info("theirs " + name + "y" * 20_000_000)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_what_a_stranger_says_is_cut_and_writes_no_lines_of_its_own(as_json: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STRANGERS.format(as_json=as_json)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = ended.stderr.splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) < 10_000
    assert "(20000000 characters)" in lines[0]
    assert "\x1b[31m" not in ended.stderr, "its colours"
    if as_json:
        ours, theirs = map(json.loads, lines)
        assert ours["agent"] == "first\nsecond \x1b[31m\ud800"
        assert len(ours["many"]) == 32
        assert theirs["event"].startswith("theirs first\nsecond")


JOURNAL = """
import logging, os, structlog
from paddler_trio.system.logs.logs import configure_logs

found = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{found.st_dev}:{found.st_ino}"
configure_logs(level="debug")
structlog.get_logger("a").info("balancer up", port=1)
logging.getLogger("b").warning("theirs")
try:
    raise ValueError("no")
except ValueError:
    structlog.get_logger("a").exception("it failed")
"""


def test_lines_for_the_journal_have_a_priority_and_no_time() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", JOURNAL], capture_output=True, text=True, timeout=60, check=True
    )
    first, second, *rest = ended.stderr.splitlines()
    assert first == "<6>[info] balancer up [a] port=1"
    assert second == "<4>[warning] theirs [b]"
    assert rest[0] == "<3>[error] it failed [a]"
    assert rest[-1] == "<3>ValueError: no"
    assert all(line.startswith("<3>") for line in rest), "each line of a traceback is one message"


def test_a_name_is_new_once_and_names_end_somewhere() -> None:
    names = FirstTimes()
    assert [names.is_first(name) for name in ("a", "b", "a")] == [True, True, False]
    assert sum(names.is_first(f"name {number}") for number in range(1000)) == 30


GONE = """
import os, structlog
from paddler_trio.system.logs.logs import configure_logs

configure_logs(level="info", as_json=True)
log = structlog.get_logger("a")
log.debug("not shown")
log.info("shown %d", 1, agent="b")
os.close(2)
log.info("lost")
print("went on")
"""


def test_a_log_that_nobody_reads_any_more_ends_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "went on\n"
    (line,) = ended.stderr.splitlines()
    shown = json.loads(line)
    assert (shown["event"], shown["level"], shown["logger"]) == ("shown 1", "info", "a")
    assert shown["agent"] == "b"

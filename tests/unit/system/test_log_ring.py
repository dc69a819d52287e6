"""The ring holds the newest warnings and errors, each of bounded size and without secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from paddler_trio.agent.link.balancer_link import new_agent_id
from paddler_trio.system.logs.log_ring import HIDDEN, MAX_RECORDS, LogRing, redacted

KEY = "pt-" + "a1B2" * 10


def entries(ring: LogRing, after: int = 0) -> list[dict[str, Any]]:
    return [json.loads(text) for text in ring.after(after)]


def record(**fields: object) -> dict[str, object]:
    return {"event": "e", "logger": "l", "timestamp": "2026-01-01T00:00:00Z", **fields}


def test_only_warnings_and_errors_are_kept_and_the_newest_of_them() -> None:
    ring = LogRing()
    for level in ("debug", "info", "warning", "error", "critical"):
        kept = record(level=level, event=level)
        assert ring(None, level, kept) is kept, "the log itself gets it unchanged"
    assert [each["level"] for each in entries(ring)] == ["warning", "error", "error"]
    assert (ring.seq, ring.warnings, ring.errors) == (3, 1, 2)
    for number in range(2 * MAX_RECORDS):
        ring.add("warning", record(event=f"e{number}", number=number))
    assert len(entries(ring)) == MAX_RECORDS
    assert entries(ring)[-1]["seq"] == ring.seq == 3 + 2 * MAX_RECORDS
    assert [each["fields"] for each in entries(ring, ring.seq - 2)] == [
        {"number": 2 * MAX_RECORDS - 2},
        {"number": 2 * MAX_RECORDS - 1},
    ]
    assert entries(ring, ring.seq) == []


def test_those_that_say_the_same_are_one_with_a_count() -> None:
    """An agent that is refused every second filled the ring in minutes."""
    ring = LogRing()
    ring.add("error", record(event="the first trouble"))
    for number in range(2 * MAX_RECORDS):
        time = f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z"
        ring.add("warning", record(event="refused", address="a", after_s=number, timestamp=time))
    ring.add("warning", record(event="refused", address="b"))
    first, many, other = entries(ring)
    assert (first["event"], first["count"]) == ("the first trouble", 1)
    assert (many["count"], many["group"], many["seq"]) == (1000, 2, 1001)
    assert (many["first"], many["time"]) == ("2026-01-01T00:00:00Z", "2026-01-01T16:39:00Z")
    assert many["fields"] == {"address": "a", "after_s": 999}, "numbers are the newest"
    assert (other["count"], other["group"]) == (1, 1002)
    assert [each["group"] for each in entries(ring, 1001)] == [1002]


def test_no_entry_is_large_and_every_value_is_json() -> None:
    ring = LogRing()
    many = {f"field{number}" * 50: "x" * 100_000 for number in range(1000)}
    strange = {"nan": float("nan"), "list": ["y" * 9999] * 99, "half": "\ud800", "big": 10**300}
    ring.add("error", record(event="z" * 100_000, **strange, **many))
    (text,) = ring.after(0)
    assert len(text) < 8000
    fields = json.loads(text)["fields"]
    assert fields["nan"] == "nan"
    assert len(fields["list"]) == 300


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {KEY}",
        f"refused {KEY}.",
        "https://user:hunter2hunter2@hub.example/model",
        "GET /x?access_token=hunter2hunter2&y=1",
        "GET /x?X-Amz-Signature=hunter2hunter2",
        "token hf_" + "hunter2hunter2" * 3,
        "a" * 250 + f" {KEY}",
        ["one", f"two {KEY}"],
        ValueError(f"no such key: {KEY}"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: object) -> None:
    ring = LogRing()
    ring.add("error", record(detail=text, event=text if isinstance(text, str) else "e"))
    (kept,) = ring.after(0)
    assert HIDDEN.encode() in kept
    assert b"hunter2" not in kept
    assert b"a1B2" not in kept


@pytest.mark.parametrize(
    "agent_id", ["Hf_1a2B3c4D5e6F7g8H9i0", "hf_1a2B3c4D5e6F7g8H9i0", "-hf_-aB"]
)
def test_the_id_of_an_agent_is_no_secret(agent_id: str) -> None:
    ring = LogRing()
    ring.add("warning", record(agent=agent_id))
    assert entries(ring)[0]["fields"] == {"agent": agent_id}


def test_no_id_that_is_made_here_looks_like_a_secret() -> None:
    ids = {new_agent_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(redacted(each) == each and each.isalnum() for each in ids)


def test_a_field_that_is_named_as_a_secret_is_hidden_and_counts_are_not() -> None:
    ring = LogRing()
    ring.add("error", record(hf_token="short", password="x", tokens=12, key="operator"))
    fields = entries(ring)[0]["fields"]
    assert fields == {"hf_token": HIDDEN, "password": HIDDEN, "tokens": 12, "key": "operator"}


def test_an_exception_is_one_line() -> None:
    ring = LogRing()
    try:
        raise ExceptionGroup("two", [ValueError("first\nline"), OSError("second")])
    except ExceptionGroup as group:
        ring.add("error", record(exc_info=True, event="another"))
        ring.add("error", record(exc_info=group))
    texts = [each["fields"]["exception"] for each in entries(ring)]
    assert texts == ["ValueError: first line; OSError: second"] * 2


SCRIPT = """
import json, logging, structlog
from paddler_trio.system.logs.log_ring import RECENT
from paddler_trio.system.logs.logs import configure_logs

configure_logs(level="warning", as_json=True)
structlog.get_logger("ours").info("not kept")
structlog.get_logger("ours").warning("of structlog", number=1)
logging.getLogger("theirs").error("of %s", "logging")
print(json.dumps([json.loads(text) for text in RECENT.after(0)]))
"""


def test_records_of_both_kinds_of_loggers_are_kept() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = json.loads(ended.stdout)
    assert (first["event"], first["logger"], first["level"]) == ("of structlog", "ours", "warning")
    assert first["fields"] == {"number": 1}
    assert first["time"].endswith("Z")
    assert (second["event"], second["logger"], second["level"]) == (
        "of logging",
        "theirs",
        logging.getLevelName(logging.ERROR).lower(),
    )
    assert ended.stderr.count("\n") == 2

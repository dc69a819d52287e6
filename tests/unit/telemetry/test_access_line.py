"""A line of the access log is one line, whatever strangers put into its fields."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.telemetry.line_writer import MAX_AGENTS, MAX_FIELD_CHARS, AccessEntry, Form

PAIR = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "]+)(?: |\n)')


def entry(**fields: Any) -> AccessEntry:
    defaults: dict[str, Any] = {
        "time": 1_795_391_101.1234,
        "address": "127.0.0.1:5000",
        "client": "app",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "outcome": "completed",
        "queue_s": 0.00312,
        "ttft_s": 0.1,
        "duration_s": 1.25,
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "generated_tokens": 34,
        "deployment": "default",
        "agents": ("a1", "a2"),
        "continuations": 1,
        "request": "req_1",
        "trace": "a" * 32,
    }
    return AccessEntry(**(defaults | fields))


def read_text(line: bytes) -> dict[str, str]:
    """As a reader of logfmt would."""
    found = PAIR.findall(line.decode("ascii"))
    assert "".join(f"{name}={value} " for name, value in found)[:-1] + "\n" == line.decode()
    return {n: json.loads(value) if value[0] == '"' else value for n, value in found}


def test_a_line_has_every_field_in_its_order() -> None:
    fields = json.loads(entry().line("json"))
    assert fields == {
        "time": "2026-11-22T23:45:01.123Z",
        "address": "127.0.0.1:5000",
        "client": "app",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "outcome": "completed",
        "queue_s": 0.0031,
        "ttft_s": 0.1,
        "duration_s": 1.25,
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "generated_tokens": 34,
        "deployment": "default",
        "agents": ["a1", "a2"],
        "continuations": 1,
        "request": "req_1",
        "trace": "a" * 32,
    }
    assert entry().line("text").decode() == (
        "time=2026-11-22T23:45:01.123Z address=127.0.0.1:5000 client=app method=POST "
        "route=/v1/chat/completions status=200 outcome=completed queue_s=0.0031 ttft_s=0.1000 "
        "duration_s=1.2500 prompt_tokens=12 cached_tokens=4 generated_tokens=34 deployment=default "
        f"agents=a1,a2 continuations=1 request=req_1 trace={'a' * 32}\n"
    )


def test_what_is_not_there_is_a_dash_or_null() -> None:
    bare = entry(client=None, method=None, route=None, path="/x y", status=None, agents=())
    assert b'client=- method=- route=- path="/x y" status=- outcome=completed' in bare.line("text")
    assert b"agents=- " in bare.line("text")
    fields = json.loads(bare.line("json"))
    assert fields["path"] == "/x y"
    assert fields["agents"] == []
    assert [fields[name] for name in ("client", "method", "route", "status")] == [None] * 4


@pytest.mark.parametrize("text", ["-", 'a "b"', "a=b\nstatus=200", "\x1b[31m", "é", "\\", "\u2028"])
def test_strangers_write_no_lines_and_no_colours(text: str) -> None:
    line = entry(client=text).line("text")
    assert line.count(b"\n") == 1
    assert line.decode("ascii").rstrip("\n").isprintable()
    assert read_text(line)["client"] == text


@given(st.text(max_size=300), st.text(max_size=300), st.sampled_from(["text", "json"]))
def test_any_texts_make_one_bounded_line_that_is_read_again(a: str, b: str, form: Form) -> None:
    made = entry(client=a, request=b, agents=(a, b) * 50, path=a, route=None)
    line = made.line(form)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line[:-1].decode("ascii").isprintable()
    assert len(line) < 6 * (MAX_AGENTS + 3) * (MAX_FIELD_CHARS + 1) * 2 + 600
    read: dict[str, object]
    read = json.loads(line) if form == "json" else dict(read_text(line))
    assert read["request"] == b[:MAX_FIELD_CHARS] or (not b and read["request"] == "-")

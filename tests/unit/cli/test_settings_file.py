"""A file of settings: judged as a whole, by the flags' own types and limits."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_in_process import COMMAND
from effort import examples
from paddler_trio.cli.daemons.settings_file import (
    MAX_FILE_BYTES,
    FileSettings,
    judge_settings,
    read_settings_file,
)
from paddler_trio.errors import ConfigurationError


def judged(text: str) -> FileSettings:
    return judge_settings(tomllib.loads(text), COMMAND)


def test_what_is_right_is_kept_by_daemon_and_key() -> None:
    found = judged(
        """
        [balancer]
        max-buffered-requests = 100
        trace-sample-ratio = 1            # a whole number is a ratio as well
        allowed-host = ["a.example", "b.example"]
        insecure-management = true
        log-json = false
        [agent]
        slots = 8
        model-store-size = "1GB"
        """
    )
    assert found.values == {
        "balancer": {
            "max-buffered-requests": 100,
            "trace-sample-ratio": 1,
            "allowed-host": ["a.example", "b.example"],
            "insecure-management": True,
            "log-json": False,
        },
        "agent": {"slots": 8},
    }
    assert [str(each) for each in found.problems] == [
        '[agent] model-store-size = "1GB": no such setting; it is one of [balancer]'
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("max-buffered-requests = -1", "Input should be greater than or equal to 0"),
        ("rollout-min-ready = 86_400_001", "Input should be less than or equal to 86400000"),
        ("drain-timeout = '5000'", "write a number, without quotes"),
        ("drain-timeout = true", "Input should be a valid integer"),
        ("drain-timeout = 1.5", "Input should be a valid integer"),
        ("drain-timeout = 9223372036854775808", "integers of TOML have 64 bits"),
        ("capture-prompts = 1", "write true or false"),
        ("capture-prompts = 'yes'", "write true or false"),
        ("statsd-prefix = 5", "write a text, in quotes"),
        ("audit-log = 5", "write a text, in quotes"),
        ("state-database = { path = 'x' }", "no setting takes a date, a table"),
        ("statsd-addr = 2026-01-01", "no setting takes a date, a table"),
        ('name = "a"', "no such setting; it is one of [agent]"),
        ('audit-log = "a\\u0000b"', "NUL"),
        ("log-level = 'loud'", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
        ("allowed-host = 'a'", 'write an array: ["a"]'),
        ("allowed-host = ['a', 5]", "in quotes"),
        ("inference-addr = ['a']", "write one value, no array"),
        ("drain_timeout = 5", "no such setting; drain-timeout may be meant"),
        ('"--drain-timeout" = 5', "no such setting; drain-timeout may be meant"),
        ("max-buffered-request = 5", "no such setting; max-buffered-requests may be meant"),
        ("log-text = true", "no such setting; write log-json = false"),
        ("xyzzy = 5", "no such setting; `paddler-trio balancer --help` lists them"),
        ("config = 'other.toml'", "no such setting"),
        ("inference-addr = '8061'", "'8061' is not an address: write host:port"),
        ("statsd-addr = 'localhost:99999'", "a port from 0 to 65535"),
        ("state-database = 'sqlite://x'", "is neither memory:// nor file:///absolute/path"),
        ("state-database = 'file://x'", "is not absolute"),
        ("legacy-agents = ['10.0.0.1/8']", "has bits set behind its mask: write 10.0.0.0/8"),
        ("allowed-host = ['https://a.example']", "is not the name of a host"),
        ("openai-limit = ['max_messages=many']", "'many' is not a number"),
        ("model-store-size = '200 apples'", "is no size: write one such as 200GB or 180GiB"),
        ("otlp-endpoint = 'collector:4318'", "must be a URL such as http://127.0.0.1:4318"),
    ],
)
def test_a_problem_names_table_key_value_and_limit(line: str, problem: str) -> None:
    (found,) = judged(f"[balancer]\n{line}").problems
    key = line.partition(" = ")[0].strip('"')
    assert str(found).startswith(f"[balancer] {key} = {found.value}: ")
    assert (found.table, found.key) == ("balancer", key)
    assert problem in found.reason


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("management-addr = 'ftp://a:1'", "is not an address"),
        ("metrics-addr = 'a'", "is not an address: write host:port"),
        ("label = ['gpu']", "'gpu' is not a label: write KEY=VALUE"),
        ("label = ['a=b', 'a=c']", "the label 'a' is given twice"),
        ("rpc = 'a:1,b'", "'b' is not an address"),
        ("tensor-split = '3,-1'", "no part may be < 0"),
        ("slots = 4097", "Input should be less than or equal to 4096"),
    ],
)
def test_what_a_type_cannot_judge_is_judged_for_agents_too(line: str, problem: str) -> None:
    (found,) = judged(f"[agent]\n{line}").problems
    assert found.table == "agent"
    assert problem in found.reason


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slots = 4", "slots = 4: write it below [agent]"),
        ("drain-timeout = 4", "drain-timeout = 4: write it below [balancer] or [agent]"),
        ("x = 4", "x = 4: write it below a table, [balancer] and [agent]"),
        ("[balanser]", "[balanser]: no such table, there are [balancer] and [agent]; [balancer]"),
        ("[client]\nslots = 1", "[client]: no such table, there are [balancer] and [agent]"),
        ("balancer = 5", "balancer = 5: write it below a table"),
        ("[[agent]]\nslots = 4", 'agent = [{"slots": 4}]: write it below a table'),
    ],
)
def test_what_is_in_no_table_is_refused(text: str, problem: str) -> None:
    (found,) = judged(text).problems
    assert str(found).startswith(problem)


def test_all_problems_are_reported_together() -> None:
    problems = judged("x = 1\n[balancer]\ny = 2\ndrain-timeout = -1\n[agent]\nslots = 0").problems
    assert [(each.table, each.key, each.value) for each in problems] == [
        ("", "x", "1"),
        ("balancer", "y", "2"),
        ("balancer", "drain-timeout", "-1"),
        ("agent", "slots", "0"),
    ]


def test_a_number_that_python_does_not_write_is_a_problem() -> None:
    (found,) = judged("[balancer]\ndrain-timeout = 0x" + "f" * 6_000).problems
    assert "integers of TOML have 64 bits" in str(found)


def test_a_long_value_is_cut_in_the_report() -> None:
    (found,) = judged(f"[balancer]\nlog-level = '{'x' * 5000}'").problems
    assert len(found.value) < 100
    assert len(str(found)) < 450


JSON_LIKE = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(["balancer", "agent", "slots", "drain-timeout", "allowed-host"]) | st.text()


@settings(max_examples=examples(40))
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, JSON_LIKE) | JSON_LIKE))
def test_whatever_stands_in_a_file_each_entry_is_kept_or_is_a_problem(
    document: dict[str, object],
) -> None:
    found = judge_settings(document, COMMAND)
    kept = sum(len(values) for values in found.values.values())
    entries = sum(
        len(value) if name in {"balancer", "agent"} and isinstance(value, dict) else 1
        for name, value in document.items()
    )
    assert kept + len(found.problems) == entries


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[balancer\n", "is not valid TOML: "),
        (b"a = 1\na = 2\n", "is not valid TOML: "),
        (b"a = " + b"9" * 5000, "is not valid TOML: "),
        (b"a = " + b"[" * 20_000, "nested too deeply"),
        (b"\xff", "is not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), f"too large, the limit is {MAX_FILE_BYTES} bytes"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_by_name(
    data: bytes, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigurationError, match=problem) as error:
        read_settings_file(file, COMMAND)
    assert str(file) in str(error.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none.toml: No such file"):
        read_settings_file(tmp_path / "none.toml", COMMAND)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        read_settings_file(tmp_path, COMMAND)

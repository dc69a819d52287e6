"""Flag, environment variable, file, default: in this order, for every setting of both daemons."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_in_process import COMMAND, invoke
from paddler_trio.cli.daemons.settings_file import (
    DAEMONS,
    Setting,
    daemon_of,
    judge_settings,
    settings_of,
)

SOURCES = ("flag", "env", "file")
CANDIDATES: list[object] = [
    *(True, 1, 2, 3, 0.5),
    *("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "file:///a", "file:///b", "file:///c"),
    *("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", "1GB", "2GB", "3GB"),
    *("3,1", "2,1", "1,1"),
    *("/a", "/b", "/c", "off", "on", "text", "json", "info", "debug", "error", "auto"),
    *("none", "layer", "row", "linear", "yarn", "model", "split", "unified"),
    *(200, 300, 400),
]
LISTS = [
    [f"{name}.example" for name in "abcdef"],
    [f"{name}=1" for name in "abcdef"],
    [f"10.{number}.0.0/16" for number in range(6)],
    [f"max_messages={number}" for number in range(1, 7)],
]
"""Of six items each, for settings that are repeatable."""


def values_for(daemon: str, setting: Setting) -> dict[str, object]:
    """A value for each source that the setting takes; three different ones where it can."""

    def is_taken(value: object) -> bool:
        return not judge_settings({daemon: {setting.key: value}}, COMMAND).problems

    if setting.option.multiple:
        a, b, c, *others = next(filter(is_taken, LISTS))
        return {"flag": [a, b], "env": [c], "file": others}
    taken = [each for each in CANDIDATES if is_taken(each)]
    assert taken, setting.key
    if taken[0] is True:
        return {"flag": True, "env": True, "file": False}
    return dict(zip(SOURCES, itertools.cycle(taken), strict=False))


@functools.cache
def all_values(daemon: str) -> dict[str, dict[str, object]]:
    """By key. Whole seconds of work, which collecting the tests does not wait for."""
    settings = settings_of(daemon_of(COMMAND, daemon))
    return {key: values_for(daemon, setting) for key, setting in settings.items()}


def as_flags(setting: Setting, value: object) -> Iterator[str]:
    if value is True:
        yield setting.flag
    else:
        for item in value if isinstance(value, list) else [value]:
            yield from (setting.flag, str(item))


def as_variable(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else str(value)


def as_toml(value: object) -> str:
    return json.dumps(value)


@pytest.mark.thorough
@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(
    "given", [set(each) for n in range(4) for each in itertools.combinations(SOURCES, n)]
)
def test_a_flag_counts_before_a_variable_before_the_file_before_the_default(
    given: set[str], daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(daemon_of(COMMAND, daemon))
    values = all_values(daemon)
    words: list[str] = []
    lines = [f"[{daemon}]"]
    for key, setting in settings.items():
        value = values[key]
        if "flag" in given:
            words += as_flags(setting, value["flag"])
        if "env" in given:
            monkeypatch.setenv(setting.variable, as_variable(value["env"]))
        if "file" in given:
            lines.append(f"{key} = {as_toml(value['file'])}")
    file = tmp_path / "settings.toml"
    file.write_text("\n".join(lines))
    ended = invoke("config", "show", "--json", daemon, "--config", file, *words)
    assert ended.exit_code == 0, ended.stderr
    shown = json.loads(ended.stdout)[daemon]
    assert list(shown) == list(settings)
    expected = next((each for each in SOURCES if each in given), "default")
    for key, setting in settings.items():
        assert shown[key]["source"] == expected, key
        if expected == "default":
            continue
        assert shown[key]["value"] == values[key][expected], key
        origin = {"flag": "flag", "env": setting.variable, "file": str(file)}[expected]
        assert shown[key]["origin"] == origin


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLER_TRIO_MAX_CONNECTIONS", "")
    shown = json.loads(invoke("config", "show", "balancer", "--json").stdout)["balancer"]
    assert shown["max-connections"] == {"value": 4096, "source": "default", "origin": "default"}


def test_a_file_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[agent]\nslots = 3\n[balancer]\nmax-connections = 5\n")
    monkeypatch.setenv("PADDLER_TRIO_CONFIG", str(file))
    shown = json.loads(invoke("config", "show", "--json").stdout)
    assert shown["agent"]["slots"] == {"value": 3, "source": "file", "origin": str(file)}
    assert shown["balancer"]["max-connections"]["value"] == 5


def test_neither_a_password_nor_the_content_of_a_file_is_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("pt-content-of-the-key")
    words = ("--token-file", secret, "--upstream", "http://me:hunter2@server:4318")
    for form in ((), ("--json",)):
        ended = invoke("config", "show", *form, "agent", *words)
        assert str(secret) in ended.stdout
        assert "http://me:***@server:4318" in ended.stdout
        assert "hunter2" not in ended.output
        assert "content-of-the-key" not in ended.output


@pytest.mark.parametrize(
    ("daemon", "key", "text", "problem"),
    [
        ("balancer", "drain-timeout", "soon", "Input should be a valid integer"),
        ("agent", "label", "gpu=yes rack", "'rack' is not a label"),
    ],
)
def test_a_bad_value_in_a_variable_is_refused_with_the_variable(
    daemon: str, key: str, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"PADDLER_TRIO_{key.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, text)
    ended = invoke(daemon)
    assert ended.exit_code == 2
    shown = " ".join(ended.stderr.replace("│", " ").split())
    assert f"Invalid value for '--{key}' (environment variable '{variable}'): {problem}" in shown


def test_people_see_what_an_unset_setting_means() -> None:
    lines = invoke("config", "show", "agent").stdout.splitlines()
    (threads,) = [line for line in lines if line.split()[:2] == ["agent", "threads"]]
    assert "one a physical core" in threads
    assert threads.split()[-1] == "default"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("balancer", "--foo"), "No such option: --foo"),
        (("balancer", "--drain-timeout", "-5"), "greater than or equal to 0"),
        (("agent", "drain"), "a sub-command has no settings"),
        (("agent", "drain", "rack-1"), "a sub-command has no settings"),
        (("nobody",), "'nobody' is not one of 'balancer', 'agent'"),
    ],
)
def test_what_a_daemon_would_refuse_is_refused(words: tuple[str, ...], problem: str) -> None:
    ended = invoke("config", "show", *words)
    assert ended.exit_code == 2
    assert problem in " ".join(ended.stderr.replace("│", " ").split())

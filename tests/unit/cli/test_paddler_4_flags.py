"""Every flag of Paddler 4.1 means with us what it means there: name, unit, default.

The table is that of its two commands. Values are those of a configuration: times in seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from daemon_configs import config_of

from cli_in_process import COMMAND, invoke
from paddler_trio import __version__
from paddler_trio.cli.commands import command_line
from paddler_trio.cli.daemons.settings_file import daemon_of, settings_of

MIGRATION = Path(__file__).parents[3] / "docs" / "migration_from_paddler.md"
BALANCER = [
    # flag, field here, its default, an argument, what that means
    ("inference-addr", "inference_addr", "127.0.0.1:8061", "0.0.0.0:1", "0.0.0.0:1"),
    ("management-addr", "management_addr", "127.0.0.1:8060", "[::1]:2", "[::1]:2"),
    ("compat-openai-addr", "compat_openai_addr", None, "127.0.0.1:3", "127.0.0.1:3"),
    ("web-admin-panel-addr", "web_admin_panel_addr", None, "127.0.0.1:4", "127.0.0.1:4"),
    ("buffered-request-timeout", "buffered_request_timeout_s", 10.0, "2500", 2.5),
    ("max-buffered-requests", "max_buffered_requests", 30, "0", 0),
    ("inference-item-timeout", "inference_item_timeout_s", 30.0, "60000", 60.0),
    (
        "inference-cors-allowed-host",
        "inference_cors_allowed_hosts",
        (),
        "https://a.example",
        ("https://a.example",),
    ),
    (
        "management-cors-allowed-host",
        "management_cors_allowed_hosts",
        (),
        "https://a.example",
        ("https://a.example",),
    ),
    ("state-database", "state_database", "memory://", "file:///a b.json", "file:///a b.json"),
    ("statsd-addr", "statsd_addr", None, "127.0.0.1:8125", "127.0.0.1:8125"),
    ("statsd-prefix", "metrics_prefix", "paddler_", "east_", "east_"),
    ("statsd-reporting-interval", "statsd_interval_s", 10.0, "500", 0.5),
]
AGENT = [
    ("slots", "slots", "4", 4),
    ("name", "name", "rack-1", "rack-1"),
    ("management-addr", "management_port", "127.0.0.1:8060", 8060),
]
SMALLEST_AGENT = {"management-addr": "127.0.0.1:1", "slots": "1"}


@pytest.mark.parametrize(("flag", "field", "default", "argument", "value"), BALANCER)
def test_a_flag_of_its_balancer_has_its_meaning_and_default(
    flag: str, field: str, default: object, argument: str, value: object
) -> None:
    assert getattr(config_of("balancer"), field) == default
    assert getattr(config_of("balancer", f"--{flag}", argument), field) == value
    assert getattr(config_of("balancer", f"--{flag}={argument}"), field) == value


@pytest.mark.parametrize(("flag", "field", "argument", "value"), AGENT)
def test_a_flag_of_its_agent_has_its_meaning(
    flag: str, field: str, argument: str, value: object
) -> None:
    given = {**SMALLEST_AGENT, flag: argument}
    words = [word for name, text in given.items() for word in (f"--{name}", text)]
    assert getattr(config_of("agent", *words), field) == value


@pytest.mark.parametrize("missing", SMALLEST_AGENT)
def test_its_agent_asks_for_two_flags_and_so_does_ours(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLER_TRIO_STATE_DIR", str(tmp_path))  # nothing has joined from there
    words = [f"--{name}={text}" for name, text in SMALLEST_AGENT.items() if name != missing]
    ended = invoke("agent", *words)
    assert ended.exit_code == 2
    assert f"Missing option '--{missing}'" in ended.stderr
    words = " ".join(ended.stderr.replace("│", " ").split())
    said = {"management-addr": "such as 127.0.0.1:8060", "slots": "1 to 4096"}
    assert said[missing] in words


def test_repeatable_flags_are_repeatable() -> None:
    words = [f"--inference-cors-allowed-host=https://{name}.example" for name in "abc"]
    config = config_of("balancer", *words)
    assert getattr(config, "inference_cors_allowed_hosts") == (  # noqa: B009 - of one of two types
        "https://a.example",
        "https://b.example",
        "https://c.example",
    )


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_it_says_its_version_by_both_flags(flag: str) -> None:
    assert invoke(flag).stdout.startswith(f"paddler-trio {__version__}\n")


@pytest.mark.parametrize("words", [("-h",), ("balancer", "-h"), ("agent", "-h")])
def test_help_has_a_short_flag_everywhere(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    # commands of this test alone: typer keeps the help flags of the first who asked for them
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(command_line()).main(list(words), prog_name="paddler-trio")
    assert end.value.code == 0
    assert "Usage: paddler-trio" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "argument"),
    [
        ("max-buffered-requests", "-1"),
        ("statsd-reporting-interval", "0"),
        ("buffered-request-timeout", "10s"),
        ("max-buffered-requests", "four"),
    ],
)
def test_what_is_refused_is_refused_with_the_limit(flag: str, argument: str) -> None:
    ended = invoke("balancer", f"--{flag}={argument}")
    assert ended.exit_code == 2
    assert f"'--{flag}'" in ended.stderr
    assert "Input should be" in ended.stderr
    assert repr(argument) in ended.stderr


def test_the_guide_speaks_of_every_flag() -> None:
    page = MIGRATION.read_text()
    for flag in {*(row[0] for row in BALANCER), *(row[0] for row in AGENT)}:
        assert f"`--{flag}`" in page, flag


def test_no_flag_of_the_table_has_gone() -> None:
    assert {row[0] for row in BALANCER} <= set(settings_of(daemon_of(COMMAND, "balancer")))
    assert {row[0] for row in AGENT} <= set(settings_of(daemon_of(COMMAND, "agent")))

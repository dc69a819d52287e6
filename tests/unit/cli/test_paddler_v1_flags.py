"""Every flag of Paddler before 2.0, in the command lines in which people had it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_in_process import COMMAND
from paddler_trio.cli.daemons.paddler_v1_flags import (
    AGENT,
    BALANCER,
    SWITCHES,
    Translation,
    milliseconds_of_go,
    translate,
)
from paddler_trio.cli.daemons.settings_file import daemon_of, settings_of


def translated(line: str) -> Translation:
    translation = translate(shlex.split(line))
    assert translation is not None
    return translation


AGENT_1_2 = "agent --local-llamacpp-addr 127.0.0.1:8088 --management-addr 10.0.0.1:8085"
BALANCER_1_2 = "balancer --management-addr 0.0.0.0:8085 --reverseproxy-addr 0.0.0.0:8086"
PANEL = "--management-dashboard-enable"
"""A flag that we lack: with it a balancer's line is an old one."""
UPSTREAM = "--upstream http://127.0.0.1:8088"
GO_PLACES = "--management-addr 127.0.0.1:8085 --reverseproxy-addr 127.0.0.1:8086"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        # Rust, 1.0 to 1.2
        (AGENT_1_2, f"agent --management-addr 10.0.0.1:8085 {UPSTREAM}"),
        (
            f"{AGENT_1_2} --external-llamacpp-addr 10.0.0.2:8088 --monitoring-interval 10 --name a",
            (
                f"agent --management-addr 10.0.0.1:8085 {UPSTREAM} "
                "--upstream-external-addr 10.0.0.2:8088 --monitoring-interval 10 --name a"
            ),
        ),
        (
            f"{BALANCER_1_2} {PANEL} --rewrite-host-header --slots-endpoint-enable",
            f"{BALANCER_1_2} --rewrite-host-header --slots-endpoint-enable",
        ),
        (
            f"{BALANCER_1_2} {PANEL} --statsd-addr 127.0.0.1:8125 --statsd-reporting-interval 5",
            (
                f"{BALANCER_1_2} --statsd-reporting-interval 5000 --statsd-addr 127.0.0.1:8125 "
                "--statsd-prefix paddler --statsd-v1-names"
            ),
        ),
        (
            f"{BALANCER_1_2} {PANEL} --statsd-addr=127.0.0.1:8125 --statsd-prefix east",
            f"{BALANCER_1_2} --statsd-addr 127.0.0.1:8125 --statsd-prefix east --statsd-v1-names",
        ),
        # the last state before 2.0
        (
            (
                f"{BALANCER_1_2} {PANEL} --buffered-request-timeout 10 --max-buffered-requests 5 "
                "--management-cors-allowed-host http://a"
            ),
            (
                f"{BALANCER_1_2} --buffered-request-timeout 10000 --max-buffered-requests 5 "
                "--management-cors-allowed-host http://a"
            ),
        ),
        # Go, up to 0.10
        (
            (
                "agent --local-llamacpp-host 127.0.0.1 --local-llamacpp-port 8088 "
                "--local-llamacpp-scheme http --external-llamacpp-host 10.0.0.2 "
                "--external-llamacpp-port 8088 --external-llamacpp-scheme http "
                "--management-host 10.0.0.1 --management-port 8085 --management-scheme http "
                "--status-server-host 0.0.0.0 --status-server-port 8087 "
                "--status-server-scheme http --agent-reporting-interval-miliseconds 500 --name a"
            ),
            (
                f"agent {UPSTREAM} --management-addr 10.0.0.1:8085 --monitoring-interval 0.5 "
                "--upstream-external-addr 10.0.0.2:8088 --name a"
            ),
        ),
        (
            "agent -local-llamacpp-host=::1 -management-scheme https",
            "agent --upstream 'http://[::1]:8088' --management-addr https://127.0.0.1:8085",
        ),
        (
            "agent --external-llamacpp-host aws:metadata:local-ipv4",
            (
                f"agent {UPSTREAM} --management-addr 127.0.0.1:8085 "
                "--upstream-external-addr aws:metadata:local-ipv4:8088"
            ),
        ),
        (
            "agent --local-llamacpp-host aws:metadata:local-ipv4 --local-llamacpp-port 80",
            ("agent --upstream http://aws:metadata:local-ipv4:80 --management-addr 127.0.0.1:8085"),
        ),
        (
            "agent --external-llamacpp-host ::1 --external-llamacpp-scheme http",
            (
                f"agent {UPSTREAM} --management-addr 127.0.0.1:8085 "
                "--upstream-external-addr [::1]:8088"
            ),
        ),
        (
            (
                "balancer --management-host 0.0.0.0 --management-port 1 --management-scheme http "
                f"--reverseproxy-host 0.0.0.0 --reverseproxy-port 2 "
                f"--reverseproxy-scheme http {PANEL}"
            ),
            "balancer --management-addr 0.0.0.0:1 --reverseproxy-addr 0.0.0.0:2",
        ),
        (
            "balancer --request-buffer-size 20 --request-buffer-timeout 1m30s",
            f"balancer {GO_PLACES} --max-buffered-requests 20 --buffered-request-timeout 90000",
        ),
        (
            "balancer --statsd-enable=true --statsd-host a --statsd-port 9 --statsd-scheme http",
            f"balancer {GO_PLACES} --statsd-addr a:9 --statsd-prefix paddler --statsd-v1-names",
        ),
        ("balancer --statsd-enable=false --statsd-host a", f"balancer {GO_PLACES}"),
    ],
)
def test_a_command_line_of_then_has_one_of_now(before: str, now: str) -> None:
    translation = translated(before)
    assert translation.refusals == ()
    assert [*translation.arguments] == shlex.split(now)
    assert translation.notes


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (f"{AGENT_1_2} --llamacpp-api-key hunter2", "give --upstream-key-file FILE"),
        (f"{AGENT_1_2} --llamacpp-api-key=hunter2", "shows the key to every user"),
        ("agent --local-llamacpp-api-key hunter2", "give --upstream-key-file FILE"),
        ("agent --external-llamacpp-addr a:1 --management-addr b:2", "say it with --upstream"),
        (f"{AGENT_1_2} --management-host a", "give --management-addr, or --management-host a"),
        (f"{AGENT_1_2} --local-llamacpp-port 1", "give --local-llamacpp-addr, or --local-llama"),
        ("agent --agent-reporting-interval-miliseconds soon", "write a whole number"),
        ("agent --local-llamacpp-addr", "--local-llamacpp-addr needs a value"),
        ("balancer --management-scheme https", "for TLS give --tls-cert and --tls-key"),
        ("balancer --reverseproxy-scheme https", "for TLS give --tls-cert and --tls-key"),
        ("balancer --request-buffer-timeout soon", "write one such as 60s"),
        ("balancer --request-buffer-size -3", "write a whole number"),
        (f"{BALANCER_1_2} {PANEL} --statsd-reporting-interval 10s", "write a whole number"),
    ],
)
def test_what_cannot_or_must_not_be_said_is_refused_with_what_to_write(
    line: str, refusal: str
) -> None:
    translation = translated(line)
    assert refusal.lower() in " ".join(translation.refusals).lower()
    assert "hunter2" not in str(translation)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "agent --management-addr 127.0.0.1:8060 --slots 4 --name a",
        "agent --upstream http://127.0.0.1:8088 --monitoring-interval 10",
        "agent drain a",
        "dashboard --management-addr 127.0.0.1:8085",
        "balancer --inference-addr 127.0.0.1:8061 --buffered-request-timeout 10",
        f"{BALANCER_1_2} --statsd-reporting-interval 10000 --buffered-request-timeout 0",
        "chat --local-llamacpp-addr",
        "top --management-addr 127.0.0.1:8060",
    ],
)
def test_command_lines_of_today_are_left_alone(line: str) -> None:
    assert translate(shlex.split(line)) is None


def test_where_a_unit_is_in_doubt_the_line_is_left_alone_and_that_is_said() -> None:
    line = f"{BALANCER_1_2} --statsd-reporting-interval 10"
    translation = translated(line)
    assert [*translation.arguments] == shlex.split(line)
    (note,) = translation.notes
    assert "10 is 10 milliseconds" in note
    assert "write 10000" in note


GUIDE = Path(__file__).parents[3] / "docs" / "migration_from_paddler_1.md"


def test_the_example_of_the_guide_is_what_is_said() -> None:
    page = GUIDE.read_text()
    (line,) = re.findall(r"^\$ paddler-trio (agent .*)$", page, re.M)
    translation = translated(line)
    said = (*translation.notes, f"so this runs: paddler-trio {shlex.join(translation.arguments)}")
    assert "".join(f"paddler-trio: Paddler 1.x: {each}\n" for each in said) in page


def test_the_guide_has_every_flag() -> None:
    before = GUIDE.read_text().partition("## The command lines")[2]
    for flags in (AGENT, BALANCER):
        for flag in flags.go | flags.rust | flags.both - {"upstream"}:
            stem, _, part = flag.rpartition("-")
            row = rf"`--{flag}`|`--{stem}-\w+`.*`-{part}`"
            assert re.search(row, before), flag


OLD_FLAGS = {
    "agent": sorted(AGENT.go | AGENT.rust),
    "balancer": sorted(BALANCER.go | BALANCER.rust),
}


@pytest.mark.parametrize(
    ("command", "flag"), [(name, flag) for name, flags in OLD_FLAGS.items() for flag in flags]
)
def test_each_flag_that_we_lack_is_spoken_of(command: str, flag: str) -> None:
    value = [] if flag in SWITCHES else ["7"]
    translation = translate([command, f"--{flag}", *value])
    assert translation is not None
    assert f"--{flag}" in " ".join((*translation.notes, *translation.refusals))
    assert f"--{flag}" not in translation.arguments


@pytest.mark.parametrize("command", OLD_FLAGS)
def test_a_flag_is_either_one_that_we_lack_or_one_of_ours(command: str) -> None:
    ours = settings_of(daemon_of(COMMAND, command))
    flags = AGENT if command == "agent" else BALANCER
    assert not set(ours) & (flags.go | flags.rust)
    assert flags.both <= set(ours)


WORDS = st.lists(
    st.sampled_from(
        [f"--{flag}" for flag in (*OLD_FLAGS["agent"], *OLD_FLAGS["balancer"])]
        + ["--management-addr", "--statsd-addr", "--slots", "-x", "--", "7", "a:1", "https"]
    )
    | st.text(max_size=5)
)


@given(st.sampled_from(["agent", "balancer", "dashboard"]), WORDS)
def test_whatever_is_typed_the_result_is_no_old_line_again(command: str, words: list[str]) -> None:
    translation = translate([command, *words])
    if translation is not None and not translation.refusals:
        again = translate(translation.arguments)
        assert again is None or again.arguments == translation.arguments


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_are_read_as_go_writes_them(h: int, m: int, s: int, ms: int) -> None:
    expected = ((h * 60 + m) * 60 + s) * 1000 + ms
    assert milliseconds_of_go(f"{h}h{m}m{s}s{ms}ms") == expected
    assert milliseconds_of_go(f"{s}.{ms:03}s") == s * 1000 + ms


@given(st.text("0123456789.hmsuµn "))
def test_what_is_no_duration_is_none(text: str) -> None:
    milliseconds = milliseconds_of_go(text)
    assert milliseconds is None or milliseconds >= 0

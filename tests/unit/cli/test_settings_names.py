"""The names of settings: one for each flag, found in the commands themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_in_process import COMMAND
from paddler_trio.cli.daemons.settings_file import (
    DAEMONS,
    daemon_of,
    known_variables,
    settings_of,
    unknown_variables,
)

KNOWN = known_variables(COMMAND)


OF_ITS_OWN = {
    ("balancer", "management-addr"): "BALANCER_MANAGEMENT_ADDR",
    ("balancer", "inference-addr"): "BALANCER_INFERENCE_ADDR",
}
"""Settings whose flag means something else to clients, which have the shorter variable."""


def key_of(flag: str) -> str:
    return flag.upper().replace("-", "_")


@pytest.mark.parametrize("daemon", DAEMONS)
def test_flag_variable_and_key_of_every_setting_are_one_name(daemon: str) -> None:
    settings = settings_of(daemon_of(COMMAND, daemon))
    assert len(settings) > 40
    for key, setting in settings.items():
        assert key == key.lower()
        assert "_" not in key
        assert setting.flag in setting.option.opts
        assert setting.variable == f"PADDLER_TRIO_{OF_ITS_OWN.get((daemon, key), key_of(key))}"
        assert setting.option.envvar == setting.variable


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_flag_of_a_daemon_is_a_setting_but_the_one_that_names_the_file(daemon: str) -> None:
    command = daemon_of(COMMAND, daemon)
    flags = {each.opts[0] for each in command.params if each.param_type_name == "option"}
    assert flags - {each.flag for each in settings_of(command).values()} == {"--config"}


@pytest.mark.parametrize("daemon", DAEMONS)
def test_no_setting_holds_a_secret_itself(daemon: str) -> None:
    """What is secret is in a file of its own, and a setting names that file."""
    for key in settings_of(daemon_of(COMMAND, daemon)):
        words = set(key.split("-"))
        if words & {"key", "keys", "token", "secret", "password", "credential"}:
            assert words & {"file", "tls"}, key


def test_variables_of_client_commands_are_known_too() -> None:
    assert {"PADDLER_TRIO_KEY_FILE", "PADDLER_TRIO_INFERENCE_ADDR", "PADDLER_TRIO_CONFIG"} <= KNOWN


def test_a_variable_that_nothing_reads_is_reported_with_what_may_be_meant() -> None:
    environment = ["PATH", "PADDLER_TRIO_SLOTS", "PADDLER_TRIO_SLOT", "PADDLER_TRIO_XYZZY"]
    assert unknown_variables(environment, KNOWN) == [
        ("PADDLER_TRIO_SLOT", "PADDLER_TRIO_SLOTS"),
        ("PADDLER_TRIO_XYZZY", None),
    ]


@given(st.text(), st.sets(st.text()))
def test_only_variables_with_our_prefix_are_ever_reported(name: str, known: set[str]) -> None:
    reported = [each for each, _ in unknown_variables([name], known)]
    assert reported == ([name] if name.startswith("PADDLER_TRIO_") and name not in known else [])


@given(st.sampled_from(sorted(KNOWN)), st.data())
def test_a_missing_letter_leads_to_the_name_that_was_meant(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(len("PADDLER_TRIO_"), len(name) - 1))
    wrong = name[:place] + name[place + 1 :]
    assert unknown_variables([wrong], KNOWN) == [(wrong, name)]

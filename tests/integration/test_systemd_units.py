"""The units are what systemd accepts, and say what the daemons rely on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from paddler_trio.balancer.assembly.bound_balancer import SOCKET_NAMES, addresses_in
from paddler_trio.system.settings.balancer_config import BalancerConfig

UNITS = Path(__file__).resolve().parent.parent.parent / "systemd"
NAMES = ["paddler-trio-balancer.service", "paddler-trio-agent@.service"]
INSTALLED = "/opt/paddler-trio/.venv/bin/paddler-trio"

Settings = dict[str, dict[str, list[str]]]


def parse(text: str) -> Settings:
    """Section -> key -> values in order; anything that is not a setting or a comment fails."""
    sections: Settings = {}
    section: dict[str, list[str]] | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = sections.setdefault(line[1:-1], defaultdict(list))
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        assert key.isalnum(), line
        assert section is not None, line
        section[key].append(value)
    return sections


def complaints_of_systemd(folder: Path, name: str, text: str) -> list[str]:
    """What ``systemd-analyze verify`` has to say about a unit whose program is installed."""
    program = folder / "paddler-trio"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (folder / name).write_text(text.replace(INSTALLED, str(program)))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = (ended.stdout + ended.stderr).splitlines()
    # Units of the machine itself may be at fault too; those are not ours to judge. Nor is a type
    # of service that systemd knows from 253 on: the unit names the older one before it.
    return [
        line for line in said if "paddler-trio" in line and not line.endswith(": notify-reload")
    ] or said * bool(ended.returncode)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path: Path, name: str) -> None:
    text = (UNITS / name).read_text()
    assert INSTALLED in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; the other tests here parse the units")
    assert complaints_of_systemd(tmp_path, name, text) == []
    misspelt = text.replace("WatchdogSec=", "WatchdogSecs=")
    assert complaints_of_systemd(tmp_path, name, misspelt) != []


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_says_what_the_daemon_relies_on(name: str) -> None:
    unit = parse((UNITS / name).read_text())
    assert set(unit) == {"Unit", "Service", "Install"}
    service = {key: values[-1] for key, values in unit["Service"].items()}
    assert unit["Service"]["Type"][0] == "notify"
    assert service["Type"] == ("notify-reload" if "ExecReload" in service else "notify")
    assert service["NotifyAccess"] == "main"
    assert float(service["WatchdogSec"]) >= 10
    assert service["Restart"] == "on-failure"
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > 60
    assert int(service["LimitNOFILE"]) >= 65536
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()
    assert all(value.startswith("-/") for value in unit["Service"]["EnvironmentFile"])
    [command] = unit["Service"]["ExecStart"]
    assert command.split()[0] == INSTALLED


def exposure(folder: Path, name: str, text: str) -> float:
    """What ``systemd-analyze security`` rates a unit with, from 0 (tight) to 10."""
    (folder / name).write_text(text)
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [rated] = re.findall(r"Overall exposure level for .*: (\d+\.\d)", ended.stdout)
    return float(rated)


@pytest.mark.parametrize(("name", "limit"), list(zip(NAMES, [2.0, 3.0], strict=True)))
def test_an_intruder_in_the_daemon_reaches_little_else(
    tmp_path: Path, name: str, limit: float
) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (UNITS / name).read_text()
    assert exposure(tmp_path, name, text) <= limit
    loose = "".join(
        line for line in text.splitlines(True) if not line.startswith(("Protect", "Restrict"))
    )
    assert exposure(tmp_path, name, loose) > limit


def test_only_the_balancer_forbids_code_made_at_run_time() -> None:
    balancer, agent = (parse((UNITS / name).read_text())["Service"] for name in NAMES)
    assert balancer["MemoryDenyWriteExecute"] == ["yes"]
    assert agent["MemoryDenyWriteExecute"] == ["no"]
    assert agent["PrivateDevices"] == ["no"]
    assert agent["OOMPolicy"] == ["continue"]


def test_only_the_balancer_has_something_to_read_again() -> None:
    balancer, agent = (parse((UNITS / name).read_text())["Service"] for name in NAMES)
    assert balancer["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert "ExecReload" not in agent


def test_an_agent_is_named_by_its_instance() -> None:
    [command] = parse((UNITS / NAMES[1]).read_text())["Service"]["ExecStart"]
    assert "--name %i" in command


@pytest.mark.parametrize(("slots", "expected"), [("4", 4), ("", 7)])
def test_an_emptied_variable_of_the_unit_leaves_the_setting_to_the_file(
    tmp_path: Path, slots: str, expected: int
) -> None:
    [command] = parse((UNITS / NAMES[1]).read_text())["Service"]["ExecStart"]
    words = (
        command.replace("${SLOTS}", slots).replace("${MANAGEMENT_ADDR}", slots and "h:1").split()
    )
    assert words[:2] == [INSTALLED, "agent"]
    file = tmp_path / "settings.toml"
    file.write_text('[agent]\nslots = 7\nmanagement-addr = "filed:8060"\n')
    options = [f"--config={file}" if word == "$OPTIONS" else word for word in words[2:]]
    shown = subprocess.run(
        [sys.executable, "-m", "paddler_trio", "config", "show", "agent", "--json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    settings = json.loads(shown.stdout)["agent"]
    assert settings["slots"]["value"] == expected
    assert settings["management-addr"]["value"] == ("h:1" if slots else "filed:8060")


@pytest.mark.parametrize("name", sorted(SOCKET_NAMES & {"inference", "management"}))
def test_a_socket_unit_holds_the_port_that_the_balancer_has_by_default(
    tmp_path: Path, name: str
) -> None:
    unit = f"paddler-trio-balancer-{name}.socket"
    settings = parse((UNITS / unit).read_text())["Socket"]
    assert settings["FileDescriptorName"] == [name]
    assert settings["ListenStream"] == [addresses_in(BalancerConfig())[name]]
    assert settings["Service"] == [NAMES[0]]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    service = (UNITS / NAMES[0]).read_text()
    assert complaints_of_systemd(tmp_path, NAMES[0], service) == []
    assert complaints_of_systemd(tmp_path, unit, (UNITS / unit).read_text()) == []

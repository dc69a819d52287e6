"""The units are what systemd accepts, and say what the daemons rely on."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from paddler_trio.assembly.balancer_daemon import SOCKET_NAMES, addresses_in
from paddler_trio.config import BalancerConfig

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

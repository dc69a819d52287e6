"""The Debian package, with the real apt: installed, used, upgraded, removed, purged."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import ROOT
from spare_machine import NOBODY, SpareMachine, open_spare_machine

from paddler_trio.processes.llama_setup.recipes import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FREE = ("--inference-addr", "127.0.0.1:0", "--management-addr", "127.0.0.1:0")


@pytest.fixture
def machine(packages: Path, tmp_path: Path) -> Iterator[SpareMachine]:
    with open_spare_machine(tmp_path, packages) as spare:
        if "paddler-trio" in spare.try_to("dpkg-query", "--show", "paddler-trio").stdout:
            pytest.skip("paddler-trio is installed on this machine")
        if said := spare.try_to("dpkg", "--audit").stdout:
            pytest.skip(f"dpkg is at work on this machine, or was interrupted: {said}")
        yield spare


def install(machine: SpareMachine, package: str) -> None:
    machine.run(
        "apt-get",
        "install",
        "--yes",
        "--no-install-recommends",
        "--option=Dpkg::Options::=--force-confold",
        f"/given/{package}",
    )


def test_the_life_of_an_installation(machine: SpareMachine) -> None:
    install(machine, "1.deb")
    assert machine.run("paddler-trio", "--version").startswith("paddler-trio 0.1.0\n")
    assert machine.run("man", "--where", "paddler-trio-balancer").endswith("balancer.1.gz\n")
    completion = "/usr/share/bash-completion/completions/paddler-trio"
    words = "COMP_WORDS=(paddler-trio doc); COMP_CWORD=1; _paddler_trio_completion paddler-trio"
    said = machine.run("bash", "-c", f'. {completion}; {words}; echo "${{COMPREPLY[@]}}"')
    assert said == "doctor\n"
    assert machine.run("dpkg", "--verify", "paddler-trio") == ""
    # Whoever runs it writes nothing into it.
    answered = machine.run("paddler-trio", "demo", "--once", *FREE, user=NOBODY)
    assert "A slot is a place in an agent" in answered
    told = json.loads(machine.run("paddler-trio", "doctor", "--json", *FREE, user=NOBODY))
    assert {each["state"] for each in told["findings"]} <= {"ok", "warning"}
    refused = machine.try_to("paddler-trio", "setup", "--cpu", user=NOBODY)
    assert refused.returncode == 1
    assert "run this as the user that installed paddler-trio" in refused.stderr
    assert "decoded" in machine.run("paddler-trio", "setup", "--cpu")
    builds = {str(Path(path).parent) for path in machine.written("llama_cpp")}
    assert builds == {"/usr/lib/paddler-trio/llama", f"/var/lib/paddler-trio/llama/{VERSION}"}
    assert "A slot is" in machine.run("paddler-trio", "demo", "--once", *FREE, user=NOBODY)
    assert machine.run("dpkg", "--verify", "paddler-trio") == ""

    state = "/var/lib/paddler-trio/balancer/state.json"
    ours = "/etc/paddler-trio/agent.env"
    machine.run("sh", "-c", f"mkdir -p {Path(state).parent} && echo kept > {state}")
    machine.run("sh", "-c", f"echo SLOTS=8 >> {ours} && echo > /etc/paddler-trio/agent-gpu0.env")
    machine.run("mkdir", "/var/lib/paddler-trio/llama/0.0.1")
    install(machine, "2.deb")
    assert machine.run("cat", state) == "kept\n"
    assert machine.run("tail", "-n1", ours) == "SLOTS=8\n"
    assert machine.run("tail", "-n1", f"{ours}.dpkg-dist") == "# Said since version 2.\n"
    untouched = "/etc/paddler-trio/balancer.env"
    assert machine.run("tail", "-n1", untouched) == "# Said since version 2.\n"
    kept = machine.run("ls", "/var/lib/paddler-trio/llama").split()
    assert "0.0.1" not in kept
    assert len(kept) >= 2  # the build and its proof
    assert "is proven here" in machine.run("paddler-trio", "setup")

    machine.run("systemctl", "enable", "paddler-trio-balancer", "paddler-trio-agent@gpu0")
    enabled = "/etc/systemd/system/multi-user.target.wants/paddler-trio-agent@gpu0.service"
    assert machine.written("*gpu0.service") == [enabled]
    machine.run("apt-get", "remove", "--yes", "paddler-trio")
    assert machine.try_to("paddler-trio", "--version").returncode == 127
    assert machine.run("cat", state) == "kept\n"
    assert machine.run("tail", "-n1", ours) == "SLOTS=8\n"
    assert "/usr/lib/paddler-trio" not in machine.written("paddler-trio")

    machine.run("apt-get", "purge", "--yes", "paddler-trio")
    assert machine.written("*paddler*") == []


def test_the_installed_units_are_what_systemd_accepts(machine: SpareMachine) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    install(machine, "1.deb")
    packed = machine.run("ls", "/usr/lib/systemd/system").split()
    assert {each.name for each in (ROOT / "systemd").iterdir()} <= set(packed)
    for unit in ("paddler-trio-balancer.service", "paddler-trio-agent@gpu0.service"):
        said = machine.try_to("systemd-analyze", "verify", unit)
        about_ours = [
            line
            for line in said.stderr.splitlines()
            if "paddler" in line and not line.endswith(": notify-reload")  # systemd before 253
        ]
        assert about_ours == []
        shown = machine.run("cat", f"/usr/lib/systemd/system/{unit.replace('gpu0', '')}")
        assert "/opt/" not in shown
        assert "To install" not in shown
        assert "ExecStart=/usr/bin/paddler-trio" in shown


def test_debians_own_judge_finds_no_error(packages: Path) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    judged = subprocess.run(
        ["lintian", "--allow-root", "--fail-on=error,warning", str(packages / "1.deb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr

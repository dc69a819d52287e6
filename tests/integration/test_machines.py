"""Machines of a real fleet: what agents say of them, and who is shown it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fleet import BUNDLED_MODEL, Fleet

from cli_in_process import Ended, invoke
from no_tls import NO_TLS
from paddler_trio import __version__
from paddler_trio.cli.model.fit_run import DOES_NOT_FIT

GPU = "NVIDIA H200, 570.124.06, 143771, 1024, 37, 41, 121.50"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One agent, on a machine that says it has a GPU."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{GPU}'\n")
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    with Fleet.start(agents=1, model=None, env={"PATH": path}) as fleet:
        fleet.balancer.wait_for_line("NVIDIA H200")
        yield fleet


def get(fleet: Fleet, path: str) -> Any:
    answer = httpx.get(f"{fleet.management_url}{path}", verify=NO_TLS, timeout=60)
    return answer.raise_for_status().json()


def run(fleet: Fleet, *words: object) -> Ended:
    return invoke(*words, "--management-addr", fleet.management)


def test_an_agent_says_what_its_machine_is(fleet: Fleet) -> None:
    (machine,) = get(fleet, "/api/v2/machines")["machines"]
    assert machine["name"] == "a1"
    assert [each["deployment"] for each in machine["agents"]] == ["default"]
    facts = machine["facts"]
    assert facts["version"] == __version__
    assert facts["cores"] == os.cpu_count()
    assert "ggml" in facts["llama_cpp"]
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    one = get(fleet, "/api/v2/agents/a1/machine")
    assert one["host"] == machine["host"]
    missing = f"{fleet.management_url}/api/v2/agents/nobody/machine"
    assert httpx.get(missing, verify=NO_TLS, timeout=60).status_code == 404


def test_the_terminal_shows_the_machine(fleet: Fleet) -> None:
    shown = run(fleet, "agents", "show", "a1")
    assert shown.exit_code == 0, shown.output
    rows = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert rows["paddler-trio"] == __version__
    assert "cores" in rows["cpu"]
    assert rows["serves"].startswith("default: waiting")
    head, row = run(fleet, "agents", "--wide").stdout.splitlines()
    assert head.split()[-3:] == ["free", "gpu", "version"]
    assert row.endswith(__version__)
    assert "cpu" not in run(fleet, "agents").stdout.splitlines()[0].split()
    nobody = run(fleet, "agents", "show", "nobody")
    assert nobody.exit_code == 1
    assert "connected: a1" in nobody.stderr


def test_a_gpu_is_shown_as_its_driver_tells_of_it(fleet: Fleet) -> None:
    facts = get(fleet, "/api/v2/agents/a1/machine")["facts"]
    (gpu,) = facts["gpus"]
    assert (gpu["name"], gpu["driver"]) == ("NVIDIA H200", "570.124.06")
    assert (gpu["busy"], gpu["temperature_c"], gpu["power_w"]) == (0.37, 41.0, 121.5)
    assert gpu["memory_bytes"] == 143771 * 1024**2
    shown = run(fleet, "agents", "show", "a1").stdout
    assert "NVIDIA H200, 1.00 GiB of 140 GiB used, 37% busy, 41 °C, 122 W" in shown
    assert "driver 570.124.06" in shown


def test_a_gpu_that_computes_nothing_is_told_of_and_what_a_slot_gets(fleet: Fleet) -> None:
    """The build of llama.cpp here uses no GPU."""
    ended = run(fleet, "model", "fit", BUNDLED_MODEL, "--context-size=2048", "--slots=4")
    assert "4 slots (512 tokens each)" in ended.stdout
    assert "this build of llama.cpp uses no GPU: `paddler-trio setup`" in ended.stdout
    fleet.desire(BUNDLED_MODEL)
    fleet.wait_serving(1)
    assert "256 a slot" in run(fleet, "agents", "--wide").stdout
    ended = run(fleet, "model", "fit", "/nowhere/at-all.gguf")
    assert ended.exit_code == DOES_NOT_FIT
    assert "does not load" in ended.stdout
    assert "there is no file at /nowhere/at-all.gguf" in ended.stdout

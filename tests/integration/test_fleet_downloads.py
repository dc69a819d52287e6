"""A fleet that gets its model from a hub on this machine: one command, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import forked_processes
import httpx
import pytest
from engine_client import STORY
from fleet import BUNDLED_MODEL, END_S, Fleet, FleetView
from streams import story

from hub_server import Misbehaviour, Repository, hub_server, sha256
from lora_adapters import write_lora

DATA = BUNDLED_MODEL.read_bytes()
PHASES = ["waiting", "prefetching", "loading", "probing", "serving"]
FILES = {"demo-Q4_K_M.gguf": DATA, "demo-F16.gguf": b"another"}


def what_is_served_is_kept(fleet: Fleet, source: str) -> None:
    """The commands about caches, on two agents that share one and serve a model of it."""
    pulled = managed(fleet, "model", "pull", "hf:org/demo", "--agent=a2")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.startswith(f"a2: {source} (")
    listed = managed(fleet, "model", "list")
    assert listed.returncode == 0, listed.stderr
    (row,) = (line for line in listed.stdout.splitlines() if source in line)
    for words in ("a1, a2 (one cache)", "now", "desired, in use"):
        assert words in row
    told = json.loads(managed(fleet, "model", "list", "--json", "--agent=a2").stdout)
    assert [agent["name"] for agent in told["agents"]] == ["a2"]
    assert told["agents"][0]["models"][0]["source"] == source
    hashed = managed(fleet, "model", "verify", "hf:org/demo:q4_k_m")
    assert (hashed.returncode, hashed.stdout) == (0, f"a1: {source}: matches\n")
    pruned = managed(fleet, "model", "prune", "--keep=0")
    assert (pruned.returncode, pruned.stdout) == (0, "0 bytes freed\n")


def managed(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked_processes.run(*arguments, "--management-addr", fleet.management, env=fleet.env)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be made or changed in ``folder``; root is refused by a mount alone."""
    bound = subprocess.run(["mount", "--bind", folder, folder], capture_output=True)
    is_mounted = bound.returncode == 0
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    try:
        if is_mounted:
            subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        else:
            for each in folders:
                each.chmod(0o555)
        with pytest.raises(OSError, match=r"Read-only|denied"):
            (folder / "refused").touch()
        yield
    finally:
        if is_mounted:
            # engines that were just killed may have the file mapped for another moment
            subprocess.run(["umount", "--lazy", folder], check=True)
        else:
            for each in folders:
                each.chmod(0o755)


def doing(view: FleetView) -> list[str]:
    """What is done with the files on their way."""
    agents = cast("list[dict[str, Any]]", view["agents"])
    return sorted(agent["download"]["phase"] for agent in agents if agent["download"])


def test_one_command_has_every_agent_fetch_the_model_once_and_serve_it(tmp_path: Path) -> None:
    gate = threading.Event()
    with hub_server({"org/demo": Repository(FILES)}) as hub:
        env = {"HF_ENDPOINT": hub.hub_url, "HF_HOME": str(tmp_path)}
        hub.misbehave = lambda seen: Misbehaviour(waits_for=gate)
        try:
            with Fleet.start(agents=2, slots=2, model=None, env=env) as fleet:
                command = [sys.executable, "-m", "paddler_trio", "model", "swap", "hf:org/demo"]
                swap = subprocess.Popen(
                    [*command, "--context-size=1024", "--management-addr", fleet.management],
                    env={**os.environ, **env, "HF_HOME": str(tmp_path / "operator")},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                fleet.wait_until(
                    lambda view: doing(view) == ["downloading", "waiting for another process"],
                    what="one downloads and the other one waits for it",
                    nobody_ends=True,
                )
                url = f"{fleet.management_url}/api/v1/agents"
                shown = httpx.get(url, trust_env=False, timeout=END_S).json()["agents"]
                assert [agent["download_filename"] for agent in shown] == ["demo-Q4_K_M.gguf"] * 2
                assert {agent["download_total"] for agent in shown} == {len(DATA)}
                url = f"{fleet.management_url}/api/v2/agents"
                downloads = [
                    a["download"]
                    for a in httpx.get(url, trust_env=False, timeout=END_S).json()["agents"]
                ]
                assert {download["source"] for download in downloads} == {"127.0.0.1"}
                url = f"{fleet.management_url}/api/v2/rollout"
                (rollout,) = httpx.get(url, trust_env=False, timeout=END_S).json()["rollouts"]
                assert [each["phase"] for each in rollout["agents"]] == ["prefetching"] * 2
                for each in rollout["agents"]:
                    assert each["download"]["filename"] == "demo-Q4_K_M.gguf"
                    assert each["download"]["total_bytes"] == len(DATA)
                    assert each["progress"] is not None, "a bar, though nothing was served before"
                file = "demo-Q4_K_M.gguf (4.7 MB) from 127.0.0.1"
                told = {f"default, a{i}: prefetching {file}" for i in (1, 2)}
                lines: list[str] = []
                assert swap.stderr is not None
                while told:  # before it could be over
                    line = swap.stderr.readline()
                    assert line, f"it ended after {lines}"
                    lines.append(line.removesuffix("\n"))
                    told.discard(lines[-1].removesuffix(", waiting for another process"))
                gate.set()
                lines += swap.stderr.read().splitlines()
                out, _ = swap.communicate(timeout=120)
                assert swap.returncode == 0, out
                for agent in ("a1", "a2"):
                    words = [line for line in lines if line.startswith(f"default, {agent}: ")]
                    phases = [line.split()[2] for line in words]
                    assert phases == sorted(phases, key=PHASES.index), "a phase comes once"
                commit = hub.repositories["org/demo"].commit
                assert f"hf:org/demo/demo-Q4_K_M.gguf@{commit}" in "".join(out.split())
                view = fleet.wait_serving()
                paths = {str(agent["model_path"]) for agent in view["agents"]}
                pointer = f"models--org--demo/snapshots/{commit}/demo-Q4_K_M.gguf"
                assert paths == {str(tmp_path / "hub" / pointer)}
                assert hub.served_bytes == len(DATA), "two agents share one download"
                answer = httpx.post(
                    f"{fleet.inference_url}/api/v1/continue_from_conversation_history",
                    json=story(1, max_tokens=3),
                    trust_env=False,
                    timeout=60,
                )
                assert answer.status_code == 200
                what_is_served_is_kept(fleet, f"hf:org/demo/demo-Q4_K_M.gguf@{commit}")
        finally:
            gate.set()
        assert sha256(next((tmp_path / "hub").glob("models--*/blobs/*")).read_bytes()) == sha256(
            DATA
        )
    pinned = {"filename": "demo-Q4_K_M.gguf", "repo_id": "org/demo", "revision": commit}
    with (
        read_only(tmp_path),
        Fleet.start(agents=1, model=None, env={**env, "HF_HUB_OFFLINE": "1"}) as offline,
    ):
        url = f"{offline.management_url}/api/v1/balancer_desired_state"
        state = httpx.get(url, trust_env=False, timeout=END_S).json() | {
            "model": {"HuggingFace": pinned}
        }
        state["inference_parameters"]["context_size"] = 1024
        assert httpx.put(url, json=state, trust_env=False, timeout=END_S).is_success
        offline.wait_serving()


def test_adapters_of_a_file_of_the_fleet_come_from_a_hub_and_from_an_address(
    tmp_path: Path,
) -> None:
    one = write_lora(tmp_path / "one.gguf", BUNDLED_MODEL, seed=1).read_bytes()
    other = write_lora(tmp_path / "other.gguf", BUNDLED_MODEL, seed=31).read_bytes()
    with hub_server({"org/loras": Repository({"one.gguf": one, "b/other.gguf": other})}) as hub:
        env = {"HF_ENDPOINT": hub.hub_url, "HF_HOME": str(tmp_path / "home")}
        address = f"{hub.hub_url}/org/loras/resolve/main/b/other.gguf"
        file = tmp_path / "fleet.toml"
        file.write_text(
            f"""
            [[deployments]]
            name = "default"
            model = "{BUNDLED_MODEL}"
            parameters = {{ context_size = 1024 }}
            adapters = [
                {{ name = "a", source = "hf:org/loras/one.gguf" }},
                {{ name = "b", source = "{address}", scale = 2 }},
            ]
            """
        )
        with Fleet.start(agents=1, slots=2, model=None, env=env) as fleet:
            applied = managed(fleet, "fleet", "apply", str(file))
            assert applied.returncode == 0, applied.stderr
            fleet.wait_serving()
            shown = " ".join(managed(fleet, "model", "show").stdout.split())
            assert f"adapters.b {address} at 2" in shown
            with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http:
                told = http.get("/lora-adapters").json()
                assert [(each["name"], each["path"], each["scale"]) for each in told] == [
                    ("a", "one.gguf", 1.0),
                    ("b", "other.gguf", 2.0),
                ]
                texts = {
                    http.post(
                        "/completion",
                        json={"prompt": STORY, "n_predict": 8, "temperature": 0, "lora": lora},
                    ).json()["content"]
                    for lora in ([], [{"name": "a"}], [{"name": "b"}], [{"id": 1, "scale": 1}])
                }
                assert len(texts) == 4

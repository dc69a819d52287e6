"""One push for the whole fleet: agents without a way out get their model through the balancer."""

from __future__ import annotations

from pathlib import Path

import httpx
from fleet import BUNDLED_MODEL, Daemon, Fleet
from streams import story

from hub_server import Repository, hub_server, sha256

DATA = BUNDLED_MODEL.read_bytes()
NAME = "demo-Q4_K_M.gguf"
NO_WAY_OUT = {"HF_ENDPOINT": "http://127.0.0.1:9"}


def desire(fleet: Fleet, model: object) -> None:
    url = f"{fleet.management_url}/api/v1/balancer_desired_state"
    state = httpx.get(url, trust_env=False).json() | {"model": model}
    state["inference_parameters"]["context_size"] = 1024
    assert httpx.put(url, json=state, trust_env=False).is_success


def start_agents(fleet: Fleet, root: Path, names: list[str], **env: str) -> list[Daemon]:
    return [
        fleet.start_agent(name, slots=2, env={"HF_HOME": str(root / name), **env}) for name in names
    ]


def test_four_agents_without_a_way_out_are_fed_with_one_download(tmp_path: Path) -> None:
    names = ["a1", "a2", "a3", "a4"]
    model = {"HuggingFace": {"filename": NAME, "repo_id": "org/demo", "revision": "main"}}
    killed: list[int] = []
    options = [f"--model-store={tmp_path / 'store'}", "--model-store-size=1GB"]
    with hub_server({"org/demo": Repository({NAME: DATA}, token="hf_" + "a" * 34)}) as hub:
        env = {"HF_ENDPOINT": hub.hub_url, "HF_TOKEN": "hf_" + "a" * 34}
        with Fleet.start(agents=0, model=None, balancer_options=options, env=env) as fleet:
            start_agents(fleet, tmp_path, names, **NO_WAY_OUT)
            fleet.wait_until(lambda view: len(view["agents"]) == 4, nobody_ends=True)
            desire(fleet, model)
            view = fleet.wait_serving()
            commit = hub.repositories["org/demo"].commit
            assert {str(agent["model_path"]) for agent in view["agents"]} == {
                str(tmp_path / name / f"hub/models--org--demo/snapshots/{commit}/{NAME}")
                for name in names
            }
            assert hub.served_bytes == len(DATA), "four agents, one download"
            answer = httpx.post(
                f"{fleet.inference_url}/api/v1/continue_from_conversation_history",
                json=story(1, max_tokens=3),
                trust_env=False,
                timeout=60,
            )
            assert answer.status_code == 200
            listed = httpx.get(f"{fleet.management_url}/api/v2/store", trust_env=False).json()
            (file,) = listed["files"]
            assert file["is_desired"]
            assert file["sha256"] == sha256(DATA)
            assert killed == []

"""One push for the whole fleet: agents without a way out get their model through the balancer."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
from fleet import BUNDLED_MODEL, Fleet, children
from streams import story

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server, sha256

MIB = 1 << 20
DATA = BUNDLED_MODEL.read_bytes()
NAME = "demo-Q4_K_M.gguf"
TOKEN = "hf_" + "a" * 34
NO_WAY_OUT = {"HF_ENDPOINT": "http://127.0.0.1:9"}
NAMES = ["a1", "a2"]


def test_agents_without_a_way_out_are_fed_with_one_download(tmp_path: Path) -> None:
    options = [f"--model-store={tmp_path / 'store'}", "--model-store-size=1GB"]
    with hub_server({"org/demo": Repository({NAME: DATA}, token=TOKEN)}) as hub:
        env = {"HF_ENDPOINT": hub.hub_url, "HF_TOKEN": TOKEN}
        with Fleet.start(agents=0, model=None, balancer_options=options, env=env) as fleet:
            for name in NAMES:
                folders = {
                    "HF_HOME": str(tmp_path / name),
                    "PADDLER_CACHE_DIR": str(tmp_path / name),
                }
                fleet.start_agent(name, slots=2, env={**folders, **NO_WAY_OUT, "HF_TOKEN": ""})
            fleet.wait_until(lambda view: len(view["agents"]) == len(NAMES), nobody_ends=True)

            desire(
                fleet,
                {"HuggingFace": {"filename": NAME, "repo_id": "org/demo", "revision": "main"}},
            )
            view = fleet.wait_serving()
            commit = hub.repositories["org/demo"].commit
            assert {str(agent["model_path"]) for agent in view["agents"]} == {
                str(tmp_path / name / f"hub/models--org--demo/snapshots/{commit}/{NAME}")
                for name in NAMES
            }
            assert hub.served_bytes == len(DATA), "each byte comes from outside once"
            answer = httpx.post(
                f"{fleet.inference_url}/api/v1/continue_from_conversation_history",
                json=story(1, max_tokens=3),
                trust_env=False,
                timeout=60,
            )
            assert answer.status_code == 200
            (file,) = store(fleet)["files"]
            assert file["is_desired"]
            assert file["sha256"] == sha256(DATA)

            the_store_is_killed_in_the_middle(fleet, hub)


def the_store_is_killed_in_the_middle(fleet: Fleet, hub: HubServer) -> None:
    """Its agents go on where they were when it is back, and nobody goes to the source."""
    gate = threading.Event()

    def stalls(seen: Seen) -> Misbehaviour:
        if seen.range is not None and seen.range[0] >= 2 * MIB:
            return Misbehaviour(waits_for=gate)
        return Misbehaviour(drops_after=2 * MIB)

    hub.stored["again.gguf"] = DATA
    hub.misbehave, hub.served_bytes = stalls, 0
    try:
        desire(fleet, {"Url": {"url": f"{hub.storage_url}/storage/again.gguf"}})
        until(lambda: arriving(fleet) == (2 * MIB, len(NAMES)))
        (pid,) = children(fleet.balancer.pid)
        os.kill(pid, signal.SIGKILL)
        assert fleet.balancer.wait_for_log("child crashed")["child"] == "model store"
        hub.misbehave = lambda seen: Misbehaviour(waits_for=gate)
    finally:
        gate.set()
    view = fleet.wait_until(
        lambda view: all(
            agent["phase"] == "serving" and str(agent["model_path"]).endswith("again.gguf")
            for agent in view["agents"]
        ),
        nobody_ends=True,
    )
    assert len(view["agents"]) == len(NAMES)
    assert hub.served_bytes <= len(DATA) + MIB, "what was on its way is fetched again, no more"
    for agent in fleet.agents.values():
        assert "asking the source" not in agent.tail(5000)


def desire(fleet: Fleet, model: object) -> None:
    url = f"{fleet.management_url}/api/v1/balancer_desired_state"
    state = httpx.get(url, trust_env=False, timeout=60).json() | {"model": model}
    state["inference_parameters"]["context_size"] = 1024
    assert httpx.put(url, json=state, trust_env=False, timeout=60).is_success


def store(fleet: Fleet) -> dict[str, list[dict[str, object]]]:
    listed = httpx.get(
        f"{fleet.management_url}/api/v2/store", trust_env=False, timeout=60
    ).raise_for_status()
    return dict(listed.json())


def arriving(fleet: Fleet) -> tuple[object, object]:
    """Bytes that are here of what is on its way, and how many wait for it."""
    return next(((a["here_bytes"], a["readers"]) for a in store(fleet)["arriving"]), (0, 0))


def until(is_so: object) -> None:
    assert callable(is_so)
    give_up_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < give_up_s

"""From `model swap hf:...` to the first token of a file that is in the agent's cache already.

    python benchmarks/swap_to_first_token.py [--model FILE] [--rounds 5]

One balancer, one agent, and a hub on loopback that has the model under two names: each swap is to
the other one. The first two fetch; the rounds after them find both in the cache. It ends by itself
within three minutes. Columns, in milliseconds since the command was started:

    stored     the balancer has the new desired state: a process, the hub's answer, one request
    serving    the agent serves it: the hub's answer, a dry run, the load, a probe, the swap
    token      a client that asks then has its first token
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, cast

import attrs
import httpx

from paddler_trio.cli.balancer_http import lines_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))
from fleet import OWN_INTERPRETER, Fleet, FleetView

from hub_server import Repository, hub_server
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

LIMIT_S = 170
REPO = "bench/swap"
NAMES = ("a.gguf", "b.gguf")


@attrs.frozen
class Round:
    """Milliseconds since the command was started."""

    stored: float
    serving: float
    token: float


def agent_of(view: FleetView) -> dict[str, Any]:
    (agent,) = cast("list[dict[str, Any]]", view["agents"])
    return agent


def swap(fleet: Fleet, name: str, env: dict[str, str]) -> Round:
    """One swap; the command waits until the agent serves."""
    before = agent_of(fleet.view())["wanted_state"]
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "paddler_trio", "model", "swap", f"hf:{REPO}/{name}@main"]
    process = subprocess.Popen(
        [*command, f"--management-addr={fleet.management}"],
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
    )
    try:
        fleet.wait_until(lambda view: agent_of(view)["wanted_state"] != before, what="stored")
        stored_s = time.perf_counter()
        fleet.wait_until(
            lambda view: agent_of(view)["served_state"] == agent_of(view)["wanted_state"],
            what="serving",
        )
        serving_s = time.perf_counter()
        first_token(fleet)
        token_s = time.perf_counter()
        if process.wait(timeout=30) != 0:
            raise SystemExit(f"the command ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
    return Round(*(1000 * (each - began_s) for each in (stored_s, serving_s, token_s)))


def first_token(fleet: Fleet) -> None:
    body = {
        "prompt": {"Text": {"text": "Once upon a time"}},
        "max_tokens": 1,
        "sampling": {"temperature": 0, "ignore_eos": True},
    }
    url = f"{fleet.inference_url}/api/v2/generate"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=30) as answer:
        answer.raise_for_status()
        for line in lines_of(answer.iter_bytes()):
            if '"Token":"' in line or "Token" in str(json.loads(line or "{}")):
                return
    raise SystemExit("an answer without a token")


def measure(model: Path, folder: Path, rounds: int) -> None:
    data = model.read_bytes()
    files = {name: data + bytes([number]) for number, name in enumerate(NAMES)}
    with hub_server({REPO: Repository(files)}) as hub:
        env = {"HF_ENDPOINT": hub.hub_url, "HF_HOME": str(folder), **OWN_INTERPRETER}
        with Fleet.start(agents=0, model=None, env=env) as fleet:
            fleet.start_agent("a1", slots=1)
            fleet.wait_until(lambda view: bool(view["agents"]), what="the agent is there")
            for name in NAMES:
                swap(fleet, name, env)
            fetched = hub.served_bytes
            found = []
            print(" round   stored  serving    token")
            for number in range(rounds):
                found.append(swap(fleet, NAMES[number % 2], env))
                each = found[-1]
                print(
                    f"{number:>6} {each.stored:8.0f} {each.serving:8.0f} {each.token:8.0f}",
                    flush=True,
                )
            middle = [
                statistics.median(getattr(each, name) for each in found)
                for name in ("stored", "serving", "token")
            ]
            print("median " + " ".join(f"{each:8.0f}" for each in middle))
            if hub.served_bytes != fetched:
                raise SystemExit("a round fetched the file again: it was not in the cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all that was started ends with this
    watch = threading.Timer(LIMIT_S, lambda: os.kill(os.getpid(), signal.SIGTERM))
    watch.daemon = True
    watch.start()
    with tempfile.TemporaryDirectory() as folder:
        measure(options.model, Path(folder), options.rounds)


if __name__ == "__main__":
    main()

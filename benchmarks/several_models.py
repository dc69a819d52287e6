"""Several models on one agent: what the first request for one costs, and what sharing costs.

    python benchmarks/several_models.py [--model FILE] [--rounds 5] [--only cold|shared]

Balancer, agents and engines are real processes on loopback, started as users start them. Ends by
itself within nine minutes.

cold     From a request to the first token of a model that is not loaded, against an engine alone
         that loads the same file with the same settings, until it is ready and until it has the
         first token of the same prompt; in turns.
shared   Two models on one agent against two agents with one each, the same slots and threads: both
         are kept busy. Tokens per second of all streams; in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from paddler_trio.cli.answer_lines import lines_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))
from fleet import OWN_INTERPRETER, Fleet

from paddler_trio import __version__
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    LoadFailed,
    LoadModel,
    Ready,
    StartSequence,
    Step,
)
from paddler_trio.wire.engine.pipe_codec import (
    LENGTH_BYTES,
    body_length,
    decode_from_engine,
    encode,
)
from samplings import GREEDY

LIMIT_S = 540
SLOTS = 4
CONTEXT = 4096
STREAMS = 4
"""Of each model."""
SHARED_S = 10.0
IDLE_S = 1
FIT = ["--fit=on"]
PROMPT = [300, 310, 320, 330, 340, 350]


def deployment(name: str, model: Path, **rules: object) -> dict[str, object]:
    return {
        "name": name,
        "model": {"LocalToAgent": str(model)},
        "parameters": {"context_size": CONTEXT},
        "slots": SLOTS,
        **rules,
    }


def put_fleet(fleet: Fleet, deployments: Sequence[Mapping[str, object]]) -> None:
    answer = httpx.put(
        f"{fleet.management_url}/api/v2/fleet",
        json={"state": {"deployments": deployments}},
        trust_env=False,
        timeout=60,
    )
    answer.raise_for_status()


def serving(fleet: Fleet, names: set[str]) -> None:
    fleet.wait_until(
        lambda view: {a["name"] for a in view["agents"] if a["is_accepting"]} == names,
        what=f"{sorted(names)} serve",
    )


def tokens(fleet: Fleet, model: str, max_tokens: int) -> Iterator[None]:
    """One item a token."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{fleet.inference_url}/v1/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=120) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"{model}: {answer.status_code} {answer.read()[:500]!r}")
        for line in lines_of(answer.iter_bytes()):
            if line.startswith("data: {"):
                document = json.loads(line.removeprefix("data: "))
                if "error" in document:
                    raise SystemExit(f"{model}: {document['error']}")
                if document["choices"] and document["choices"][0]["text"]:
                    yield


# ---------------------------------------------------------------------------------- cold


def bare(model: Path) -> tuple[float, float]:
    """Seconds until an engine that nobody supervises is ready, and until its first token."""
    load = LoadModel(str(model), SLOTS, CONTEXT, 512, 0, "F16", "F16", 1, __version__)
    began_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "paddler_trio.processes.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(encode(load))
            process.stdin.flush()
            ready_s = 0.0
            while True:
                prefix = process.stdout.read(LENGTH_BYTES)
                frame = decode_from_engine(process.stdout.read(body_length(prefix)))
                match frame:
                    case LoadFailed():
                        raise SystemExit(f"the engine cannot load {model}: {frame.reason}")
                    case Ready():
                        ready_s = time.perf_counter() - began_s
                        process.stdin.write(encode(StartSequence(1, PROMPT, [], 1, GREEDY, None)))
                        process.stdin.flush()
                    case Step(sampled=[_, *_]):
                        return ready_s, time.perf_counter() - began_s
        finally:
            process.kill()


def measure_cold(model: Path, rounds: int) -> None:
    with Fleet.start(
        agents=1,
        slots=SLOTS,
        model=None,
        agent_options=[*FIT, "--threads=1"],
        env=OWN_INTERPRETER,
    ) as fleet:
        put_fleet(fleet, [deployment("chat", model, replicas="0..1", idle_ttl=IDLE_S)])
        found = []
        for number in range(rounds + 1):
            fleet.wait_until(
                lambda view: not any(a["is_accepting"] for a in view["agents"]), what="unloaded"
            )
            began_s = time.perf_counter()
            next(tokens(fleet, "chat", 1))
            first_s = time.perf_counter() - began_s
            ready_s, bare_s = bare(model)
            if number:  # the first one learns, and fills the page cache
                found.append((first_s, ready_s, bare_s))
                print(
                    f"  first token {first_s:.3f} s; alone: ready {ready_s:.3f} s, "
                    f"first token {bare_s:.3f} s",
                    flush=True,
                )
    first_s, ready_s, bare_s = (statistics.median(each) for each in zip(*found, strict=True))
    print(
        f"cold: first token {first_s:.3f} s, alone {bare_s:.3f} s: {first_s / bare_s:.2f} x, "
        f"{1000 * (first_s - bare_s):+.0f} ms; of the load alone, {ready_s:.3f} s, "
        f"{first_s / ready_s:.2f} x (medians of {rounds})"
    )


# -------------------------------------------------------------------------------- shared


def rate(fleet: Fleet) -> float:
    """Tokens per second of all streams, of both models together."""
    counts = [0] * (2 * STREAMS)
    began, over = threading.Barrier(2 * STREAMS + 1, timeout=60), threading.Event()

    def stream(number: int) -> None:
        while not over.is_set():
            for _ in tokens(fleet, ("one", "two")[number % 2], 256):
                if not counts[number]:
                    began.wait()
                counts[number] += 1
                if over.is_set():
                    break

    threads = [threading.Thread(target=stream, args=(n,)) for n in range(2 * STREAMS)]
    for thread in threads:
        thread.start()
    began.wait()
    before, began_s = sum(counts), time.perf_counter()
    time.sleep(SHARED_S)
    counted, took_s = sum(counts) - before, time.perf_counter() - began_s
    over.set()
    for thread in threads:
        thread.join()
    return counted / took_s


@contextmanager
def two_models(folder: Path, model: Path, *, agents: int) -> Iterator[Fleet]:
    with Fleet.start(
        agents=agents,
        slots=SLOTS,
        model=None,
        agent_options=[*FIT, "--threads=1"],
        env=OWN_INTERPRETER,
    ) as fleet:
        other = folder / "other.gguf"
        shutil.copyfile(model, other)
        where: list[dict[str, Any]] = [{}, {}]
        if agents == 2:
            where = [{"where": ["agent=a1"]}, {"where": ["agent=a2"]}]
        put_fleet(
            fleet, [deployment("one", model, **where[0]), deployment("two", other, **where[1])]
        )
        serving(
            fleet, {f"a{n}.{name}" for n, name in zip((1, agents), ("one", "two"), strict=True)}
        )
        yield fleet


def measure_shared(model: Path, rounds: int) -> None:
    together, apart = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for agents, found in ((1, together), (2, apart)):
                with two_models(Path(folder), model, agents=agents) as fleet:
                    found.append(rate(fleet))
            print(f"  together {together[-1]:.0f}, apart {apart[-1]:.0f} tokens/s", flush=True)
    one, two = statistics.median(together), statistics.median(apart)
    print(
        f"shared: two models on one agent {one:.0f} tokens/s, on two agents {two:.0f}: "
        f"{one / two:.2f} x (medians of {rounds})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["cold", "shared"])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all that was started ends with this
    watch = threading.Timer(LIMIT_S, lambda: os.kill(os.getpid(), signal.SIGTERM))
    watch.daemon = True
    watch.start()
    if options.only != "shared":
        measure_cold(options.model, options.rounds)
    if options.only != "cold":
        measure_shared(options.model, options.rounds)


if __name__ == "__main__":
    main()

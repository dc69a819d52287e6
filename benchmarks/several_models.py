"""Several models on one agent: what the first request for one costs, and what sharing costs.

    python benchmarks/several_models.py [--model FILE] [--rounds 5] [--only cold|shared|adapters]

Balancer, agents and engines are real processes on loopback, started as users start them. Ends by
itself within nine minutes.

cold     From a request to the first token of a model that is not loaded, against an engine alone
         that loads the same file with the same settings, until it is ready and until it has the
         first token of the same prompt; in turns.
shared   Two models on one agent against two agents with one each, the same slots and threads: both
         are kept busy. Tokens per second of all streams; in turns.
adapters Eight streams of one engine: all with one LoRA adapter, against four each with one of two,
         which cannot share a pass; and all without one. Tokens per second; in turns.
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

import attrs
import httpx

from paddler_trio.cli.balancer_http import lines_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))
from fleet import OWN_INTERPRETER, Fleet

from lora_adapters import write_lora
from paddler_trio import __version__
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    AdapterScale,
    FromEngine,
    LoadFailed,
    LoadModel,
    Ready,
    StartSequence,
    Step,
    ToEngine,
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
ADAPTER_STREAMS = 8
ADAPTER_TOKENS = 160
ENDLESS = attrs.evolve(GREEDY, ignore_eos=True)


def load_of(model: Path, slots: int) -> LoadModel:
    return LoadModel(str(model), slots, CONTEXT, 512, 0, "F16", "F16", 1, __version__)


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


@attrs.define
class Engine:
    """An engine that nobody supervises."""

    process: subprocess.Popen[bytes]

    def send(self, frame: ToEngine) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(frame))
        self.process.stdin.flush()

    def receive(self) -> FromEngine:
        assert self.process.stdout is not None
        prefix = self.process.stdout.read(LENGTH_BYTES)
        return decode_from_engine(self.process.stdout.read(body_length(prefix)))

    @property
    def cpu_s(self) -> float:
        """Seconds that its threads have run: on a busy machine they say more than the time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def until_ready(self) -> None:
        while not isinstance(frame := self.receive(), Ready):
            if isinstance(frame, LoadFailed):
                raise SystemExit(f"the engine cannot load: {frame.reason}")


@contextmanager
def engine(load: LoadModel) -> Iterator[Engine]:
    with subprocess.Popen(
        [sys.executable, "-m", "paddler_trio.processes.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            found = Engine(process)
            found.send(load)
            yield found
        finally:
            process.kill()


def bare(model: Path) -> tuple[float, float]:
    """Seconds until an engine that nobody supervises is ready, and until its first token."""
    began_s = time.perf_counter()
    with engine(load_of(model, SLOTS)) as alone:
        alone.until_ready()
        ready_s = time.perf_counter() - began_s
        alone.send(StartSequence(1, PROMPT, [], 1, GREEDY, None))
        while not (isinstance(frame := alone.receive(), Step) and frame.sampled):
            pass
        return ready_s, time.perf_counter() - began_s


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


# ------------------------------------------------------------------------------ adapters


def streams_rate(
    running: Engine, first_key: int, chosen: Sequence[int | None]
) -> tuple[float, float]:
    """Tokens per second, and per second that the engine computes, of as many streams, each with one
    of the adapters or without."""
    for number, place in enumerate(chosen):
        adapters = [] if place is None else [AdapterScale(place, 1.0)]
        prompt = [*PROMPT, 400 + number]
        running.send(
            StartSequence(
                first_key + number, prompt, [], ADAPTER_TOKENS, ENDLESS, None, adapters=adapters
            )
        )
    began_s, cpu_s, counted, ended = 0.0, 0.0, 0, 0
    while ended < len(chosen):
        frame = running.receive()
        if not isinstance(frame, Step):
            continue
        if not began_s:
            began_s, cpu_s = time.perf_counter(), running.cpu_s  # the first passes are prompts
        else:
            counted += len(frame.sampled)
        ended += len(frame.endings)
    return counted / (time.perf_counter() - began_s), counted / (running.cpu_s - cpu_s)


def measure_adapters(model: Path, rounds: int, threads: int) -> None:
    ways: dict[str, list[int | None]] = {
        "none": [None] * ADAPTER_STREAMS,
        "one": [0] * ADAPTER_STREAMS,
        "two": [number % 2 for number in range(ADAPTER_STREAMS)],
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(write_lora(Path(folder, f"{n}.gguf"), model, seed=n)) for n in (1, 2)]
        load = attrs.evolve(load_of(model, ADAPTER_STREAMS), threads=threads, adapters=paths)
        with engine(load) as running:
            running.until_ready()
            key = 1
            for number in range(rounds + 1):
                for name, chosen in ways.items():
                    rate = streams_rate(running, key, chosen)
                    key += ADAPTER_STREAMS
                    if number:  # the first one learns
                        rates[name].append(rate)
    for unit, place in (("tokens/s", 0), ("tokens per computed second", 1)):
        none, one, two = ([rate[place] for rate in found] for found in rates.values())
        ratio = statistics.median(b / a for a, b in zip(one, two, strict=True))
        print(
            f"adapters: {unit}, {ADAPTER_STREAMS} streams: "
            f"without one {statistics.median(none):.0f}, with one {statistics.median(one):.0f}, "
            f"with two {statistics.median(two):.0f}: {ratio:.2f} x (medians of {rounds})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["cold", "shared", "adapters"])
    parser.add_argument("--threads", type=int, default=1, help="of the engine with adapters")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all that was started ends with this
    watch = threading.Timer(LIMIT_S, lambda: os.kill(os.getpid(), signal.SIGTERM))
    watch.daemon = True
    watch.start()
    if options.only in (None, "cold"):
        measure_cold(options.model, options.rounds)
    if options.only in (None, "shared"):
        measure_shared(options.model, options.rounds)
    if options.only in (None, "adapters"):
        measure_adapters(options.model, options.rounds, options.threads)


if __name__ == "__main__":
    main()

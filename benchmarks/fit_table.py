"""What a dry run predicts, next to what llama.cpp then allocates and what the process takes.

    .venv/bin/python benchmarks/fit_table.py [--only NAME] [--folder DIR] [--json]
    .venv/bin/python benchmarks/fit_table.py --n-gpu-layers -1 --context-size 65536 --slots 16

For each architecture of ``fit_models.py``: its file is written, a dry run reads its header, an
engine loads it, every slot gets a prompt and generates, and the system is asked what the engine's
process has: pages of its own and pages of the model's file. The last column passes if prediction
and process differ by 5 % or 50 MiB at most, and all buffers by 5 %.

With layers on a GPU three columns more: what was predicted there, what llama.cpp allocated, and how
much less is free than before, which has the driver's share in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs
import numpy as np
import trio
from fit_models import SHAPES, Shape, write

from paddler_trio import __version__
from paddler_trio.models.memory.memory_prediction import memory_need
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    EmbedDocuments,
    FromEngine,
    LoadModel,
    Ready,
    StartSequence,
    Step,
    ToEngine,
)
from paddler_trio.wire.engine.memory_need import MemoryNeed, MemoryUse
from paddler_trio.wire.engine.pipe_codec import (
    LENGTH_BYTES,
    body_length,
    decode_from_engine,
    encode,
)
from paddler_trio.wire.engine.sampler_stages import Sampling

MIB = 1 << 20
PROMPT_TOKENS = 700
GENERATED_TOKENS = 4
GREEDY = Sampling(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    penalty_last_n=0,
    penalty_repeat=1.0,
    penalty_frequency=0.0,
    penalty_presence=0.0,
    seed=1,
    ignore_eos=True,
)


@attrs.frozen(kw_only=True)
class Terms:
    """How each model is loaded."""

    slots: int
    context_size: int
    n_gpu_layers: int
    cache_type: str


@attrs.frozen
class Row:
    """One architecture; MiB. ``gpu``: predicted, allocated and taken, of all GPUs together."""

    name: str
    file: float
    predicted: dict[str, float]
    actual: dict[str, float]
    process_predicted: float
    process_measured: float
    dry_run_ms: float
    gpu: tuple[float, float, float]

    @property
    def difference(self) -> float:
        return self.process_predicted - self.process_measured

    @property
    def passes(self) -> bool:
        fits = abs(self.difference) <= max(50, 0.05 * self.process_measured)
        parts = [part for part in self.actual if part != "weights" or not SHAPES[self.name].repacks]
        return fits and all(
            abs(self.predicted[part] - self.actual[part]) <= max(1, 0.05 * self.actual[part])
            for part in parts
        )


class Engine:
    """An engine process over its pipe."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self.log = log

    def send(self, frame: ToEngine) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(frame))
        self.process.stdin.flush()

    def receive(self) -> FromEngine:
        assert self.process.stdout is not None
        prefix = self.process.stdout.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            status = self.process.wait()
            self.log.seek(0)
            lines = self.log.read().decode(errors="replace").splitlines()
            raise SystemExit(f"the engine died ({status}): {lines[-8:]}")
        return decode_from_engine(self.process.stdout.read(body_length(prefix)))


@contextmanager
def engine(log: IO[bytes]) -> Iterator[Engine]:
    process = subprocess.Popen(
        [sys.executable, "-m", "paddler_trio.processes.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    with process:
        try:
            yield Engine(process, log)
        finally:
            process.kill()


def load_of(shape: Shape, path: Path, terms: Terms) -> LoadModel:
    return LoadModel(
        str(path),
        terms.slots,
        terms.context_size,
        512,
        terms.n_gpu_layers,
        terms.cache_type,
        terms.cache_type,
        2,
        __version__,
        embeddings=shape.encodes,
    )


def use_up(running: Engine, shape: Shape, terms: Terms) -> None:
    """A prompt in every slot, and some tokens after it; or a full batch of embeddings."""
    random = np.random.default_rng(1)
    if shape.encodes:
        tokens = random.integers(5, shape.vocabulary, 500).astype(np.int32)
        running.send(EmbedDocuments(1, [tokens.tobytes()]))
        while not isinstance(running.receive(), EmbeddingStep):
            pass
        return
    length = min(PROMPT_TOKENS, terms.context_size // terms.slots - GENERATED_TOKENS)
    for key in range(terms.slots):
        tokens = random.integers(3, shape.vocabulary, length).tolist()
        running.send(StartSequence(key, tokens, [], GENERATED_TOKENS, GREEDY, None))
    left = terms.slots
    while left:
        frame = running.receive()
        if isinstance(frame, Step):
            left -= len(frame.endings)


def process_bytes(pid: int, files: list[Path]) -> int:
    """Its own pages, and pages of these files, that are in memory."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) * 1024
    names = {str(path) for path in files}
    is_ours, mapped = False, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            is_ours = line.rpartition(" ")[2] in names
        elif is_ours and line.startswith("Rss:"):
            mapped += int(line.split()[1]) * 1024
    return own + mapped


def parts_of(record: MemoryNeed | MemoryUse) -> dict[str, float]:
    return {
        part: sum(getattr(device, part) for device in record.devices) / MIB
        for part in ("weights", "kv", "compute", "embedding")
    }


def gpu_of(need: MemoryNeed, use: MemoryUse) -> tuple[float, float, float]:
    names = {device.name for device in use.devices if device.kind == "gpu"}
    predicted = sum(device.needed for device in need.devices if device.name in names)
    allocated = sum(device.needed for device in use.devices if device.name in names)
    taken = sum(count for name, count in use.taken.items() if name in names)
    return predicted / MIB, allocated / MIB, taken / MIB


def measure(name: str, folder: Path, terms: Terms) -> Row:
    shape = SHAPES[name]
    files = write(shape, folder, "model")
    load = load_of(shape, files[0], terms)
    began_s = time.perf_counter()
    need = trio.run(memory_need, load)
    took_ms = (time.perf_counter() - began_s) * 1000
    with tempfile.TemporaryFile() as log, engine(log) as running:
        running.send(load)
        frame = running.receive()
        while not isinstance(frame, Ready):
            if type(frame).__name__ == "LoadFailed":
                raise SystemExit(f"{name}: {frame}")
            frame = running.receive()
        use_up(running, shape, terms)
        measured = process_bytes(running.process.pid, files)
    assert frame.memory is not None
    size = sum(path.stat().st_size for path in files)
    for path in files:
        path.unlink()
    return Row(
        name,
        size / MIB,
        parts_of(need),
        parts_of(frame.memory),
        need.host_needed / MIB,
        measured / MIB,
        took_ms,
        gpu_of(need, frame.memory),
    )


def main() -> int:
    """Exit status 1 if a row does not pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=SHAPES, help="one architecture")
    parser.add_argument("--folder", type=Path, help="for the models; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context-size", type=int, default=16384, help="of all slots together")
    parser.add_argument("--n-gpu-layers", type=int, default=0, help="-1 for all; default: none")
    parser.add_argument("--cache-type", choices=("F16", "Q8_0"), default="F16")
    options = parser.parse_args()
    if options.context_size // max(1, options.slots) <= GENERATED_TOKENS or options.slots < 1:
        parser.error(f"--context-size {options.context_size} is not enough for every slot")
    terms = Terms(
        slots=options.slots,
        context_size=options.context_size,
        n_gpu_layers=options.n_gpu_layers,
        cache_type=options.cache_type,
    )
    rows = []
    if not options.json:
        more = " GPU predicted | allocated | taken |" if terms.n_gpu_layers else ""
        print(
            "| architecture | file | weights | KV | compute | embedding | process predicted | "
            f"process measured | difference | dry run |{more} |\n"
            f"|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|{'--:|' * more.count('|')}---|"
        )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in options.only or SHAPES:
            row = measure(name, Path(folder), terms)
            rows.append(row)
            if options.json:
                print(json.dumps(attrs.asdict(row) | {"passes": row.passes}), flush=True)
                continue
            pairs = " | ".join(
                f"{row.predicted[part]:.1f} / {row.actual[part]:.1f}" for part in row.actual
            )
            gpu = "".join(f" {size:.0f} |" for size in row.gpu) if terms.n_gpu_layers else ""
            print(
                f"| {name} | {row.file:.0f} | {pairs} | {row.process_predicted:.0f} | "
                f"{row.process_measured:.0f} | {row.difference:+.0f} | {row.dry_run_ms:.0f} ms |"
                f"{gpu} {'yes' if row.passes else 'NO'} |",
                flush=True,
            )
    return 0 if all(row.passes for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

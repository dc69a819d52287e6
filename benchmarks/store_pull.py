"""What running streams notice while the model store feeds the fleet: gaps with and without it.

    python benchmarks/store_pull.py [--model FILE] [--rounds 5] [--megabytes 1024] [--pullers 4]

One balancer with a model store, one agent with four streams. A round is a *quiet* window and then a
*pulling* one: pullers read a file that the store has never seen, through it, again and again, as
fast as they can; first the store fetches it from a hub (each byte once), then it sends it from its
disk. The ratio is that of the 99th percentiles of the gaps between tokens within one round.

The hub and the pullers stand for other machines: they run when nobody else wants the processor,
pullers discard what they read, and together they read no faster than ``--gigabits``. Everything is
on loopback and ends with this process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import attrs
from load_client import Lane, run_lanes

sys.path.append(str(Path(__file__).parents[1] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "integration"))
from fleet import Fleet, children

from hub_server import Misbehaviour, Repository, hub_server

STREAMS = 4
PROMPT_TOKENS = 304
"""Room for them in each slot, beside the answer."""
LIMIT_S = 300.0
READ_BYTES = 1 << 20
CALM_S = 3.0
MOST_OTHERS = 0.15
"""Processors; a round in which others had more is shown and not counted."""
MB = 1_000_000
REPO = "bench/pull"


# ------------------------------------------------------------------------ the hub, a process


@attrs.define
class KnownRepository(Repository):
    """Files that are hashed once: the hub's own time is not what is measured."""

    hashes: dict[str, str] = attrs.field(factory=dict)

    @property
    def commit(self) -> str:
        return "c" * 40

    def etag(self, path: str) -> str:
        return self.hashes[path]


def stand_elsewhere() -> None:
    """What stands for another machine runs when nobody here wants the processor."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(FileNotFoundError):  # a kernel that does not schedule sessions as groups
        Path("/proc/self/autogroup").write_text("19")


def run_hub(files: int, size_bytes: int) -> None:
    """Serve ``files`` files; answer each line on standard input with the bytes sent so far."""
    stand_elsewhere()
    repository = KnownRepository({})
    block = random.Random(1).randbytes(MB)
    for number in range(files):
        data = number.to_bytes(8, "big") + (block * (size_bytes // MB + 1))[: size_bytes - 8]
        repository.files[f"f{number}.gguf"] = data
        repository.hashes[f"f{number}.gguf"] = hashlib.sha256(data).hexdigest()
    with hub_server({REPO: repository}) as hub:
        hub.misbehave = lambda seen: Misbehaviour(etag='"of the storage"')
        print(hub.hub_url, flush=True)
        for _ in sys.stdin:
            print(hub.served_bytes, flush=True)


@attrs.frozen(eq=False)
class Hub:
    process: subprocess.Popen[str]
    url: str

    @property
    def served_bytes(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def hub_process(files: int, size_bytes: int) -> Iterator[Hub]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--hub", str(files), str(size_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield Hub(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()


# --------------------------------------------------------------------- pullers, a process each


def run_puller(address: str, path: str, bytes_per_s: float) -> None:
    """Read ``path`` again and again until standard input ends; print how many bytes."""
    stand_elsewhere()
    host, _, port = address.rpartition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
    total, buffer, began_s = 0, bytearray(READ_BYTES), time.monotonic()
    os.set_blocking(0, False)
    while True:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(request)
            # the bytes are discarded in the kernel: this stands for another machine
            while count := connection.recv_into(buffer, READ_BYTES, socket.MSG_TRUNC):
                total += count
                ahead_s = total / bytes_per_s - (time.monotonic() - began_s)
                if ahead_s > 0.01:
                    time.sleep(ahead_s)
                if _is_over():
                    print(total, flush=True)
                    return


def _is_over() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


@attrs.define(eq=False)
class Pullers:
    """All of one window."""

    processes: list[subprocess.Popen[bytes]]

    @classmethod
    def start(cls, count: int, address: str, path: str, bytes_per_s: float) -> Pullers:
        command = [sys.executable, __file__, "--pull", address, path, str(bytes_per_s / count)]
        return cls(
            [
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                for _ in range(count)
            ]
        )

    def stop(self) -> int:
        """Bytes that they read together."""
        total = 0
        for process in self.processes:
            out, _ = process.communicate(timeout=60)
            total += int(out or 0)
        return total

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


# ---------------------------------------------------------------------------------- measuring


@attrs.frozen
class Window:
    """What one window gave. ``gaps_ms`` between two pieces of one answer, all streams together."""

    gaps_ms: list[float]
    duration_s: float
    others: float
    """Processors that were busy with what is not of this benchmark."""

    @property
    def is_disturbed(self) -> bool:
        return self.others > MOST_OTHERS

    def percentile_ms(self, percent: int) -> float:
        return statistics.quantiles(self.gaps_ms, n=100)[percent - 1]


def stream(address: str, seed: int, tokens: int) -> Window:
    """One window of streams."""
    host, _, port = address.rpartition(":")
    lanes = [Lane((_request(address, seed * 100 + lane, tokens),)) for lane in range(STREAMS)]
    began_s, others_s = time.perf_counter(), cpu_of_others_s()
    answers = run_lanes((host, int(port)), lanes, limit_s=LIMIT_S)
    took_s = time.perf_counter() - began_s
    others = max(0.0, cpu_of_others_s() - others_s) / took_s
    gaps = []
    for exchange in (exchange for lane in answers for exchange in lane):
        moments = [moment for moment, data in exchange.pieces if b'Token":"' in data]
        assert len(moments) > tokens // 2, exchange.pieces[0][1][:500]
        gaps += [1000 * (after - before) for before, after in pairwise(moments)]
    return Window(gaps, took_s, others)


def _request(address: str, number: int, tokens: int) -> bytes:
    body = json.dumps(
        {
            "prompt": {"Text": {"text": f"Story {number}: once upon a time"}},
            "max_tokens": tokens,
            "sampling": {"temperature": 0, "ignore_eos": True},
        }
    ).encode()
    head = (
        f"POST /api/v2/generate HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def cpu_of_others_s() -> float:
    """Processor time of this machine since it began, less that of this process and all below it.
    Those that end in between count as others from then on, so none ends in a window."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = ticks[:8]
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    below, found = [os.getpid()], [os.getpid()]
    while below:
        below = [child for pid in below for child in children(pid)]
        found += below
    return busy_s - sum(map(cpu_s, found))


def wait_for_others(patience_s: float) -> None:
    """Until nobody else has been busy for ``CALM_S``, or ``patience_s`` are over."""
    give_up_s = time.monotonic() + patience_s
    while time.monotonic() < give_up_s:
        before_s = cpu_of_others_s()
        time.sleep(CALM_S)
        if (cpu_of_others_s() - before_s) / CALM_S <= MOST_OTHERS:
            return


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    model: Path,
    folder: Path,
    rounds: int,
    size_bytes: int,
    pullers: int,
    bytes_per_s: float,
    patience_s: float,
    tokens: int,
) -> None:
    options = [
        f"--model-store={folder / 'store'}",
        f"--model-store-size={size_bytes * rounds * 2}B",
    ]
    with (
        hub_process(rounds, size_bytes) as hub,
        Fleet.start(
            agents=0, model=None, balancer_options=options, env={"HF_ENDPOINT": hub.url}
        ) as fleet,
    ):
        (store,) = children(fleet.balancer.pid)
        fleet.desire(model, context_size=STREAMS * (tokens + PROMPT_TOKENS))
        fleet.start_agent("a1", slots=STREAMS, options=["--threads=1"])
        fleet.wait_serving()
        stream(fleet.inference, 99, tokens // 10)  # to warm up
        ratios = []
        print(" round  window   p50 ms   p95 ms   p99 ms   tok/s others")
        for number in range(rounds):
            wait_for_others(patience_s)
            quiet = stream(fleet.inference, number, tokens)
            show(number, "quiet", quiet)
            path = f"/api/v2/store/hf/{REPO}/resolve/main/f{number}.gguf"
            before_bytes, before_s = hub.served_bytes, cpu_s(store)
            crowd = Pullers.start(pullers, fleet.management, path, bytes_per_s)
            try:
                pulling = stream(fleet.inference, number, tokens)
                pulled = crowd.stop()
            finally:
                crowd.kill()
            show(number, "pulling", pulling)
            ratio = pulling.percentile_ms(99) / quiet.percentile_ms(99)
            if not (quiet.is_disturbed or pulling.is_disturbed):
                ratios.append(ratio)
            outside = hub.served_bytes - before_bytes
            print(
                f"      ratio of p99 {ratio:.2f}; pulled {pulled / MB:,.0f} MB at "
                f"{pulled / MB / pulling.duration_s:,.0f} MB/s, from outside "
                f"{outside / MB:,.0f} MB of {size_bytes / MB:,.0f}; the store's processor time "
                f"{(cpu_s(store) - before_s) / pulled * 1e9:.2f} s per GB",
                flush=True,
            )
        if ratios:
            middle = statistics.median(ratios)
            print(f"ratio of p99, median of {len(ratios)} rounds without others: {middle:.2f}")
        else:
            print("others were busy in every round: no figure")


def show(number: int, name: str, window: Window) -> None:
    tokens_per_s = (len(window.gaps_ms) + STREAMS) / window.duration_s
    figures = " ".join(f"{window.percentile_ms(p):8.2f}" for p in (50, 95, 99))
    print(f"{number:>5} {name:>8} {figures} {tokens_per_s:7.0f} {window.others:6.2f}", flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["--hub", files, size_bytes]:
            run_hub(int(files), int(size_bytes))
            return
        case ["--pull", address, path, bytes_per_s]:
            run_puller(address, path, float(bytes_per_s))
            return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="to stream from; else one of 56 M parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024, help="of each file that is pulled")
    parser.add_argument("--pullers", type=int, default=4)
    parser.add_argument(
        "--tokens",
        type=int,
        default=2000,
        help="of each stream in a window; streams have their gaps at the same time, so that the "
        "99th percentile is of this number and not of four times as many",
    )
    parser.add_argument(
        "--gigabits", type=float, default=10.0, help="per second, of the network to all pullers"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds that a round waits for others"
    )
    parser.add_argument("--folder", type=Path, help="for the store; needs rounds x megabytes")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all that was started ends with this
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        model = arguments.model
        if model is None:
            model = folder / "bench.gguf"
            maker = Path(__file__).with_name("make_model.py")
            subprocess.run(
                [sys.executable, str(maker), "--parameters=56M", f"--out={model}"], check=True
            )
        measure(
            model,
            folder,
            arguments.rounds,
            arguments.megabytes * MB,
            max(1, arguments.pullers),
            arguments.gigabits * 1e9 / 8,
            arguments.patience,
            arguments.tokens,
        )


if __name__ == "__main__":
    main()

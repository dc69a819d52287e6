"""What an engine notices of its own agent's download: gaps between passes, with and without one.

    python benchmarks/download_beside.py [--rounds 5] [--seconds 8] [--megabytes 1024]

A stand-in for an engine multiplies matrices in passes of about 2 ms in this session, as an engine
does in its agent's. Rounds go through three windows in turns: *quiet*; *here*, with downloads in a
process of normal priority beside it, as an agent without ``fetch_apart`` has them; *apart*, with
the child process that agents have fetch large files. The server is a session of its own. Ratios
are those of one round to its quiet window; files lie in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
import structlog
import trio
from download_speed import MB

from paddler_trio.agent.children.download_process import fetch_apart
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.system.heap import freeze_heap, give_back_large_blocks
from paddler_trio.wire.paddler.desired_state import UrlModel

WINDOWS = ("quiet", "here", "apart")
START_S = 0.6
PAUSE_S = 0.0002
"""Between two passes, where an engine hands its step over."""
PERCENTILES = (50, 95, 99)


def run_engine(seconds: float) -> None:
    """Passes for so long; prints how many, and percentiles of the gaps in milliseconds."""
    import numpy as np  # only this process needs it

    matrix = np.random.default_rng(1).random((1200, 1200), dtype=np.float32)
    vector = matrix[:, :1].copy()
    gaps_ms, end_s, before_s = [], time.monotonic() + seconds, time.perf_counter()
    while time.monotonic() < end_s:
        for _ in range(8):
            vector = matrix @ vector
            vector /= np.abs(vector).max()
        time.sleep(PAUSE_S)
        now_s = time.perf_counter()
        gaps_ms.append(1000 * (now_s - before_s))
        before_s = now_s
    quantiles = statistics.quantiles(gaps_ms, n=100)
    print(len(gaps_ms), *(quantiles[percent - 1] for percent in PERCENTILES))


def run_downloads(window: str, url: str, folder: Path) -> None:
    """The same file into another cache, again and again until killed; a line for each."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    give_back_large_blocks()
    freeze_heap()
    while True:
        settings = attrs.evolve(
            HubSettings.from_environment(), cache=folder / "hub", url_cache=folder / "urls"
        )
        download = ModelDownload(settings, lambda progress: None)
        if window == "apart":
            download.elsewhere = fetch_apart
        trio.run(download.fetch, UrlModel(url))
        print("fetched", flush=True)
        shutil.rmtree(folder)


@attrs.frozen
class Window:
    num_gaps: int
    percentiles_ms: tuple[float, ...]
    num_files: int


def measure(window: str, seconds: float, url: str, folder: Path) -> Window:
    """Ends with everything that it started."""
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []
    try:
        if window != "quiet":
            command = [sys.executable, __file__, "--downloads", window, url, str(folder)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            time.sleep(START_S)  # the interpreter's start is no download
        command = [sys.executable, __file__, "--engine", str(seconds)]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread)
        started.append(engine)
        out, _ = engine.communicate(timeout=10 * seconds + 60)
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
    num_files = 0
    if window != "quiet":
        assert started[0].stdout is not None
        num_files = len(started[0].stdout.read().split())
    shutil.rmtree(folder, ignore_errors=True)
    num_gaps, *percentiles_ms = map(float, out.split())
    return Window(int(num_gaps), tuple(percentiles_ms), num_files)


def main() -> None:
    match sys.argv[1:]:
        case ["--engine", seconds]:
            run_engine(float(seconds))
            return
        case ["--downloads", window, url, folder]:
            run_downloads(window, url, Path(folder))
            return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each window")
    parser.add_argument("--megabytes", type=int, default=1024)
    arguments = parser.parse_args()
    taken: dict[str, list[Window]] = {window: [] for window in WINDOWS}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # memory, not the disk
        source, digest = Path(name) / "m.gguf", hashlib.sha256()
        block = os.urandom(MB)
        with source.open("wb") as file:
            for _ in range(arguments.megabytes):
                file.write(block)
                digest.update(block)
        server = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("download_speed.py")),
                "--serve",
                str(source),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # connections that a killed download leaves
            text=True,
            start_new_session=True,
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            url = f"http://127.0.0.1:{port}/m.gguf#sha256={digest.hexdigest()}"
            print(" round  window    gaps   p50 ms   p95 ms   p99 ms  files")
            for number in range(arguments.rounds):
                for window in WINDOWS:
                    each = measure(window, arguments.seconds, url, Path(name) / "cache")
                    taken[window].append(each)
                    figures = " ".join(f"{value:8.2f}" for value in each.percentiles_ms)
                    print(
                        f"{number:>6} {window:>7} {each.num_gaps:7} {figures} {each.num_files:6}",
                        flush=True,
                    )
        finally:
            server.kill()
            server.wait()
    for window in WINDOWS[1:]:
        ratios = (
            statistics.median(
                one.percentiles_ms[index] / quiet.percentiles_ms[index]
                for one, quiet in zip(taken[window], taken["quiet"], strict=True)
            )
            for index in range(len(PERCENTILES))
        )
        words = ", ".join(f"p{p} {ratio:.2f}" for p, ratio in zip(PERCENTILES, ratios, strict=True))
        print(f"{window} / quiet, medians of {arguments.rounds}: {words}")


if __name__ == "__main__":
    main()

"""A download of ours, its hash and its place in the cache included, against ``curl``.

    python benchmarks/download_speed.py [--rounds 5] [--megabytes 1024] [--folder DIR]

A server of its own process sends a file from the page cache, whole or in ranges. In turns, each a
process of its own: ``curl`` writes it to a file, and an agent's download fetches it as a URL with
its hash; who begins changes. Then the same with ``curl`` and a ``sha256sum`` that reads its file.
Shown are bytes a second, and processor time for a GB of the one that fetches. The first round of
each warms up and is not counted.

``sha256sum`` has rounds of its own since it takes seconds: a virtual machine may give free memory
back to its host meanwhile, and to get it again takes as long as a whole download.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import structlog
import trio

from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.system.heap import freeze_heap, give_back_large_blocks
from paddler_trio.wire.paddler.desired_state import UrlModel

MB = 1_000_000
LIMIT_S = 300


class SendFile(BaseHTTPRequestHandler):
    """One file, from its first byte or from where a range begins."""

    protocol_version = "HTTP/1.1"
    path_served = ""

    def do_GET(self) -> None:
        size_bytes = Path(self.path_served).stat().st_size
        start, stop, status = 0, size_bytes, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked:
            start, stop, status = int(asked[1]), min(int(asked[2]) + 1, size_bytes), 206
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size_bytes}")
        self.end_headers()
        with Path(self.path_served).open("rb") as file:
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def log_message(self, *args: object) -> None:
        pass


def serve(path: str) -> None:
    SendFile.path_served = path
    server = ThreadingHTTPServer(("127.0.0.1", 0), SendFile)
    print(server.server_port, flush=True)
    server.serve_forever()


def fetch(url: str, folder: str) -> None:
    """As an agent does, and nothing else of an agent."""
    root = Path(folder)
    settings = attrs.evolve(
        HubSettings.from_environment(), cache=root / "hub", url_cache=root / "urls"
    )
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    give_back_large_blocks()
    freeze_heap()
    before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    trio.run(ModelDownload(settings, lambda progress: None).fetch, UrlModel(url))
    seconds = time.perf_counter() - began_s
    print(seconds, cpu_s(before, resource.getrusage(resource.RUSAGE_SELF)), flush=True)


def cpu_s(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@attrs.frozen
class Taken:
    seconds: float
    cpu_s: float

    @classmethod
    def by_commands(cls, *commands: list[str]) -> Taken:
        """One after the other."""
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        for command in commands:
            subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began_s
        return cls(seconds, cpu_s(before, resource.getrusage(resource.RUSAGE_CHILDREN)))

    @classmethod
    def by_us(cls, url: str, folder: Path) -> Taken:
        """The start of the interpreter, which agents have behind them, is not in it."""
        command = [sys.executable, __file__, "--fetch", url, str(folder)]
        done = subprocess.run(
            command, check=True, timeout=LIMIT_S, stdout=subprocess.PIPE, text=True
        )
        return cls(*map(float, done.stdout.split()))


def measure(url: str, digest: str, size_bytes: int, rounds: int, root: Path) -> None:
    folder = root / "round"
    file = str(folder / "m.gguf")
    curl = ["curl", "--silent", "--noproxy", "*", "--output", file, url]
    ours = partial(Taken.by_us, f"{url}#sha256={digest}", folder)
    compare({"curl": partial(Taken.by_commands, curl), "ours": ours}, folder, size_bytes, rounds)
    both = partial(Taken.by_commands, curl, ["sha256sum", file])
    compare({"curl, sha256sum": both, "ours": ours}, folder, size_bytes, rounds)


def compare(
    contestants: dict[str, Callable[[], Taken]], folder: Path, size_bytes: int, rounds: int
) -> None:
    """Two of them in turns, each into ``folder``, which is empty then; prints each round."""
    taken: dict[str, list[Taken]] = {name: [] for name in contestants}
    print(" round  " + "  ".join(f"{name:>15} MB/s, s/GB" for name in taken))
    for number in range(rounds + 1):
        this_round: dict[str, Taken] = {}
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            folder.mkdir()
            this_round[name] = contestants[name]()
            shutil.rmtree(folder)
        line = f"{number or 'warm':>6}  "
        for name, all_ in taken.items():
            each = this_round[name]
            line += (
                f"{size_bytes / MB / each.seconds:15.0f} {each.cpu_s / size_bytes * 1e9:10.2f}  "
            )
            if number:
                all_.append(each)
        print(line, flush=True)
    theirs, ours = taken
    pairs = zip(taken[theirs], taken[ours], strict=True)
    ratio = statistics.median(their.seconds / our.seconds for their, our in pairs)
    print(f"bytes a second, ours / {theirs}: {ratio:.2f}, median of {rounds}")
    cpu = {name: statistics.median(each.cpu_s for each in all_) for name, all_ in taken.items()}
    words = ", ".join(f"{name} {value / size_bytes * 1e9:.2f}" for name, value in cpu.items())
    print(f"seconds of processor for a GB: {words}\n", flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["--serve", path]:
            serve(path)
            return
        case ["--fetch", url, folder]:
            fetch(url, folder)
            return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="for all files: 2 x megabytes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        root = Path(name)
        source, digest = root / "m.gguf", hashlib.sha256()
        block = os.urandom(MB)
        with source.open("wb") as file:
            for _ in range(arguments.megabytes):
                file.write(block)
                digest.update(block)
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(source)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/m.gguf"
            size_bytes = arguments.megabytes * MB
            measure(url, digest.hexdigest(), size_bytes, arguments.rounds, root)
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()

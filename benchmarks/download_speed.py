"""A download of ours, its hash and its place in the cache included, against ``curl``.

    python benchmarks/download_speed.py [--rounds 5] [--megabytes 1024] [--folder DIR]

A server of its own process sends a file from the page cache, whole or in ranges. In turns, each a
process of its own: ``curl`` writes it to a file, and an agent's download fetches it as a URL with
its hash. Shown are bytes a second, and processor time for a GB of the one that fetches.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import structlog
import trio

from paddler_trio.models.hub_settings import HubSettings
from paddler_trio.models.model_download import ModelDownload
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
    def by_curl(cls, url: str, file: Path) -> Taken:
        command = ["curl", "--silent", "--noproxy", "*", "--output", str(file), url]
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, timeout=LIMIT_S)
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
    ours, theirs = [], []
    print(" round   curl MB/s  s of processor/GB   ours MB/s  s of processor/GB   ratio")
    for number in range(rounds):
        # nothing is removed before the end: both write to memory that is as new to them
        curl = Taken.by_curl(url, root / f"curl {number}")
        own = Taken.by_us(f"{url}#sha256={digest}", root / f"own {number}")
        theirs.append(curl)
        ours.append(own)
        figures = "  ".join(
            f"{size_bytes / MB / each.seconds:10.0f} {each.cpu_s / size_bytes * 1e9:18.2f}"
            for each in (curl, own)
        )
        print(f"{number:>6} {figures} {curl.seconds / own.seconds:7.2f}", flush=True)
    ratio = statistics.median(a.seconds / b.seconds for a, b in zip(theirs, ours, strict=True))
    cpu = statistics.median(each.cpu_s for each in ours) / size_bytes * 1e9
    print(f"ours / curl, median of {rounds}: {ratio:.2f}; {cpu:.2f} s of processor for a GB")


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
    parser.add_argument("--folder", type=Path, help="for all files: megabytes x (2 x rounds + 1)")
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

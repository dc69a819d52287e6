"""How many bytes a download fetches twice because it was killed.

    python benchmarks/download_resume.py [--points 10] [--megabytes 512] [--seed 1]

A server of this process sends a file in ranges and counts what it sent. A process of its own
fetches it, as an agent does, and gets SIGKILL as soon as so many bytes were sent; the next one
fetches the rest and compares the hash. Then the same for the next point, in an empty cache. Counted
is what was given to the server's sockets, which keep little: bytes that arrived and that the killed
one never read count as well. It ends by itself within some minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from download_speed import LIMIT_S, MB

PIECE_BYTES = 256 * 1024
FETCH = Path(__file__).with_name("download_speed.py")


class Sent:
    """Counts the bytes of all connections, and tells when there are so many."""

    def __init__(self) -> None:
        self.bytes = 0
        self._more = threading.Condition()

    def add(self, count: int) -> None:
        with self._more:
            self.bytes += count
            self._more.notify_all()

    def wait(self, until_bytes: int) -> bool:
        """False if that took too long."""
        with self._more:
            return self._more.wait_for(lambda: self.bytes >= until_bytes, LIMIT_S)


def server_of(path: Path, sent: Sent) -> ThreadingHTTPServer:
    """One file, in ranges; every connection counts."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)
            super().setup()

        def do_GET(self) -> None:
            size_bytes = path.stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            assert asked is not None, "a download of ours asks for ranges"
            start, stop = int(asked[1]), min(int(asked[2]) + 1, size_bytes)
            self.send_response(206)
            self.send_header("ETag", '"one"')
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size_bytes}")
            self.end_headers()
            with path.open("rb") as file:
                while start < stop:
                    count = min(PIECE_BYTES, stop - start)
                    count = os.sendfile(self.connection.fileno(), file.fileno(), start, count)
                    start += count
                    sent.add(count)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Who was killed reads no more; all else fails the download that is watched."""

    return Server(("127.0.0.1", 0), Answer)


def fetch_with_a_kill(url: str, folder: Path, sent: Sent, point: int) -> None:
    """AssertionError if it does not get that far, or does not go on."""
    command = [sys.executable, str(FETCH), "--fetch", url, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            assert sent.wait(point), "it did not get so far"
        finally:
            process.kill()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)


def bytes_twice(source: Path, digest: str, folder: Path, point: int) -> int:
    """Of one download that is killed once ``point`` bytes were sent."""
    sent = Sent()
    server = server_of(source, sent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/m.gguf#sha256={digest}"
        fetch_with_a_kill(url, folder, sent, point)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        shutil.rmtree(folder)
    return sent.bytes - source.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        root, size_bytes = Path(name), arguments.megabytes * MB
        source, digest = root / "m.gguf", hashlib.sha256()
        with source.open("wb") as file:
            for _ in range(arguments.megabytes):
                block = draw.randbytes(MB)
                file.write(block)
                digest.update(block)
        twice: list[float] = []
        print(" killed at MB  fetched twice MB")
        for _ in range(arguments.points):
            point = draw.randrange(1, size_bytes)
            count = bytes_twice(source, digest.hexdigest(), root / "killed", point)
            print(f"{point / MB:13.0f} {count / MB:17.1f}", flush=True)
            twice.append(count / MB)
    print(f"median {statistics.median(twice):.1f} MB, most {max(twice):.1f} MB")


if __name__ == "__main__":
    main()

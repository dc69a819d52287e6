"""The wheel on a machine that has nothing else: pip and uv install it, `setup` makes it complete.

llama.cpp is not compiled here if this machine has built it before, as `make setup` has.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SAMPLE = "A slot is a place in an agent"


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As a person would, with none of the variables that this test runs under."""
    own = {"PYTHONPATH", "VIRTUAL_ENV", "CMAKE_ARGS"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(word) for word in command],
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def succeed(*command: str | Path, **variables: str) -> str:
    ended = run(*command, **variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def serve_without_llama(program: Path) -> None:
    """A balancer, and an agent in front of another server, load no llama.cpp."""
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        inference, management = (f"127.0.0.1:{s.getsockname()[1]}" for s in (first, second))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ours = f"--management-addr={management}"
    daemons = [
        ["balancer", f"--inference-addr={inference}", ours],
        ["agent", ours, "--slots=1", "--name=front", f"--upstream=http://{inference}"],
    ]
    started = [
        subprocess.Popen(
            [str(program), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for words in daemons
    ]
    try:
        while "front" not in run(program, "agents", ours).stdout:
            assert [each.poll() for each in started] == [None, None]
    finally:
        for each in reversed(started):
            each.terminate()
            said, _ = each.communicate()
            assert each.returncode == 0, said.decode()


def become_complete(program: Path) -> None:
    """Follow what the program says about itself, until it answers a question."""
    addresses = ("--inference-addr", "127.0.0.1:0", "--management-addr", "127.0.0.1:0")
    lacking = run(program, "demo", "--once", *addresses)
    assert lacking.returncode == 1
    assert "run `paddler-trio setup`" in lacking.stderr
    serve_without_llama(program)
    assert "decoded" in succeed(program, "setup")
    assert "is proven here" in succeed(program, "setup")
    assert SAMPLE in succeed(program, "demo", "--once", *addresses)
    told = json.loads(succeed(program, "doctor", "--json", *addresses))
    states = {each["check"]: each["state"] for each in told["findings"]}
    assert states["llama.cpp runs"] == states["CPU features"] == "ok"


def test_pip_installs_it_and_setup_makes_it_complete(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    succeed(sys.executable, "-m", "venv", venv)
    succeed(venv / "bin" / "pip", "install", "--quiet", wheel)
    succeed(venv / "bin" / "pip", "check")
    become_complete(venv / "bin" / "paddler-trio")


def test_uv_installs_it_where_there_is_no_pip(wheel: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    succeed(sys.executable, "-m", "venv", scratch)
    succeed(scratch / "bin" / "pip", "install", "--quiet", "uv")
    folders = {
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    uv = scratch / "bin" / "uv"
    succeed(uv, "tool", "install", "--quiet", "--python", sys.executable, wheel, **folders)
    program = tmp_path / "bin" / "paddler-trio"
    become_complete(program)
    # Another version takes away what it does not name; it is put back from the kept wheel.
    succeed(uv, "tool", "install", "--quiet", "--reinstall", wheel, **folders)
    assert run(program, "rpc-server", "--addr", "127.0.0.1:0").returncode == 1
    assert "decoded" in succeed(program, "setup")

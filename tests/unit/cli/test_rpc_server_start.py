"""What an RPC server decides before it starts: whom it serves, and what it keeps."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from paddler_trio.cli.rpc_server import checked_address
from paddler_trio.errors import ConfigurationError
from paddler_trio.processes.engine.rpc.rpc_serving import prepare_cache


def test_the_loopback_is_served_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked_address("127.0.0.1:0", insecure_rpc=False) == ("127.0.0.1", 0)
    assert checked_address("localhost:0", insecure_rpc=True) == ("127.0.0.1", 0)
    assert capsys.readouterr().err == ""


def test_beyond_it_somebody_has_to_say_that_it_is_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigurationError, match="--insecure-rpc"):
        checked_address("0.0.0.0:0", insecure_rpc=False)
    assert checked_address("0.0.0.0:0", insecure_rpc=True) == ("0.0.0.0", 0)
    assert "RPC IS OPEN on 0.0.0.0:0" in capsys.readouterr().err


def test_a_port_in_use_is_told_before_llama_cpp_fails_without_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"{address}: address already in use"):
            checked_address(address, insecure_rpc=False)


def test_a_cache_forgets_the_tensor_that_may_be_half_written_and_touches_nothing_else(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new" / "cache"
    prepare_cache(folder)
    assert list(folder.iterdir()) == []
    for age, name in enumerate(["photo.jpg", "00" * 8, "0f" * 8, "ff" * 8]):
        (folder / name).write_bytes(b"tensor")
        os.utime(folder / name, (1000 - age, 1000 - age))
    prepare_cache(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["0f" * 8, "ff" * 8, "photo.jpg"]


def test_a_cache_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=r"--cache-dir .*file: File exists"):
        prepare_cache(file)

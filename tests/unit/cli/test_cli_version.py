"""``paddler-trio --version`` asks the installed llama.cpp what it is."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path

import pytest

from cli_in_process import invoke
from paddler_trio import __version__


def test_it_says_what_runs_here() -> None:
    ended = invoke("--version")
    assert ended.exit_code == 0
    ours, bindings, llama_cpp, python = ended.stdout.splitlines()
    assert ours == f"paddler-trio {__version__}"
    assert bindings == f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    assert re.fullmatch(r"llama\.cpp (\S+ )?with ggml \d+\.\d+\S*", llama_cpp)
    assert python == f"Python {platform.python_version()}"


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    ended = invoke("--version")
    assert ended.exit_code == 0
    assert f"llama.cpp cannot be loaded: {tmp_path}/libggml-base.so" in ended.stdout


def test_a_library_that_knows_no_version_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (c_library,) = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if re.search(r"/libc(-[\d.]+)?\.so", line)
    }
    (tmp_path / "libggml-base.so").symlink_to(c_library)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert "llama.cpp does not say its build\n" in invoke("--version").stdout

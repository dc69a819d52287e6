"""The proof decodes for real, and survives a child that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paddler_trio.processes.engine.proof import BUNDLED_MODEL, Proof, prove_in_child, read_child


def test_llama_cpp_decodes_the_bundled_model_here() -> None:
    proof = prove_in_child(BUNDLED_MODEL)
    assert proof.error == ""
    assert proof.ok
    assert proof.tokens > 16
    assert proof.system_info


def test_the_module_prints_one_line_of_json_and_nothing_else() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "paddler_trio.processes.engine.proof"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [line] = ended.stdout.splitlines()
    assert json.loads(line)["ok"] is True
    assert ended.stderr == ""


@pytest.mark.parametrize("name", ["msgpack", "numpy"])
def test_what_an_engine_has_loaded_before_llama_cpp_is_loaded_here_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build may decode alone, and not beside the C++ runtime that they bring."""
    (tmp_path / f"{name}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    proof = prove_in_child(BUNDLED_MODEL)
    assert "SIGSEGV" in proof.error


def test_a_file_that_is_no_model_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    no_model = tmp_path / "empty.gguf"
    no_model.write_bytes(b"GGUF")
    proof = prove_in_child(no_model)
    assert not proof.ok
    assert str(no_model) in proof.error


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -ILL $$", "killed by SIGILL (an instruction this CPU does not run)"),
        ("kill -SEGV $$", "killed by SIGSEGV (a memory fault)"),
        ("echo GGML_ASSERT failed >&2; kill -ABRT $$", "killed by SIGABRT"),
        ("echo no module >&2; exit 3", "ended with exit status 3: no module"),
        ("echo '{\"ok\": true}'; exit 4", "ended with exit status 4"),
        ("echo not json", "ended with exit status 0: it wrote nothing"),
        ("exec sleep 200", "no answer within 0.5 s"),
    ],
)
def test_every_way_a_child_can_end_is_told(tmp_path: Path, script: str, told: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    limit_s = 0.5 if "sleep" in script else 60
    proof = prove_in_child(BUNDLED_MODEL, python=python, limit_s=limit_s)
    assert not proof.ok
    assert proof.error.startswith(told)


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    proof = prove_in_child(BUNDLED_MODEL, python=tmp_path / "python")
    assert "cannot be started" in proof.error


def test_a_success_needs_both_the_line_and_the_exit_status() -> None:
    line = '{"ok": true, "tokens": 3, "seconds": 0.1}\n'
    assert read_child(0, line, "") == Proof(True, tokens=3, seconds=0.1)
    assert not read_child(1, line, "").ok
    assert not read_child(0, '{"surprise": 1}', "").ok

"""Which llama.cpp an environment has, and what has to be there before one is built."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from paddler_trio.processes.llama_setup.environment import Environment, SetupError
from paddler_trio.processes.llama_setup.recipes import VERSION, Recipe
from paddler_trio.processes.llama_setup.wheel_build import (
    Pip,
    build_wheel,
    check_accelerator,
    cuda_architectures,
    find_compiler,
)


def install(folder: Path, version: str, library: bytes = b"library") -> None:
    """What pip leaves of llama-cpp-python, as far as anybody here looks."""
    metadata = folder / f"llama_cpp_python-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n")
    libraries = folder / "llama_cpp" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libllama.so").write_bytes(library)


def test_what_is_installed_is_known_by_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, own = tmp_path / "packages", tmp_path / "own"
    monkeypatch.setattr(sys, "path", [str(packages)])
    plain, with_own = Environment(tmp_path), Environment(tmp_path, own)
    assert plain.fingerprint_libraries() is None
    install(packages, VERSION)
    packaged = plain.fingerprint_libraries()
    assert packaged is not None
    assert with_own.fingerprint_libraries() == packaged
    install(own, VERSION, b"a library of this machine")
    assert with_own.fingerprint_libraries() not in (None, packaged)
    assert plain.fingerprint_libraries() == packaged
    (packages / "llama_cpp" / "lib" / "libllama.so").write_bytes(b"another")
    assert plain.fingerprint_libraries() not in (None, packaged)


def test_another_release_of_the_bindings_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    install(tmp_path, "0.0.1")
    assert Environment(tmp_path).fingerprint_libraries() is None


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    environment = Environment(tmp_path, tmp_path / "file" / "llama" / VERSION)
    with pytest.raises(SetupError, match="run this as the user that installed") as caught:
        environment.prepare()
    assert str(tmp_path / "file") in str(caught.value)


def test_what_compiles_for_a_gpu_is_asked_for_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDACXX", raising=False)
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        with pytest.raises(SetupError, match="nvcc"):
            check_accelerator("cuda")
    with pytest.raises(SetupError, match="glslc"):
        check_accelerator("vulkan")
    for name in ("nvcc", "glslc"):
        (tmp_path / name).touch(mode=0o755)
    check_accelerator("cuda")
    check_accelerator("vulkan")
    check_accelerator("cpu")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(SetupError, match="this is Linux"):
        check_accelerator("metal")


def test_a_missing_compiler_is_named_with_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SetupError, match="apt-get install build-essential"):
        find_compiler()


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("answer", "architectures"),
    [
        ("echo 9.0; echo 8.6; echo 9.0; echo 12.0", ("120", "86", "90")),
        ("echo '[N/A]'", ()),
        ("echo 9.0; exit 9", ()),
        ("exit 127", ()),
    ],
)
def test_the_gpus_that_are_here_are_asked_of_their_driver(
    answer: str,
    architectures: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script(tmp_path / "nvidia-smi", answer)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_architectures() == architectures


def test_without_a_driver_no_gpu_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_architectures() == ()


@pytest.mark.parametrize(
    ("architectures", "argument"),
    [(("86", "90"), "'-DCMAKE_CUDA_ARCHITECTURES=86;90'"), ((), None)],
)
def test_a_build_is_for_the_gpus_that_are_here(
    architectures: tuple[str, ...], argument: str | None, tmp_path: Path
) -> None:
    script(tmp_path / "pip", f"echo $CMAKE_ARGS >{tmp_path}/asked; touch {tmp_path}/llama.whl")
    wheel = build_wheel(
        Recipe("any", ("-DGGML_CUDA=ON",)),
        tmp_path,
        pip=Pip((str(tmp_path / "pip"),)),
        log=tmp_path / "log",
        architectures=architectures,
    )
    assert wheel == tmp_path / "llama.whl"
    asked = (tmp_path / "asked").read_text().split()
    assert "-DGGML_CUDA=ON" in asked
    named = [each for each in asked if "CUDA_ARCHITECTURES" in each]
    assert named == ([] if argument is None else [argument])

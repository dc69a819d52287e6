"""How weights get into memory: what the operator sets is what llama.cpp is told."""

from __future__ import annotations

import llama_cpp.llama_cpp as lib
import pytest

from paddler_trio.processes.engine.llama.llama_options import model_params
from paddler_trio.wire.engine.engine_settings import EngineSettings


@pytest.mark.parametrize(
    ("use_mmap", "use_mlock", "mode"),
    [
        (True, False, b"auto"),
        (True, True, b"mmap+mlock"),
        (False, True, b"mlock"),
        (False, False, b"none"),
    ],
)
def test_mapping_and_locking_reach_llama_cpp(use_mmap: bool, use_mlock: bool, mode: bytes) -> None:
    if use_mlock and not lib.llama_supports_mlock():
        pytest.skip("this system cannot lock memory")
    settings = EngineSettings(use_mmap=use_mmap, use_mlock=use_mlock)
    with model_params(settings, n_gpu_layers=0) as params:
        assert lib.llama_load_mode_name(params.load_mode) == mode
        assert not params.no_alloc


def test_a_dry_run_maps_nothing() -> None:
    with model_params(EngineSettings(), n_gpu_layers=0, no_alloc=True) as params:
        assert params.no_alloc
        assert lib.llama_load_mode_name(params.load_mode) == b"none"

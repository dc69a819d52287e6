"""Samplers that are built once and copied, with llama.cpp's own."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.processes.engine.sampling.sampler_prototypes import (
    MAX_PROTOTYPES,
    SamplerPrototypes,
)
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.sampler_stages import Sampling
from samplings import GREEDY

DRY = attrs.evolve(GREEDY, dry_multiplier=30.0, dry_allowed_length=1, dry_sequence_breakers=[])
PROMPT = [407, 408, 409, 407, 408]


@pytest.fixture
def llama() -> Llama:
    return Llama.load(str(BUNDLED_MODEL), n_gpu_layers=0, progress=lambda _: None)


def sampled(llama: Llama, sampling: Sampling, prompt: list[int]) -> int:
    """The next token where 409 is most likely and 403 comes after it."""
    sampler = Sampler.build(llama, sampling, None, cells=64, prompt=prompt)
    logits = np.zeros(llama.n_vocab, np.float32)
    logits[409], logits[403] = 2, 1
    token = sampler._selected(logits)
    sampler.close()
    return token


def test_a_copy_samples_as_the_first_and_has_seen_nothing_of_others(llama: Llama) -> None:
    for _ in range(3):
        assert sampled(llama, DRY, PROMPT) == 403, "409 would repeat what the prompt has"
        assert sampled(llama, DRY, [1, 2]) == 409
    assert sampled(llama, attrs.evolve(DRY, dry_multiplier=0.1), PROMPT) == 409
    assert sampled(llama, attrs.evolve(DRY, dry_allowed_length=3), PROMPT) == 409


def test_only_other_parameters_are_built_anew(
    llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def build(*parameters: object) -> object:
        built.append(parameters)
        return init(*parameters)

    init = lib.llama_sampler_init_dry
    monkeypatch.setattr(lib, "llama_sampler_init_dry", build)
    for breakers in (["a"], ["a"], ["b"], ["a", "b"], ["a"]):
        sampled(llama, attrs.evolve(DRY, dry_sequence_breakers=breakers), PROMPT)
    assert len(built) == 3


def test_the_ones_used_last_are_kept(llama: Llama) -> None:
    prototypes = SamplerPrototypes()
    built = []

    def copy(number: int) -> None:
        def build() -> object:
            built.append(number)
            return lib.llama_sampler_init_dry(llama.vocab, 1.0, 2.0, number, 64, None, 0)

        lib.llama_sampler_free(prototypes.copy(number, build))

    for number in range(MAX_PROTOTYPES):
        copy(number)
    copy(0)
    copy(MAX_PROTOTYPES)
    copy(0)
    assert built == list(range(MAX_PROTOTYPES + 1))
    copy(1)
    assert built[-1] == 1, "it was used least"

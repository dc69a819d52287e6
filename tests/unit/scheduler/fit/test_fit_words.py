"""Verdicts in words, reserves, and the context sizes worth trying."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.fit.context_sizes import sizes_below, sizes_up_to
from paddler_trio.scheduler.fit.fit_suggestions import Change, Suggestion
from paddler_trio.scheduler.fit.fit_values import HOST, LoadShape, Need, Shortage, slot_context
from paddler_trio.scheduler.fit.fit_words import bytes_words, gpu_hint, refusal_words
from paddler_trio.scheduler.fit.reserves import gpu_reserve_bytes, host_reserve_bytes

GIB = 1024**3
NEED = Need(bytes_by_device={}, n_layers=33, n_ctx_train=8192)
SHAPE = LoadShape(
    context_size=8192, slots=2, n_gpu_layers=20, k_cache_dtype="Q8_0", v_cache_dtype="Q8_0"
)
SHORT = Shortage(device=HOST, needed_bytes=int(12.3 * GIB), available_bytes=int(9.1 * GIB))


def test_a_refusal_has_the_numbers_and_what_would_fit() -> None:
    ways = [Change.CONTEXT_SIZE, Change.KV_DTYPE, Change.GPU_LAYERS, Change.SLOTS]
    offered = [Suggestion((change,), SHAPE, NEED) for change in ways]
    assert refusal_words([SHORT], offered, n_layers=33) == (
        "needs 12.3 GiB on host, 9.10 GiB are available; context-size 8192 fits, or q8_0 KV, or 20 "
        "of 33 layers on the GPU, or 2 slots"
    )
    both = Suggestion((Change.CONTEXT_SIZE, Change.KV_DTYPE), SHAPE, NEED)
    assert refusal_words([SHORT], [both], n_layers=33).endswith(
        "; context-size 8192 with q8_0 KV fits"
    )
    all_layers = attrs.evolve(SHAPE, n_gpu_layers=-1, slots=1)
    assert refusal_words(
        [SHORT], [Suggestion((Change.GPU_LAYERS,), all_layers, NEED)], n_layers=33
    ).endswith("; 33 of 33 layers on the GPU fit")
    assert refusal_words(
        [SHORT], [Suggestion((Change.SLOTS,), all_layers, NEED)], n_layers=33
    ).endswith("; 1 slot fits")
    assert refusal_words([SHORT, SHORT], [], n_layers=33).endswith(
        "; no smaller context, KV cache, number of layers or slots found that fits"
    )


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (999 * 1024**2, "999 MiB"),
        (1000 * 1024**2, "0.98 GiB"),
        (64 * GIB, "64.0 GiB"),
        (5000 * 1024 * GIB, "5000 TiB"),
        (-(3 * GIB), "-3.00 GiB"),
    ],
)
def test_bytes_have_three_digits(num_bytes: int, words: str) -> None:
    assert bytes_words(num_bytes) == words


def test_small_machines_keep_a_part_and_large_ones_a_fixed_reserve() -> None:
    assert host_reserve_bytes(4 * GIB) == 4 * GIB // 10
    assert host_reserve_bytes(512 * GIB) == 2 * GIB
    assert gpu_reserve_bytes(8 * GIB) == 8 * GIB // 20
    assert gpu_reserve_bytes(80 * GIB) == GIB


@given(st.integers(1, 2**31), st.integers(1, 256), st.sampled_from([256, 1024]))
def test_sizes_are_few_ascend_and_are_an_eighth_apart(limit: int, slots: int, least: int) -> None:
    sizes = sizes_below(limit, slots=slots, least=least)
    assert len(sizes) < 200
    assert all(size < limit and size % (256 * slots) == 0 for size in sizes)
    assert all(size >= least * slots for size in sizes)
    for smaller, larger in itertools.pairwise(sizes):
        assert smaller < larger <= max(smaller * 9 / 8, smaller + 256 * slots)


@given(st.integers(0, 2**24), st.integers(1, 256))
def test_the_trained_context_is_the_last_size(n_ctx_train: int, slots: int) -> None:
    sizes = sizes_up_to(n_ctx_train, slots=slots, least=1024)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max(1, n_ctx_train) * slots


def test_a_gpu_that_computes_nothing_is_told_of() -> None:
    h200 = ["NVIDIA H200", "NVIDIA H200"]
    assert gpu_hint(0, gpus=[], devices=[]) == ""
    assert gpu_hint(-1, gpus=h200, devices=["CUDA0"]) == ""
    assert gpu_hint(20, gpus=h200, devices=["CUDA0"]) == ""
    idle = gpu_hint(0, gpus=h200, devices=["CUDA0"])
    assert idle.startswith("the machine has NVIDIA H200, and no layer is on it: set n-gpu-layers")
    for layers in (0, -1, 20):
        without = gpu_hint(layers, gpus=[""], devices=[])
        assert without.startswith("the machine has a GPU, and this build of llama.cpp uses no GPU")


@pytest.mark.parametrize(
    ("context_size", "slots", "is_unified", "most"),
    [
        (1024, 4, False, 256),
        (8192, 3, False, 2816),
        (100, 4, False, 256),
        (8192, 3, True, 8192),
        (1000, 1, False, 1024),
        (0, 4, False, None),
    ],
)
def test_a_slot_gets_its_share_of_the_context(
    context_size: int, slots: int, is_unified: bool, most: int | None
) -> None:
    assert slot_context(context_size, slots=slots, is_unified=is_unified) == most

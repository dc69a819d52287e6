"""Which builds of llama.cpp are tried on which machine, and what a wheel is named after."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_machines import AVX2_FLAGS, AVX512_FLAGS, KNOWN_FLAGS, recipes_for

from paddler_trio.processes.llama_setup import recipes
from paddler_trio.processes.llama_setup.environment import features_lacking, features_unused
from paddler_trio.processes.llama_setup.recipes import (
    Accelerator,
    Recipe,
    choose_recipes,
    portable_recipes,
    usual_accelerator,
    wheel_key,
)

ROOT = Path(__file__).resolve().parents[4]


def test_a_cpu_with_everything_is_tried_from_the_widest_to_the_baseline() -> None:
    ladder = recipes_for(set(KNOWN_FLAGS))
    assert list(ladder) == ["avx512", "avx2", "baseline"]
    assert "-DGGML_AVX512_VNNI=ON" in ladder["avx512"]
    assert "-DGGML_AVX512=OFF" in ladder["avx2"]
    assert "-DGGML_AVX2=ON" in ladder["avx2"]
    on = [argument for argument in ladder["baseline"] if argument.endswith("=ON")]
    assert on == ["-DGGML_RPC=ON"]


def test_a_cpu_without_avx512_starts_one_step_lower() -> None:
    assert list(recipes_for(AVX2_FLAGS)) == ["avx2", "baseline"]


def test_a_cpu_with_half_of_avx512_gets_none_of_it() -> None:
    ladder = recipes_for(AVX2_FLAGS | {"avx512f", "avx512_vnni"})
    assert list(ladder) == ["avx2", "baseline"]
    assert "-DGGML_AVX512_VNNI=OFF" in ladder["avx2"]


def test_the_plainest_cpu_has_one_recipe() -> None:
    assert list(recipes_for({"fpu", "sse2"})) == ["baseline"]


@given(flags=st.sets(st.sampled_from(KNOWN_FLAGS)))
def test_no_recipe_asks_for_what_the_cpu_lacks_or_for_what_is_known_to_fault(
    flags: set[str],
) -> None:
    needs = recipes.BASIC | recipes.WIDE
    ladder = recipes_for(flags | {"fpu"})
    assert len(set(ladder.values())) == len(ladder)
    for arguments in ladder.values():
        assert arguments[0] == "-DGGML_NATIVE=OFF"
        assert arguments[-1] == "-DGGML_RPC=ON"
        for argument in arguments[:-1]:
            assert "AMX" not in argument
            assert "BF16" not in argument
            option, _, switch = argument.removeprefix("-D").partition("=")
            assert switch == "OFF" or needs[option] <= flags


def test_arm_and_machines_without_a_list_of_flags_leave_the_choice_to_ggml() -> None:
    for machine, flags in (("aarch64", {"asimd"}), ("arm64", set()), ("x86_64", set())):
        chosen = choose_recipes(flags, machine=machine)
        assert [recipe.name for recipe in chosen] == ["native", "baseline"]
        assert chosen[0].cmake_args == ("-DGGML_RPC=ON",)
        assert chosen[1].cmake_args == ("-DGGML_NATIVE=OFF", "-DGGML_RPC=ON")


def test_what_the_user_asks_for_is_all_that_is_tried() -> None:
    [recipe] = choose_recipes(
        AVX512_FLAGS, machine="x86_64", requested="-DGGML_CUDA=on -DCMAKE_CXX_FLAGS='-O2 -g'"
    )
    assert recipe.cmake_args == ("-DGGML_CUDA=on", "-DCMAKE_CXX_FLAGS=-O2 -g")
    assert not recipe.lean


def test_every_fact_of_a_build_changes_the_name_of_its_wheel() -> None:
    lean = Recipe("native", ("-DA=ON",))
    facts = {"flags": ["avx"], "compiler": "gcc 12", "system": "linux"}
    others = [facts | {name: ["other"] if name == "flags" else "other"} for name in facts]
    keys = [wheel_key(lean, **one) for one in [facts, *others]]
    keys.append(wheel_key(Recipe("x", ("-DA=OFF",)), **facts))
    keys.append(wheel_key(Recipe("x", ("-DA=ON",), lean=False), **facts))
    assert len(set(keys)) == len(keys)
    renamed = Recipe("another word for it", ("-DA=ON",))
    assert wheel_key(renamed, **facts) == keys[0]


@pytest.mark.parametrize(
    ("cores", "memory_gib", "jobs"),
    [(2, 24, 2), (0.5, 8, 1), (64, 4, 4), (8, 0.5, 1), (3, None, 3)],
)
def test_compilers_are_as_many_as_cores_and_memory_allow(
    cores: float, memory_gib: float | None, jobs: int
) -> None:
    memory_bytes = None if memory_gib is None else int(memory_gib * 2**30)
    assert recipes.count_jobs(cores, memory_bytes) == jobs


@pytest.mark.parametrize("accelerator", ["cuda", "vulkan", "metal"])
def test_an_accelerator_is_in_every_recipe_and_the_cpus_part_stays_the_safe_one(
    accelerator: Accelerator,
) -> None:
    plain = choose_recipes(AVX512_FLAGS, machine="x86_64")
    chosen = choose_recipes(AVX512_FLAGS, machine="x86_64", accelerator=accelerator)
    switch = f"-DGGML_{accelerator.upper()}=ON"
    assert [each.cmake_args for each in chosen] == [(*each.cmake_args, switch) for each in plain]
    assert [each.name for each in chosen] == [f"{each.name} with {accelerator}" for each in plain]


def test_what_is_packed_for_other_machines_is_the_avx2_recipe_on_any_machine() -> None:
    here = recipes_for(set(KNOWN_FLAGS))
    portable = recipes.portable_recipes("x86_64")
    assert [each.cmake_args for each in portable] == [here["avx2"], here["baseline"]]
    assert {each.name.partition(" ")[0] for each in portable} == {"portable"}
    [on_arm] = recipes.portable_recipes("aarch64", "vulkan")  # ggml's own probe is of this machine
    assert on_arm.cmake_args == ("-DGGML_NATIVE=OFF", "-DGGML_RPC=ON", "-DGGML_VULKAN=ON")


BUILT = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | AVX512 = 0 | OPENMP = 1"


def test_a_build_is_compared_with_the_cpu_in_both_directions() -> None:
    avx2 = frozenset({"pni", "avx", "avx2", "f16c", "fma"})
    assert features_lacking(BUILT, avx2) == []
    assert features_unused(BUILT, avx2) == []
    assert features_lacking(BUILT, avx2 - {"avx2", "fma"}) == ["AVX2", "FMA"]
    assert features_unused(BUILT, avx2 | {"avx512f", "avx512_vnni"}) == ["AVX512", "AVX512_VNNI"]


def test_the_pin_is_the_one_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [pin] = project["optional-dependencies"]["llama"]
    assert pin == f"{recipes.DISTRIBUTION}=={recipes.VERSION}"
    assert not any(recipes.DISTRIBUTION in each for each in project["dependencies"])


def test_a_mac_of_its_own_processors_computes_on_its_gpu_unless_told_otherwise() -> None:
    assert usual_accelerator("Darwin", "arm64") == "metal"
    assert usual_accelerator("Darwin", "x86_64") == "cpu"
    assert usual_accelerator("Linux", "arm64") == "cpu"
    metal = choose_recipes((), machine="arm64", accelerator="metal", system="Darwin")
    assert all("-DGGML_METAL=ON" in each.cmake_args for each in metal)
    portable = portable_recipes("arm64", system="Darwin")
    for each in [*choose_recipes((), machine="arm64", system="Darwin"), *portable]:
        assert "-DGGML_METAL=OFF" in each.cmake_args, "llama.cpp has it there by default"
    for each in choose_recipes((), machine="arm64"):
        assert not any("METAL" in argument for argument in each.cmake_args)

"""CPUs by what they list, and what would be tried on them."""

from __future__ import annotations

from paddler_trio.processes.llama_setup.recipes import choose_recipes

AVX2_FLAGS = {"sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"}
AVX512_FLAGS = AVX2_FLAGS | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
KNOWN_FLAGS = sorted(
    AVX512_FLAGS
    | {"avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "avx_vnni"}
)


def recipes_for(flags: set[str]) -> dict[str, tuple[str, ...]]:
    """Name -> arguments, best first."""
    return {recipe.name: recipe.cmake_args for recipe in choose_recipes(flags, machine="x86_64")}

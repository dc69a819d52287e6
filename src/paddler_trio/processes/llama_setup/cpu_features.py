"""Compare what a build of llama.cpp uses of a CPU with what the CPU has."""

from __future__ import annotations

import re
from typing import Final

CPU_FLAGS_NEEDED: Final = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}
"""llama.cpp's words for what it was built with -> the feature the CPU must list."""

WORTH_HAVING: Final = ("AVX2", "FMA", "F16C", "AVX512", "AVX512_VNNI")
"""The features that speed up a model by more than a few percent."""


def built_features(system_info: str) -> frozenset[str]:
    """Return the names that llama.cpp lists as built in."""
    return frozenset(re.findall(r"(\w+) = 1", system_info))


def features_lacking(system_info: str, flags: frozenset[str]) -> list[str]:
    """Return what the build would use and the CPU does not list: the build may die of it."""
    built = built_features(system_info) & CPU_FLAGS_NEEDED.keys()
    return sorted(name for name in built if CPU_FLAGS_NEEDED[name] not in flags)


def features_unused(system_info: str, flags: frozenset[str]) -> list[str]:
    """Return what the CPU lists, is worth having, and the build does without."""
    built = built_features(system_info)
    return [name for name in WORTH_HAVING if CPU_FLAGS_NEEDED[name] in flags and name not in built]

"""What is frozen is left out of collections; free memory between blocks in use is given back."""

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from paddler_trio.system.heap import freeze_heap


class Knot:
    """Keeps itself alive."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    """What was frozen before stays so, as conftest.py wants: the tests that follow are quick."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*before)


@pytest.mark.thorough
def test_a_collection_does_not_walk_what_is_frozen() -> None:
    knot = Knot()
    seen = weakref.ref(knot)
    freeze_heap()
    assert gc.get_freeze_count() > 1000
    del knot
    gc.collect()
    assert seen() is not None
    gc.unfreeze()
    gc.collect()
    assert seen() is None


@pytest.mark.thorough
def test_full_collections_are_rare_and_garbage_is_found_all_the_same() -> None:
    freeze_heap()
    full_before = gc.get_stats()[2]["collections"]
    kept: list[list[int]] = []
    seen = []
    for _ in range(2_000):
        knot = Knot()
        seen.append(weakref.ref(knot))
        kept += [[number] for number in range(800)]  # what lives longer than collections take
    del knot
    assert 1 <= gc.get_stats()[2]["collections"] - full_before <= 4
    assert sum(reference() is not None for reference in seen) < 1_900


TRIMMED = """
import resource
from pathlib import Path
from paddler_trio.system.heap import give_back_large_blocks, trim_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

give_back_large_blocks()
blocks = [bytearray(20_000) for _ in range(5_000)]
full = resident()
blocks = blocks[::100]  # each keeps the heap from shrinking
freed = resident()
trim_heap()
print(full - freed, freed - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no malloc_trim")
def test_free_pages_between_blocks_in_use_are_given_back_by_a_trim() -> None:
    child = subprocess.run([sys.executable, "-c", TRIMMED], capture_output=True, check=True)
    by_free, by_trim = map(int, child.stdout.split())
    assert by_free < 10_000_000, "the blocks in use did not hold the heap: the test shows nothing"
    assert by_trim > 80_000_000

"""Contexts that llama.cpp cannot make, or would take all memory to try, are refused before."""

from __future__ import annotations

import pytest

from paddler_trio.engine import llama
from paddler_trio.errors import EngineError


def check(context_size: int, *, slots: int = 2, available: int | None = 2**30) -> str:
    """Why it is refused; empty if it is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "available_memory_bytes", lambda: available)
        try:
            llama._check_size(context_size, slots=slots, num_streams=slots)
        except EngineError as error:
            assert error.permanent
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("context_size", "slots", "words"),
    [
        (1, 2, "context_size is 1 tokens, 2 slots need 2 at least"),
        (8192, 257, "257 slots: llama.cpp runs at most 256 sequences; lower --slots"),
        (2**31, 2, "context_size is 2147483648 tokens, the limit is 2147483392"),
        (2**25, 2, "context_size is 33554432 tokens: only to keep track of them takes 1.5 GiB of"),
    ],
)
def test_what_cannot_be_is_told_with_its_numbers(context_size: int, slots: int, words: str) -> None:
    assert check(context_size, slots=slots).startswith(words)


def test_what_may_fit_is_tried() -> None:
    assert check(2) == ""
    assert check(2**24) == ""
    assert check(2**31 - 256, available=None) == ""

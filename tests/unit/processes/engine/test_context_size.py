"""Contexts that llama.cpp cannot make, or would take all memory to try, are refused before."""

from __future__ import annotations

import re

import pytest

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama import context_shape


@pytest.fixture(autouse=True)
def _a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_shape, "available_memory_bytes", lambda: 2**30)


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
    with pytest.raises(EngineError, match=re.escape(words)) as caught:
        context_shape.check_size(context_size, slots=slots, num_streams=slots)
    assert caught.value.permanent


def test_what_may_fit_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    context_shape.check_size(2, slots=2, num_streams=2)
    context_shape.check_size(2**24, slots=2, num_streams=2)
    monkeypatch.setattr(context_shape, "available_memory_bytes", lambda: None)
    context_shape.check_size(2**31 - 256, slots=2, num_streams=2)

"""Trained models, each served by a fleet and by llama-server: one pair for each file of tests.

Fleets come from the integration tests, whose folder is put on the path for it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from side_by_side import Pair, require, side_by_side  # found only now
from trained_models import GEMMA, SMOLLM2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Pair]:
    """SmolLM2 135M Instruct, 4 bits."""
    with side_by_side(require(SMOLLM2)) as pair:
        yield pair


@pytest.fixture(scope="module")
def gemma() -> Iterator[Pair]:
    """Gemma 3 270M, 4 bits, which was never taught to chat; its cache has a sliding window."""
    with side_by_side(require(GEMMA)) as pair:
        yield pair

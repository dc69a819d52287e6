"""A fleet whose model writes a script, and clients that are run before it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from client_runs import ClientRuns  # found only now
from fleet import Fleet


@pytest.fixture(scope="module")
def empty_fleet() -> Iterator[Fleet]:
    """A balancer and an agent of two slots without a model."""
    with Fleet.start(agents=1, slots=2, model=None) as fleet:
        yield fleet


@pytest.fixture
def runs(empty_fleet: Fleet, tmp_path: Path) -> ClientRuns:
    """What runs a client before this fleet, at home in a folder of its own."""
    return ClientRuns(empty_fleet, tmp_path)

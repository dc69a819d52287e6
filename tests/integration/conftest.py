"""Fleets for tests: one that everybody may read, and a fresh one for those that change things.

A test that wants more agents or other options says ``with Fleet.start(...)`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet import Fleet


@pytest.fixture(scope="session")
def shared_fleet() -> Iterator[Fleet]:
    """A balancer and one agent with four slots; leave it as it was found."""
    with Fleet.start(agents=1, slots=4) as fleet:
        yield fleet


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """The same, of this test's own."""
    with Fleet.start(agents=1, slots=4) as fleet:
        yield fleet

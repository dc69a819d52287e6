"""Fleets for tests: one that everybody may read, and fresh ones for those that change things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from fleet import Fleet

StartFleet = Callable[..., Fleet]


@pytest.fixture(scope="session")
def shared_fleet() -> Iterator[Fleet]:
    """A balancer and one agent with four slots; leave it as it was found."""
    with Fleet.start(agents=1, slots=4) as fleet:
        yield fleet


@pytest.fixture
def start_fleet() -> Iterator[StartFleet]:
    """``start_fleet(agents=2, slots=1, ...)``: a fleet of this test's own, gone with it."""
    with ExitStack() as fleets:

        def start(**options: object) -> Fleet:
            started: AbstractContextManager[Fleet] = Fleet.start(**options)  # type: ignore[arg-type]
            return fleets.enter_context(started)

        yield start

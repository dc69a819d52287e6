"""The real thing, shared by the tests of a file: one fleet that answers, and one balancer that has
nobody to ask.

Fleets come from the integration tests, whose folder is put on the path for it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fleet import Fleet  # found only now

from paddler_trio.processes.engine.proof import BUNDLED_MODEL


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A balancer and one agent with four slots, sampling greedily; leave it as it was found."""
    with Fleet.start(agents=1, slots=4) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, temperature=0.0, penalty_presence=0.0)
        fleet.wait_serving()
        yield fleet


@pytest.fixture(scope="module")
def lonely() -> Iterator[Fleet]:
    """A balancer without agents that keeps nobody waiting."""
    options = ["--buffered-request-timeout=100", "--max-buffered-requests=1"]
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        yield fleet

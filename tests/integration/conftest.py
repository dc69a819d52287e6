"""Fleets for tests: one for each file to read, and a fresh one for those that change things.

Each ends with its file: it starts in a third of a second of processor time, and would take one part
in a hundred of a processor for as long as tests run. A test that wants more agents or other options
says ``with Fleet.start(...)`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet import Fleet

from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL


@pytest.fixture(scope="session")
def vocabulary() -> Iterator[Vocabulary]:
    """The bundled model's."""
    vocabulary = Vocabulary.load(BUNDLED_MODEL)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def shared_fleet() -> Iterator[Fleet]:
    """A balancer and one agent with four slots, sampling greedily; leave it as it was found."""
    with Fleet.start(agents=1, slots=4) as fleet:
        fleet.desire(BUNDLED_MODEL, temperature=0.0)
        fleet.wait_serving()
        yield fleet


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """A balancer and one agent with four slots, of this test's own."""
    with Fleet.start(agents=1, slots=4) as fleet:
        yield fleet

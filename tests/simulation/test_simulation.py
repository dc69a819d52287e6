"""The whole balancer against agents and clients that misbehave, in virtual time.

`make simulate SEEDS=10000` runs many more of the same. While it was written it found a request
started on an agent after a model swap although it was granted its slot before, a route that
outlived its lease, a gate that opened while a Paddler agent still drained, and a duplicate id that
was answered as if it were new.
"""

from __future__ import annotations

import pytest
from dice import draw
from sim_balancer import run
from world import World

SEEDS = 200
GROUP = 20


@pytest.mark.parametrize("start", range(0, SEEDS, GROUP))
def test_every_request_ends_as_promised_whatever_agents_and_clients_do(start: int) -> None:
    for seed in range(start, start + GROUP):
        world = World(draw(seed))
        try:
            run(world.scenario, world)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            trace = "\n".join(world.trace[-40:])
            pytest.fail(f"seed {seed} ({world.scenario.temper}): {error!r}\n{trace}")


@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + 10))
def test_the_same_seed_gives_the_same_trace_byte_for_byte(seed: int) -> None:
    first, second = (run(draw(seed)).trace for _ in range(2))
    assert first == second
    assert len(first) > 10


def test_another_seed_gives_another_trace() -> None:
    assert run(draw(1)).trace != run(draw(2)).trace

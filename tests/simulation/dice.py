"""A scenario from a seed.

Seeds differ in temper: some have no faults at all, some only those that no client may notice, some
only requests that kill what works on them, most have everything. Most put all times on a grid, so
that many things happen at the same instant, in whatever order the scheduler takes them; that is
where mistakes hide.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise

import attrs
from scenario import (
    AgentPlan,
    Ask,
    ClientPlan,
    Fault,
    Order,
    Poison,
    Reading,
    Scenario,
    Shape,
    Strike,
)
from second_deployment import divided

HARMLESS = (Fault.UNKNOWN, Fault.STALE, Fault.BINARY, Fault.TWIN, Fault.SHRINK)
RECOVERABLE = (*HARMLESS, Fault.RESET, Fault.BURST_RESET, Fault.LEAVE, Fault.CRASH)
_GRID_S = 1 / 16
"""Times that meet at one instant, exactly: dyadic fractions, as all the constants below."""


@attrs.frozen
class _Dice:
    """Draws of one scenario, and what bounds them."""

    rng: random.Random
    poison: float
    """How likely a request is one."""
    is_rough: bool
    is_calm: bool
    on_grid: bool
    span_s: float

    def time_s(self, least_s: float, most_s: float) -> float:
        at_s = self.rng.uniform(least_s, most_s)
        return round(at_s / _GRID_S) * _GRID_S if self.on_grid else at_s

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def rough_chance(self, probability: float) -> bool:
        return self.rng.random() < probability and self.is_rough


def draw(seed: int) -> Scenario:
    """The scenario of this seed."""
    return divided(_draw(seed))


def _draw(seed: int) -> Scenario:
    rng = random.Random(seed)
    temper = rng.choice(["calm", "recoverable", "rough", "rough", "rough", "poisoned"])
    rough = temper == "rough"
    dice = _Dice(
        rng,
        {"calm": 0.0, "poisoned": 0.2}.get(temper, 0.02),
        rough,
        temper in ("calm", "poisoned"),
        rng.random() < 0.7,
        rng.choice([2.0, 6.0, 15.0]),
    )
    num_agents = rng.randint(1, 4)
    paddler = rng.randrange(num_agents) if dice.chance(0.3) else None
    swaps = [Order(0.0, "e0" if dice.chance(0.08) else "m0")]
    if not dice.is_calm and dice.chance(0.3):
        others = {"m1": "e1", "m2": "e2"} if swaps[0].subject == "e0" else {}
        for _ in range(rng.randint(1, 2)):
            at_s, subject = dice.time_s(0, dice.span_s), rng.choice(["m0", "m1", "m2", "e0"])
            swaps.append(Order(at_s, others.get(subject, subject)))
    embeds = any(swap.subject.startswith("e") for swap in swaps)
    storm_s = dice.time_s(0.5, dice.span_s) if dice.rough_chance(0.1) else None
    ids = [f"agent-{n}" for n in range(num_agents)]
    return Scenario(
        seed=seed,
        temper=temper,
        max_buffered=rng.choice([0, 2, 8, 30]) if rough else 30,
        buffered_timeout_s=rng.choice([1.0, 4.0, 10.0]) if rough else 30.0,
        item_timeout_s=rng.choice([1.5, 4.0]) if rough else 6.0,
        stop_confirmation_s=rng.choice([0.5, 2.0]),
        silence_s=2.5,
        write_timeout_s=rng.choice([2.0, 6.0]),
        drain_timeout_s=rng.choice([0.5, 5.0, 20.0]) if rough else 60.0,
        outbox_steps=rng.choice([6, 24, 512]) if rough else 512,
        outgoing_frames=rng.choice([12, 64]) if rough else 64,
        agents=tuple(
            _agent(dice, name, storm_s, is_paddler=n == paddler) for n, name in enumerate(ids)
        ),
        clients=tuple(_client(dice, n, embeds=embeds) for n in range(rng.randint(1, 10))),
        swaps=tuple(swaps),
        drains=tuple(
            Order(dice.time_s(0, dice.span_s), rng.choice(ids), rng.choice([0.5, 4.0]))
            for _ in range(rng.choice([0, 0, 0, 1, 2]) if dice.is_rough else 0)
        ),
        queries=tuple(
            Order(dice.time_s(0, dice.span_s), rng.choice(ids))
            for _ in range(rng.choice([0, 0, 1, 3]))
        ),
        stop_at_s=dice.time_s(0.5, dice.span_s) if dice.rough_chance(0.3) else math.inf,
        kill_after_s=dice.time_s(0, 2) if dice.rough_chance(0.25) else math.inf,
        patience_s=dice.span_s + 20.0,
    )


def _agent(dice: _Dice, agent_id: str, storm_s: float | None, *, is_paddler: bool) -> AgentPlan:
    """With a storm, every agent of ours loses its engine again and again from then on."""
    rng = dice.rng
    strikes: list[Strike] = []
    if not dice.is_calm:
        pool = tuple(Fault) if dice.is_rough else RECOVERABLE
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            at_s = dice.time_s(0.3, dice.span_s)
            strikes.append(Strike(at_s, rng.choice(pool), rng.choice([0.125, 1.0, 3.0, 8.0])))
    if storm_s is not None:
        fault = rng.choice([Fault.CRASH, Fault.RESET])
        strikes += [Strike(storm_s + n, fault, 0.125) for n in range(4)]
    return AgentPlan(
        id=agent_id,
        name=None if dice.chance(0.1) else agent_id.replace("gent-", ""),
        is_paddler=is_paddler,
        slots=rng.randint(1, 4),
        weights=1 if dice.rough_chance(0.15) else 0,
        pass_s=rng.choice([1 / 64, 1 / 16, 1 / 8]),
        prefill_s=rng.choice([0.0, 1 / 8, 3 / 8]),
        load_s=rng.choice([1 / 8, 3 / 4]),
        drain_s=rng.choice([0.25, 10.0]) if dice.is_rough else 60.0,
        latency_s=rng.choice([0.0, 0.0, 1 / 128, 1 / 32]),
        joins_at_s=rng.choice([0.0, 0.0, dice.time_s(0, dice.span_s)]),
        ignores_stops=dice.rough_chance(0.1) and not is_paddler,
        strikes=tuple(sorted(strikes, key=lambda strike: strike.at_s)),
    )


def _client(dice: _Dice, n: int, *, embeds: bool) -> ClientPlan:
    rng, name = dice.rng, f"c{n}"
    is_socket = dice.chance(0.35)
    reading = Reading()
    if dice.rough_chance(0.2):
        reading = Reading(rng.choice([1 / 32, 0.25, 1.0]))
    elif dice.rough_chance(0.1):
        reading = Reading(stops_after=rng.randint(0, 6))
    asks = [
        _ask(dice, f"{name}.{m}", is_socket=is_socket, is_first=m == 0)
        for m in range(rng.randint(1, 5) if is_socket else 1)
    ]
    for m, (ask, twin) in enumerate(pairwise(asks)):
        if twin.shape is Shape.DUPLICATE:  # of a request that lives
            asks[m] = attrs.evolve(ask, shape=Shape.RAW, stop_after_s=math.inf)
    if not is_socket and embeds and dice.chance(0.5):
        few = rng.randint(0, 7)
        asks = [attrs.evolve(asks[0], shape=Shape.EMBEDDING, max_tokens=few, poison=None)]
    return ClientPlan(
        name=name,
        is_socket=is_socket,
        at_s=rng.choice([0.0, dice.time_s(0, dice.span_s)]),
        asks=tuple(asks),
        reading=reading,
        leaves_after_s=dice.time_s(0, 3) if dice.rough_chance(0.2) else math.inf,
        kernel_messages=rng.choice([1, 4]),
        headers=tuple(_who(dice)),
    )


def _who(dice: _Dice) -> Iterator[tuple[bytes, bytes]]:
    if dice.chance(0.4):
        yield b"x-paddler-client", dice.rng.choice([b"one", b"two"])
    if dice.chance(0.3):
        yield b"x-paddler-priority", dice.rng.choice([b"high", b"normal", b"low"])


def _ask(dice: _Dice, prompt: str, *, is_socket: bool, is_first: bool) -> Ask:
    rng = dice.rng
    shape = rng.choice([Shape.RAW, Shape.CONVERSATION])
    if dice.chance(0.05):
        shape = Shape.MALFORMED
    elif is_socket and not is_first and dice.chance(0.1):
        shape = Shape.DUPLICATE
    stops = is_socket and shape is not Shape.DUPLICATE and dice.rough_chance(0.15)
    return Ask(
        prompt=prompt,
        shape=shape,
        at_s=0.0 if is_first else rng.choice([0.0, dice.time_s(0, 2)]),
        max_tokens=rng.choice([1, 5, 20, 40]),
        stop_after_s=dice.time_s(0, 2) if stops else math.inf,
        poison=rng.choice(list(Poison)) if dice.chance(dice.poison) else None,
    )

"""What goes wrong, when and to whom: decided by a seed before anything runs.

The schedule is pure: the same seed, the same faults. Each kind comes equally often, in an order
that the seed shuffles. ``when`` is a share of the tokens that an undisturbed round hears, so a
fault strikes somewhere between "everybody has just begun" and "the last ones still wait".
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import attrs
import trio
from chaos_daemon import ChaosError
from chaos_fleet import Fleet, FleetView
from chaos_streams import ask_and_reset

NOTICE_S = 20.0
"""Within this the balancer must have noticed what was done to an agent."""
REPAIR_S = 90.0
HEAD_BYTES = 1
"""So much of an answer has a client read that leaves at once: the beginning of the head."""
STREAM_BYTES = 4000
"""And one that leaves in the middle: a few tokens, each a line of some 150 bytes."""
PAUSE_SILENCES = (1.3, 2.5)
"""How long an agent is stopped, in silences of the balancer: always long enough to be given up."""


class Kind(Enum):
    """The value is what it is called on the command line and in tables."""

    KILL_AGENT = "kill-agent"
    KILL_ENGINE = "kill-engine"
    STOP_AGENT = "stop-agent"
    RESET_CLIENTS = "reset-clients"
    SWAP_MODEL = "swap-model"


@attrs.frozen
class Fault:
    """One fault. What does not matter to its kind is drawn all the same.

    Args:
      when: share of an undisturbed round's tokens, 0..1.
      pause_s: how long a stopped agent stays stopped.
      with_engine: its engine is stopped too.
    """

    kind: Kind
    victim: str
    when: float
    pause_s: float
    with_engine: bool


def schedule(
    seed: int, rounds: int, kinds: Sequence[Kind], victims: Sequence[str], silence_s: float
) -> list[Fault]:
    """``rounds`` faults, the kinds as evenly as the numbers allow."""
    chance = random.Random(seed)
    order = [kinds[i % len(kinds)] for i in range(rounds)]
    chance.shuffle(order)
    return [
        Fault(
            kind=kind,
            victim=chance.choice(victims),
            when=chance.uniform(0.05, 0.6),
            pause_s=silence_s * chance.uniform(*PAUSE_SILENCES),
            with_engine=chance.random() < 0.5,
        )
        for kind in order
    ]


@attrs.define(eq=False)
class Strikes:
    """Does faults to a fleet, repairs what it broke, and says how long the repair took.

    Args:
      models: two paths of the same model; a swap goes to the one that is not served.
      extras: clients that reset their connections in a round of that kind.
    """

    fleet: Fleet
    models: tuple[Path, Path]
    extras: int
    orphans: list[int] = attrs.field(factory=list, init=False)
    """Engines of killed agents: they have to end by themselves."""
    _swaps: int = attrs.field(default=0, init=False)

    async def strike(self, fault: Fault) -> float | None:
        """Do it; returns seconds until the fleet is whole again, None if it always was.

        They count from the fault, or for a stopped agent from its SIGCONT: how long it stays
        stopped is our choice. ChaosError if the fleet does not notice or does not recover.
        """
        match fault.kind:
            case Kind.KILL_AGENT:
                return await self._kill_agent(fault.victim)
            case Kind.KILL_ENGINE:
                began_s = time.monotonic()
                self.fleet.kill_engine(fault.victim)
                return await self._recovery_s(began_s)
            case Kind.STOP_AGENT:
                return await self._stop_agent(fault)
            case Kind.RESET_CLIENTS:
                await self._reset_clients()
                return None
            case Kind.SWAP_MODEL:
                self._swaps += 1
                began_s = time.monotonic()
                await self.fleet.desire(self.models[self._swaps % 2])
                return await self._recovery_s(began_s)

    async def _kill_agent(self, victim: str) -> float:
        began_s = time.monotonic()
        self.orphans.append(self.fleet.kill_agent(victim))
        self.fleet.start_agent(victim)  # at once, as a service manager would
        return await self._recovery_s(began_s)

    async def _stop_agent(self, fault: Fault) -> float:
        began_s = time.monotonic()
        pids = self.fleet.pause(fault.victim, with_engine=fault.with_engine)
        await trio.sleep(fault.pause_s)
        resumed_s = time.monotonic()
        self.fleet.resume(pids)
        noticed_s = await self._noticed_s(began_s)
        whole = await self.fleet.first_sight(
            self.fleet.is_whole,
            "a resumed agent is back",
            after_s=max(resumed_s, noticed_s),
            within_s=REPAIR_S,
        )
        return whole.seen_s - resumed_s

    async def _reset_clients(self) -> None:
        """Half of them in the middle of an answer, half while they wait for one."""
        address = self.fleet.addresses["inference"]
        async with trio.open_nursery() as nursery:
            for number in range(self.extras):
                nursery.start_soon(_reset_one, address, number)

    async def _noticed_s(self, since_s: float) -> float:
        def is_broken(view: FleetView) -> bool:
            return not self.fleet.is_whole(view)

        sight = await self.fleet.first_sight(
            is_broken, "the balancer notices a fault", after_s=since_s, within_s=NOTICE_S
        )
        return sight.seen_s

    async def _recovery_s(self, since_s: float) -> float:
        noticed_s = await self._noticed_s(since_s)
        whole = await self.fleet.first_sight(
            self.fleet.is_whole, "the fleet is whole again", after_s=noticed_s, within_s=REPAIR_S
        )
        return whole.seen_s - since_s


async def _reset_one(address: str, number: int) -> None:
    after_bytes = HEAD_BYTES if number % 2 else STREAM_BYTES
    try:
        question = f"Tell me a long story about extra number {number}."
        was_reset = await ask_and_reset(address, question, after_bytes=after_bytes)
    except (OSError, trio.BrokenResourceError) as error:
        raise ChaosError(
            f"the balancer broke the connection of an extra client: {error}"
        ) from error
    if not was_reset:
        raise ChaosError(f"extra client {number} had its whole answer before it could reset")

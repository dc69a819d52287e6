"""What is lost is lost for whom it must be, and for nobody else: kill -9 under load."""

from __future__ import annotations

import os
import random
import signal
from functools import partial

import pytest
import trio
from fleet import Fleet
from streams import CONVERSATION, Heard, listen, story, until_first_tokens

CLIENTS = 12
LEAVERS = frozenset({3, 8})
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))


async def _under_load(fleet: Fleet, all_heard: list[Heard]) -> None:
    """Clients of one round; some leave in the middle; the victim falls while they stream."""
    async with trio.open_nursery() as nursery:
        for number, heard in enumerate(all_heard):
            nursery.start_soon(
                partial(
                    listen,
                    fleet.inference,
                    CONVERSATION,
                    story(number, max_tokens=120),
                    heard,
                    leave_after_tokens=10 if number in LEAVERS else None,
                )
            )


def _fall(fleet: Fleet, victim: str, how: str) -> None:
    daemon = fleet.agents[victim]
    if how == "engine":
        engine = daemon.engine_pid
        if engine is not None:
            os.kill(engine, signal.SIGKILL)
    else:
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        fleet.start_agent(victim, slots=3)


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=SLOW)])
def test_rounds_of_kill_9_leave_one_ending_each_and_no_slot_behind(rounds: int) -> None:
    chance = random.Random(20)
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=60000")
    with Fleet.start(agents=2, slots=3, balancer_options=options) as fleet:
        for round_number in range(rounds):
            how = ("engine", "agent")[round_number % 2]
            victim = chance.choice(sorted(fleet.agents))
            all_heard = [Heard() for _ in range(CLIENTS)]
            streaming = chance.randrange(0, 6)

            async def run(
                all_heard: list[Heard] = all_heard,
                victim: str = victim,
                how: str = how,
                streaming: int = streaming,
            ) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_under_load, fleet, all_heard)
                    await until_first_tokens(all_heard, streaming)
                    await trio.to_thread.run_sync(_fall, fleet, victim, how)

            trio.run(run)
            what = f"round {round_number}: {how} of {victim}"
            for number, heard in enumerate(all_heard):
                if heard.was_cancelled:
                    continue
                assert len(heard.endings) == 1, f"{what}, client {number}: {heard}"
                assert heard.lines_after_ending == 0, f"{what}, client {number}: {heard}"
            fleet.wait_until(
                lambda view: (
                    len(view["agents"]) == 2
                    and all(a["slots_processing"] == 0 for a in view["agents"])
                    and all(a["slots_total"] == 3 and a["is_accepting"] for a in view["agents"])
                ),
                what=f"{what}: both agents are back and no slot is taken",
            )

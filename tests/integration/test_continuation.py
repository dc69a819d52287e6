"""An answer survives its agent: the client sees one stream, to the letter."""

from __future__ import annotations

import os
import random
import signal
from functools import partial

import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet
from streams import (
    CONVERSATION,
    RAW,
    Heard,
    count,
    counted,
    listen,
    song,
    until_first_tokens,
)

AGENTS = 3
SLOTS = 4
STREAMS = 24
GREEDY = {"temperature": 0.0, "penalty_repeat": 1.0, "penalty_presence": 0.0}
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))


async def _ask_all(fleet: Fleet, all_heard: list[Heard]) -> None:
    async with trio.open_nursery() as nursery:
        for number, heard in enumerate(all_heard):
            nursery.start_soon(partial(listen, fleet.inference, CONVERSATION, count(number), heard))


def _round(fleet: Fleet, victim: str, *, of_engine: bool) -> list[Heard]:
    """All of them are asked; the victim is killed when as many as there are slots have begun."""
    all_heard = [Heard() for _ in range(STREAMS)]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask_all, fleet, all_heard)
            await until_first_tokens(all_heard, AGENTS * SLOTS)
            daemon = fleet.agents[victim]
            pid = daemon.engine_pid if of_engine else daemon.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    trio.run(run)
    return all_heard


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=SLOW)])
def test_killed_agents_and_engines_cost_no_client_a_character(rounds: int) -> None:
    """Each answer can only be one text: which of two equally likely words a model chooses depends
    on what else is in its batch."""
    chance = random.Random(7)
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=60000")
    with Fleet.start(agents=AGENTS, slots=SLOTS, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, **GREEDY)
        fleet.wait_serving()
        continued = 0
        for round_number in range(rounds):
            victim = chance.choice(sorted(fleet.agents))
            of_engine = round_number % 2 == 1
            all_heard = _round(fleet, victim, of_engine=of_engine)
            for number, heard in enumerate(all_heard):
                assert heard.endings == ["Done"], f"round {round_number}, {number}: {heard}"
                assert heard.lines_after_ending == 0
                assert heard.text == counted(number), f"round {round_number}: {heard}"
                continued += len(heard.generated_by) > 1
            if not of_engine:
                fleet.agents[victim].wait()
                fleet.start_agent(victim, slots=SLOTS)
            fleet.wait_serving()
        assert continued >= rounds, "the kills hit too few running streams to prove anything"


def test_a_hung_engine_is_killed_and_its_streams_go_on_elsewhere() -> None:
    options = ("--buffered-request-timeout=60000",)
    with Fleet.start(agents=2, slots=2, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, **GREEDY)
        fleet.wait_serving()
        all_heard = [Heard() for _ in range(4)]
        hung = fleet.agents["a1"].engine_pid
        assert hung is not None

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for heard in all_heard:
                    nursery.start_soon(listen, fleet.inference, RAW, song(), heard)
                await until_first_tokens(all_heard, 4)
                os.kill(hung, signal.SIGSTOP)

        trio.run(run)
        assert [heard.endings for heard in all_heard] == [["Done"]] * 4
        fleet.wait_serving()
        assert fleet.agents["a1"].engine_pid != hung


def test_a_stopped_agent_loses_its_streams_to_others_and_comes_back() -> None:
    options = ("--agent-silence=3000", "--buffered-request-timeout=60000")
    with Fleet.start(agents=2, slots=2, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, **GREEDY)
        fleet.wait_serving()
        all_heard = [Heard() for _ in range(4)]

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for heard in all_heard:
                    nursery.start_soon(listen, fleet.inference, RAW, song(), heard)
                await until_first_tokens(all_heard, 4)
                for pid in (fleet.agents["a1"].pid, fleet.agents["a1"].engine_pid):
                    assert pid is not None
                    os.kill(pid, signal.SIGSTOP)

        trio.run(run)
        assert [heard.endings for heard in all_heard] == [["Done"]] * 4
        assert sum(heard.generated_by == ["a1", "a2"] for heard in all_heard) == 2
        for pid in (fleet.agents["a1"].pid, fleet.agents["a1"].engine_pid):
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
        view = fleet.wait_serving()
        assert all(agent["slots_processing"] == 0 for agent in view["agents"])


def test_the_only_agent_dies_and_its_clients_soon_hear_what_happened() -> None:
    options = ("--continuation-wait=500", "--buffered-request-timeout=60000")
    with Fleet.start(agents=1, slots=2, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, **GREEDY)
        fleet.wait_serving()
        heard = Heard()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, fleet.inference, RAW, song(), heard)
                await until_first_tokens([heard], 1)
                fleet.agents["a1"].signal(signal.SIGKILL)

        trio.run(run)
        assert heard.endings == ["Error 502"]
        assert heard.error is not None
        assert heard.error.startswith("The agent was lost after ")
        assert "no agent that can continue the answer connected" in heard.error

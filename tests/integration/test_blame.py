"""A request that kills engines or agents ends; those beside it do not notice. Real processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from fleet import BUNDLED_MODEL, START_S, Fleet
from streams import CONVERSATION, RAW, Heard, listen, story, until_first_tokens

INJECTED = Path(__file__).parent / "injected"
sys.path.append(str(INJECTED))

from deadly import IN_ADMISSION, IN_BATCH, IN_PREPARATION, IN_PYTHON  # noqa: E402

SLOTS = 6
STREAMS = 9
GREEDY = {"temperature": 0.0, "penalty_repeat": 1.0, "penalty_presence": 0.0}
PATH = os.pathsep.join([str(INJECTED), *filter(None, [os.environ.get("PYTHONPATH")])])


def engines_died(fleet: Fleet) -> int:
    return sum('"child crashed"' in line for agent in fleet.agents.values() for line in agent.log)


def wait_engines_died(fleet: Fleet, number: int) -> None:
    """Logs come from threads of their own, and nothing else may change when a line has come."""
    give_up_s = time.monotonic() + START_S
    while engines_died(fleet) < number:
        assert time.monotonic() < give_up_s, f"{engines_died(fleet)} engines died"
        time.sleep(0.02)


def poisoned(fleet: Fleet, deadly: int) -> tuple[Heard, Sequence[Heard]]:
    """Streams on every agent, and one request in the middle of them."""
    bystanders = [Heard() for _ in range(STREAMS)]
    poison = Heard()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number, heard in enumerate(bystanders):
                nursery.start_soon(
                    partial(listen, fleet.inference, CONVERSATION, story(number), heard)
                )
            await until_first_tokens(bystanders, STREAMS)
            body = {"raw_prompt": "Once upon a time", "max_tokens": deadly}
            await listen(fleet.inference, RAW, body, poison)

    trio.run(run)
    return poison, bystanders


@pytest.mark.parametrize(
    "deadly", [IN_BATCH, pytest.param(IN_ADMISSION, marks=pytest.mark.slow), IN_PYTHON]
)
def test_a_request_that_kills_engines_ends_after_two_and_nobody_beside_it(deadly: int) -> None:
    with Fleet.start(agents=3, slots=SLOTS, env={"PYTHONPATH": PATH}) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=6144, **GREEDY)
        fleet.wait_serving()
        poison, bystanders = poisoned(fleet, deadly)
        assert poison.endings == ["Error 502"], poison
        assert "died while they worked on this request" in str(poison.error)
        for heard in bystanders:
            assert heard.endings == ["Done"], heard
            assert heard.lines_after_ending == 0
        wait_engines_died(fleet, 2)
        fleet.wait_serving()
        assert engines_died(fleet) == 2


def test_a_request_that_kills_agents_ends_after_two_and_nobody_beside_it() -> None:
    with Fleet.start(agents=3, slots=2 * SLOTS, env={"PYTHONPATH": PATH}) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=12288, **GREEDY)
        fleet.wait_serving()
        poison, bystanders = poisoned(fleet, IN_PREPARATION)
        assert poison.endings == ["Error 502"], poison
        assert "died while they worked on this request" in str(poison.error)
        for heard in bystanders:
            assert heard.endings == ["Done"], heard
            assert heard.lines_after_ending == 0
        gone = [agent for agent in fleet.agents.values() if agent.process.poll() is not None]
        assert len(gone) == 2

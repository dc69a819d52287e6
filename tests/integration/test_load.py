"""Many clients at once: everyone is served, and the counts are right meanwhile."""

from __future__ import annotations

import re
import signal

import httpx
import trio
from fleet import Fleet
from streams import CONVERSATION, Heard, listen, story

from paddler_trio.system.config import default_threads

STREAMS = 64
SLOTS = 8


def test_64_streams_over_8_slots_all_complete_and_are_counted() -> None:
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=100000")
    patient = ("--agent-silence=100000",)
    with Fleet.start(
        agents=1,
        slots=SLOTS,
        balancer_options=(*options, *patient),
        agent_options=[f"--threads={default_threads()}"],
    ) as fleet:
        all_heard = [Heard() for _ in range(STREAMS)]
        counted: list[tuple[int, int]] = []

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                # An agent that stands still ends no request, so what is counted is not a matter
                # of when we look.
                fleet.agents["a1"].signal(signal.SIGSTOP)
                try:
                    for number, heard in enumerate(all_heard):
                        body = story(number, max_tokens=60)
                        await nursery.start(listen, fleet.inference, CONVERSATION, body, heard)
                    counted.append(await trio.to_thread.run_sync(_counts, fleet))
                finally:
                    fleet.agents["a1"].signal(signal.SIGCONT)

        trio.run(run)
        assert counted == [(SLOTS, STREAMS - SLOTS)]
        assert all(heard.endings == ["Done"] for heard in all_heard)
        assert all(heard.lines_after_ending == 0 for heard in all_heard)
        fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 0)
        assert _counts(fleet) == (0, 0)


def _counts(fleet: Fleet) -> tuple[int, int]:
    """Slots taken and requests waiting, from one snapshot of the metrics."""
    text = httpx.get(f"{fleet.management_url}/metrics", trust_env=False, timeout=60).text
    return _gauge(text, "slots_processing"), _gauge(text, "requests_buffered")


def _gauge(text: str, name: str) -> int:
    found = re.search(rf"^paddler_{name} (\d+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(found.group(1))

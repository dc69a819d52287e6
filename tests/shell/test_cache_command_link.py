"""A command about a cache as its balancer sees it: begun, silent, answered, given up."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock

from paddler_trio.errors import LinkError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO
from paddler_trio.nursery_tree.agent_questions import (
    COMMAND_BEGINS_S,
    COMMAND_SILENCE_S,
    QuestionRefusedError,
)
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.cache_commands import CacheProgress, ListCache
from paddler_trio.wire.trio.trio_link import Answer

STATUS = SlotAggregatedStatusSnapshot(
    desired_slots_total=1,
    download_current=0,
    download_filename=None,
    download_indeterminate=True,
    download_total=0,
    issues=(),
    model_path=None,
    slots_processing=0,
    slots_total=1,
    state_application_status=AgentStateApplicationStatus.APPLIED,
    uses_chat_template_override=False,
    version=1,
)
ID = "query.1"
PROGRESS = CacheProgress(id=ID, phase="starting", source="", filename="")


@pytest.fixture
async def agent_and_frames() -> tuple[AgentConnection, trio.MemoryReceiveChannel[bytes]]:
    outgoing, frames = trio.open_memory_channel[bytes](10)
    agent = AgentConnection(
        key=AgentKey(1),
        id="a1",
        name=None,
        kind=TRIO,
        status=STATUS,
        scope=trio.CancelScope(),
        outgoing=outgoing,
        health=HealthTracker(),
    )
    return agent, frames


async def test_an_agent_that_reports_nothing_is_asked_no_longer(
    agent_and_frames: tuple[AgentConnection, trio.MemoryReceiveChannel[bytes]],
    autojump_clock: MockClock,
) -> None:
    agent, frames = agent_and_frames
    began_s = trio.current_time()
    with pytest.raises(LinkError, match="older version"):
        await agent.questions.command_cache(ListCache(), lambda progress: None)
    assert trio.current_time() - began_s == COMMAND_BEGINS_S
    sent = [json.loads(frames.receive_nowait()) for _ in range(2)]
    assert sent[0] == {"Trio": {"Cache": {"id": ID, "request": {"ListCache": {}}}}}
    assert sent[1] == {"Notification": {"StopRespondingTo": ID}}
    agent.questions.progressed(PROGRESS)  # too late: nobody is there
    assert not agent.questions.answer(ID, Answer(ID, {}, None, 200))


async def test_progress_keeps_a_command_alive_and_silence_ends_it(
    agent_and_frames: tuple[AgentConnection, trio.MemoryReceiveChannel[bytes]],
    autojump_clock: MockClock,
) -> None:
    agent, _ = agent_and_frames
    seen: list[CacheProgress] = []

    async def report() -> None:
        for _ in range(3):
            await trio.sleep(COMMAND_BEGINS_S - 1)
            agent.questions.progressed(PROGRESS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        began_s = trio.current_time()
        with pytest.raises(LinkError, match=r"nothing for 600 s$"):
            await agent.questions.command_cache(ListCache(), seen.append)
    expected_s = 3 * (COMMAND_BEGINS_S - 1) + COMMAND_SILENCE_S
    assert trio.current_time() - began_s == expected_s
    assert len(seen) == 3


async def test_the_last_word_is_an_answer_a_problem_or_the_end_of_the_link(
    agent_and_frames: tuple[AgentConnection, trio.MemoryReceiveChannel[bytes]],
) -> None:
    agent, _ = agent_and_frames
    outcomes: list[object] = []

    async def ask() -> None:
        try:
            outcomes.append(await agent.questions.command_cache(ListCache(), lambda progress: None))
        except (QuestionRefusedError, LinkError) as error:
            outcomes.append(str(error))

    for number, word in enumerate(
        (
            lambda wire_id: agent.questions.answer(
                wire_id, Answer(wire_id, {"models": []}, None, 200)
            ),
            lambda wire_id: agent.questions.answer(wire_id, Answer(wire_id, None, "busy", 503)),
            lambda wire_id: agent.questions.answer(wire_id, {"a": "tree"}),
            lambda wire_id: agent.close(),
        ),
        1,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            word(f"query.{number}")
    assert outcomes == [
        {"models": []},
        "503 busy",
        "agent a1 answers a question with something else",
        "agent a1 disconnected",
    ]

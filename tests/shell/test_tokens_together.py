"""Tokens of a Paddler agent that come in one read are delivered together, to the same effect."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import trio
from dispatch_world import world
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.agents.agent_socket import AgentSocket, _Link
from paddler_trio.balancer.agents.link_credential import LinkCredential
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import PADDLER
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.dispatch.placement import AgentKey

REQUESTS = ("r0", "r1", "gone")
"""The last one never was."""
DONE = {"Done": {"usage": {}}}


def frame(request_id: str, result: object, *, family: str = "GeneratedToken") -> str:
    """As Rust agents write it, without blanks."""
    inner = {"generated_by": "a", "request_id": request_id, "response": {family: result}}
    return json.dumps({"Response": inner}, separators=(",", ":"), ensure_ascii=False)


tokens = st.builds(
    lambda kind, text: {kind: text},
    st.sampled_from(["ContentToken", "ReasoningToken", "ToolCallToken", "NoSuchToken"]),
    st.sampled_from(["a", "", "ü", 'say "x"\n', "\\", " long" * 2000]),
)
results = st.one_of(tokens, tokens, tokens, st.sampled_from([DONE, {"Timeout": None}, "Odd"]))
frames = st.one_of(
    st.builds(frame, st.sampled_from(REQUESTS), results),
    st.sampled_from(
        [
            frame("r0", "Done", family="Embedding"),
            '{"Notification":{"UpdateAgentStatus":1}}',
            '{"Notification":"DeregisterAgent"}',
            "no frame",
        ]
    ),
)


async def outcome(texts: Sequence[str], *, together: bool) -> list[object]:
    """What each request had of it, and what became of the link."""
    told: list[object] = []
    async with world(DispatchLimits(max_buffered=4, item_timeout_s=30)) as here:
        peer = here.agent(slots=2, kind=PADDLER)
        requests = [here.submit(name) for name in REQUESTS[:2]]
        link = link_of(here.dispatcher, peer.connection)
        texts = on_the_wire(texts, requests)
        for some in [texts] if together else [[text] for text in texts]:
            pending = link.take(some)
            if pending is not None:
                await pending
        told += [link._is_over, repr(link._problem)]
        for request in requests:
            told += [said(request), repr(request.phase), request.num_results, request.failure]
            request.stop()
        here.dispatcher.leave(peer.connection)
    return told


def on_the_wire(texts: Sequence[str], requests: Sequence[Request]) -> list[str]:
    """With the ids under which the agent has these requests."""
    renamed = list(texts)
    for name, request in zip(REQUESTS, requests, strict=False):
        assert request.lease is not None
        wire_id = request.lease.wire_id
        old, new = (f'"request_id":"{each}"' for each in (name, wire_id))
        renamed = [text.replace(old, new) for text in renamed]
    return renamed


def link_of(dispatcher: Dispatcher, agent: AgentConnection) -> _Link:
    outgoing, _ = trio.open_memory_channel[bytes](100)
    link = _Link(
        AgentSocket(dispatcher, trio.Event()),
        AgentKey(1),
        "id",
        PADDLER,
        frozenset(),
        outgoing,
        InputBudget().reservation(),
        LinkCredential(None, "id"),
    )
    link.agent = agent
    link._has_begun.set()
    return link


def said(request: Request) -> list[object]:
    """All results that it got, in order."""
    everything: list[object] = []
    while True:
        try:
            everything += request.outbox.receive_nowait().results
        except (trio.WouldBlock, trio.EndOfChannel):
            return everything


@given(st.lists(frames, max_size=12))
def test_it_makes_no_difference_that_frames_come_in_one_read(texts: list[str]) -> None:
    one_by_one = trio.run(lambda: outcome(texts, together=False))
    assert trio.run(lambda: outcome(texts, together=True)) == one_by_one


async def test_those_of_one_request_are_one_step() -> None:
    async with world(DispatchLimits(max_buffered=4, item_timeout_s=30)) as here:
        peer = here.agent(slots=2, kind=PADDLER)
        first, second = [here.submit(name) for name in REQUESTS[:2]]
        texts = [frame(name, {"ContentToken": f"{n}"}) for n in range(3) for name in ("r0", "r1")]
        link = link_of(here.dispatcher, peer.connection)
        link.take(on_the_wire(texts, (first, second)))
        step = first.outbox.receive_nowait()
        assert step.results == [{"ContentToken": "0"}, {"ContentToken": "1"}, {"ContentToken": "2"}]
        assert step.num_tokens == 3
        with pytest.raises(trio.WouldBlock):
            first.outbox.receive_nowait()
        assert second.outbox.receive_nowait().num_tokens == 3
        for request in (first, second):
            request.stop()
        here.dispatcher.leave(peer.connection)

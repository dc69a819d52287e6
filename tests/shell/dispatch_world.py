"""A dispatcher with everything around it but sockets.

The dispatcher, the leases and the agents' records are the real ones. An agent is read through the
parsers a real agent uses, so a frame that it could not read fails the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO, AgentKind, Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver, Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Lease, Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.wire.codec import loads
from paddler_trio.wire.paddler.messages import (
    AgentMessage,
    AgentRequest,
    StopRespondingTo,
    parse_agent_message,
)
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.request_frame import encode_work
from paddler_trio.wire.trio.trio_link import TAG, Extension, Report, Start, parse_extension

WORK = encode_work(ContinueFromRawPromptParams("Once", 5))
DONE: dict[str, object] = {"Done": {"usage": {}}}
LIMITS = DispatchLimits(max_buffered=2, buffered_timeout_s=10, item_timeout_s=30)

Frame: TypeAlias = AgentMessage | Extension


@attrs.define(eq=False)
class Peer:
    """An agent as its socket would see it."""

    connection: AgentConnection
    frames: trio.MemoryReceiveChannel[bytes]

    def received(self) -> Iterator[Frame]:
        """What went out since the last look, as the agent reads it."""
        while True:
            try:
                frame = self.frames.receive_nowait()
            except trio.WouldBlock:
                return
            if frame.startswith(b'{"Trio":'):
                body = loads(frame)
                assert isinstance(body, dict)
                yield parse_extension(body[TAG])
            else:
                yield parse_agent_message(frame)

    def sent(self) -> list[str]:
        """The same in words, ``start ID`` and ``stop ID``."""
        words = []
        for frame in self.received():
            match frame:
                case AgentRequest() | Start():
                    words.append(f"start {frame.id}")
                case StopRespondingTo(wire_id):
                    words.append(f"stop {wire_id}")
        return words

    def lease(self, wire_id: str) -> Lease:
        found = self.connection.lease(wire_id)
        assert found is not None, f"{wire_id} is not on this agent"
        return found

    def says(self, wire_id: str, *texts: str, done: bool = False) -> None:
        """Deliver these tokens, and the ending if ``done``."""
        results: list[RawResult] = [{"ContentToken": text} for text in texts]
        tokens = [ord(text[0]) for text in texts]
        if done:
            results.append(DONE)
        known = tokens if self.connection.kind.reports_tokens else None
        self.lease(wire_id).deliver("GeneratedToken", results, ends=done, tokens=known)
        self.connection.flush()


class World:
    """A dispatcher with its nursery, and agents made on demand."""

    def __init__(self, dispatcher: Dispatcher, nursery: trio.Nursery) -> None:
        self.dispatcher = dispatcher
        self.nursery = nursery
        self.agents = 0

    def agent(
        self,
        *,
        slots: int = 1,
        kind: AgentKind = TRIO,
        features: Iterable[Feature] = (),
        model: str | None = "m",
        deployment: str = "default",
        serves: str | None = None,
        name: str | None = None,
        host: str | None = None,
    ) -> Peer:
        self.agents += 1
        outgoing, frames = trio.open_memory_channel[bytes](100)
        connection = AgentConnection(
            key=AgentKey(self.agents),
            id=f"id{self.agents}",
            name=name or f"a{self.agents}",
            kind=kind,
            features=frozenset(features),
            status=status_of(slots),
            scope=trio.CancelScope(),
            outgoing=outgoing,
            health=self.dispatcher.health,
            deployment=deployment,
        )
        connection.host = host or connection.id
        if kind.reports_state:
            connection.report = Report("serving", serves, serves, model, None, None)
        self.dispatcher.join(connection)
        return Peer(connection, frames)

    def submit(self, request_id: str = "r", *, deployment: str = "default") -> Request:
        return self.dispatcher.submit(request_id, WORK, deployment=deployment)

    def nothing_is_left(self) -> bool:
        statistics = self.dispatcher.statistics()
        return (
            statistics.slots_processing == 0
            and statistics.requests_buffered == 0
            and not self.dispatcher._requests
            and not self.nursery.child_tasks
        )


def status_of(slots: int) -> SlotAggregatedStatusSnapshot:
    return SlotAggregatedStatusSnapshot(
        desired_slots_total=slots,
        download_current=0,
        download_filename=None,
        download_indeterminate=True,
        download_total=0,
        issues=(),
        model_path=None,
        slots_processing=0,
        slots_total=slots,
        state_application_status=AgentStateApplicationStatus.APPLIED,
        uses_chat_template_override=False,
        version=1,
    )


@asynccontextmanager
async def world(
    limits: DispatchLimits = LIMITS,
    observers: Iterable[DispatchObserver] = (),
    placement: WarmPlacement | None = None,
) -> AsyncIterator[World]:
    """At the end of the block every request must have ended and nothing may be left."""
    dispatcher = Dispatcher(limits, Observers(observers), placement)
    async with trio.open_nursery() as nursery:
        dispatcher.open(agents=nursery, requests=nursery)
        here = World(dispatcher, nursery)
        yield here
        await wait_all_tasks_blocked()
        assert here.nothing_is_left(), dispatcher.statistics()
        nursery.cancel_scope.cancel()


async def heard(request: Request) -> tuple[str, Failure | None]:
    """The whole answer, and how it failed if it did."""
    text = ""
    async for step in request.outbox:
        for result in step.results:
            assert isinstance(result, dict)
            text += str(result.get("ContentToken", ""))
    assert request.is_over
    return text, request.failure

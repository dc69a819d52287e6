"""All requests in flight, and the last ten thousand that ended: an observer of the dispatcher.

It keeps times and counts, never a text of a client, unless prompts are captured. Each event costs a
few microseconds and a delivered step less than one; nothing here waits or looks at all requests,
but for the positions in the queue, of which a task looks at some once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import islice
from typing import Final, TypeAlias

import attrs
import trio

from paddler_trio.balancer.activity.agent_history import AgentHistory
from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.activity.placement_words import MAX_TEXT_CHARS, reason_of
from paddler_trio.balancer.activity.request_record import (
    PlacementRecord,
    RequestRecord,
    Stay,
    slot_ending,
)
from paddler_trio.balancer.apis.api_errors import from_result
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import (
    Buffered,
    Ended,
    Lease,
    Leased,
    Phase,
    Request,
    Stopping,
    Streaming,
)
from paddler_trio.nursery_tree.step_results import FORWARDED, Results
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.truth.request_truth import finish_of
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.wire.paddler.raw_results import is_text
from paddler_trio.wire.trio.prompt_stages import MAX_TOKENS
from paddler_trio.wire.trio.request_frame import EncodedWork

LOOK_S: Final = 1.0
MAX_LOOKED_AT: Final = 256
"""Requests in the queue whose positions are noted at a time."""


_CALLS: Final = frozenset({"ToolCallParsed", "ToolCallDelta"})

Position: TypeAlias = Callable[[Request], "int | None"]
"""How many stand before a request; None if it does not wait."""
Obstacle: TypeAlias = Callable[[str], str]
"""Why the requests of a deployment wait, if they do not only wait for their turn; else empty."""


@attrs.define(eq=False)
class Touched:
    """The records that changed since they were last taken."""

    _records: dict[int, RequestRecord] = attrs.field(factory=dict)

    def add(self, record: RequestRecord) -> None:
        self._records[record.key] = record

    def take(self) -> list[RequestRecord]:
        """Take each of them once."""
        records, self._records = self._records, {}
        return list(records.values())


@attrs.define
class _Lanes:
    """Hold the requests of one agent."""

    free: list[int] = attrs.field(factory=list)
    used: int = 0
    made: int = 0

    def take(self) -> int:
        self.used += 1
        if self.free:
            return heappop(self.free)
        self.made += 1
        return self.made - 1

    def give_back(self, lane: int) -> None:
        self.used -= 1
        heappush(self.free, lane)


@attrs.define(eq=False, repr=False)
class RequestActivity(DispatchObserver):
    """See the module docstring.

    Args:
      captures: keeps the beginnings of prompts and answers; None keeps none.
    """

    captures: Captures | None = None
    revision_of: Callable[[str, str], int | None] = lambda deployment, digest: None
    """The number of the revision that brought a state, by the deployment and its digest."""
    agents: AgentHistory = attrs.field(factory=AgentHistory, init=False)
    in_flight: dict[RequestKey, RequestRecord] = attrs.field(factory=dict, init=False)
    finished: FinishedRequests = attrs.field(init=False)
    _waiting: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    _requests: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    _lanes: dict[AgentKey, _Lanes] = attrs.field(factory=dict, init=False)
    _subscribers: list[Touched] = attrs.field(factory=list, init=False)
    _lost: str | None = attrs.field(default=None, init=False)
    """How the request that moves next has lost its slot."""

    def __attrs_post_init__(self) -> None:
        self.finished = FinishedRequests(self.captures)

    def __repr__(self) -> str:
        return f"<RequestActivity {len(self.in_flight)} in flight, {len(self.finished)} finished>"

    # ------------------------------------------------------------- reading

    @contextmanager
    def subscribe(self) -> Iterator[Touched]:
        """Report what changes within this block."""
        touched = Touched()
        self._subscribers.append(touched)
        try:
            yield touched
        finally:
            self._subscribers.remove(touched)

    def find(self, name: str) -> RequestRecord | None:
        """Return the record with this key or id, the newest of several."""
        key = int(name) if name.isascii() and name.isdigit() and len(name) < 20 else None
        if key is not None and key in self.in_flight:
            return self.in_flight[RequestKey(key)]
        for record in reversed(self.in_flight.values()):
            if record.id == name:
                return record
        return self.finished.find(name, key)

    def request(self, key: int) -> Request | None:
        """Return the request itself, if it has not ended."""
        return self._requests.get(RequestKey(key))

    # ----------------------------------------------------------- observing

    def arrived(self, request: Request) -> None:
        record = RequestRecord.of(request)
        record.stays.append(Stay(request.arrived_s))
        if self.captures is not None and isinstance(request.work, EncodedWork):
            self.captures.begin(record, request.work)
        self.in_flight[request.key] = record
        self._requests[request.key] = self._waiting[request.key] = request
        self._touch(record)

    def moved(self, request: Request, left: Phase) -> None:
        record = self.in_flight[request.key]
        now_s = trio.current_time()
        if isinstance(left, Buffered):
            self._waiting.pop(request.key, None)
            stay = record.stays[-1]
            stay.until_s = now_s
            record.position = None
        match request.phase:
            case Buffered():
                self._end_slot(record, left, now_s, self._lost or "lost")
                record.stays.append(Stay(now_s))
                self._waiting[request.key] = request
            case Leased(lease):
                record.placements.append(self._placement(lease, now_s))
                if request.revision is not None:
                    number = self.revision_of(request.deployment, request.revision)
                    record.placements[-1].revision = number
            case Ended() if not isinstance(left, Buffered):
                self._end_slot(record, left, now_s, self._lost or slot_ending(request))
            case Streaming() | Stopping() | Ended():
                pass
        self._lost = None
        record.enters(request, now_s)
        if isinstance(request.phase, Ended):
            del self.in_flight[request.key], self._requests[request.key]
            self.finished.add(record)
        self._touch(record)

    def lost(self, request: Request, how: str) -> None:
        self._lost = how[:MAX_TEXT_CHARS]

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        record = self.in_flight.get(request.key)
        if record is None:
            return
        count = results.num_tokens
        record.tokens += count
        placement = record.placements[-1]
        if placement.first_s is None and (count or results.family == FORWARDED):
            placement.first_s = now_s
            if record.first_s is None:
                record.first_s = now_s
            self._touch(record)
        record.progress.add(now_s, record.tokens)
        last = results.results[-1] if results.results else None
        if last is not None and not (len(results.results) == 1 and is_text(last)):
            _note_results(request, record, placement, results)
        if self.captures is not None:
            self.captures.take(record, results)

    def prepared(self, lease: Lease) -> None:
        record = self.in_flight.get(lease.request.key)
        if record is not None:
            placement = record.placements[-1]
            placement.prepared_s, placement.prompt = lease.prepared_s, lease.prompt
            placement.preemptions = lease.preemptions
            placement.preempted_s = tuple(lease.preempted_s)
            if lease.prompt is not None:
                placement.prompt_tokens = lease.prompt.tokens
                placement.cached_tokens = lease.prompt.cached
            self._touch(record)

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        self.agents.note(agent, trio.current_time(), is_here=is_here)

    async def run(self, position: Position, obstacle: Obstacle) -> None:
        """Note positions in the queue until cancelled, those that were not noted for longest first.

        Args:
          position: of a request.
          obstacle: of a deployment; asked once a second for each that has requests waiting.
        """
        explain_this_task(lambda: f"{len(self._waiting)} requests wait; {self!r}")
        while True:
            await trio.sleep(LOOK_S)
            now_s = trio.current_time()
            obstacles: dict[str, str] = {}
            for key in list(islice(self._waiting, MAX_LOOKED_AT)):
                request = self._waiting.pop(key)
                name = request.deployment
                if name not in obstacles:
                    obstacles[name] = obstacle(name)[:MAX_TEXT_CHARS]
                self._look(request, position, obstacles[name], now_s)

    # ------------------------------------------------------------- private

    def _look(self, request: Request, position: Position, obstacle: str, now_s: float) -> None:
        self._waiting[request.key] = request
        record = self.in_flight[request.key]
        stay = record.stays[-1]
        ahead = position(request)
        if obstacle and obstacle != stay.obstacle:
            stay.obstacle = obstacle
            self._touch(record)
        if ahead is not None and ahead != record.position:
            record.position = ahead
            stay.positions.add(now_s, ahead)
            self._touch(record)

    def _placement(self, lease: Lease, now_s: float) -> PlacementRecord:
        agent = lease.agent
        lanes = self._lanes.get(agent.key)
        if lanes is None:
            lanes = self._lanes[agent.key] = _Lanes()
        return PlacementRecord(
            agent.label[:MAX_TEXT_CHARS], agent.key, lanes.take(), now_s, reason_of(lease.choice)
        )

    def _end_slot(self, record: RequestRecord, left: Phase, now_s: float, ending: str) -> None:
        placement = record.placements[-1]
        placement.ended_s, placement.ending = now_s, ending
        if isinstance(left, Leased | Streaming | Stopping):
            placement.preemptions = left.lease.preemptions
        key = AgentKey(placement.agent_key)
        lanes = self._lanes[key]
        lanes.give_back(placement.lane)
        if not lanes.used:
            del self._lanes[key]

    def _touch(self, record: RequestRecord) -> None:
        for touched in self._subscribers:
            touched.add(record)


def _note_results(
    request: Request, record: RequestRecord, placement: PlacementRecord, results: Results
) -> None:
    """Note what a step has beside pieces of text: calls of tools, figures, the end, a refusal."""
    last = results.results[-1]
    if results.family == "Embedding":
        for each in results.results:
            match each:
                case {"Usage": usage}:
                    _note_usage(placement, {"usage": usage})
                case {"DocumentRefused": {"problem": str(problem)}}:
                    record.refusal = 400, problem[:MAX_TEXT_CHARS]
    else:
        record.calls_tools = record.calls_tools or any(
            type(each) is dict and not _CALLS.isdisjoint(each) for each in results.results
        )
        if type(last) is dict and isinstance(done := last.get("Done"), Mapping):
            _note_usage(placement, done)
            finish = done.get("finish")
            reason = finish.get("reason") if isinstance(finish, Mapping) else None
            record.finish = finish_of(reason, calls_tools=record.calls_tools)
    error = from_result(last)
    if error is not None and record.refusal is None:
        record.refusal = error.status, error.message[:MAX_TEXT_CHARS]
    if record.refusal is not None:
        request.answered_with = record.refusal[0]


def _note_usage(placement: PlacementRecord, done: object) -> None:
    """Note the counts of the prompt in the last result, which Paddler's agents send, too."""
    usage = done.get("usage") if isinstance(done, Mapping) else None
    if not isinstance(usage, Mapping):
        return
    prompt, cached = usage.get("prompt_tokens"), usage.get("cached_prompt_tokens", 0)
    if type(prompt) is int and type(cached) is int:
        placement.prompt_tokens = max(0, min(MAX_TOKENS, prompt))
        placement.cached_tokens = max(0, min(MAX_TOKENS, cached))

"""Record the arrivals of requests, as times and lengths, and measure how fast agents are: an
observer.

No text is kept and no name: of a prompt its length, and which earlier one it begins like. A token
costs nothing here; a request costs a look at its blocks when it arrives, and some sums when it
begins, has its first token, and ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from statistics import median
from struct import Struct
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Lease, Leased, Phase, Request
from paddler_trio.nursery_tree.request_endings import Completed
from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.capacity.replayed_arrivals import MAX_ARRIVALS, MAX_TOKENS, Arrival
from paddler_trio.scheduler.capacity.speeds import SpeedSamples
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.wire.trio.request_frame import EncodedWork

MAX_BYTES: Final = 4 * 1024 * 1024
"""All arrivals that are kept have so many, some hundred thousand; the oldest go first."""
MAX_BLOCKS: Final = 32_768
"""So many blocks are known with their requests, some 200 bytes each."""
MAX_NAMES: Final = 1000
"""Deployments, and clients, that are told apart; the others are one."""
LEAST_TOKENS: Final = 4
"""An answer with fewer is not measured."""
PASS_TOKENS: Final = 512
"""Prompt tokens that an engine computes together, about."""
_PACKED: Final = Struct("<QdIIHHQI")


@attrs.define(eq=False)
class _Level:
    """A number, and its sum over the time up to ``since_s``."""

    since_s: float
    number: int = 0
    sum_s: float = 0.0

    def change(self, by: int, now_s: float) -> None:
        """Note that it is so much more from now on."""
        self.sum_s += self.number * (now_s - self.since_s)
        self.since_s = now_s
        self.number += by


@attrs.define(eq=False)
class _Agent:
    """The sums of what an agent does, and the samples of its speed.

    Args:
      answers: that it writes, and ``taken`` the slots.
      busy: how many agents are, of all.
      prompt_tokens: that were computed.
    """

    answers: _Level
    busy: _Level
    taken: int = 0
    prompt_tokens: int = 0
    samples: SpeedSamples = attrs.field(factory=SpeedSamples)
    controller: PrefillController = attrs.field(factory=PrefillController)
    """It does what the engine's own does with such passes."""

    def passes(self, tokens: int, together: float, took_s: float) -> float:
        """Return in about how many passes so many prompt tokens were computed: beside answers it is
        the length of a pass that is bounded."""
        beside = 0.0
        if together >= 0.5:
            beside = 1000 * took_s / self.controller.pass_target_ms(1)
        return max(1.0, beside, tokens / PASS_TOKENS)

    def take(self, slots: int, now_s: float) -> None:
        """Note that so many more slots are taken."""
        was_busy = self.taken > 0
        self.taken += slots
        self.busy.change((self.taken > 0) - was_busy, now_s)


@attrs.frozen
class _Interval:
    """The work of an agent in a time: answers that were written at the same time, prompt tokens
    that were computed, and other agents that were busy."""

    took_s: float
    together: float
    prompt_tokens: int
    others: float


@attrs.define(eq=False)
class _Slot:
    """A request in a slot, and the sums of its agent when it began, or had its first token."""

    agent: _Agent
    began_s: float
    is_writing: bool = False
    _answers_s: float = 0.0
    _busy_s: float = 0.0
    _prompt_tokens: int = 0

    def restart(self, now_s: float) -> _Interval:
        """Return what the agent did since the last call."""
        agent, took_s = self.agent, now_s - self.began_s
        agent.answers.change(0, now_s)
        agent.busy.change(0, now_s)
        answers_s, busy_s = agent.answers.sum_s, agent.busy.sum_s
        found = _Interval(
            took_s,
            (answers_s - self._answers_s) / took_s if took_s > 0 else 0.0,
            agent.prompt_tokens - self._prompt_tokens,
            max(0.0, (busy_s - self._busy_s) / took_s - 1.0) if took_s > 0 else 0.0,
        )
        self.began_s, self._answers_s, self._busy_s = now_s, answers_s, busy_s
        self._prompt_tokens = agent.prompt_tokens
        return found

    def leave(self, now_s: float) -> None:
        """Give the slot back."""
        self.agent.answers.change(-self.is_writing, now_s)
        self.agent.take(-1, now_s)


@attrs.define(eq=False, repr=False)
class ArrivalLog(DispatchObserver):
    """See the module docstring.

    Args:
      activity: has the records; that of a request that ended is there before this is called.
    """

    activity: RequestActivity
    _packed: bytearray = attrs.field(factory=bytearray, init=False)
    _deployments: dict[str, int] = attrs.field(factory=dict, init=False)
    _clients: dict[str, int] = attrs.field(factory=dict, init=False)
    _blocks: OrderedDict[int, int] = attrs.field(factory=OrderedDict, init=False)
    """The last request whose prompt has a block, by block."""
    _shared: dict[RequestKey, tuple[int, float]] = attrs.field(factory=dict, init=False)
    """The requests that have not ended: which one each begins like, and how much of it that is."""
    _busy: _Level = attrs.field(factory=lambda: _Level(0.0), init=False)
    _agents: dict[AgentKey, _Agent] = attrs.field(factory=dict, init=False)
    _slots: dict[RequestKey, _Slot] = attrs.field(factory=dict, init=False)

    def __repr__(self) -> str:
        return f"<ArrivalLog of {len(self._packed) // _PACKED.size} requests>"

    # ------------------------------------------------------------ observing

    def arrived(self, request: Request) -> None:
        if not isinstance(request.work, EncodedWork):
            return
        prompt, blocks = request.work.prompt, self._blocks
        for depth in range(len(prompt.hashes), 0, -1):
            like = blocks.get(prompt.hashes[depth - 1])
            if like is not None:
                part = prompt.covered_bytes(depth) / prompt.size_bytes
                self._shared[request.key] = like, part
                break
        for each in prompt.hashes:
            blocks[each] = request.key
            blocks.move_to_end(each)
        while len(blocks) > MAX_BLOCKS:
            blocks.popitem(last=False)

    def moved(self, request: Request, left: Phase) -> None:
        slot = self._slots.pop(request.key, None)
        now_s = trio.current_time()
        match request.phase:
            case Leased(lease):
                agent = self._agents.get(lease.agent.key)
                if agent is not None:
                    agent.take(1, now_s)
                    self._slots[request.key] = slot = _Slot(agent, now_s)
                    slot.restart(now_s)
            case Ended():
                self._ended(request, slot, now_s)
            case _ if slot is not None and request.lease is not None:
                self._slots[request.key] = slot
            case _ if slot is not None:
                slot.leave(now_s)

    def prepared(self, lease: Lease) -> None:
        slot, prompt = self._slots.get(lease.request.key), lease.prompt
        if slot is None or prompt is None or slot.is_writing:
            return
        now_s = trio.current_time()
        agent = slot.agent
        agent.prompt_tokens += prompt.tokens - prompt.cached
        did = slot.restart(now_s)
        agent.answers.change(1, now_s)
        slot.is_writing = True
        computing_s = (prompt.wait_ms + prompt.prefill_ms) / 1000
        agent.samples.add_prompt(
            tokens=did.prompt_tokens,
            passes=agent.passes(did.prompt_tokens, did.together, computing_s),
            together=did.together,
            took_s=max(computing_s, 0.0005),  # a stage is reported in whole milliseconds
            others=did.others,
            lag_s=did.took_s - computing_s,
        )

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        if not is_here:
            self._agents.pop(agent.key, None)
        elif agent.kind.reports_tokens and agent.key not in self._agents:
            self._agents[agent.key] = _Agent(_Level(trio.current_time()), self._busy)

    # -------------------------------------------------------------- reading

    def samples(self, agent: AgentKey) -> SpeedSamples:
        """Return the samples of an agent as they are now; none of one that reports too little."""
        found = self._agents.get(agent)
        return SpeedSamples() if found is None else found.samples.copy()

    def reader(self, deployment: str, since_s: float) -> Callable[[], list[Arrival]]:
        """Return what reads the arrivals of a deployment from this moment on, as they are now; it
        takes time and belongs into a thread."""
        number = self._deployments.get(deployment, -1)
        return partial(_arrivals, bytes(self._packed), number, since_s)

    # -------------------------------------------------------------- private

    def _ended(self, request: Request, slot: _Slot | None, now_s: float) -> None:
        like, part = self._shared.pop(request.key, (0, 0.0))
        record = self.activity.finished.last
        assert record is not None, "its record is kept first"
        if slot is not None:
            if slot.is_writing:
                _measure(slot, request, record, now_s)
            slot.leave(now_s)
        if record.kind == "generation" and isinstance(request.work, EncodedWork):
            self._keep(record, request.work.prompt.size_bytes, like, part)

    def _keep(self, record: RequestRecord, size_bytes: int, like: int, part: float) -> None:
        known = [each for each in record.placements if each.prompt_tokens is not None]
        tokens = known[0].prompt_tokens if known else None
        cached = (known[0].cached_tokens if known else None) or 0
        if tokens is None:
            tokens = size_bytes // 4
        shared = max(round(part * tokens), cached) if like else 0
        self._packed += _PACKED.pack(
            record.key,
            record.arrived_s,
            min(tokens, MAX_TOKENS),
            min(record.tokens, MAX_TOKENS),
            _number(self._deployments, record.deployment),
            _number(self._clients, record.client),
            like,
            min(shared, MAX_TOKENS),
        )
        if len(self._packed) > MAX_BYTES:
            del self._packed[: len(self._packed) // _PACKED.size // 8 * _PACKED.size]


def _number(names: dict[str, int], name: str) -> int:
    if name not in names and len(names) >= MAX_NAMES:
        return MAX_NAMES
    return names.setdefault(name, len(names))


def _measure(slot: _Slot, request: Request, record: RequestRecord, now_s: float) -> None:
    """Note how long the answer took, if it is whole and of one agent."""
    did, agent, tokens = slot.restart(now_s), slot.agent, record.tokens - 1
    is_whole = isinstance(request.ending, Completed) and len(record.placements) == 1
    if not is_whole or tokens < LEAST_TOKENS or record.placements[0].preemptions:
        return
    pass_ms = 1000 * did.took_s / tokens
    agent.controller.measured(generating=1, prompt_tokens=0, pass_ms=pass_ms)
    agent.samples.add_answer(
        tokens=tokens,
        together=did.together,
        prompt_tokens=did.prompt_tokens,
        took_s=did.took_s,
        others=did.others,
    )


def _arrivals(packed: bytes, deployment: int, since_s: float) -> list[Arrival]:
    """Return the newest ``MAX_ARRIVALS`` in the order of time. Lengths that are not known, since
    the request was refused, are the median of the others."""
    rows = [
        row for row in _PACKED.iter_unpack(packed) if row[4] == deployment and row[1] >= since_s
    ]
    rows = sorted(rows, key=itemgetter(1))[-MAX_ARRIVALS:]
    usual = max(1, round(median([row[3] for row in rows if row[3]] or [1])))
    places = {row[0]: place for place, row in enumerate(rows)}
    arrivals = list[Arrival]()
    for _, at_s, prompt, answer, _, client, like, shared in rows:
        place = places.setdefault(like, len(places)) if shared else -1
        arrivals.append(Arrival(at_s, max(1, prompt), answer or usual, client, place, shared))
    return arrivals

"""Replay requests through the ledger and the placement of the balancer in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.prefix_index import PrefixIndex
from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.scheduler.dispatch.slot_decisions import BufferFull, Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import SlotLedger
from paddler_trio.scheduler.dispatch.turn_costs import TurnCosts
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.scheduler.virtual.virtual_engine import (
    EngineSpeed,
    Passes,
    VirtualEngine,
    VirtualPrompt,
)

ASK_EVERY: Final = 1000
"""Events, between two looks whether a replay may go on."""
SALT: Final = hash("default")
"""The placement mixes it into the first hash of a prompt."""


@attrs.frozen
class Turn:
    """One request.

    Args:
      then: the blocks of the prompt and of the answer.
      pause_s: from the arrival before, or from the end of the turn before it, to this one.
      next: what the client asks once it has the answer.
    """

    prompt: VirtualPrompt
    then: tuple[int, ...]
    answer_tokens: int
    pause_s: float = 0.0
    client: str = ""
    next: Turn | None = None


@attrs.define
class Outcome:
    """The outcome of a turn.

    Args:
      ttft_s: from its arrival, None if it was refused.
      waited_s: for a slot.
      predicted_wait_s: as it was expected at its arrival; None if it was not known, or none.
      tries: how often the turn had been refused before.
      refused_s: when it was refused, if it was, and ``retry_after_s``: when to come again.
      refused: ``full`` of requests was the queue, or it ``waited`` for too long.
    """

    turn: Turn
    arrived_s: float
    agent: AgentKey | None = None
    ttft_s: float | None = None
    waited_s: float = 0.0
    predicted_wait_s: float | None = None
    cached: int = 0
    ended_s: float | None = None
    tries: int = 0
    refused_s: float | None = None
    retry_after_s: int = 0
    refused: Literal["", "full", "waited"] = ""


class StoppedError(Exception):
    """The replay was not to go on."""


Happening: TypeAlias = "Callable[[], None]"


@attrs.define(eq=False)
class VirtualFleet:
    """See the module docstring.

    Args:
      engines: by the number of their slots.
      is_warm: requests are placed by prediction, and not by load alone.
      is_exact: the placement knows what every engine keeps, instead of what it was given.
      is_by_work: clients share slots by what their requests cost, and not by their number.
      most_tries: how often who is refused comes again, each time exactly when it was told.
      patience_s: how long a request waits for a slot.
      may_go_on: is asked from time to time, with what has come so far and the virtual time; a
        False ends the replay with a StoppedError.
    """

    engines: Sequence[tuple[int, EngineSpeed]]
    is_warm: bool = True
    is_exact: bool = False
    is_by_work: bool = True
    max_buffered: int = 1_000_000
    most_tries: int = 0
    patience_s: float = math.inf
    may_go_on: Callable[[Sequence[Outcome], float], bool] = lambda outcomes, now_s: True
    now_s: float = attrs.field(default=0.0, init=False)
    outcomes: list[Outcome] = attrs.field(factory=list, init=False)
    ledger: SlotLedger = attrs.field(init=False)
    placement: WarmPlacement | None = attrs.field(default=None, init=False)
    rate: ServiceRate = attrs.field(factory=ServiceRate, init=False)
    agents: dict[AgentKey, VirtualEngine] = attrs.field(factory=dict, init=False)
    _events: list[tuple[float, int, Happening]] = attrs.field(factory=list, init=False)
    _numbers: count[int] = attrs.field(factory=lambda: count(1), init=False)
    _by_key: dict[RequestKey, Outcome] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for number, (_, speed) in enumerate(self.engines, 1):
            self.agents[AgentKey(number)] = VirtualEngine(speed)
        if self.is_warm:
            index = ExactIndex(self.agents) if self.is_exact else PrefixIndex()
            self.placement = WarmPlacement(lambda: self.now_s, index)
        costs = TurnCosts()
        if self.is_by_work and self.placement is not None:
            costs = TurnCosts(lambda: self.now_s, self.placement.prompt_s)
        self.ledger = SlotLedger(self.max_buffered, self.placement, costs)
        for number, (slots, _) in enumerate(self.engines, 1):
            self.ledger.join(AgentKey(number))
            if self.placement is not None:
                self.placement.joined(AgentKey(number), f"a{number}", "default")
            self.ledger.update(AgentKey(number), slots_total=slots, accepting=True)

    def run(
        self, arrivals: Iterable[tuple[float, Turn]], until_s: float = float("inf")
    ) -> list[Outcome]:
        """Let these turns, and those that follow them, arrive and end, as far as they do so until
        then."""
        for at_s, turn in arrivals:
            self._at(at_s, partial(self._arrive, turn))
        for number in count():
            if number % ASK_EVERY == 0 and not self.may_go_on(self.outcomes, self.now_s):
                raise StoppedError
            if not self._events or self._events[0][0] > until_s:
                break
            self.now_s, _, happen = heappop(self._events)
            happen()
        return self.outcomes

    @property
    def computed_tokens(self) -> int:
        """Return the prompt tokens that all engines computed."""
        return sum(engine.computed_tokens for engine in self.agents.values())

    def _at(self, at_s: float, happen: Happening) -> None:
        heappush(self._events, (at_s, next(self._numbers), happen))

    def _arrive(self, turn: Turn, tries: int = 0) -> None:
        key = RequestKey(next(self._numbers))
        outcome = Outcome(turn, self.now_s, tries=tries)
        self.outcomes.append(outcome)
        if self.placement is not None:
            self.placement.arrived(key, turn.prompt, "default")
        decision = self.ledger.ask(key, client=turn.client)
        if not isinstance(decision, Granted):
            self.rate.waits(self.now_s)
        if isinstance(decision, BufferFull):
            self._refused(key, outcome)
            return
        self._by_key[key] = outcome
        if isinstance(decision, Queued):
            if decision.displaced is not None:
                displaced = self._by_key.pop(decision.displaced)
                self._refused(decision.displaced, displaced)
            outcome.predicted_wait_s = self.rate.wait_s(decision.ahead + 1, self.now_s)
            if self.patience_s < math.inf:
                self._at(self.now_s + self.patience_s, partial(self._give_up, key))
        self._apply([decision] if isinstance(decision, Granted) else [])

    def _refused(self, key: RequestKey, outcome: Outcome) -> None:
        outcome.refused = "full"
        outcome.refused_s = self.now_s
        outcome.retry_after_s = self.rate.retry_after_s(self.ledger.num_waiting, self.now_s)
        if self.placement is not None:
            self.placement.ended(key)
        if outcome.tries < self.most_tries:
            again = partial(self._arrive, outcome.turn, outcome.tries + 1)
            self._at(self.now_s + outcome.retry_after_s, again)

    def _give_up(self, key: RequestKey) -> None:
        if self.ledger.position(key) is not None:
            self._by_key.pop(key).refused = "waited"
            self._apply(self.ledger.end(key))

    def _apply(self, grants: Sequence[Granted]) -> None:
        for granted in grants:
            outcome = self._by_key[granted.request]
            outcome.agent = granted.agent
            outcome.waited_s = self.now_s - outcome.arrived_s
            lag_s = self.agents[granted.agent].speed.lag_s
            if lag_s:
                self._at(self.now_s + lag_s, partial(self._start, granted, self.now_s))
            else:
                self._start(granted, self.now_s)
        for key, until_s in self.ledger.holds.take_new():
            self._at(until_s, partial(self._release, key))

    def _start(self, granted: Granted, began_s: float) -> None:
        agent, turn = granted.agent, self._by_key[granted.request].turn
        engine = self.agents[agent]
        engine.start(granted.request, turn.prompt, turn.then, turn.answer_tokens, began_s)
        if engine.passes is None:
            self._begin(agent, engine)
        elif (end_s := engine.cut(self.now_s)) is not None:
            self._at(end_s, partial(self._passed, agent, engine.passes))

    def _release(self, key: RequestKey) -> None:
        self._apply(self.ledger.release_hold(key))

    def _passed(self, agent: AgentKey, passes: Passes | None) -> None:
        engine = self.agents[agent]
        if passes is not engine.passes:
            return  # they were cut, and have ended
        firsts, done = engine.end()
        for each in firsts:
            outcome = self._by_key[each.key]
            outcome.ttft_s, outcome.cached = self.now_s - outcome.arrived_s, each.cached
            if self.placement is not None:
                self.placement.computed(
                    each.key,
                    agent,
                    tokens=each.prompt.tokens,
                    cached=each.cached,
                    took_s=self.now_s - each.began_s,
                )
        for each in done:
            engine.finish(each)
            outcome = self._by_key.pop(each.key)
            outcome.ended_s = self.now_s
            if self.placement is not None:
                self.placement.answered(each.key, agent, outcome.turn.answer_tokens)
            following = outcome.turn.next
            if following is not None:
                self._at(self.now_s + following.pause_s, partial(self._arrive, following))
        for each in done:
            self._apply(self.ledger.end(each.key))
            self.rate.ended(self.now_s, waiting=self.ledger.num_waiting)
        if engine.running and engine.passes is None:
            self._begin(agent, engine)

    def _begin(self, agent: AgentKey, engine: VirtualEngine) -> None:
        others = 0
        if engine.speed.slowing:
            busy = [each for each in self.agents.values() if each.running and each.speed.slowing]
            others = len(busy) - 1
        end_s = engine.begin(self.now_s, others)
        self._at(end_s, partial(self._passed, agent, engine.passes))


class ExactIndex(PrefixIndex):
    """Asks the engines themselves: as if each told of every block that comes and goes."""

    def __init__(self, engines: dict[AgentKey, VirtualEngine]) -> None:
        super().__init__()
        self._engines = engines

    def find(self, hashes: tuple[int, ...]) -> dict[AgentKey, int]:
        found = {agent: self.depth(agent, hashes) for agent in self._engines}
        ranked = sorted(found.items(), key=lambda each: -each[1])
        return {agent: depth for agent, depth in ranked if depth}

    def deepest(self, hashes: tuple[int, ...]) -> int:
        return max(self.depth(agent, hashes) for agent in self._engines)

    def depth(self, agent: AgentKey, hashes: tuple[int, ...]) -> int:
        unsalted = (hashes[0] ^ SALT, *hashes[1:]) if hashes else ()
        return self._engines[agent].depth(unsalted)

    def put(self, agent: AgentKey, hashes: tuple[int, ...]) -> int:
        return self.depth(agent, hashes)

    def has_lost(self, agent: AgentKey) -> None:
        """The engines are asked."""

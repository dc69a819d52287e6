"""Place a request where its first token is predicted to come first.

The prediction for an agent: the wait for a slot, and the prompt tokens that it has not computed
yet, those of requests before this one included, at the speed that was measured there. What is where
is known by what was granted, corrected by what agents report of each request they served
(``prefix_index.py``). Predictions that are nearly the same are a tie, which the least loaded agent
wins: so what nobody has computed is spread by load, and what everybody asks for is soon computed in
several places.

A request may let a free slot of another agent pass for the one of an agent that has its beginning,
once, for a bounded moment, and only while that is predicted to be quicker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.prefill_records import (
    TIE_S,
    AgentRecord,
    Asked,
    Fleet,
    PrefixCounts,
    Prompt,
)
from paddler_trio.scheduler.dispatch.prefix_index import PrefixIndex
from paddler_trio.scheduler.dispatch.slot_decisions import Option, Pick, Prediction

MAX_LOOKED_AT: Final = 8
"""Agents whose predictions are compared beside those that have the prompt's beginning."""
TIE: Final = 0.1
"""Predictions that differ by less than this part, or by less than ``TIE_S``, are a tie."""
MAX_HOLD_S: Final = 10.0
"""A request lets slots pass for this long at most."""
LEAST_SERVED: Final = 2
MOST_SERVED: Final = 16
"""So many requests count as gaining by what is not computed again: itself, one whose passes the
prompt would make longer, and those that wait for any slot."""
MAX_ANSWERS: Final = 16_384
MAX_HELD: Final = 64
WORTH_TELLING: Final = 32
"""Tokens; with fewer, nothing is learned of what was kept or how fast a prompt is computed."""

Standing: TypeAlias = "Callable[[AgentKey], tuple[float, int, bool] | None]"
"""Of an agent: its relative load, the ordinal of its latest grant, and whether it has a free slot;
None if it may not have the request."""


_Option: TypeAlias = "tuple[float, int, AgentKey, float, int, float]"
"""An agent's load and latest grant, the agent, when the first token is predicted there, the blocks
that it has, and the wait for a slot, which is 0 if one is free: the least one wins a tie."""

_PREDICTED_S: Final = itemgetter(3)


@attrs.define(eq=False)
class WarmPlacement:
    """See the module docstring. It is told what happens, and asked before each grant.

    Args:
      now_s: the time in seconds.
    """

    now_s: Callable[[], float]
    index: PrefixIndex = attrs.field(factory=PrefixIndex)
    counts: PrefixCounts = attrs.field(factory=PrefixCounts, init=False)
    _fleets: dict[str, Fleet] = attrs.field(factory=dict, init=False)
    _agents: dict[AgentKey, AgentRecord] = attrs.field(factory=dict, init=False)
    _asked: dict[RequestKey, Asked] = attrs.field(factory=dict, init=False)
    _answers: OrderedDict[int, tuple[AgentKey, float]] = attrs.field(
        factory=OrderedDict, init=False
    )
    """By the last block of a prompt: who has answered it, and how many tokens follow the block."""
    _num_held: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<WarmPlacement of {len(self._asked)} requests, {self.index!r}>"

    # --------------------------------------------------------- what happens

    def joined(self, agent: AgentKey, label: str, deployment: str) -> None:
        """Note an agent; nothing is known of it. Safe to repeat."""
        if agent not in self._agents:
            fleet = self._fleet(deployment)
            fleet.agents[agent] = None
            self._agents[agent] = AgentRecord(label, fleet)

    def left(self, agent: AgentKey) -> None:
        """Forget an agent. Safe to repeat."""
        record = self._agents.pop(agent, None)
        if record is not None:
            del record.fleet.agents[agent]
            self.index.drop(agent)

    def restarted(self, agent: AgentKey) -> None:
        """Note that the agent's engine begins with nothing, or with another model."""
        self.index.drop(agent)

    def preempted(self, agent: AgentKey) -> None:
        """Note that the agent has no room for all that it was given."""
        self.index.has_lost(agent)

    def arrived(self, request: RequestKey, prompt: Prompt, deployment: str) -> None:
        """Note a request that is about to ask for a slot; one without a prompt is not looked at."""
        if prompt.size_bytes:
            fleet = self._fleet(deployment)
            hashes = prompt.hashes  # those of other deployments begin otherwise
            hashes = (hashes[0] ^ fleet.salt, *hashes[1:]) if hashes else ()
            self._asked[request] = Asked(prompt, hashes, fleet)

    def granted(self, request: RequestKey, agent: AgentKey) -> None:
        """Note that the agent has the request, and soon its prompt."""
        record = self._agents.get(agent)
        if record is None:
            return
        record.since_s[request] = self.now_s()
        asked = self._asked.get(request)
        if asked is not None:
            asked.expected = self.index.put(agent, asked.hashes)
            self._count(asked)
            missing = self._missing(asked, agent, asked.expected)
            asked.before = record.before(missing)
            record.missing[request] = missing

    def computed(
        self, request: RequestKey, agent: AgentKey, *, tokens: int, cached: int, took_s: float
    ) -> bool:
        """Note what the agent reports of the prompt of a request that it has; False if it is no
        news.

        Args:
          tokens: of the prompt.
          cached: those that were not computed.
          took_s: from when it was given the request to its first token.
        """
        record, asked = self._agents.get(agent), self._asked.get(request)
        if record is None or asked is None or record.missing.pop(request, None) is None:
            return False
        if tokens >= WORTH_TELLING:
            asked.fleet.tokens_per_byte.add(tokens / asked.prompt.size_bytes)
        expected = self._tokens(asked, asked.expected)
        if expected >= WORTH_TELLING:
            if cached < expected / 2:
                self.index.has_lost(agent)
                self.counts.missed["forgotten"] += max(0, round(expected) - cached)
            else:
                self.index.has_kept(agent)
        self.counts.reused += cached
        self._measure(record, tokens - cached + asked.before, took_s)
        return True

    def answered(self, request: RequestKey, agent: AgentKey, tokens: int) -> None:
        """Note that the agent has an answer of so many tokens behind the prompt of a request."""
        asked = self._asked.get(request)
        if asked is not None and asked.hashes:
            rest = asked.prompt.size_bytes - asked.prompt.covered_bytes(len(asked.hashes))
            behind = rest * asked.fleet.tokens_per_byte.value + tokens
            self._answers[asked.hashes[-1]] = agent, behind
            self._answers.move_to_end(asked.hashes[-1])
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)

    def began(self, request: RequestKey, agent: AgentKey) -> None:
        """Note the first token of a request, of which an agent may report nothing else."""
        record = self._agents.get(agent)
        if record is not None:
            record.missing.pop(request, None)

    def released(self, request: RequestKey, agent: AgentKey) -> None:
        """Note that the request has left the agent."""
        record = self._agents.get(agent)
        since_s = None if record is None else record.since_s.pop(request, None)
        if record is not None and since_s is not None:
            record.missing.pop(request, None)
            took_s = self.now_s() - since_s
            record.slot_s.add(took_s)
            record.fleet.slot_s.add(took_s)

    def ended(self, request: RequestKey) -> None:
        """Forget a request. Safe to repeat."""
        self.unheld(request)
        self._asked.pop(request, None)

    def unheld(self, request: RequestKey) -> None:
        """Note that the request waits for no certain agent any more. Safe to repeat."""
        asked = self._asked.get(request)
        if asked is not None and asked.held_for is not None:
            self._num_held -= 1
            asked.fleet.num_held -= 1
            record = self._agents.get(asked.held_for)
            if record is not None:
                record.num_held -= 1
            asked.held_for = None

    # ------------------------------------------------------------- choosing

    def choose(
        self, request: RequestKey, least: AgentKey, standing: Standing, *, waiting: int | None
    ) -> Pick:
        """Return the agent that shall have a request, or for which it waits a moment.

        Args:
          least: the least loaded one that may have it, which has a free slot.
          waiting: how many others wait, and may take what it lets pass; None if it may not wait.
        """
        asked = self._asked.get(request)
        if asked is None:
            return Pick(least)
        options = self._options(asked, least, standing)
        free, busy = (
            [each for each in options if not each[5]],
            [each for each in options if each[5]],
        )
        least_s = min(map(_PREDICTED_S, free))
        limit_s = max(least_s * (1 + TIE), least_s + TIE_S)
        chosen = min([each for each in free if each[3] <= limit_s])
        prediction = self._shown(asked, chosen, options)
        most_free = max([each[4] for each in free])
        asked.most, asked.missed = most_free, "slower"
        if busy:
            most_busy = max([each[4] for each in busy])
            if most_busy > most_free:
                asked.most, asked.missed = most_busy, "busy"
            if waiting is not None and not asked.has_held and self._num_held < MAX_HELD:
                best = min(busy, key=_PREDICTED_S)
                moment_s = self._moment_s(asked, chosen, best, waiting)
                if moment_s > 0:
                    self._hold(asked, best[2])
                    return Pick(best[2], prediction, self.now_s() + moment_s)
        return Pick(chosen[2], prediction)

    def quickest_s(self, request: RequestKey) -> float:
        """Return the least time from a slot to the first token of a request that is predicted for
        any agent; 0 as long as no agent was measured."""
        asked = self._asked.get(request)
        if asked is None or not asked.fleet.tokens_per_s.is_measured:
            return 0.0
        found = self.index.find(asked.hashes)
        agents = {**dict.fromkeys(islice(asked.fleet.agents, MAX_LOOKED_AT), 0), **found}
        return min([self._time_s(asked, *each) for each in agents.items()], default=0.0)

    def prompt_s(self, request: RequestKey) -> float:
        """Return how long the tokens of a prompt take that the agent with most of it lacks; 0 as
        long as no agent was measured."""
        asked = self._asked.get(request)
        if asked is None or not asked.fleet.tokens_per_s.is_measured:
            return 0.0
        depth = self.index.deepest(asked.hashes)
        answered = self._answers.get(asked.hashes[depth - 1]) if depth else None
        agent = AgentKey(0) if answered is None else answered[0]
        return self._missing(asked, agent, depth) / asked.fleet.tokens_per_s.value

    # -------------------------------------------------------------- private

    def _fleet(self, deployment: str) -> Fleet:
        fleet = self._fleets.get(deployment)
        if fleet is None:
            fleet = self._fleets[deployment] = Fleet(hash(deployment))
        return fleet

    def _options(self, asked: Asked, least: AgentKey, standing: Standing) -> list[_Option]:
        """Return the agents that may have a request: with a free slot, or with its beginning."""
        found = self.index.find(asked.hashes)
        options = list[_Option]()
        for agent in self._candidates(asked.fleet, found, least):
            stands = standing(agent)
            if stands is None:
                continue
            load, last, is_free = stands
            depth = found.get(agent, 0)
            if is_free:
                time_s = self._time_s(asked, agent, depth)
                options.append((load, last, agent, time_s, depth, 0.0))
            elif depth:
                wait_s = self._agents[agent].wait_s()
                time_s = wait_s + self._time_s(asked, agent, depth)
                options.append((load, last, agent, time_s, depth, wait_s))
        return options

    def _candidates(
        self, fleet: Fleet, found: Iterable[AgentKey], least: AgentKey
    ) -> dict[AgentKey, None]:
        if len(fleet.agents) <= MAX_LOOKED_AT:
            return fleet.agents if least in fleet.agents else {**fleet.agents, least: None}
        candidates = dict.fromkeys(found)
        candidates[least] = None
        for agent in list(islice(fleet.agents, MAX_LOOKED_AT)):
            candidates[agent] = None
            del fleet.agents[agent]  # others the next time
            fleet.agents[agent] = None
        return candidates

    def _tokens(self, asked: Asked, num_blocks: int) -> float:
        return asked.prompt.covered_bytes(num_blocks) * asked.fleet.tokens_per_byte.value

    def _missing(self, asked: Asked, agent: AgentKey, num_blocks: int) -> float:
        """Return the tokens that an agent must compute which has so many blocks: less if these end
        a prompt that it has answered, since the answer is likely to follow here."""
        size_bytes = asked.prompt.size_bytes - asked.prompt.covered_bytes(num_blocks)
        missing = size_bytes * asked.fleet.tokens_per_byte.value
        answered = self._answers.get(asked.hashes[num_blocks - 1]) if num_blocks else None
        if answered is not None and answered[0] == agent:
            missing = max(missing - answered[1], 1.0)
        return missing

    def _time_s(self, asked: Asked, agent: AgentKey, depth: int) -> float:
        """Return the time from a slot of the agent to the first token."""
        record, missing = self._agents.get(agent), self._missing(asked, agent, depth)
        if record is None:
            return missing / asked.fleet.tokens_per_s.value
        before = record.before(missing) if record.missing else 0.0
        return record.base_s.value + (before + missing) / record.tokens_per_s

    def _measure(self, record: AgentRecord, tokens: float, took_s: float) -> None:
        if tokens < 4 * WORTH_TELLING:
            record.base_s.add(max(0.0, took_s - tokens / record.tokens_per_s))
        elif took_s > 0:
            over_s = max(took_s - record.base_s.value, took_s / 4)
            record.speed.add(tokens / over_s)
            record.fleet.tokens_per_s.add(tokens / over_s)

    def _count(self, asked: Asked) -> None:
        reusable = round(self._tokens(asked, asked.most))
        missed = reusable - round(self._tokens(asked, asked.expected))
        self.counts.reusable += reusable
        if missed > 0:
            self.counts.missed[asked.missed] += missed

    def _moment_s(self, asked: Asked, free: _Option, busy: _Option, waiting: int) -> float:
        """Return how long a request shall wait for the slot of a busy agent, instead of the free
        slot of another; 0 for not at all.

        What it need not compute again is time for itself, for one beside which it would be
        computed, and for those that take the slot which it lets pass; one that waits for a certain
        agent takes none. It waits no longer than that is more than what it waits.
        """
        wait_s = busy[5]
        saved = self._missing(asked, free[2], free[4]) - self._missing(asked, busy[2], busy[4])
        saved_s = saved / self._agents[busy[2]].tokens_per_s
        takers = max(0, waiting - asked.fleet.num_held)
        gained_s = free[3] + min(LEAST_SERVED + takers, MOST_SERVED) * saved_s - busy[3]
        return min(MAX_HOLD_S, gained_s + wait_s) if gained_s > TIE_S else 0.0

    def _hold(self, asked: Asked, agent: AgentKey) -> None:
        asked.has_held, asked.held_for = True, agent
        self._num_held += 1
        asked.fleet.num_held += 1
        self._agents[agent].num_held += 1

    def _shown(self, asked: Asked, chosen: _Option, options: list[_Option]) -> Prediction:
        shown = [self._option(asked, chosen)]
        if len(options) > 1:
            other = min([each for each in options if each is not chosen], key=_PREDICTED_S)
            shown.append(self._option(asked, other))
        tokens = asked.prompt.size_bytes * asked.fleet.tokens_per_byte.value
        return Prediction(round(tokens), tuple(shown))

    def _option(self, asked: Asked, option: _Option) -> Option:
        _, _, agent, predicted_s, depth, wait_s = option
        record = self._agents.get(agent)
        label = "" if record is None else record.label
        return Option(label, round(self._tokens(asked, depth)), predicted_s, wait_s)

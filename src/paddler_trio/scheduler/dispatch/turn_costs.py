"""Count what a request costs its client: how long it has a slot, in turns.

A turn is the mean of that over the requests that ended last, so it is the same for a fast and for a
slow fleet, and means something before anything is measured: then each request costs one turn.

When a request arrives nobody knows how long its answer will be, and what the client says of it is
not asked: one that asks for 100,000 tokens and stops after 5, and one that asks for 1, cost what
they use. The estimate for one that must wait is the time for the prompt tokens that no agent has
computed, and as long as the client's requests took of late beyond that. When it ends, the client is
charged the difference to the time that it had a slot. That counts whatever takes time: images, a
slow reader, a server that reports no tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.fair_order import RequestKey

LEAST_S: Final = 0.02
"""However short a request has its slot: it costs more than that, on its way and in the agent."""
LEAST_TURNS: Final = 1 / 16
"""However cheap a request is, so that nobody is passed by a flood of them."""
MOST_ESTIMATED: Final = 64.0
"""Turns; a wrong estimate sets a client back no further until the request has ended."""
MOST_TURNS: Final = 1024.0
"""However long a request has its slot."""
_STEPS: Final = 256
"""Charges are multiples of this part of a turn, see ``fair_order.Place``."""
_MEAN_OF: Final = 512
"""Requests that the length of a turn is averaged over."""
_WEIGHT: Final = 0.2
_MAX_CLIENTS: Final = 4096


@attrs.define
class Charge:
    """The charge for one request: a turn, unless it waits and its cost was estimated.

    Args:
      turns: as estimated.
      prompt_s: the part of its prompt; None without an estimate.
      since_s: when it got the slot that it has.
    """

    turns: float = 1.0
    prompt_s: float | None = None
    since_s: float = 0.0


@attrs.define(eq=False)
class TurnCosts:
    """See the module docstring; for the requests of one queue.

    Args:
      now_s: the time in seconds.
      prompt_s: how long the prompt of a request that arrives will take; 0 if that is not known.

    Without a clock every request costs a turn.
    """

    now_s: Callable[[], float] = lambda: 0.0
    prompt_s: Callable[[RequestKey], float] = lambda _: 0.0
    _turn_s: float = attrs.field(default=0.0, init=False)
    _num_ended: int = attrs.field(default=0, init=False)
    _rest_s: OrderedDict[str, float] = attrs.field(factory=OrderedDict, init=False)
    """The time of requests beyond their prompts, a moving average for each client."""

    def __repr__(self) -> str:
        return f"<TurnCosts of {self._turn_s:.3f} s a turn, {len(self._rest_s)} clients>"

    def estimate(self, request: RequestKey, client: str) -> Charge:
        """Return what a request that arrives is charged; the first of a client at least a turn."""
        if not self._turn_s:
            return Charge()
        prompt_s = self.prompt_s(request)
        rest_s = self._rest_s.get(client)
        turns = self._turns(prompt_s + (rest_s or 0.0))
        if rest_s is None and turns < 1.0:
            turns = 1.0
        return Charge(turns if turns < MOST_ESTIMATED else MOST_ESTIMATED, prompt_s)

    def ended(self, charge: Charge, client: str) -> float:
        """Return how many turns a request that had a slot to its end cost more than it was charged;
        negative if it cost fewer."""
        took_s = self.now_s() - charge.since_s
        if took_s < LEAST_S:
            took_s = LEAST_S
        more = self._turns(took_s) - charge.turns if self._turn_s else 0.0
        if self._num_ended < _MEAN_OF:
            self._num_ended += 1
        self._turn_s += (took_s - self._turn_s) / self._num_ended
        if charge.prompt_s is None:
            return more
        rest_s = took_s - charge.prompt_s if took_s > charge.prompt_s else 0.0
        before_s = self._rest_s.get(client)
        if before_s is not None:
            rest_s = before_s + _WEIGHT * (rest_s - before_s)
        elif len(self._rest_s) >= _MAX_CLIENTS:
            self._rest_s.popitem(last=False)
        self._rest_s[client] = rest_s
        return more

    def _turns(self, seconds: float) -> float:
        turns = seconds / self._turn_s
        if turns <= LEAST_TURNS:
            return LEAST_TURNS
        return MOST_TURNS if turns >= MOST_TURNS else int(turns * _STEPS + 0.5) / _STEPS

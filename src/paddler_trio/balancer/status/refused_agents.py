"""Keep in mind who dials in as an agent and is refused: otherwise nothing shows such a machine."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from paddler_trio.scheduler.truth.problems import RefusedFacts

MAX_ADDRESSES: Final = 64
FORGOTTEN_S: Final = 120.0
"""An agent tries again every few seconds: one that does not any more is not there."""


@attrs.define
class _Refusals:
    status: int
    times: int
    last_s: float


@attrs.define(eq=False)
class RefusedAgents:
    """The addresses that were refused of late."""

    _refusals: dict[str, _Refusals] = attrs.field(factory=dict, init=False)

    def note(self, address: str, status: int) -> None:
        """An agent at this address was refused."""
        before = self._refusals.pop(address, None)
        times = 1 if before is None else before.times + 1
        self._refusals[address] = _Refusals(status, times, trio.current_time())
        while len(self._refusals) > MAX_ADDRESSES:
            del self._refusals[next(iter(self._refusals))]

    def admitted(self, address: str) -> None:
        """An agent at this address may come in: none of its machine waits."""
        self._refusals.pop(address, None)

    def facts(self) -> list[RefusedFacts]:
        """Those that still try."""
        since_s = trio.current_time() - FORGOTTEN_S
        for address, each in list(self._refusals.items()):
            if each.last_s < since_s:
                del self._refusals[address]
        return [
            RefusedFacts(address=address, status=each.status, times=each.times)
            for address, each in self._refusals.items()
        ]

"""The rounds of a chaos run, one after the other, each beginning with a whole and idle fleet."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs
import trio
from chaos_daemon import ChaosError, end_engine, is_engine
from chaos_faults import Fault, Strikes
from chaos_fleet import POLL_S, Fleet
from chaos_streams import Heard, Tide, ask_all
from chaos_tally import Loss, Noise, Round, count_noise, count_round
from whole_path import say

IDLE_S = 10.0
"""A slot may stay taken for five seconds after its client left; then it is leaked."""


@attrs.define(eq=False)
class Chaos:
    """One run; what it found so far is there however it ends."""

    fleet: Fleet
    strikes: Strikes
    questions: Sequence[str]
    max_tokens: int
    patience_s: float
    noise: Noise | None = attrs.field(default=None, init=False)
    rounds: list[Round] = attrs.field(factory=list, init=False)
    _texts: list[str] = attrs.field(factory=list, init=False)
    _tokens: int = attrs.field(default=0, init=False)
    """Of an undisturbed round."""
    _leaked: tuple[int, int] = attrs.field(default=(0, 0), init=False)
    """Slots and waiting requests counted in an earlier round already."""

    async def run(self, faults: Sequence[Fault], undisturbed: int) -> None:
        async with trio.open_nursery() as watchers:
            await self.fleet.start(watchers)
            runs = []
            for number in range(undisturbed):
                say(f"undisturbed run {number + 1} of {undisturbed}")
                runs.append(await self._undisturbed())
            self._texts = runs[0]
            self.noise = count_noise(runs)
            for number, fault in enumerate(faults, start=1):
                say(f"round {number} of {len(faults)}: {fault.kind.value} {fault.victim}")
                self.rounds.append(await self._disturbed(fault))
            watchers.cancel_scope.cancel(reason="every round is done")

    async def _undisturbed(self) -> list[str]:
        tide = Tide(sys.maxsize)
        all_heard = await self._ask(tide)
        await self._settle()
        for number, heard in enumerate(all_heard):
            if not heard.is_as_promised:
                raise ChaosError(
                    f"stream {number} ended wrong though nothing disturbed it: "
                    f"{heard.endings} {heard.errors}"
                )
        self._tokens = tide.tokens
        return [heard.text for heard in all_heard]

    async def _disturbed(self, fault: Fault) -> Round:
        log_bytes = self.fleet.balancer.log_bytes()
        tide = Tide(round(fault.when * self._tokens))
        all_heard: list[Heard] = []
        recovery_s: float | None = None

        async def listen() -> None:
            all_heard.extend(await self._ask(tide))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await tide.is_high.wait()
            recovery_s = await self.strikes.strike(fault)
        left = await self._settle()
        return count_round(
            fault,
            all_heard,
            self._texts,
            self._losses(log_bytes),
            left=left,
            recovery_s=recovery_s,
        )

    async def _ask(self, tide: Tide) -> list[Heard]:
        return await ask_all(
            self.fleet.addresses["inference"],
            self.questions,
            max_tokens=self.max_tokens,
            patience_s=self.patience_s,
            tide=tide,
        )

    async def _settle(self) -> tuple[int, int, int]:
        """Wait until all is idle; slots, waiting requests and engines that do not come back."""
        orphans, self.strikes.orphans = self.strikes.orphans, []
        with trio.move_on_after(IDLE_S):
            while (  # noqa: ASYNC110  # no event covers slots, queue and processes together
                await self.fleet.unreturned() != self._leaked or any(map(is_engine, orphans))
            ):
                await trio.sleep(POLL_S)
        slots, waiting = await self.fleet.unreturned()
        engines = [pid for pid in orphans if is_engine(pid)]
        for pid in engines:
            end_engine(pid)
        new = (max(0, slots - self._leaked[0]), max(0, waiting - self._leaked[1]), len(engines))
        self._leaked = (slots, waiting)
        self.fleet.check_alive()
        await self.fleet.first_sight(
            self.fleet.is_rested, "the fleet is whole", after_s=self.fleet.sights[-1].seen_s
        )
        return new

    def _losses(self, since_bytes: int) -> list[Loss]:
        """Requests that lost their agent since then, in the balancer's own words."""
        return [
            Loss(str(record["request"]), int(str(record["tokens"])))
            for record in self.fleet.balancer.records(since_bytes=since_bytes)
            if record.get("event") == "agent lost under a request"
        ]

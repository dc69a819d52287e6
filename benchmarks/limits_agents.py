"""A thousand links of fake agents in one process: they redial as agents of ours do, and may churn.

    python benchmarks/limits_agents.py --address HOST:PORT --agents 1000 --slots 16 [--rate 1]

Run by limits.py. Prints a line of JSON five times a second: how many are linked and serving, and
how often a link was refused or lost. Ends with its standard input, or with a signal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import attrs
import trio
from fake_agents import FakeAgent, masked

from paddler_trio.agent.link.balancer_link import Redial

LINE_EVERY_S = 0.2
REPORT_EVERY_S = 1.0
GOODBYE = masked(b'{"Notification":"DeregisterAgent"}')


@attrs.define(eq=False)
class LimitAgent(FakeAgent):
    """A fake agent of ours whose answers differ in length, and which reports as a busy one does."""

    varies: bool = False
    reports: bool = False
    leaves: bool = False
    """As soon as it serves."""
    goodbye: trio.Event = attrs.field(factory=trio.Event, init=False)

    def length(self) -> int:
        return random.randint(1, 2 * self.num_tokens) if self.varies else self.num_tokens

    async def serve(self, stream: trio.SocketStream, host: str, port: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.say_goodbye, stream)
            if self.reports:
                nursery.start_soon(self.report_for_ever, stream)
            await super().serve(stream, host, port)
            nursery.cancel_scope.cancel()

    async def take(self, stream: trio.SocketStream, message: dict[str, Any]) -> None:
        await super().take(stream, message)
        if self.leaves and self.is_serving:
            self.goodbye.set()

    async def say_goodbye(self, stream: trio.SocketStream) -> None:
        await self.goodbye.wait()
        await self.send(stream, GOODBYE)

    async def report_for_ever(self, stream: trio.SocketStream) -> None:
        """New figures of the engine once a second, as they come from an agent that works."""
        await trio.sleep(random.random())
        passes = 0
        while True:
            await trio.sleep(REPORT_EVERY_S)
            passes += 1
            if self.is_serving:
                figures = {"passes": passes, "busy_ms": passes * 1.5, "running": 1}
                await self.send(stream, self.report(figures))


@attrs.define(eq=False)
class Links:
    """All of them, and what happened to them."""

    arguments: argparse.Namespace
    now: dict[int, LimitAgent] = attrs.field(factory=dict, init=False)
    scopes: dict[int, trio.CancelScope] = attrs.field(factory=dict, init=False)
    counts: Counter[str] = attrs.field(factory=Counter, init=False)

    async def keep(self, number: int) -> None:
        """One agent, for ever; a link that ends is followed by another one."""
        host, _, port = self.arguments.address.rpartition(":")
        redial = Redial()
        while True:
            works = number < self.arguments.working
            agent = LimitAgent(
                f"{self.arguments.name}{number}",
                self.arguments.slots if works else 0,
                is_ours=True,
                rate=self.arguments.rate,
                num_tokens=self.arguments.tokens,
                varies=self.arguments.varies,
                reports=self.arguments.reports,
                leaves=self.arguments.visits > 0,
            )
            self.counts["dials"] += 1
            began_s = trio.current_time()
            self.now[number] = agent
            try:
                with trio.CancelScope() as self.scopes[number]:
                    await agent.run(host, int(port))
            except* (OSError, trio.BrokenResourceError):
                self.counts["failed"] += 1
            del self.now[number]
            linked_s = trio.current_time() - began_s if agent.is_serving else 0.0
            self.counts["links"] += agent.is_serving
            if self.arguments.visits:
                await trio.sleep(1 / self.arguments.visits)
            else:
                await trio.sleep(redial.pause_s(linked_s, random.random()))

    async def churn(self) -> None:
        """Links end at a steady rate: half of them with a goodbye, half without a word."""
        while True:
            await trio.sleep(1 / self.arguments.churn)
            serving = [number for number, agent in self.now.items() if agent.is_serving]
            if not serving:
                continue
            number = random.choice(serving)
            if random.random() < 0.5:
                self.now[number].goodbye.set()
            else:
                self.scopes[number].cancel()

    async def tell(self) -> None:
        while True:
            line = {
                "at_s": time.monotonic(),
                "serving": sum(agent.is_serving for agent in self.now.values()),
                "answering": sum(len(agent.answering) for agent in self.now.values()),
                **self.counts,
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            await trio.sleep(LINE_EVERY_S)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tell)
            if self.arguments.churn:
                nursery.start_soon(self.churn)
            for number in range(self.arguments.agents):
                nursery.start_soon(self.keep, number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--working", type=int, default=sys.maxsize, help="others have no slots")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1.0, help="passes a second")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of an answer")
    parser.add_argument("--varies", action="store_true", help="from 1 to twice as many")
    parser.add_argument("--reports", action="store_true", help="new figures once a second")
    parser.add_argument("--name", default="f", help="their names begin with it")
    parser.add_argument("--visits", type=float, default=0.0, help="each leaves at once; a second")
    parser.add_argument("--churn", type=float, default=0.0, help="links that end, a second")
    trio.run(Links(parser.parse_args()).run)


if __name__ == "__main__":
    main()

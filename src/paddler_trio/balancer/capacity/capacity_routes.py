"""``/api/v2/capacity`` on the management port: would the fleet keep a time to the first token?

    POST /api/v2/capacity             a question; the answer is that of ``scheduler/capacity``
    GET  /api/v2/capacity/arrivals    {"deployment", "fields", "rows"}: the arrivals as a file

A question is answered in a process of its own, one at a time, so that no token waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import attrs
import trio

from paddler_trio.balancer.capacity.arrival_log import ArrivalLog
from paddler_trio.balancer.keys.key_terms import duration_s
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.processes.capacity.capacity_question import REFUSED, asked
from paddler_trio.scheduler.capacity.capacity import MAX_AGENTS, MAX_SLOTS, Question, Site
from paddler_trio.scheduler.capacity.replayed_arrivals import FIELDS, Arrival, arrivals_in
from paddler_trio.scheduler.capacity.speeds import speeds_of
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

LIMIT_S: Final = 30.0
"""All replays of a question have so long together."""
START_S: Final = 10.0
"""The process of a question has so long to start, beyond that."""
DEFAULT_LAST: Final = "6h"
CACHE_TOKENS: Final = 65_536
"""An engine that does not say how many it keeps is taken to keep so many."""
_COMMAND: Final = (sys.executable, "-P", "-m", "paddler_trio.processes.capacity")
_NUMBERS: Final = {
    "p95_ttft_s": (0.001, 3600.0),
    "at": (0.01, 100.0),
    "agents": (0, MAX_AGENTS),
    "slots": (1, MAX_SLOTS),
}


@attrs.frozen(kw_only=True)
class Asked:
    """The body of a question; see ``docs/capacity.md``."""

    p95_ttft_s: float
    at: float = 1.0
    agents: int = 0
    slots: int | None = None
    deployment: str = DEFAULT_DEPLOYMENT
    last: str = DEFAULT_LAST
    arrivals: Sequence[Arrival] | None = None

    @classmethod
    def read(cls, body: object) -> Asked:
        """Read a body; HttpProblem 400 names the field, its value and the limit."""
        if not isinstance(body, dict):
            raise HttpProblem(400, "the body must be an object")
        names = {each.name for each in attrs.fields(cls)}
        for name in body:
            if name not in names:
                raise HttpProblem(400, f"{name[:40]!r} is no field: use {', '.join(sorted(names))}")
        given = {name: value for name, value in body.items() if value is not None}
        if "p95_ttft_s" not in given:
            raise HttpProblem(400, "p95_ttft_s is missing: the time in seconds that shall be kept")
        for name, (least, most) in _NUMBERS.items():
            value = given.get(name, least)
            is_number = type(value) is int or (type(value) is float and type(least) is float)
            if not is_number or not least <= value <= most:
                kind = "a number" if type(least) is float else "a whole number"
                raise HttpProblem(
                    400, f"{name} is {value!r:.40}, must be {kind} from {least:g} to {most:g}"
                )
        for name in ("deployment", "last"):
            if not isinstance(given.get(name, ""), str):
                raise HttpProblem(400, f"{name} is {given[name]!r:.40}, must be text")
        if "arrivals" in given:
            rows = given["arrivals"]
            try:
                given["arrivals"] = arrivals_in(rows if isinstance(rows, list) else [])
            except ValueError as error:
                raise HttpProblem(400, f"arrivals: {error}") from error
        return cls(**given)


@attrs.frozen(eq=False)
class CapacityRoutes:
    """The handlers of these routes.

    Args:
      max_buffered: requests that may wait, and ``patience_s`` how long one may.
    """

    log: ArrivalLog
    dispatcher: Dispatcher
    max_buffered: int
    patience_s: float
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("POST", "/api/v2/capacity", self._answer)
        routes.http("GET", "/api/v2/capacity/arrivals", self._arrivals)

    async def _answer(self, exchange: Exchange, params: Params) -> None:
        wanted = await json_body(exchange, Asked.read)
        agents = sorted(self._agents(wanted.deployment), key=lambda agent: agent.label)
        arrivals = wanted.arrivals
        if arrivals is None:
            arrivals = await self._known(wanted.deployment, wanted.last)
        if not arrivals:
            raise HttpProblem(
                409,
                f"no request came to {wanted.deployment!r} in the last {wanted.last}: give the "
                "arrivals, or ask again when some have come",
            )
        samples = [(self.log.samples(each.key), _cache_tokens(each)) for each in agents]
        speeds, together = await trio.to_thread.run_sync(
            lambda: speeds_of([(each.all(), cells) for each, cells in samples])
        )
        if speeds is None:
            raise HttpProblem(
                409,
                f"no agent of {wanted.deployment!r} was measured: their speeds are known after a "
                "few answers of several tokens",
            )
        question = Question(
            agents=[
                Site(name=agent.label, slots=agent.usable_slots, speed=speed)
                for agent, speed in zip(agents, speeds, strict=True)
            ],
            target_s=wanted.p95_ttft_s,
            at=wanted.at,
            more_agents=wanted.agents,
            slots=wanted.slots,
            max_buffered=self.max_buffered,
            patience_s=self.patience_s,
        )
        found = await while_connected(exchange, partial(self._replayed, question, arrivals))
        times = [each.at_s for each in arrivals]
        about = {
            "deployment": wanted.deployment,
            "span_s": max(times) - min(times),
            "measured_together": together,
        }
        await send_json(exchange.send, 200, dumps(about)[:-1] + b"," + found[1:])

    async def _arrivals(self, exchange: Exchange, params: Params) -> None:
        query = parse_qs(exchange.query.decode("latin-1"), max_num_fields=8)
        for name in query:
            if name not in ("deployment", "last"):
                raise HttpProblem(400, f"{name[:40]!r} is no parameter: use deployment, last")
        deployment = query.get("deployment", [DEFAULT_DEPLOYMENT])[-1]
        arrivals = await self._known(deployment, query.get("last", [DEFAULT_LAST])[-1])
        await send_json(
            exchange.send, 200, await trio.to_thread.run_sync(_file, deployment, arrivals)
        )

    # ------------------------------------------------------------- private

    def _agents(self, deployment: str) -> list[AgentConnection]:
        """Return those that have requests now; HttpProblem."""
        pool = self.dispatcher.pools.find(deployment)
        if pool is None:
            raise HttpProblem(404, f"there is no deployment {deployment[:80]!r}")
        if pool.is_upstream:
            raise HttpProblem(
                501, f"{deployment!r} is answered by other servers, whose speed is not measured"
            )
        agents = [each for each in pool.agents.values() if each.is_accepting and each.usable_slots]
        if not agents:
            raise HttpProblem(409, f"no agent serves {deployment!r} now")
        if len(agents) > MAX_AGENTS:
            raise HttpProblem(
                413, f"{len(agents)} agents serve {deployment!r}, at most {MAX_AGENTS} are replayed"
            )
        return agents

    async def _known(self, deployment: str, last: str) -> list[Arrival]:
        try:
            since_s = trio.current_time() - duration_s(last, "last")
        except ConfigurationError as error:
            raise HttpProblem(400, str(error)) from error
        return await trio.to_thread.run_sync(self.log.reader(deployment, since_s))

    async def _replayed(self, question: Question, arrivals: Sequence[Arrival]) -> bytes:
        if not self._one.available_tokens:
            raise HttpProblem(
                503, "another question about capacity is computed", [(b"retry-after", b"5")]
            )
        async with self._one:
            text = await trio.to_thread.run_sync(asked, question, arrivals)
            with trio.move_on_after(LIMIT_S + START_S):
                try:
                    done = await trio.run_process(
                        [*_COMMAND, str(LIMIT_S)],
                        stdin=text,
                        capture_stdout=True,
                        capture_stderr=True,
                        check=False,
                        start_new_session=True,  # Ctrl-C is the balancer's to handle
                    )
                except OSError as error:  # no further process, or no descriptors
                    raise HttpProblem(503, f"it cannot be computed: {error.strerror}") from error
                if done.returncode == REFUSED:
                    raise HttpProblem(413, done.stdout.decode())
                if done.returncode:
                    lines = done.stderr.decode(errors="replace").strip().splitlines()
                    said = lines[-1] if lines else f"status {done.returncode}"
                    raise HttpProblem(500, f"it cannot be computed: {said[:200]}")
                return done.stdout
        raise HttpProblem(504, f"it was not computed within {LIMIT_S:g} s")


def _file(deployment: str, arrivals: Sequence[Arrival]) -> bytes:
    start_s = min((each.at_s for each in arrivals), default=0.0)
    rows = [attrs.evolve(each, at_s=round(each.at_s - start_s, 4)).row() for each in arrivals]
    return dumps({"deployment": deployment, "fields": FIELDS, "rows": rows})


def _cache_tokens(agent: AgentConnection) -> int:
    """Return how many tokens its engine keeps, as it reports."""
    engine = None if agent.report is None else agent.report.engine
    cells = None if engine is None else engine.get("cells_total")
    return int(cells) if isinstance(cells, int | float) and 0 < cells < 2**31 else CACHE_TOKENS

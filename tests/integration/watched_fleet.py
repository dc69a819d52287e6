"""A fleet of real processes whose status is read all the time, and clients that note what they met.

``WatchedFleet`` samples the management port and the panel's feed, and keeps clients busy. What was
said is compared with what clients met by ``tests/status_judge.py``, and with what is known of the
processes: which of them were killed, stopped and drained, and when.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import attrs
import httpx
import trio
from fleet import Fleet

from distinct_models import BLANKS, blanks_in
from no_tls import NO_TLS
from status_judge import Met, Outcome, Said, contradictions, faults_in

CHAT = "/v1/chat/completions"
MODELS = {" ": "paddler-demo.gguf", "\t": "tabs.gguf", "\v": "lines.gguf"}
"""The files by the blank that their answers have."""
NOTICED_S = 2.0
"""So long after the end of a process it may still be shown, on a machine that does other things."""
GAP_S = 1.0
"""Where no status was read for so long, nothing can be said of what clients met."""
SAMPLE_S = 0.03
MARGIN_MS = 1500
IDLE = ("drained", "ejected", "waiting", "offline")


@attrs.frozen
class Shown:
    """What the feed showed at one moment; ``now_ms`` is on the balancer's clock."""

    at_s: float
    now_ms: int
    sentence: str
    agents: Mapping[str, str]
    """The states of those that are connected, by name."""
    gone: frozenset[str]


@attrs.define(eq=False)
class WatchedFleet:
    """See the module docstring. Times are those of ``time.monotonic``."""

    fleet: Fleet
    http: httpx.AsyncClient
    said: list[Said] = attrs.field(factory=list)
    shown: list[Shown] = attrs.field(factory=list)
    met: list[Met] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)
    doubts: list[str] = attrs.field(factory=list)
    """What was wrong about the newest event of the feed."""
    dead: list[tuple[str, float, float]] = attrs.field(factory=list)
    """Agents that could not answer, from when to when."""
    sentences: int = 0
    statements: set[str] = attrs.field(factory=set)
    endings: dict[str, int] = attrs.field(factory=dict)
    is_down: bool = False
    """The balancer is being restarted."""
    dice: random.Random = attrs.field(factory=lambda: random.Random(0))
    """For clients: what happens is decided by another one."""
    _asked: int = 0

    @classmethod
    @asynccontextmanager
    async def watching(cls, fleet: Fleet, clients: int) -> AsyncIterator[WatchedFleet]:
        """Watch it, with so many clients, until the block is left."""
        limits = httpx.Limits(max_connections=200)
        async with (
            httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=60, limits=limits) as http,
            trio.open_nursery() as nursery,
        ):
            here = cls(fleet, http)
            for task in (here.sample, here.follow_feed):
                nursery.start_soon(task)
            for _ in range(clients):
                nursery.start_soon(here.be_a_client)
            await here.until(lambda said: said.severity == "ok")
            yield here
            nursery.cancel_scope.cancel()

    # ------------------------------------------------------------- reading

    async def get(self, path: str) -> Any:
        answer = await self.http.get(f"{self.fleet.management_url}{path}")
        return answer.raise_for_status().json()

    async def sample(self) -> None:
        """Read all that is said over HTTP, again and again."""
        while True:
            began_s = time.monotonic()
            try:
                fleet = await self.get("/api/v2/fleet")
                until_s = time.monotonic()
                problems = (await self.get("/api/v2/problems"))["problems"]
                known = (await self.get("/api/v2/known_agents"))["agents"]
                agents = (await self.get("/api/v2/agents"))["agents"]
            except httpx.HTTPError:
                if not self.is_down and began_s - self.said[-1].until_s > 5:
                    self.wrong.append(f"{began_s:.2f}: the balancer cannot be read")
                await trio.sleep(SAMPLE_S)
                continue
            self._note(fleet, problems, began_s, until_s)
            self._look_at_agents(agents, known, problems, began_s)
            await trio.sleep(SAMPLE_S)

    def _note(self, fleet: Any, problems: Any, since_s: float, until_s: float) -> None:
        (spec,) = fleet["revision"]["state"]["deployments"]
        (shown,) = fleet["deployments"]
        state, agents = shown["state"], shown["agents"]
        said = Said(
            since_s=since_s,
            until_s=until_s,
            state=state["state"],
            severity=state["severity"],
            sentence=state["sentence"],
            follows=state["follows"],
            meets=shown["meets"],
            answering=agents["answering"],
            free=agents["free"],
            problems=tuple(f"{p['id']}: {p['sentence']}" for p in problems),
            model=str(spec["model"]["LocalToAgent"]).rpartition("/")[2],
        )
        self.said.append(said)
        self.wrong += [f"{since_s:.2f}: {words}" for words in faults_in(said)]
        self.statements |= {state["state"], *(p["id"].partition(":")[0] for p in problems)}
        self.sentences += 1 + len(problems)

    def _look_at_agents(self, agents: Any, known: Any, problems: Any, now_s: float) -> None:
        """Those that cannot answer are not said to, and are known to be gone."""
        self.sentences += len(agents) + len(known)
        here = {each["name"]: each["state"]["state"] for each in agents}
        gone = {each["name"]: each["state"]["state"] for each in known}
        for name, since_s, until_s in self.dead:
            if since_s + NOTICED_S < now_s and time.monotonic() < until_s:
                if f"loaded on {name}" in self.said[-1].sentence:
                    self.wrong.append(f"{now_s:.2f}: {name} is dead: {self.said[-1]}")
                if here.get(name) == "serving":
                    self.wrong.append(f"{now_s:.2f}: {name} serves, and is dead")
                if name not in gone:
                    self.wrong.append(f"{now_s:.2f}: {name} is dead, and known as {here}")
                elif not any(p["id"] == f"agent:{name}" for p in problems):
                    self.wrong.append(f"{now_s:.2f}: {name} is dead, and no problem")

    async def follow_feed(self) -> None:
        """What the panel is sent; each event is one moment."""
        while True:
            try:
                url = f"{self.fleet.management_url}/api/v2/events"
                async with self.http.stream("GET", url) as answer:
                    document: dict[str, dict[str, Any]] = {}
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            event = json.loads(line.removeprefix("data: "))
                            document = _applied(document, event)
                            self._look_at_feed(document, event["now_ms"])
            except httpx.HTTPError:
                await trio.sleep(0.1)

    def _look_at_feed(self, document: Mapping[str, dict[str, Any]], now_ms: int) -> None:
        agents = list(document["agents"].values())
        shown = document["deployments"]["default"]
        answering = [each for each in agents if each["is_accepting"] and each["usable_slots"] > 0]
        gone = frozenset(document["gone"])
        here = {each["name"]: each["state"]["state"] for each in agents}
        doubts = []
        if shown["serving"] != len(answering):
            doubts.append(f"{now_ms} ms: {shown['serving']} answer, and agents are {here}")
        if shown["slots"] != sum(each["usable_slots"] for each in answering):
            doubts.append(f"{now_ms} ms: {shown['slots']} slots, and agents are {agents}")
        if gone & set(here):
            doubts.append(f"{now_ms} ms: {sorted(gone & set(here))} are here and gone")
        if self.doubts and doubts:  # one topic is looked at after the other: both were so once
            self.wrong += doubts
        self.doubts = doubts
        self.shown.append(Shown(time.monotonic(), now_ms, shown["state"]["sentence"], here, gone))
        self.sentences += 1 + len(agents) + len(gone) + len(document["problems"])

    async def until(self, is_so: Any, *, within_s: float = 60) -> None:
        """Return when the newest sample is so, and was read from now on."""
        began_s = time.monotonic()
        with trio.move_on_after(within_s):
            while True:
                if self.said and self.said[-1].since_s >= began_s and is_so(self.said[-1]):
                    return
                await trio.sleep(SAMPLE_S)
        raise AssertionError(f"not so within {within_s} s: {self.said[-1:]}")

    # ------------------------------------------------------------- clients

    async def be_a_client(self) -> None:
        while True:
            await self.ask()
            await trio.sleep(self.dice.uniform(0, 0.1))

    async def ask(self, **fields: object) -> int:
        """One request, and what it met; returns the status, 0 for a connection that broke."""
        self._asked += 1
        number = f"client-{self._asked}"
        question = f"Tell me a long story about number {self._asked}."
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self.dice.choice([6, 6, 30]),
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
            **fields,
        }
        since_s, was_down, words = time.monotonic(), self.is_down, ""
        try:
            answer = await self.http.post(
                f"{self.fleet.inference_url}{CHAT}", json=body, headers={"X-Request-Id": number}
            )
            status, document = answer.status_code, answer.json()
        except httpx.HTTPError as error:
            status, document, words = 0, {}, repr(error)
        until_s = time.monotonic()
        self.endings[str(status)] = self.endings.get(str(status), 0) + 1
        model = self._writer(document) if status == 200 else ""
        words = words or str(document.get("error", ""))
        outcome = _outcome(status, words)
        if outcome is not None and not (was_down or self.is_down):
            self.met.append(
                Met(since_s=since_s, until_s=until_s, outcome=outcome, words=words, model=model)
            )
        if status:
            await self._compare_record(number, status)
        return status

    def _writer(self, document: Any) -> str:
        """The file of the model that wrote this, by its blanks; its name is in the answer."""
        message = document["choices"][0]["message"]
        text = (message["content"] or "") + message.get("reasoning_content", "")
        blanks = blanks_in(text)
        if len(blanks) > 1:
            self.wrong.append(f"two models wrote {text!r}")
        if len(blanks) != 1:
            return ""
        (blank,) = blanks & set(BLANKS)
        written_by = MODELS[blank]
        if f"{document['model']}.gguf" != written_by:
            self.wrong.append(f"{written_by} wrote what {document['model']} is said to have")
        return written_by

    async def _compare_record(self, number: str, status: int) -> None:
        """How a request ended is what its client was told."""
        try:
            answer = await self.http.get(f"{self.fleet.management_url}/api/v2/requests/{number}")
        except httpx.HTTPError:
            return
        if answer.status_code != 200:
            return  # a balancer of before had it, or it was refused before it was one
        view = answer.json()["request"]
        self.sentences += 1
        kind = None if view["ending"] is None else view["ending"]["kind"]
        wanted = {200: "done", 400: "refused", 499: "cancelled"}.get(status, "failed")
        if kind not in (wanted, None):
            self.wrong.append(f"{number} ended with {status}, and its record says {kind}")
        for placement in view["placements"]:
            self._look_at_placement(number, placement["agent"], placement["at_ms"])

    def _look_at_placement(self, number: str, agent: str, at_ms: int) -> None:
        """An agent that got a request was not said to get none, before and after."""
        near = [each for each in self.shown[-60:] if abs(each.now_ms - at_ms) < MARGIN_MS]
        is_covered = any(s.now_ms < at_ms for s in near) and any(s.now_ms > at_ms for s in near)
        states = {"offline" if agent in s.gone else s.agents.get(agent, "") for s in near}
        if is_covered and states and states <= set(IDLE):
            self.wrong.append(f"{number} was given to {agent}, which was {states}")

    # ------------------------------------------------------------- judging

    def contradictions(self) -> Iterator[str]:
        """All that was wrong, and what clients met that no sample of their time allows."""
        yield from self.wrong
        place = 0
        for met in sorted(self.met, key=lambda each: each.since_s):
            while place + 1 < len(self.said) and self.said[place + 1].until_s <= met.since_s:
                place += 1
            covering = []
            for said in self.said[place:]:
                covering.append(said)
                if said.since_s >= met.until_s:
                    break
            gap_s = max((b.since_s - a.until_s for a, b in pairwise(covering)), default=math.inf)
            if gap_s > GAP_S or covering[-1].since_s < met.until_s:
                continue
            for words in contradictions(covering, met):
                sentences = sorted({f"{s.state}: {s.sentence} {s.problems}" for s in covering})
                yield f"{words}: {met}, and it was said: {sentences}"


def _applied(document: dict[str, dict[str, Any]], event: Any) -> dict[str, dict[str, Any]]:
    if event["full"]:
        found: dict[str, dict[str, Any]] = event["set"]
        return found
    for topic, keys in event["gone"].items():
        for key in keys:
            document[topic].pop(key, None)
    for topic, values in event["set"].items():
        document[topic] |= values
    return document


def _outcome(status: int, words: str) -> Outcome | None:
    """None for what is the client's own fault, or an operator's."""
    match status:
        case 200:
            return "answered"
        case 400 | 499:
            return None
        case 503 if "overflow" in words:
            return "full"
        case 504:
            return "late"
        case _:
            return "failed"

"""Faults and changes under clients: every sentence of status against what they met in that second.

A real balancer, real agents, the bundled model and two copies of it whose answers are told apart.
What happens, in which order and to whom is decided by one integer. In the short day changes come
before deaths, after which the slots of an agent are opened slowly, and changes wait.

    pytest -m slow tests/integration/test_status_on_a_fleet.py -s      # and how much was compared
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet
from rollouts import apply, deployment
from watched_fleet import MODELS, NOTICED_S, WatchedFleet

from cli_in_process import invoke
from distinct_models import write_model
from paddler_trio.net.joining.agent_credential import AgentCredential

AGENTS = 2
SLOTS = 2
SILENCE_S = 2.0
WAIT_S = 1.5
"""How long a request waits for nothing."""
MOST_WAITING = 8
CLIENTS = 3
OPTIONS = (
    f"--buffered-request-timeout={WAIT_S * 1000:.0f}",
    f"--agent-silence={SILENCE_S * 1000:.0f}",
    f"--max-buffered-requests={MOST_WAITING}",
)
LIMIT_S = 1800.0


@contextmanager
def balancer_and_agents(folder: Path) -> Iterator[Fleet]:
    """A balancer that keeps its state, and agents that serve the bundled model."""
    options = [*OPTIONS, f"--state-database=file://{folder / 'state.json'}"]
    with Fleet.start(agents=AGENTS, slots=SLOTS, model=None, balancer_options=options) as fleet:
        apply(fleet, wanted(folder / MODELS[" "]))
        fleet.wait_serving(AGENTS)
        yield fleet


def wanted(model: Path, *, temperature: float = 0.0, **rules: object) -> dict[str, Any]:
    rules = {"min_ready_s": 0.3, "progress_deadline_s": 30, "on_failure": "rollback", **rules}
    spec = deployment(model, context_size=SLOTS * 256, rollout=rules)
    spec["parameters"]["temperature"] = temperature
    return spec


@attrs.define(eq=False)
class Events:
    """What may happen to a fleet. Each returns once status says so, and what was broken is whole.

    Args:
      folder: has the three models.
      is_long: there is time for all of them, and to wait for what only time brings.
    """

    here: WatchedFleet
    folder: Path
    dice: random.Random
    is_long: bool
    model: str = MODELS[" "]

    @property
    def agent(self) -> str:
        return self.dice.choice(sorted(self.here.fleet.agents))

    def all(self) -> list[Callable[[], Awaitable[None]]]:
        more = [
            partial(self.kill, is_busy=False),
            self.swap,
            partial(self.swap_that_fails, "rollback"),
            partial(self.drain, 1),
        ]
        return [
            partial(self.kill, is_busy=True),
            self.kill_both,
            self.stop,
            self.swap,
            partial(self.swap_that_fails, "pause"),
            self.another_temperature,
            partial(self.drain, AGENTS),
            self.refuse,
            self.cancel,
            self.stranger,
            self.restart,
            *(more if self.is_long else []),
        ]

    async def well(self) -> None:
        await self.here.until(lambda said: said.severity == "ok")

    async def apply(self, spec: dict[str, Any], note: str = "") -> None:
        await trio.to_thread.run_sync(partial(apply, self.here.fleet, spec, note=note))

    async def restarted(self, *names: str, since_s: float) -> None:
        self.here.dead += [(name, since_s, time.monotonic()) for name in names]
        for name in names:
            await trio.to_thread.run_sync(partial(self.here.fleet.start_agent, name, slots=SLOTS))
        await self.well()

    async def lost(self, *names: str) -> float:
        """Wait until each is told of, and a little longer; since when they are dead."""
        since_s = time.monotonic()
        self.here.dead += [(name, since_s, since_s + 4 * NOTICED_S) for name in names]
        for name in names:
            await self.here.until(lambda said, n=name: f"agent:{n}" in str(said.problems))
        await trio.sleep(self.dice.uniform(0.2, 0.6))
        self.here.dead = self.here.dead[: -len(names)]
        return since_s

    async def kill(self, *, is_busy: bool) -> None:
        name = self.agent
        async with trio.open_nursery() as nursery:
            if is_busy:
                nursery.start_soon(partial(self.here.ask, max_tokens=150))
                await self.here.until(lambda said: said.free < AGENTS * SLOTS)
            self.here.fleet.agents[name].signal(signal.SIGKILL)
            since_s = await self.lost(name)
            await self.restarted(name, since_s=since_s)

    async def kill_both(self) -> None:
        """Requests wait then: for the machines to come back, then for nothing."""
        names = sorted(self.here.fleet.agents)
        for name in names:
            self.here.fleet.agents[name].signal(signal.SIGKILL)
        since_s = await self.lost(*names)
        if self.is_long:
            await self.here.until(lambda said: "are gone" in said.sentence)
            await self.here.ask()
        await self.restarted(*names, since_s=since_s)

    async def stop(self) -> None:
        """A machine that hangs is lost after so long a silence, and comes back."""
        name = self.agent
        agent = self.here.fleet.agents[name]
        agent.signal(signal.SIGSTOP)
        try:
            await self.here.until(lambda said: f"agent:{name}" in str(said.problems))
            since_s = await self.lost(name)
            self.here.dead.append((name, since_s, time.monotonic()))
        finally:
            agent.signal(signal.SIGCONT)
        await self.well()

    async def swap(self) -> None:
        others = sorted(set(MODELS.values()) - {self.model})
        self.model = self.dice.choice(others)
        await self.apply(wanted(self.folder / self.model))
        await self.here.until(lambda said: (said.model, said.state) == (self.model, "serving"))

    async def swap_that_fails(self, on_failure: str) -> None:
        """Taken back, or left as it is until the next change."""
        await self.apply(wanted(self.folder / "nowhere.gguf", on_failure=on_failure))
        await self.here.until(lambda said: "nowhere.gguf" in str(said.problems))
        if on_failure == "pause":
            await self.here.until(lambda said: said.state == "failed")
            await trio.sleep(self.dice.uniform(0, 1))
        await self.apply(wanted(self.folder / self.model))
        await self.here.until(lambda said: (said.model, said.state) == (self.model, "serving"))

    async def another_temperature(self) -> None:
        temperature = self.dice.choice([0.1, 0.2, 0.3])
        await self.apply(wanted(self.folder / self.model, temperature=temperature))
        await self.well()

    async def drain(self, count: int) -> None:
        """Drain some of the agents, with a crowd where nobody answers any more."""
        agents = (await self.here.get("/api/v2/agents"))["agents"]
        chosen = self.dice.sample(agents, count)
        base = f"{self.here.fleet.management_url}/api/v2/agents"
        for agent in chosen:
            (await self.here.http.post(f"{base}/{agent['id']}/drain")).raise_for_status()
        await self.here.until(lambda said: said.answering == AGENTS - count)
        async with trio.open_nursery() as crowd:
            if count == AGENTS:
                for _ in range(2 * MOST_WAITING):
                    crowd.start_soon(self.here.ask)
            await trio.sleep(
                self.dice.choice([0.3, WAIT_S / 2]) if count < AGENTS else WAIT_S + 0.5
            )
            for agent in chosen:
                (await self.here.http.delete(f"{base}/{agent['id']}/drain")).raise_for_status()
        await self.well()

    async def refuse(self) -> None:
        """A request that is longer than a slot."""
        long = [{"role": "user", "content": "long " * 2000}]
        assert await self.here.ask(messages=long) == 400

    async def cancel(self) -> None:
        """An operator ends what is in flight, until a client was told so."""
        before = self.here.endings.get("499", 0)
        while self.here.endings.get("499", 0) == before:  # answers may be quicker than an operator
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(self.here.ask, max_tokens=200, min_tokens=200))
                await self.here.until(lambda said: said.free < AGENTS * SLOTS)
                page = await self.here.get("/api/v2/requests?state=in_flight")
                base = f"{self.here.fleet.management_url}/api/v2/requests"
                for each in page["requests"]:
                    answer = await self.here.http.delete(f"{base}/{each['key']}")
                    assert answer.status_code in (204, 409)

    async def stranger(self) -> None:
        """An agent with a credential that opens nothing."""
        file = self.folder / "credential"
        file.write_text(AgentCredential("0" * 12, "x" * 43).render())
        file.chmod(0o600)
        options = [f"--credential-file={file}", f"--state-dir={self.folder}"]
        start = partial(self.here.fleet.start_agent, "stranger", options=options)
        agent = await trio.to_thread.run_sync(start)
        del self.here.fleet.agents["stranger"]
        await self.here.until(lambda said: "was refused with 401" in str(said.problems))
        await trio.to_thread.run_sync(agent.end)

    async def restart(self) -> None:
        self.here.is_down = True
        await trio.to_thread.run_sync(self.here.fleet.restart_balancer)
        self.here.is_down = False
        await self.well()

    def compare_terminal(self) -> None:
        """In quiet, the terminal says what the port says."""
        here = self.here
        said, shown_states = here.said[-1], here.shown[-1].agents
        at = f"--management-addr={here.fleet.management}"
        shown = " ".join(invoke("problems", at).output.split())
        for words in said.problems:
            sentence = words.partition(": ")[2]
            if "was refused" not in words and sentence not in shown:
                here.wrong.append(f"the terminal does not say {sentence!r}: {shown}")
        lines = invoke("agents", "--wide", at).output
        for name, word in shown_states.items():
            if not re.search(rf"^{name}\b.*\b{word}\b", lines, re.MULTILINE):
                here.wrong.append(f"{name} is {word}, and the terminal says {lines}")


async def a_day(fleet: Fleet, folder: Path, seed: int, rounds: int) -> WatchedFleet:
    """Let everything happen so many times, in an order that the seed decides."""
    async with WatchedFleet.watching(fleet, CLIENTS) as here:
        events = Events(here, folder, random.Random(seed), rounds > 1)
        for _ in range(rounds):
            deck = events.all()
            events.dice.shuffle(deck)
            for event in deck:
                await event()
                await trio.sleep(events.dice.uniform(0, 0.3))
            await events.well()
            await trio.sleep(1)  # longer than the feed takes
            newest = here.shown[-1].sentence
            await trio.to_thread.run_sync(events.compare_terminal)
            await events.well()
            if newest not in {each.sentence for each in here.said[-100:]}:  # slots may be opened
                here.wrong.append(f"the feed says {newest!r}, and the port {here.said[-1]}")
    return here


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")  # a send that broke
@pytest.mark.parametrize(("seed", "rounds"), [(40, 1), pytest.param(2, 16, marks=pytest.mark.slow)])
def test_no_sentence_contradicts_what_clients_met(seed: int, rounds: int, tmp_path: Path) -> None:
    shutil.copyfile(BUNDLED_MODEL, tmp_path / MODELS[" "])
    for blank in ("\t", "\v"):
        write_model(tmp_path / MODELS[blank], blank)
    with balancer_and_agents(tmp_path) as fleet:

        async def bounded() -> WatchedFleet:
            with trio.fail_after(LIMIT_S - 60):
                return await a_day(fleet, tmp_path, seed, rounds)

        here = trio.run(bounded)
    wrong = list(here.contradictions())
    print(
        f"{len(here.said)} samples of the port and {len(here.shown)} of the feed with "
        f"{here.sentences} sentences; clients met {here.endings}; {len(wrong)} contradictions"
    )
    assert not wrong, "\n".join(wrong[:20])
    assert len(here.said) > 100 * rounds
    assert here.statements >= {"serving", "changing", "drained", "agent", "deployment"}
    assert {"200", "400", "499", "503", "504"} <= set(here.endings)

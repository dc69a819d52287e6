"""Questions whether a model fits: few at once, each with an end."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from fit_world import Agent, state
from trio.testing import wait_all_tasks_blocked

from dry_run_double import DryRunDouble
from paddler_trio.agent.model import fit_tasks
from paddler_trio.agent.model.fit_tasks import MAX_FIT_QUESTIONS, FitTasks
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.desired_state import DesiredModel, LocalToAgent, NoModel
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Automatic, Extras
from paddler_trio.wire.trio.fit_messages import AskFit, FitReport
from paddler_trio.wire.trio.trio_link import Answer

MODEL = LocalToAgent("/models/m.gguf")


@attrs.define(eq=False)
class Reply:
    """The connection, as the tasks see it."""

    answers: list[Answer] = attrs.field(factory=list)
    heard: trio.Event = attrs.field(factory=trio.Event)

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.heard.set()

    async def first(self) -> Answer:
        with trio.fail_after(50):
            await self.heard.wait()
        (answer,) = self.answers
        return answer


@attrs.define(eq=False)
class Broken(DryRunDouble):
    """Cannot even begin."""

    failure: Exception = attrs.field(kw_only=True)

    @asynccontextmanager
    async def open(
        self, model: DesiredModel, projection: DesiredModel, hub: HubSettings, adapters: object = ()
    ) -> AsyncIterator[DryRunDouble._Questions]:
        raise self.failure
        yield


@attrs.define(eq=False)
class Slow(DryRunDouble):
    """Answers nothing before the gate opens."""

    gate: trio.Event = attrs.field(factory=trio.Event)

    @asynccontextmanager
    async def open(
        self, model: DesiredModel, projection: DesiredModel, hub: HubSettings, adapters: object = ()
    ) -> AsyncIterator[DryRunDouble._Questions]:
        await self.gate.wait()
        async with DryRunDouble.open(self, model, projection, hub) as questions:
            yield questions


@asynccontextmanager
async def asking(agent: Agent) -> AsyncIterator[FitTasks]:
    tasks = FitTasks()
    async with trio.open_nursery() as nursery:
        tasks.open(nursery, agent.server)
        yield tasks
        nursery.cancel_scope.cancel()


def question(wire_id: str = "1", context_size: int = 8192, **more: object) -> AskFit:
    return AskFit(wire_id, state(MODEL, context_size), NO_EXTRAS, more.get("slots"))  # type: ignore[arg-type]


async def test_an_answer_has_every_number(tmp_path: Path) -> None:
    async with asking(Agent(tmp_path)) as tasks:
        reply = Reply()
        tasks.ask(question(context_size=2**20), reply)
        answer = await reply.first()
        assert (answer.id, answer.problem, answer.code) == ("1", None, 200)
        report = structure(answer.answer, FitReport)
        assert report.fits is False
        assert report.problem is not None
        assert report.problem.startswith("needs 1.13 GiB on host")
        (host,) = report.devices
        mib = 1 << 20
        assert (host.weights, host.kv, host.compute) == (100 * mib, 1024 * mib, 10 * mib)
        assert host.other == 20 * mib, "the process; caches count for nothing"
        assert host.needed == (100 + 1024 + 10 + 20) * mib
        assert (host.free_now, host.free_after, host.reserve) == (1000 * mib, 1000 * mib, 0)
        assert [option.changes for option in report.options] == [
            ("context-size",),
            ("kv-cache-dtype",),
        ]


async def test_slots_and_automatic_parameters_are_as_asked(tmp_path: Path) -> None:
    async with asking(Agent(tmp_path)) as tasks:
        reply = Reply()
        auto = Extras(auto=Automatic(context_size=True))
        tasks.ask(AskFit("1", state(MODEL), auto, 7), reply)
        report = structure((await reply.first()).answer, FitReport)
        assert report.fits is True
        assert (report.slots, report.context_size, report.chosen) == (
            7,
            7 * 2048,
            ("context_size",),
        )


@pytest.mark.parametrize(("kind", "code"), [("not_gguf", 422), ("unreachable", 502)])
async def test_whose_fault_it_is_shows_in_the_code(kind: str, code: int, tmp_path: Path) -> None:
    agent = Agent(tmp_path, DryRunDouble(fails=lambda *_: MemoryUnknownError(kind, "because")))
    async with asking(agent) as tasks:
        reply = Reply()
        tasks.ask(question(), reply)
        answer = await reply.first()
        assert (answer.code, answer.problem) == (code, "because")


@pytest.mark.parametrize(
    ("failure", "code", "reason"),
    [(OSError(errno.ENOSPC, "No space left"), 502, "No space left"), (KeyError("bug"), 500, "bug")],
)
async def test_a_dry_run_that_cannot_begin_costs_its_question_and_not_the_agent(
    failure: Exception, code: int, reason: str, tmp_path: Path
) -> None:
    async with asking(Agent(tmp_path, Broken(failure=failure))) as tasks:
        for number in ("1", "2"):
            reply = Reply()
            tasks.ask(attrs.evolve(question(), id=number), reply)
            answer = await reply.first()
            assert answer.code == code
            assert reason in str(answer.problem)


async def test_no_model_is_no_question(tmp_path: Path) -> None:
    async with asking(Agent(tmp_path)) as tasks:
        reply = Reply()
        tasks.ask(AskFit("1", state(NoModel()), NO_EXTRAS, None), reply)
        assert (await reply.first()).code == 400


async def test_more_than_a_few_at_once_are_refused_and_a_stop_makes_room(tmp_path: Path) -> None:
    slow = Slow()
    async with asking(Agent(tmp_path, slow)) as tasks:
        reply, refused, twice, last, other = Reply(), Reply(), Reply(), Reply(), Reply()
        for number in range(MAX_FIT_QUESTIONS):
            tasks.ask(question(str(number)), reply)
        tasks.ask(question("one more"), refused)
        assert (await refused.first()).code == 503
        tasks.stop("3", reply)
        await wait_all_tasks_blocked()
        tasks.ask(question("4"), last)
        assert not last.answers
        tasks.stop("4", last)
        await wait_all_tasks_blocked()
        tasks.ask(question("same"), twice)
        tasks.ask(question("same"), twice)
        assert [answer.code for answer in twice.answers] == [400]
        tasks.stop_all_of(reply)
        await wait_all_tasks_blocked()
        for number in range(3):
            tasks.ask(question(str(number)), other)
        slow.gate.set()
        with trio.fail_after(50):
            while len(other.answers) < 3:
                await wait_all_tasks_blocked(0.01)
        assert {answer.code for answer in other.answers} == {200}
        assert reply.answers == [], "who left hears nothing"


async def test_no_verdict_in_time_is_an_answer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_tasks, "FIT_ANSWER_S", 0.05)
    async with asking(Agent(tmp_path, Slow())) as tasks:
        reply = Reply()
        tasks.ask(question(), reply)
        assert (await reply.first()).code == 504


async def test_before_there_is_a_nursery_the_answer_is_that(tmp_path: Path) -> None:
    reply = Reply()
    FitTasks().ask(question(), reply)
    assert (await reply.first()).code == 503


async def test_when_the_agent_leaves_the_answer_is_that(tmp_path: Path) -> None:
    """Its requests have ended by then, and their nursery."""
    agent = Agent(tmp_path)
    async with asking(agent) as tasks:
        agent.server.status.set(is_leaving=True)
    reply = Reply()
    tasks.ask(question(), reply)
    answer = await reply.first()
    assert (answer.problem, answer.code) == ("this agent is leaving", 503)

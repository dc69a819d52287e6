"""Work and questions that not every agent understands, in virtual time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from dispatch_world import Peer, World, heard, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.balancer.agents.ask_model import ask_model
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.nursery_tree.agent_kinds import PADDLER, Feature
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import too_old_for
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.messages import AgentRequest
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio.model_questions import RenderPrompt, Tokenize
from paddler_trio.wire.trio.request_frame import encode_work
from paddler_trio.wire.trio.trio_link import Answer, Ask, Start
from paddler_trio.wire.trio.work import Generate, InfillPrompt, OtherText, TextPrompt

PLAIN = Generate(prompt=TextPrompt(text="Once"), max_tokens=5)
BEHIND = Generate(prompt=TextPrompt(text="Once"), max_tokens=5, context=(7, 8))
INFILL = Generate(prompt=InfillPrompt(prefix="a = ", suffix="\n"), max_tokens=5)
WITH_STOP = Generate(prompt=TextPrompt(text="Once"), max_tokens=5, stop=("END",))


def submit(here: World, work: Generate) -> Request:
    return here.dispatcher.submit("r", encode_work(work))


async def test_paddlers_agents_are_asked_in_their_words_where_nothing_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent(kind=PADDLER)
        request = submit(here, PLAIN)
        await wait_all_tasks_blocked()
        (frame,) = agent.received()
        assert isinstance(frame, AgentRequest)
        assert frame.request == ContinueFromRawPromptParams("Once", 5)
        agent.says("1.1", "a", done=True)
        assert await heard(request) == ("a", None)


async def test_our_agents_are_asked_as_it_was_asked(autojump_clock: MockClock) -> None:
    async with world() as here:
        agent = here.agent()
        request = submit(here, WITH_STOP)
        await wait_all_tasks_blocked()
        (frame,) = agent.received()
        assert isinstance(frame, Start)
        assert frame.request == WITH_STOP
        agent.says("1.1", done=True)
        assert await heard(request) == ("", None)


async def test_what_no_agent_here_can_do_is_refused_at_once_by_its_field(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        agent = here.agent(kind=PADDLER)
        request = submit(here, WITH_STOP)
        assert request.failure is not None
        assert request.failure.code == 501
        assert "stop" in request.failure.description
        assert agent.sent() == []


async def test_what_a_busy_agent_of_ours_can_do_waits_for_it_and_lets_others_pass(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        old = here.agent(kind=PADDLER, slots=1)
        ours = here.agent(slots=1)
        first, second = submit(here, WITH_STOP), submit(here, WITH_STOP)
        third = here.submit("plain")
        await wait_all_tasks_blocked()
        assert (first.agents, second.agents, third.agents) == (["a2"], [], ["a1"])
        ours.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert second.agents == ["a2"]
        ours.says("2.1", done=True)
        old.says("3.1", done=True)
        await wait_all_tasks_blocked()
        assert all(request.is_over for request in (first, second, third))


async def test_with_no_agent_at_all_it_waits_for_one_that_can(autojump_clock: MockClock) -> None:
    async with world() as here:
        request = submit(here, WITH_STOP)
        await wait_all_tasks_blocked()
        old, ours = here.agent(kind=PADDLER), here.agent()
        await wait_all_tasks_blocked()
        assert (old.sent(), ours.sent()) == ([], ["start 1.1"])
        ours.says("1.1", done=True)
        assert await heard(request) == ("", None)


async def test_what_lost_its_agent_before_a_token_does_not_go_to_one_that_cannot(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        ours = here.agent()
        request = submit(here, WITH_STOP)
        await wait_all_tasks_blocked()
        old = here.agent(kind=PADDLER)
        here.dispatcher.leave(ours.connection)
        await wait_all_tasks_blocked()
        assert old.sent() == []
        again = here.agent()
        await wait_all_tasks_blocked()
        assert again.sent() == ["start 1.2"]
        again.says("1.2", done=True)
        assert await heard(request) == ("", None)


# --------------------------------------------------------------------------------- infill


async def test_an_infill_goes_by_agents_of_before_it(autojump_clock: MockClock) -> None:
    async with world() as here:
        paddlers, old, new = (
            here.agent(kind=PADDLER),
            here.agent(),
            here.agent(features={Feature.INFILL}),
        )
        first, second = submit(here, INFILL), submit(here, INFILL)
        await wait_all_tasks_blocked()
        assert (first.agents, second.agents) == (["a3"], [])
        new.says("1.1", done=True)
        await wait_all_tasks_blocked()
        assert second.agents == ["a3"]
        new.says("2.1", done=True)
        await wait_all_tasks_blocked()
        assert (paddlers.sent(), old.sent()) == ([], [])


async def test_an_infill_is_refused_where_every_agent_is_of_before_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        paddlers = here.agent(kind=PADDLER)
        request = submit(here, INFILL)
        assert request.failure is not None
        assert (request.failure.code, "prompt.Infill" in request.failure.description) == (501, True)
        old = here.agent()
        request = submit(here, INFILL)
        assert request.failure == too_old_for("infill")
        with pytest.raises(HttpProblem, match="older than infill"):
            await ask_model(here.dispatcher, RenderPrompt(prompt=INFILL.prompt))
        assert (paddlers.sent(), old.sent()) == ([], [])


async def test_a_prompt_behind_a_context_goes_by_agents_that_read_none(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        old = here.agent(features={Feature.INFILL})
        assert submit(here, BEHIND).failure == too_old_for("context")
        new = here.agent(features={Feature.CONTEXT})
        request = submit(here, BEHIND)
        await wait_all_tasks_blocked()
        (frame,) = new.received()
        assert old.sent() == []
        assert isinstance(frame, Start)
        assert frame.request == BEHIND
        new.says("2.1", done=True)
        assert await heard(request) == ("", None)


async def test_an_infill_that_lost_its_agent_waits_for_one_like_it(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        new = here.agent(features={Feature.INFILL})
        request = submit(here, INFILL)
        await wait_all_tasks_blocked()
        old = here.agent()
        here.dispatcher.leave(new.connection)
        await wait_all_tasks_blocked()
        again = here.agent(features={Feature.INFILL})
        await wait_all_tasks_blocked()
        assert (old.sent(), again.sent()) == ([], ["start 1.2"])
        again.says("1.2", done=True)
        assert await heard(request) == ("", None)


async def test_an_infill_with_long_names_of_files_is_written_off_the_event_loop(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(*arguments: Any) -> object:
        threads.append(threading.current_thread())
        return unstructure(*arguments)

    monkeypatch.setattr(f"{ask_model.__module__}.unstructure", noted)
    others = tuple(OtherText(text="", filename="x" * 4096) for _ in range(32))
    async with world() as here:
        here.agent()
        for prompt in (InfillPrompt(prefix="", suffix="", others=others), INFILL.prompt):
            with pytest.raises(HttpProblem, match="501"):
                await ask_model(here.dispatcher, RenderPrompt(prompt=prompt))
    assert [each is threading.main_thread() for each in threads] == [False, True]


async def test_what_an_infill_becomes_is_asked_of_an_agent_that_fills(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        old, new = serves(here.agent()), serves(here.agent(features={Feature.INFILL}))
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await ask_model(here.dispatcher, RenderPrompt(prompt=INFILL.prompt)))

        here.nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        (frame,) = new.received()
        assert isinstance(frame, Ask)
        new.connection.questions.answer(frame.id, Answer(frame.id, {"prompt": "x"}, None, 200))
        await wait_all_tasks_blocked()
        assert (answers, old.sent()) == ([{"prompt": "x"}], [])


# ------------------------------------------------------------------------------ questions

QUESTION = Tokenize(text="Once")


def serves(peer: Peer, *, is_so: bool = True) -> Peer:
    peer.connection.is_accepting = is_so
    return peer


def asked(peer: Peer) -> str:
    (frame,) = peer.received()
    assert isinstance(frame, Ask)
    assert frame.question == QUESTION
    return frame.id


async def ask_in_background(here: World, answers: list[object]) -> None:
    async def ask() -> None:
        try:
            answers.append(await ask_model(here.dispatcher, QUESTION))
        except (HttpProblem, QuestionRefusedError) as problem:
            answers.append(problem)

    here.nursery.start_soon(ask)
    await wait_all_tasks_blocked()


async def test_a_serving_agent_answers(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.agent(kind=PADDLER)
        agent = here.agent()
        answers: list[object] = []
        await ask_in_background(here, answers)
        wire_id = asked(agent)
        agent.connection.questions.answer(wire_id, Answer(wire_id, {"tokens": [1]}, None, 200))
        await wait_all_tasks_blocked()
        assert answers == [{"tokens": [1]}]


async def test_a_question_outlives_the_agent_it_was_put_to(autojump_clock: MockClock) -> None:
    async with world() as here:
        first, second = here.agent(), here.agent()
        answers: list[object] = []
        await ask_in_background(here, answers)
        asked(first)
        here.dispatcher.leave(first.connection)
        first.connection.close()
        await wait_all_tasks_blocked()
        wire_id = asked(second)
        second.connection.questions.answer(wire_id, Answer(wire_id, "yes", None, 200))
        await wait_all_tasks_blocked()
        assert answers == ["yes"]


async def test_while_nobody_serves_a_question_waits_as_long_as_a_request(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        answers: list[object] = []
        began_s = trio.current_time()
        await ask_in_background(here, answers)
        await trio.sleep(9)
        assert answers == []
        await trio.sleep(2)
        (problem,) = answers
        assert isinstance(problem, HttpProblem)
        assert problem.status == 503
        assert trio.current_time() - began_s == pytest.approx(11)


async def test_who_joins_in_time_is_asked(autojump_clock: MockClock) -> None:
    async with world() as here:
        answers: list[object] = []
        await ask_in_background(here, answers)
        agent = here.agent()
        await wait_all_tasks_blocked()
        wire_id = asked(agent)
        agent.connection.questions.answer(wire_id, Answer(wire_id, None, "no such token", 400))
        await wait_all_tasks_blocked()
        (problem,) = answers
        assert isinstance(problem, QuestionRefusedError)
        assert (problem.code, problem.problem) == (400, "no such token")


async def test_an_agent_that_does_not_answer_is_504(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.agent()
        answers: list[object] = []
        await ask_in_background(here, answers)
        await trio.sleep(31)
        (problem,) = answers
        assert isinstance(problem, HttpProblem)
        assert problem.status == 504


async def test_a_question_that_waits_for_an_agent_is_refused_as_the_balancer_drains(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        answers: list[object] = []
        await ask_in_background(here, answers)
        here.dispatcher.drain()
        await wait_all_tasks_blocked()
        (problem,) = answers
        assert isinstance(problem, HttpProblem)
        assert (problem.status, problem.text) == (503, "balancer is shutting down")


async def test_paddlers_agents_answer_no_questions(autojump_clock: MockClock) -> None:
    async with world() as here:
        here.agent(kind=PADDLER)
        with pytest.raises(HttpProblem, match="501"):
            await ask_model(here.dispatcher, QUESTION)

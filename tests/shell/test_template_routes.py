"""Operators try a template on an agent; agents of every age answer."""

from __future__ import annotations

import json

import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.front.template_routes import TemplateRoutes
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_kinds import PADDLER
from paddler_trio.wire.trio.model_questions import PreviewTemplate
from paddler_trio.wire.trio.trio_link import Answer, Ask

HELLO = {"role": "user", "content": "Hello!"}


async def ask(here: World, body: object) -> tuple[int, str]:
    router = Router()
    TemplateRoutes(here.dispatcher).add_to(router)
    messages: list[Message] = []
    data = [json.dumps(body).encode()]

    async def receive() -> Message:
        if not data:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": data.pop(), "more_body": False}

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v2/template/preview",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await router(exchange_for(scope, receive, send))
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages).decode()


async def answered(here: World, agent: Peer, body: object, answer: Answer) -> tuple[int, str, Ask]:
    """The response to ``body`` when the agent gives ``answer``, and what it was asked."""
    responses: list[tuple[int, str]] = []
    async with trio.open_nursery() as nursery:

        async def post() -> None:
            responses.append(await ask(here, body))

        nursery.start_soon(post)
        await wait_all_tasks_blocked()
        (asked,) = (frame for frame in agent.received() if isinstance(frame, Ask))
        agent.connection.questions.answer(asked.id, answer)
    ((status, text),) = responses
    return status, text, asked


async def test_the_agent_is_asked_with_the_template_and_its_prompt_comes_back(
    autojump_clock: MockClock,
) -> None:
    body = {
        "deployment": "default",
        "chat_template": "{{ messages }}",
        "messages": [HELLO],
        "tools": None,
        "thinking": False,
    }
    prompt = {"prompt": "Hello!", "num_tokens": 2}
    async with world() as here:
        status, text, asked = await answered(
            here, here.agent(), body, Answer("", prompt, None, 200)
        )
    assert (status, json.loads(text)) == (200, prompt)
    assert asked.question == PreviewTemplate(
        messages=(HELLO,), thinking=False, chat_template="{{ messages }}"
    )


async def test_what_the_template_refuses_is_400_with_its_line(autojump_clock: MockClock) -> None:
    problem = {"problem": "chat template: no (line 3)", "line": 3}
    async with world() as here:
        status, text, _ = await answered(
            here, here.agent(), {"messages": [HELLO]}, Answer("", problem, None, 200)
        )
    assert status == 400
    assert json.loads(text) == {"error": "chat template: no (line 3)", "line": 3}


@pytest.mark.parametrize(
    ("code", "problem", "status", "words"),
    [
        (400, "malformed request: unknown variant 'PreviewTemplate'", 501, "of an older version"),
        (400, "the model cannot see images", 400, "cannot see images"),
        (413, "the answer would be too large", 413, "too large"),
    ],
)
async def test_an_agent_that_refuses_is_answered_for(
    autojump_clock: MockClock, code: int, problem: str, status: int, words: str
) -> None:
    async with world() as here:
        got, text, _ = await answered(
            here, here.agent(), {"messages": [HELLO]}, Answer("", None, problem, code)
        )
    assert got == status
    assert words in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "required field missing @ $.messages"),
        ({"messages": ["x"]}, "@ $.messages[0]"),
        ({"messages": [], "tools": 5}, "@ $.tools"),
        ({"messages": [], "thinking": "yes"}, "@ $.thinking"),
        ({"messages": [], "template": "x"}, "unknown field 'template'"),
    ],
)
async def test_a_body_that_is_wrong_is_refused_with_the_field(
    autojump_clock: MockClock, body: object, words: str
) -> None:
    async with world() as here:
        status, text = await ask(here, body)
    assert status == 400
    assert words in text


async def test_without_an_agent_of_ours_or_without_the_deployment_there_is_no_preview(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        assert (await ask(here, {"messages": [HELLO]}))[0] == 503
        status, text = await ask(here, {"messages": [HELLO], "deployment": "coder"})
        assert (status, text) == (404, "there is no deployment 'coder'")
        here.agent(kind=PADDLER)
        assert (await ask(here, {"messages": [HELLO]}))[0] == 501

"""``/tokenize`` of very many tokens with their texts: a client that left costs nothing more."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.ask_model import MAX_ASKED
from paddler_trio.balancer.apis.answers.kept_logprobs import MANY_NUMBERS
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.apis.llama_server.model_routes import PIECES_AT_ONCE
from paddler_trio.balancer.apis.prompts import MAX_TEXTS_AMONG_IDS
from paddler_trio.balancer.apis.responses.responses_request import Item, ResponsesRequest
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server.asgi import Message, Scope
from paddler_trio.net.server.input_budget import INLINE_BYTES, DecodingThread, InputBudget
from paddler_trio.nursery_tree.agent_connection import OUTGOING_FRAMES, AgentConnection
from paddler_trio.nursery_tree.agent_questions import QUESTIONS_AT_ONCE
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import dumps, loads, unstructure
from paddler_trio.wire.paddler.messages import StopRespondingTo
from paddler_trio.wire.trio.model_questions import DescribeModel, Detokenize, Question, Tokenize
from paddler_trio.wire.trio.trio_link import TAG, Answer, Ask, Start, parse_extension
from paddler_trio.wire.trio.work import ConversationPrompt

TOKENS = 200_000
T = TypeVar("T")


@attrs.define(eq=False)
class CountingThread(DecodingThread):
    """Counts its steps, and calls ``on_step`` after each."""

    steps: int = 0
    on_step: Callable[[], None] = lambda: None

    async def run(self, work: Callable[[], T], *, client: str) -> T:
        result = await super().run(work, client=client)
        self.steps += 1
        self.on_step()
        return result


@attrs.define(eq=False)
class OneThread(InputBudget):
    thread: CountingThread = attrs.field(factory=CountingThread)

    def thread_of(self, share: float) -> DecodingThread:
        return self.thread


@attrs.define(eq=False)
class Asking:
    """A client that asks for so many tokens with their texts; it leaves when ``left`` is set."""

    here: World
    peer: Peer
    app: ApiRouter
    budget: OneThread = attrs.field(factory=OneThread)
    left: trio.Event = attrs.field(factory=trio.Event)
    sent: list[Message] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)

    def begin(self, tokens: int) -> None:
        self.ask("/tokenize", {"content": [7] * tokens, "with_pieces": True})

    def ask(self, path: str, fields: dict[str, object]) -> None:
        body = dumps(fields)
        arriving: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        room = self.budget.reservation()
        room.grow(len(body))
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

        async def receive() -> Message:
            if arriving:
                return arriving.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            self.sent.append(message)

        async def run() -> None:
            await self.app(exchange_for(scope, receive, send, room=room))
            room.close()
            self.ended.set()

        self.here.nursery.start_soon(run)

    async def question(self) -> Ask:
        """What the agent is asked, once it is."""
        frame = loads(await self.peer.frames.receive())
        assert isinstance(frame, dict)
        ask = parse_extension(frame[TAG])
        assert isinstance(ask, Ask)
        return ask

    def answer(self, ask: Ask) -> None:
        assert isinstance(ask.question, Detokenize)
        pieces = ["é"] * len(ask.question.tokens)
        self.peer.connection.questions.answer(ask.id, Answer(ask.id, {"pieces": pieces}, None, 0))


@asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    async with world() as here:
        states = FleetKeeper(MemoryDatabase(), here.dispatcher)
        deployments = Deployments(here.dispatcher, states)
        config = BalancerConfig()
        app, *_ = api_routers(config, here.dispatcher, states, deployments)
        peer = here.agent()
        peer.connection.is_accepting = True
        yield Asking(here, peer, app)


@pytest.mark.parametrize("tokens", [1, PIECES_AT_ONCE, PIECES_AT_ONCE + 1, 3 * PIECES_AT_ONCE])
async def test_each_token_has_its_text_however_many_there_are(tokens: int) -> None:
    async with asking() as client:
        client.begin(tokens)
        client.answer(await client.question())
        await client.ended.wait()
        body = json.loads(b"".join(message.get("body", b"") for message in client.sent))
        assert body == {"tokens": [{"id": 7, "piece": "é"}] * tokens}


async def test_an_agent_that_is_asked_for_a_client_that_left_is_told_to_stop() -> None:
    async with asking() as client:
        client.begin(TOKENS)
        ask = await client.question()
        steps = client.budget.thread.steps
        client.left.set()
        await client.ended.wait()
        await wait_all_tasks_blocked()
        (stop,) = client.peer.received()
        assert stop == StopRespondingTo(ask.id)
        assert client.budget.thread.steps == steps
        assert client.sent == []


async def test_of_texts_among_token_ids_no_more_is_asked_for_a_client_that_left() -> None:
    async with asking() as client:
        client.ask("/v1/completions", {"prompt": [7, *["a"] * MAX_TEXTS_AMONG_IDS]})
        for _ in range(3):
            ask = await client.question()
            assert isinstance(ask.question, Tokenize)
            client.peer.connection.questions.answer(
                ask.id, Answer(ask.id, {"tokens": [1]}, None, 0)
            )
        ask = await client.question()
        client.left.set()
        await client.ended.wait()
        await wait_all_tasks_blocked()
        assert list(client.peer.received()) == [StopRespondingTo(ask.id)]


async def test_the_text_of_a_prompt_is_asked_for_once_for_all_its_answers() -> None:
    async with asking() as client:
        client.ask("/completion", {"prompt": [7, 8], "n": 5, "n_predict": 1})
        ask = await client.question()
        assert ask.question == Detokenize(tokens=(7, 8))
        client.peer.connection.questions.answer(ask.id, Answer(ask.id, {"text": "é"}, None, 0))
        await wait_all_tasks_blocked()
        (start,) = client.peer.received()
        assert isinstance(start, Start), "the first answer is begun: there is one slot"
        client.left.set()
        await client.ended.wait()
        client.peer.connection.scope.cancel()
        client.here.dispatcher.leave(client.peer.connection)


async def test_questions_that_waited_for_a_model_do_not_flood_its_agent() -> None:
    """A queue of frames that is full means an agent that does not read: it would be cut off."""
    answered = 0

    async def ask(connection: AgentConnection) -> None:
        nonlocal answered
        assert (
            await connection.questions.ask_model(dumps(unstructure(DescribeModel(), Question)))
            == {}
        )
        answered += 1

    async with world() as here:
        peer = here.agent()
        for _ in range(2 * OUTGOING_FRAMES):
            here.nursery.start_soon(ask, peer.connection)
        await wait_all_tasks_blocked()
        while answered < 2 * OUTGOING_FRAMES:
            under_way = list(peer.received())
            assert 0 < len(under_way) <= QUESTIONS_AT_ONCE
            for frame in under_way:
                assert isinstance(frame, Ask)
                peer.connection.questions.answer(frame.id, Answer(frame.id, {}, None, 0))
            await wait_all_tasks_blocked()
        assert not peer.connection.scope.cancel_called


async def test_a_client_with_very_many_questions_leaves_turns_to_others() -> None:
    answered: list[str] = []
    questions = 1000

    async def ask(connection: AgentConnection, client: str) -> None:
        await connection.questions.ask_model(
            dumps(unstructure(DescribeModel(), Question)), client=client
        )
        answered.append(client)

    async with world() as here:
        peer = here.agent()
        for client, count in (("many", questions), ("few", 3)):
            for _ in range(count):
                here.nursery.start_soon(ask, peer.connection, client)
            await wait_all_tasks_blocked()
        while len(answered) < questions + 3:
            for frame in list(peer.received()):
                assert isinstance(frame, Ask)
                peer.connection.questions.answer(frame.id, Answer(frame.id, {}, None, 0))
            await wait_all_tasks_blocked()
        last = max(index for index, client in enumerate(answered) if client == "few")
        assert last < QUESTIONS_AT_ONCE, "it is asked beside the first of the other"


async def test_an_agent_that_answers_with_something_else_is_not_asked_for_ever() -> None:
    async with asking() as client:
        client.begin(1)
        for _ in range(MAX_ASKED):
            client.peer.connection.questions.answer((await client.question()).id, {"Tree": {}})
        await client.ended.wait()
        assert client.sent[0]["status"] == 503
        assert list(client.peer.received()) == []


async def test_of_an_answer_to_a_client_that_left_no_more_is_written_than_was_begun() -> None:
    async with asking() as client:
        client.begin(TOKENS)
        ask = await client.question()
        thread = client.budget.thread
        before = thread.steps
        thread.on_step = client.left.set
        client.answer(ask)
        await client.ended.wait()
        assert 1 <= thread.steps - before <= 3, "of nearly a hundred"
        assert len(client.sent) <= 3
        assert all(message.get("more_body", True) for message in client.sent), "it has no end"
        assert client.budget.held_bytes == 0


async def test_the_conversation_of_a_long_count_is_made_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_loop: list[bool] = []
    conversation = ResponsesRequest.conversation

    def watched(request: ResponsesRequest, before: Sequence[Item]) -> ConversationPrompt:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return conversation(request, before)

    monkeypatch.setattr(ResponsesRequest, "conversation", watched)
    for size in (10, 2 * INLINE_BYTES):
        async with asking() as client:
            client.ask("/v1/responses/input_tokens", {"model": "m", "input": "a" * size})
            ask = await client.question()
            client.peer.connection.questions.answer(
                ask.id, Answer(ask.id, {"num_tokens": 7}, None, 0)
            )
            await client.ended.wait()
            assert client.sent[0]["status"] == 200
    assert on_loop == [True, False]


async def test_a_long_answer_to_a_short_request_is_written_off_the_event_loop() -> None:
    """Thousands of tokens, each with its alternatives."""
    entry = {"token": "a", "logprob": -0.5, "bytes": [97]}
    for num_tokens, steps in ((10, 0), (5000, 1)):
        budget = OneThread()
        sent: list[Message] = []

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        exchange = ApiExchange.open(exchange_for({}, _never, send, room=budget.reservation()))
        answer = {"choices": [{"logprobs": {"content": [entry] * num_tokens}}]}
        await exchange.send_json(200, answer)
        assert budget.thread.steps == steps
        assert json.loads(sent[-1]["body"]) == answer


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_with_what_is_known_of_many_tokens_is_made_off_the_event_loop(
    is_stream: bool,
) -> None:
    """Its last events repeat all of it."""
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top": []}
    usage = {"prompt_tokens": 1, "content_tokens": 1}
    for num_tokens, is_long in ((3, False), (MANY_NUMBERS + 1, True)):
        async with asking() as client:
            body = {"model": "m", "input": "x", "top_logprobs": 1, "stream": is_stream}
            client.ask("/v1/responses", body)
            await wait_all_tasks_blocked()
            (start,) = client.peer.received()
            assert isinstance(start, Start)
            lease = client.peer.lease(start.id)
            thread = client.budget.thread
            for _ in range(num_tokens):
                step: list[RawResult] = [{"Logprobs": entry}, {"ContentToken": "a"}]
                lease.deliver("GeneratedToken", step, ends=False, tokens=[1])
                client.peer.connection.flush()
                await wait_all_tasks_blocked()
            assert thread.steps == 0, "a token is short"
            lease.deliver("GeneratedToken", [{"Done": {"usage": usage}}], ends=True, tokens=[])
            client.peer.connection.flush()
            await client.ended.wait()
            assert (thread.steps > 0) == is_long
            text = b"".join(message.get("body", b"") for message in client.sent)
            data = text.rpartition(b"data: ")[2]
            response = json.loads(data)["response"] if is_stream else json.loads(data)
            (part,) = response["output"][0]["content"]
            assert (part["text"], len(part["logprobs"])) == ("a" * num_tokens, num_tokens)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
        ),
        ("/v1/completions", {"prompt": "x", "logprobs": 1}),
        ("/completion", {"prompt": "x", "n_probs": 1}),
    ],
)
async def test_a_whole_answer_with_what_is_known_of_many_tokens_is_made_off_the_event_loop(
    path: str, body: dict[str, object]
) -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "id": 1, "top": []}
    usage = {"prompt_tokens": 1, "content_tokens": 1}
    for num_tokens in (3, MANY_NUMBERS + 1):
        async with asking() as client:
            client.ask(path, body)
            await wait_all_tasks_blocked()
            (start,) = client.peer.received()
            assert isinstance(start, Start)
            known: list[RawResult] = [{"Logprobs": entry}, {"ContentToken": "a"}]
            results = [*known * num_tokens, {"Done": {"usage": usage}}]
            lease = client.peer.lease(start.id)
            lease.deliver("GeneratedToken", results, ends=True, tokens=[1] * num_tokens)
            client.peer.connection.flush()
            await client.ended.wait()
            assert client.sent[0]["status"] == 200
            assert (client.budget.thread.steps > 0) == (num_tokens > MANY_NUMBERS)


async def _never() -> Message:
    await trio.sleep_forever()
    raise AssertionError

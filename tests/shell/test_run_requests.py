"""Native requests behind an exchange: what a client sees while they wait, run and fail.

The dispatcher is the real one; agents and clients are played, in virtual time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import attrs
import pytest
import trio
from dispatch_world import DONE, Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.apis.answers.run_requests import Step, gather, stream
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import PORTION_BYTES, ApiExchange
from paddler_trio.balancer.apis.backend import ApiSettings, Backend
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server import streaming
from paddler_trio.net.server.asgi import ClientGoneError, HttpProblem, Message
from paddler_trio.net.server.input_budget import FREE_BYTES, MIB, InputBudget
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.wire.json_text import Items
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio.work import Work

LIMITS = ApiLimits(keep_alive_s=5.0, hold_start_s=1.0)
WORK = ContinueFromRawPromptParams("Once", 5)


def kept_in(taken: list[Step], *, size_bytes: int = 1) -> Callable[[Step], int]:
    """Takes the steps of a whole answer, each of which makes it so much larger."""

    def take(step: Step) -> int:
        taken.append(step)
        return size_bytes

    return take


@attrs.define(eq=False)
class Client:
    """What was sent to it, and whether it is still there."""

    directly: ClassVar[str] = "no"
    """Whether pieces may go past ASGI: no, always, or only every second one at once."""
    sent: list[Message] = attrs.field(factory=list)
    left: trio.Event = attrs.field(factory=trio.Event)
    kept: bytes = b""
    num_pieces: int = 0

    async def write(self, piece: bytes) -> None:
        await trio.lowlevel.checkpoint()
        piece, self.kept = self.kept + piece, b""
        if piece:
            self.sent.append({"type": "http.response.body", "body": piece, "more_body": True})

    def write_now(self, piece: bytes) -> bool:
        self.num_pieces += 1
        if self.kept or (self.directly == "often" and self.num_pieces % 2 == 0):
            self.kept += piece
            return False
        self.sent.append({"type": "http.response.body", "body": piece, "more_body": True})
        return True

    @property
    def text(self) -> str:
        bodies = [message["body"] for message in self.sent if "body" in message]
        return b"".join(bodies).decode()

    async def until(self, text: str) -> None:
        """It was sent."""
        with trio.fail_after(30):
            while text not in self.text:  # noqa: ASYNC110  # a thread makes it
                await trio.sleep(0.001)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def is_answered(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    def exchange(self, *headers: tuple[bytes, bytes]) -> ApiExchange:
        async def receive() -> Message:
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            if "body" in message:
                kept, self.kept = self.kept, b""
                message = message | {"body": kept + message["body"]}
            self.sent.append(message)

        http = exchange_for({"method": "POST", "headers": list(headers)}, receive, send)
        if self.directly != "no":
            http.open_body = lambda: self
        return ApiExchange.open(http)


@pytest.fixture(autouse=True, params=["no", "always", "often"])
def directly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client sees is the same, however it is written."""
    monkeypatch.setattr(Client, "directly", request.param)


class Words:
    """A dialect of few words: one event a step."""

    def opening(self) -> bytes:
        return streaming.event("begin")

    def take(self, step: Step) -> bytes:
        return b"".join(streaming.event([step.choice, result]) for result in step.results)

    def closing(self) -> bytes:
        return streaming.event("end") + streaming.DONE

    def failed(self, error: ApiError) -> bytes:
        return streaming.event(error.envelope())


def backend_of(here: World, limits: ApiLimits = LIMITS) -> Backend:
    states = FleetKeeper(MemoryDatabase(), here.dispatcher)
    return Backend(here.dispatcher, states, ApiSettings(limits=limits))


async def run_stream(
    here: World, client: Client, works: Sequence[Work] = (WORK,), **more: float
) -> str:
    """How it ended: answered, refused with a status, or gone."""
    try:
        await stream(backend_of(here), client.exchange(), works, Words(), **more)
    except ApiError as error:
        return f"refused {error.status}"
    except ClientGoneError:
        return "gone"
    return "answered"


def wire_ids(peer: Peer) -> list[str]:
    return [word.removeprefix("start ") for word in peer.sent() if word.startswith("start")]


async def test_a_stream_is_told_step_by_step(autojump_clock: MockClock) -> None:
    client = Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        nursery.start_soon(run_stream, here, client)
        await wait_all_tasks_blocked()
        assert client.status is None, "the status waits for the first step"
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a", "b")
        await wait_all_tasks_blocked()
        assert client.status == 200
        agent.says(wire_id, "c", done=True)
    assert client.is_answered
    assert client.text == (
        'data: "begin"\n\n'
        'data: [0,{"ContentToken":"a"}]\n\n'
        'data: [0,{"ContentToken":"b"}]\n\n'
        'data: [0,{"ContentToken":"c"}]\n\n'
        'data: [0,{"Done":{"usage":{}}}]\n\n'
        'data: "end"\n\n'
        "data: [DONE]\n\n"
    )
    headers = dict(client.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"x-request-id"].startswith(b"req_")
    assert b"openai-processing-ms" in headers
    assert b"content-length" not in headers


async def test_who_waits_hears_where_in_the_queue(autojump_clock: MockClock) -> None:
    client = Client()
    async with world(DispatchLimits(max_buffered=3, buffered_timeout_s=60)) as here:
        agent = here.agent()
        first, second = here.submit("first"), here.submit("second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_stream, here, client)
            await trio.sleep(1.5)
            assert client.text == ': queued position=1\n\ndata: "begin"\n\n'
            second.stop()
            await trio.sleep(5)
            assert client.text.endswith(": queued position=0\n\n")
            agent.says("1.1", "x", done=True)
            await wait_all_tasks_blocked()
            await trio.sleep(10)
            assert client.text.endswith(": working\n\n: working\n\n")
            (wire_id,) = [word for word in wire_ids(agent) if word.startswith("3.")]
            progress = {"Progress": {"total": 90, "cached": 0, "computed": 30}}
            agent.lease(wire_id).deliver("GeneratedToken", [progress], ends=False, tokens=[])
            await trio.sleep(6)
            assert client.text.endswith(": prefilling tokens=30/90\n\n")
            agent.says(wire_id, "y", done=True)
        assert first.is_over
    assert client.text.endswith('data: "end"\n\ndata: [DONE]\n\n')


async def test_long_events_are_made_in_a_thread_and_come_in_order() -> None:
    in_thread: list[str] = []

    class Watched(Words):
        def opening(self) -> bytes:
            return self.note("begin", super().opening())

        def take(self, step: Step) -> bytes:
            return self.note(str(step.tokens), super().take(step))

        def closing(self) -> bytes:
            return self.note("end", super().closing())

        def note(self, what: str, events: bytes) -> bytes:
            if threading.current_thread() is not threading.main_thread():
                in_thread.append(what)
            return events

    def is_long(steps: Sequence[Step]) -> bool:
        return not steps or any(len(step.tokens) == 3 for step in steps)

    client = Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        answer = partial(stream, is_long=is_long)
        nursery.start_soon(answer, backend_of(here), client.exchange(), (WORK,), Watched())
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a")
        await client.until('"a"')
        agent.says(wire_id, "b", "c", "d")
        agent.says(wire_id, "e")
        await client.until('"e"')
        agent.says(wire_id, "f")
        await client.until('"f"')
        agent.says(wire_id, done=True)
    told = [line for line in client.text.split("\n\n") if line.startswith("data: ")]
    assert [line[-3] for line in told[1:7]] == ['"'] * 6
    assert [line.split('"')[3] for line in told[1:7]] == ["a", "b", "c", "d", "e", "f"]
    assert told[-2:] == ['data: "end"', "data: [DONE]"]
    assert in_thread[0] == "begin"
    assert "[98, 99, 100]" in in_thread
    assert "[102]" not in in_thread
    assert in_thread[-1] == "end"


class Mute(Words):
    """A dialect without words for what comes, such as reasoning that is not told."""

    def take(self, step: Step) -> bytes:
        return b""


async def test_a_stream_that_tells_nothing_of_what_comes_stays_alive(
    autojump_clock: MockClock,
) -> None:
    client = Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        exchange = client.exchange()
        nursery.start_soon(stream, backend_of(here), exchange, (WORK,), Mute())
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        for _ in range(42):
            agent.says(wire_id, "x")
            await trio.sleep(0.5)
        assert client.text.count(": working") == 4, "one in five seconds, tokens or not"
        agent.says(wire_id, "y", done=True)
    assert client.text.endswith('data: "end"\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize("directly", ["always"], indirect=True)
async def test_a_token_is_written_in_the_step_in_which_it_arrives(
    directly: None, autojump_clock: MockClock
) -> None:
    client = Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        nursery.start_soon(run_stream, here, client)
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a")  # begins the response, which its task does
        await wait_all_tasks_blocked()
        agent.says(wire_id, "b", "c")
        assert client.text.endswith('"b"}]\n\ndata: [0,{"ContentToken":"c"}]\n\n')
        agent.says(wire_id, "d")
        assert client.text.endswith('"d"}]\n\n')
        agent.says(wire_id, done=True)
        assert client.text.endswith(json.dumps(DONE, separators=(",", ":")) + "]\n\n")


@pytest.mark.parametrize("directly", ["always"], indirect=True)
async def test_what_cannot_be_rendered_ends_its_stream_and_not_the_agent(
    directly: None, autojump_clock: MockClock
) -> None:
    class Choosy(Words):
        def take(self, step: Step) -> bytes:
            if step.results == [{"ContentToken": "b"}]:
                raise ApiError(500, "not this one")
            return super().take(step)

    client = Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        exchange = client.exchange()
        nursery.start_soon(stream, backend_of(here), exchange, (WORK,), Choosy())
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a")
        await wait_all_tasks_blocked()
        agent.says(wire_id, "b")
        await wait_all_tasks_blocked()
        assert "not this one" in client.text
        assert client.is_answered
        agent.says(wire_id, done=True)  # it was stopped


async def test_a_ping_interval_of_its_own_counts(autojump_clock: MockClock) -> None:
    often, never = Client(), Client()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=2)
        nursery.start_soon(lambda: run_stream(here, often, keep_alive_s=1.0))
        nursery.start_soon(lambda: run_stream(here, never, keep_alive_s=float("inf")))
        await trio.sleep(10.5)
        assert often.text.count(": working") == 10
        assert never.text.count(": working") == 1, "where it stood when the status was sent"
        for wire_id in wire_ids(agent):
            agent.says(wire_id, "x", done=True)


async def test_who_is_refused_before_the_first_step_gets_a_status(
    autojump_clock: MockClock,
) -> None:
    client = Client()
    async with world(DispatchLimits(max_buffered=0)) as here:
        here.agent()
        running = here.submit()
        assert await run_stream(here, client) == "refused 503"
        assert client.sent == []
        running.stop()
        await trio.sleep(6)


async def test_an_early_ending_that_is_no_done_is_a_status_too(autojump_clock: MockClock) -> None:
    client = Client()
    endings: list[str] = []
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()

        async def client_task() -> None:
            endings.append(await run_stream(here, client))

        nursery.start_soon(client_task)
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        error = {"GrammarSyntaxError": "no rule root"}
        agent.lease(wire_id).deliver("GeneratedToken", [error], ends=True, tokens=[])
    assert endings == ["refused 400"]
    assert client.sent == []


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_the_progress_of_a_prompt_is_no_beginning(
    num_choices: int, autojump_clock: MockClock
) -> None:
    """What the model cannot begin to answer has a status, too; but nobody waits long for it."""
    progress = {"Progress": {"total": 90, "cached": 0, "computed": 30}}
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=4)
        refused, waits = Client(), Client()
        ended: list[str] = []

        async def run(client: Client) -> None:
            ended.append(await run_stream(here, client, [WORK] * num_choices))

        for client in (refused, waits):
            nursery.start_soon(run, client)
            await wait_all_tasks_blocked()
        leases = [agent.lease(wire_id) for wire_id in wire_ids(agent)]
        for lease in leases:
            lease.deliver("GeneratedToken", [progress], ends=False, tokens=[])
        agent.connection.flush()
        await wait_all_tasks_blocked()
        assert refused.status is None
        rejected = {"GrammarRejectedModelOutput": "no token fits"}
        for lease in leases[:num_choices]:
            lease.deliver("GeneratedToken", [rejected], ends=True, tokens=[])
        agent.connection.flush()
        await trio.sleep(0.5)
        assert ended == ["refused 422"]
        assert refused.status is None, "who called answers with the status"
        await trio.sleep(1)
        assert waits.status == 200
        assert "Progress" in waits.text
        waits.left.set()
        for lease in leases[num_choices:]:
            lease.deliver("GeneratedToken", [{"Done": {"usage": {}}}], ends=True, tokens=[])
        agent.connection.flush()


async def test_a_failure_after_the_beginning_is_the_last_event(autojump_clock: MockClock) -> None:
    client = Client()
    async with world(DispatchLimits(item_timeout_s=3)) as here, trio.open_nursery() as nursery:
        agent = here.agent()
        nursery.start_soon(run_stream, here, client)
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a")
        await trio.sleep(3.5)
        assert client.is_answered
        last = client.text.split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "timeout_error"
        assert "[DONE]" not in client.text
        agent.lease(wire_id).deliver("GeneratedToken", [DONE], ends=True, tokens=[])


async def test_waiting_too_long_is_told_in_the_stream_that_began(
    autojump_clock: MockClock,
) -> None:
    client = Client()
    async with world(DispatchLimits(buffered_timeout_s=4)) as here:
        assert await run_stream(here, client) == "answered"
    assert client.text.startswith(": queued position=0\n\n")
    assert '"type":"timeout_error"' in client.text
    assert "[DONE]" not in client.text


async def test_a_client_that_leaves_stops_all_its_choices(autojump_clock: MockClock) -> None:
    client = Client()
    endings: list[str] = []
    async with world(DispatchLimits(max_buffered=4)) as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=2)

        async def client_task() -> None:
            endings.append(await run_stream(here, client, (WORK, WORK, WORK)))

        nursery.start_soon(client_task)
        await wait_all_tasks_blocked()
        started = wire_ids(agent)
        assert len(started) == 2
        agent.says(started[0], "a")
        await wait_all_tasks_blocked()
        client.left.set()
        await wait_all_tasks_blocked()
        assert endings == ["gone"]
        assert sorted(agent.sent()) == sorted(f"stop {wire_id}" for wire_id in started)
        for wire_id in started:
            agent.lease(wire_id).deliver("GeneratedToken", [DONE], ends=True, tokens=[])
    assert not client.is_answered


async def test_choices_hold_one_place_in_the_queue(autojump_clock: MockClock) -> None:
    client = Client()
    async with world(DispatchLimits(max_buffered=2, buffered_timeout_s=60)) as here:
        agent = here.agent()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_stream, here, client, (WORK, WORK, WORK, WORK))
            for number in range(4):
                await wait_all_tasks_blocked()
                waiting = here.dispatcher.statistics().requests_buffered
                assert waiting == (1 if number < 3 else 0)
                (wire_id,) = wire_ids(agent)
                agent.says(wire_id, str(number), done=True)
    told = [
        json.loads(line[6:])
        for line in client.text.split("\n\n")
        if line.startswith("data: [") and "DONE" not in line
    ]
    assert [choice for choice, result in told if "Done" in result] == [0, 1, 2, 3]
    assert client.text.endswith('data: "end"\n\ndata: [DONE]\n\n')


async def test_one_failed_choice_fails_the_answer_and_stops_the_others(
    autojump_clock: MockClock,
) -> None:
    client = Client()
    taken: list[Step] = []
    told: list[ApiError] = []

    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=2)

        async def client_task() -> None:
            with pytest.raises(ApiError) as error:
                await gather(backend_of(here), client.exchange(), (WORK, WORK), kept_in(taken))
            told.append(error.value)

        nursery.start_soon(client_task)
        await wait_all_tasks_blocked()
        first, second = wire_ids(agent)
        agent.says(first, "a")
        await wait_all_tasks_blocked()
        error = {"DetokenizationFailed": "no text"}
        agent.lease(second).deliver("GeneratedToken", [error], ends=True, tokens=[])
        await wait_all_tasks_blocked()
        assert [error.status for error in told] == [500]
        assert agent.sent() == [f"stop {first}"]
        agent.lease(first).deliver("GeneratedToken", [DONE], ends=True, tokens=[])
    assert [step.choice for step in taken] == [0]


async def test_tokens_come_with_the_steps_they_were_drawn_for(autojump_clock: MockClock) -> None:
    client = Client()
    taken: list[Step] = []
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent()
        nursery.start_soon(gather, backend_of(here), client.exchange(), (WORK,), kept_in(taken))
        await wait_all_tasks_blocked()
        (wire_id,) = wire_ids(agent)
        agent.says(wire_id, "a", "b")
        agent.lease(wire_id).deliver("GeneratedToken", [], ends=False, tokens=[7])
        agent.says(wire_id, "c", done=True)
    assert [token for step in taken for token in step.tokens] == [97, 98, 7, 99]


async def test_the_clients_own_request_id_is_kept(autojump_clock: MockClock) -> None:
    assert Client().exchange((b"x-request-id", b"my-id.1")).id == "my-id.1"
    for strange in (b"", b"a b", b"x" * 200, b"\xff"):
        assert Client().exchange((b"x-request-id", strange)).id.startswith("req_")


@pytest.mark.parametrize(
    ("budget_bytes", "most_bytes", "status"), [(MIB, 64 * MIB, 503), (64 * MIB, MIB, 400)]
)
async def test_an_answer_that_grows_too_large_ends_and_its_agents_are_told(
    autojump_clock: MockClock, budget_bytes: int, most_bytes: int, status: int
) -> None:
    """What is held of answers is in the budget of all until they are sent."""
    client, taken = Client(), list[Step]()
    budget = InputBudget(budget_bytes)
    exchange = client.exchange()
    exchange.http.room = budget.reservation()
    async with world() as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=2)
        backend = backend_of(here, attrs.evolve(LIMITS, max_answer_bytes=most_bytes))
        told: list[ApiError] = []

        async def client_task() -> None:
            take = kept_in(taken, size_bytes=MIB // 3)
            with pytest.raises(ApiError) as error:
                await gather(backend, exchange, (WORK, WORK), take)
            told.append(error.value)

        nursery.start_soon(client_task)
        await wait_all_tasks_blocked()
        first, second = wire_ids(agent)
        for wire_id in (first, second, first):
            agent.says(wire_id, "a")
        await wait_all_tasks_blocked()
        assert not told
        assert exchange.held_bytes == MIB // 3 * 3
        assert budget.held_bytes >= exchange.held_bytes - FREE_BYTES
        for text in "ab":
            agent.says(second, text)
            await wait_all_tasks_blocked()
        (error,) = told
        assert error.status == status, error.message
        assert ("max_answer_bytes" in error.message) == (status == 400)
        assert {f"stop {first}", f"stop {second}"} <= set(agent.sent())
        for wire_id in (first, second):
            agent.lease(wire_id).deliver("GeneratedToken", [DONE], ends=True, tokens=[])
    exchange.room.close()
    assert budget.held_bytes == 0


async def test_a_long_answer_is_written_as_its_client_reads(autojump_clock: MockClock) -> None:
    client = Client()
    made: list[int] = []

    def items() -> Iterator[str]:
        for number in range(64):
            made.append(number)
            yield str(number) * 40_000

    exchange = client.exchange()
    await exchange.send_json(200, {"a": Items(items, 10_000), "b": []})
    assert client.status == 200
    assert json.loads(client.text) == {"a": [str(number) * 40_000 for number in range(64)], "b": []}
    sizes = [len(message["body"]) for message in client.sent if "body" in message]
    assert len(sizes) > 5
    assert max(sizes) < 2 * PORTION_BYTES
    assert len(made) == 64, "each was made once"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_each_answer_is_admitted_before_any_is_made(
    is_streamed: bool, autojump_clock: MockClock
) -> None:
    asked: list[int] = []

    def more(number: int) -> HttpProblem:
        asked.append(number)
        return HttpProblem(429, "too many", [(b"retry-after", b"7")])

    async with world() as here:
        exchange, backend = Client().exchange(), backend_of(here)
        exchange.http.admit_more = more
        answers = partial(stream if is_streamed else gather, backend, exchange, [WORK] * 3)
        with pytest.raises(ApiError) as caught:
            await answers(Words() if is_streamed else kept_in([]))
    assert (asked, caught.value.status, caught.value.message) == ([2], 429, "too many")
    assert list(caught.value.headers) == [(b"retry-after", b"7")]

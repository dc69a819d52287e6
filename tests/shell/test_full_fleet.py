"""What requests of every API are told while all slots are taken, and when they are refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.activity.deadlines import Deadlines
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openapi_document import records
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import App
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import (
    BUFFERED_TOO_LONG,
    DISPLACED,
    MOVED,
    Failure,
)
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, LocalToAgent
from paddler_trio.wire.trio.trio_link import Answer, Ask

LIMITS = DispatchLimits(max_buffered=4, buffered_timeout_s=60, item_timeout_s=1000)
KINDS = ("content", "reasoning", "tool_call", "undeterminable")
USAGE = {f"{kind}_tokens": 0 for kind in KINDS} | {"prompt_tokens": 3, "cached_prompt_tokens": 0}
DONE: dict[str, object] = {"Done": {"usage": USAGE}}
ANSWERS = {
    "Tokenize": {"tokens": [1]},
    "Detokenize": {"text": "x"},
    "RenderPrompt": {"prompt": "x", "num_tokens": 3},
    "DescribeModel": {"name": "m", "n_ctx": 64, "n_params": 7},
}
MESSAGES = [{"role": "user", "content": "hi"}]
EVENT_STREAMS: Mapping[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/responses": {"input": "hi", "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}
LINES: Mapping[str, dict[str, object]] = {
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
}
PACE_S = 3.0


@attrs.define(eq=False)
class FullFleet:
    """One slot, which is taken, and three requests that wait; one has ended every ``PACE_S``."""

    here: World
    agent: Peer
    apis: App
    native: App
    requests: list[Request]

    async def ask(self, path: str, body: Mapping[str, object], sent: list[Message]) -> None:
        """Send one request, and keep what comes."""
        arriving: list[Message] = [
            {"type": "http.request", "body": dumps(body), "more_body": False},
        ]

        async def receive() -> Message:
            if arriving:
                return arriving.pop()
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        app = self.native if path.startswith(("/api/v1/", "/api/v2/")) else self.apis
        await app(exchange_for(scope, receive, send))

    async def work(self) -> None:
        """Answer questions about the model, and no request."""
        while True:
            await wait_all_tasks_blocked()
            for frame in self.agent.received():
                if isinstance(frame, Ask):
                    answer = Answer(frame.id, ANSWERS[type(frame.question).__name__], None, 0)
                    self.agent.connection.questions.answer(frame.id, answer)
            await trio.sleep(0.1)

    def finish(self) -> None:
        """End the request in the slot."""
        (lease,) = self.agent.connection.leases()
        lease.deliver("GeneratedToken", [{"ContentToken": "x"}, DONE], ends=True, tokens=[1])
        self.agent.connection.flush()


@asynccontextmanager
async def full_fleet() -> AsyncIterator[FullFleet]:
    placement = WarmPlacement(trio.current_time)
    deadlines = Deadlines(placement)
    observers = PlacementObserver(placement), deadlines
    async with world(LIMITS, observers, placement) as here, trio.open_nursery() as nursery:
        states = FleetKeeper(MemoryDatabase(), here.dispatcher)
        served = LocalToAgent("/models/m.gguf")
        digest = await states.replace(attrs.evolve(BalancerDesiredState.default(), model=served))
        settings = PoolSettings(name="default", admissible=frozenset({digest}))
        here.dispatcher.set_deployments([settings])
        deployments = Deployments(here.dispatcher, states)
        apis = api_routers(BalancerConfig(), here.dispatcher, states, deployments).all
        native = InferenceRoutes(here.dispatcher, states, trio.Event(), deployments).routes()
        agent = here.agent(serves=digest, features=[Feature.INFILL])
        requests = [here.submit(f"r{number}") for number in range(4)]
        fleet = FullFleet(here, agent, apis, native, requests)
        nursery.start_soon(fleet.work)
        nursery.start_soon(deadlines.run, here.dispatcher.pools)
        for number in range(4):
            await trio.sleep(PACE_S)
            fleet.finish()
            requests.append(here.submit(f"s{number}"))
        yield fleet
        while any(not each.is_over for each in requests):
            fleet.finish()
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


def text_of(sent: list[Message]) -> str:
    return b"".join(message.get("body", b"") for message in sent).decode()


def test_these_are_all_routes_that_stream() -> None:
    routes = {
        path
        for (path, _), record in records(ApiLimits()).items()
        if "stream" in {field.name for field in record}
    }
    wait_for_no_slot = {
        *("/v1/chat/completions/input_tokens", "/apply-template"),
        *("/api/pull", "/api/create"),
    }
    assert routes - wait_for_no_slot == {*EVENT_STREAMS, *LINES}


@pytest.mark.parametrize("path", [*EVENT_STREAMS, "/chat/completions", "/responses"])
async def test_an_event_stream_hears_its_position_and_when_it_is_expected_to_start(
    path: str, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet, trio.open_nursery() as nursery:
        sent = list[Message]()
        body = EVENT_STREAMS.get(path) or EVENT_STREAMS[f"/v1{path}"]
        nursery.start_soon(fleet.ask, path, {**body, "stream": True}, sent)
        await trio.sleep(PACE_S - 0.5)
        assert sent[0]["status"] == 200
        found = re.match(r": queued position=3 expected_start_s=(\d+\.\d)\n\n", text_of(sent))
        assert found, text_of(sent)
        assert 2 * PACE_S <= float(found[1]) <= 8 * PACE_S
        for position in (2, 1, 0):
            fleet.finish()
            await trio.sleep(5.1)  # keep_alive_s
            comments = re.findall(r"^: queued position=(\d+) expected", text_of(sent), re.MULTILINE)
            assert comments[-1] == str(position)
        fleet.finish()
        await wait_all_tasks_blocked()
        fleet.finish()
        await wait_all_tasks_blocked()
        assert sent[-1].get("more_body", False) is False
        assert '"x"' in text_of(sent)


@pytest.mark.parametrize("path", LINES)
async def test_lines_of_json_have_no_comments_so_who_waits_gets_pieces_that_say_nothing(
    path: str, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet, trio.open_nursery() as nursery:
        sent = list[Message]()
        nursery.start_soon(fleet.ask, path, LINES[path], sent)
        await trio.sleep(PACE_S - 0.5)
        assert sent[0]["status"] == 200
        (line,) = map(json.loads, text_of(sent).splitlines())
        assert line["done"] is False
        assert (line.get("response"), line.get("message", {}).get("content")) in [
            ("", None),
            (None, ""),
        ]
        nursery.cancel_scope.cancel()


async def test_paddlers_lines_say_nothing_while_a_request_waits(autojump_clock: MockClock) -> None:
    """Its clients know no line without a result."""
    async with full_fleet() as fleet, trio.open_nursery() as nursery:
        sent = list[Message]()
        body = {"raw_prompt": "hi", "max_tokens": 3}
        nursery.start_soon(fleet.ask, "/api/v1/continue_from_raw_prompt", body, sent)
        await trio.sleep(PACE_S - 0.5)
        assert sent[0]["status"] == 200
        assert text_of(sent) == ""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", [*EVENT_STREAMS, *LINES])
async def test_a_timeout_that_cannot_be_met_is_refused_at_once(
    path: str, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet:
        sent = list[Message]()
        body = {**EVENT_STREAMS, **LINES}[path] | {"timeout": 4, "stream": True}
        began_s = trio.current_time()
        await fleet.ask(path, body, sent)
        assert trio.current_time() - began_s < 0.5
        assert sent[0]["status"] == 503
        assert "timeout: 4 s will not do" in text_of(sent)
        retry_after_s = int(dict(sent[0]["headers"])[b"retry-after"])
        assert 2 * PACE_S <= retry_after_s <= 8 * PACE_S


@pytest.mark.parametrize("timeout", [0, -1, 86_401, "soon", True, [5]])
async def test_a_timeout_that_is_none_is_named_with_its_limit(
    timeout: object, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet:
        sent = list[Message]()
        body = {**EVENT_STREAMS["/v1/chat/completions"], "timeout": timeout}
        await fleet.ask("/v1/chat/completions", body, sent)
        assert sent[0]["status"] == 400
        shown = json.dumps(timeout, separators=(",", ":"))
        assert (
            f"timeout is {shown}, must be a number from 0.001 to 86400"
            in json.loads(text_of(sent))["error"]["message"]
        )


async def refusal(fleet: FullFleet, path: str, **more: object) -> tuple[int, str, int | None]:
    """The status, the text and ``Retry-After``."""
    sent = list[Message]()
    await fleet.ask(path, {**EVENT_STREAMS, **LINES, **OTHERS}[path] | more, sent)
    advice = dict(sent[0]["headers"]).get(b"retry-after")
    return sent[0]["status"], text_of(sent), None if advice is None else int(advice)


OTHERS: Mapping[str, dict[str, object]] = {
    "/api/v2/generate": {"prompt": {"Text": {"text": "hi"}}},
    "/api/v1/continue_from_raw_prompt": {"raw_prompt": "hi", "max_tokens": 3},
}
ALL = [*EVENT_STREAMS, *LINES, *OTHERS]


@pytest.mark.parametrize("path", ALL)
async def test_a_refusal_for_a_full_buffer_says_how_long_all_that_wait_take(
    path: str, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet:
        fleet.requests.append(fleet.here.submit("last"))
        status, text, advice_s = await refusal(fleet, path)
        assert status == (200 if path.startswith("/api/v1/") else 503)
        assert "Buffered requests overflow" in text
        assert advice_s is not None
        assert 3 * PACE_S <= advice_s <= 8 * PACE_S


@pytest.mark.parametrize("path", [*EVENT_STREAMS, *LINES])
@pytest.mark.parametrize(
    ("failure", "advice_s"), [(MOVED, 1), (DISPLACED, 12), (BUFFERED_TOO_LONG, 12)]
)
async def test_who_waited_in_vain_is_told_when_to_come_again(
    failure: Failure, advice_s: int, path: str, autojump_clock: MockClock
) -> None:
    """At once if another process has taken over."""
    async with full_fleet() as fleet, trio.open_nursery() as nursery:
        found: list[tuple[int, str, int | None]] = []

        async def ask() -> None:
            found.append(await refusal(fleet, path))

        nursery.start_soon(ask)
        await trio.sleep(0.2)
        pool = fleet.here.dispatcher.pools.of(fleet.agent.connection)
        (waiting,) = [each for each in pool.requests.values() if each not in fleet.requests]
        waiting.end(failure)
        await trio.sleep(0.2)
        ((status, text, told_s),) = found
        assert status == failure.code
        assert failure.description in text
        assert told_s is not None
        assert advice_s / 2 <= told_s <= advice_s * 2


@pytest.mark.parametrize("path", [*EVENT_STREAMS, "/api/v2/generate"])
async def test_a_balancer_that_stops_says_when_to_come_again(
    path: str, autojump_clock: MockClock
) -> None:
    async with full_fleet() as fleet:
        fleet.here.dispatcher.drain()
        status, text, advice_s = await refusal(fleet, path)
        assert status == 503
        assert "shutting down" in text
        assert advice_s is not None


async def test_a_refusal_by_an_agent_says_when_to_come_again(autojump_clock: MockClock) -> None:
    async with full_fleet() as fleet, trio.open_nursery() as nursery:
        found: list[tuple[int, str, int | None]] = []

        async def ask() -> None:
            found.append(await refusal(fleet, "/v1/completions"))

        nursery.start_soon(ask)
        while not found:
            (lease,) = fleet.agent.connection.leases()
            if lease.request in fleet.requests:
                fleet.finish()
            else:
                busy = ["EmbeddingRejectedDueToActiveTokenGeneration"]
                lease.deliver("GeneratedToken", busy, ends=True, tokens=[])
                fleet.agent.connection.flush()
            await wait_all_tasks_blocked()
        assert found[0][0] == 503
        assert found[0][2] is not None


async def test_without_a_buffer_the_pace_of_the_slots_is_measured_all_the_same(
    autojump_clock: MockClock,
) -> None:
    async with world(attrs.evolve(LIMITS, max_buffered=0)) as here:
        agent = here.agent()
        for number in range(5):
            running = here.submit(f"r{number}")
            await trio.sleep(1.0)
            refused = here.submit(f"refused{number}")
            assert refused.failure is not None
            await trio.sleep(4.0)
            assert running.lease is not None
            agent.says(running.lease.wire_id, done=True)
            await wait_all_tasks_blocked()
        assert here.dispatcher.pools.retry_after_s() == 4

"""The records of requests, next to the dispatcher that they are records of."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from itertools import pairwise
from urllib.parse import unquote

import pytest
import trio
from dispatch_world import WORK, Peer, World, heard, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.activity import captures as captures_module
from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_record import MAX_MARKS, Marks, RequestRecord
from paddler_trio.balancer.activity.request_routes import RequestRoutes
from paddler_trio.balancer.activity.request_words import explanation
from paddler_trio.balancer.agents.agent_frames import take_step
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.pool import Hold
from paddler_trio.nursery_tree.request import Ended, Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.wire.trio.prompt_stages import PromptStages, bounded_count

LIMITS = DispatchLimits(max_buffered=6, buffered_timeout_s=10, item_timeout_s=30)
STEPS = 120


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def watched(here: World, captures: Captures | None = None) -> RequestActivity:
    activity = RequestActivity(captures)
    here.dispatcher.observers = Observers((activity,))
    return activity


@pytest.mark.parametrize("seed", range(12))
async def test_records_agree_with_requests_whatever_happens(
    seed: int, autojump_clock: MockClock
) -> None:
    dice = random.Random(seed)
    async with world(LIMITS) as here:
        activity = watched(here)
        requests: list[Request] = []
        peers: list[Peer] = []
        tokens: dict[int, int] = {}

        def leases() -> list[tuple[Peer, str]]:
            return [
                (peer, lease.wire_id)
                for peer in peers
                for lease in peer.connection.leases()
                if not lease.request.is_over
            ]

        with activity.subscribe() as touched:
            for number in range(STEPS):
                match dice.choice(["submit"] * 4 + ["step"] * 5 + ["stop", "join", "lose", "wait"]):
                    case "submit":
                        requests.append(here.submit(f"r{number}"))
                    case "step" if leases():
                        peer, wire_id = dice.choice(leases())
                        done = dice.random() < 0.3
                        request = peer.lease(wire_id).request
                        peer.says(wire_id, "a", "b", done=done)
                        tokens[request.key] = tokens.get(request.key, 0) + 2
                    case "stop" if requests:
                        dice.choice(requests).stop()
                    case "join" if len(peers) < 3:
                        peers.append(here.agent(slots=dice.randint(1, 3)))
                    case "lose" if peers:
                        here.dispatcher.leave(peers.pop(dice.randrange(len(peers))).connection)
                    case "wait":
                        await trio.sleep(dice.random() * 4)
                check(activity, here, requests, tokens)
            changed = touched.take()
        assert len({record.key for record in changed}) == len(changed) == len(requests)
        for request in requests:
            request.stop()
        for peer in peers:
            here.dispatcher.leave(peer.connection)
        await wait_all_tasks_blocked()
        check(activity, here, requests, tokens)
        assert not activity.in_flight
        assert not activity._lanes, "a lane is taken for ever"
        assert not activity._waiting


def check(
    activity: RequestActivity, here: World, requests: list[Request], tokens: dict[int, int]
) -> None:
    """What must hold after every step."""
    assert activity.in_flight.keys() == here.dispatcher._requests.keys()
    ended = {record.key: record for record in activity.finished}
    assert len(ended) == len(activity.finished), "a request ended twice"
    lanes: dict[int, list[int]] = {}
    for request in requests:
        record = activity.in_flight.get(request.key) or ended[request.key]
        assert record.phase == type(request.phase).__name__.lower()
        assert record.agents == request.agents
        assert record.tokens == tokens.get(request.key, 0)
        assert record.ending == request.ending
        assert len(record.stays) - 1 <= request.continuations + 1
        if request.lease is not None:
            placement = record.placements[-1]
            assert placement.ended_s is None
            lanes.setdefault(request.lease.agent.key, []).append(placement.lane)
        elif record.placements:
            assert record.placements[-1].ended_s is not None
        moments = [moment for moment, _ in record.progress.all()]
        assert moments == sorted(moments)
        assert record.view(trio.current_time())["key"] == request.key
        if isinstance(request.phase, Ended):
            assert all(stay.until_s is not None for stay in record.stays)
    for agent, taken in lanes.items():
        assert len(set(taken)) == len(taken), f"two requests in one lane of {agent}"
        assert max(taken) < 3, "a lane beyond the slots"


async def test_a_continuation_shows_both_placements_and_why() -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        first = here.agent()
        request = here.submit("story")
        wire_id = first.sent()[0].split()[1]
        first.lease(wire_id).report_prompt(
            PromptStages(tokens=9, cached=4, template_ms=3, wait_ms=1, prefill_ms=20)
        )
        first.says(wire_id, "a")
        second = here.agent()
        here.dispatcher.leave(first.connection)
        second.says(second.sent()[0].split()[1], "b", done=True)
        assert await heard(request) == ("ab", None)
        (record,) = activity.finished
        assert record.agents == ["a1", "a2"]
        assert record.placements[0].ending == "lost: the agent's connection broke"
        assert record.placements[1].ending == "done"
        text = " ".join(explanation(record, trio.current_time()))
        assert "the only agent that had a free slot" in text
        assert "It lost this slot" in text
        assert "the model that began the answer" in text
        assert "The prompt has 9 tokens, of which 4 were in the cache." in text
        assert "moved to another slot 1 time" in text


async def test_the_choice_names_the_load_and_how_many_there_were() -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        peers = [here.agent(slots=2), here.agent(slots=4)]
        requests = [here.submit(f"r{number}") for number in range(3)]
        views = [activity.in_flight[each.key].placements[0].view() for each in requests]
        assert views[0]["why"] == "least loaded of 2 agents that had a free slot: 0 of 2 slots busy"
        assert views[2]["why"] == "least loaded of 2 agents that had a free slot: 1 of 4 slots busy"
        for request in requests:
            request.stop()
        for peer in peers:
            for lease in peer.connection.leases():
                peer.says(lease.wire_id, done=True)


async def test_an_engine_that_preempted_it_is_named(autojump_clock: MockClock) -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        peer = here.agent()
        here.submit("patient")
        wire_id = peer.sent()[0].split()[1]
        entry = {"id": wire_id, "tokens": [1], "results": [{"ContentToken": "a"}, {"Done": {}}]}
        take_step(peer.connection, [{**entry, "preemptions": 2}])
        (record,) = activity.finished
        assert record.view(0.0)["placements"][0]["preemptions"] == 2  # type: ignore[index]
        assert "preempted it 2 times" in " ".join(explanation(record, trio.current_time()))


async def test_each_preemption_has_its_moment(autojump_clock: MockClock) -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        peer = here.agent()
        here.submit("patient")
        wire_id = peer.sent()[0].split()[1]
        peer.says(wire_id, "a")
        for seconds in (2, 3):
            await trio.sleep(seconds)
            count = len(activity.in_flight[RequestKey(1)].placements[0].preempted_s) + 1
            alone = {"id": wire_id, "tokens": [], "results": [], "preemptions": count}
            take_step(peer.connection, [alone])
        view = activity.in_flight[RequestKey(1)].view(trio.current_time())
        (placement,) = view["placements"]  # type: ignore[misc]
        since_ms = [each - placement["at_ms"] for each in placement["preempted_ms"]]
        assert (placement["preemptions"], since_ms) == (2, [2000, 5000])
        entry = {"id": wire_id, "tokens": [2], "results": [{"Done": {}}], "preemptions": 2}
        take_step(peer.connection, [entry])
        (record,) = activity.finished
        told = " ".join(explanation(record, trio.current_time()))
        assert "preempted it 2 times after 2.00 s, 5.00 s" in told


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, True])
def test_a_count_that_is_none_is_nothing(count: object) -> None:
    assert bounded_count(count) == 0


async def test_one_that_is_refused_is_a_record_too() -> None:
    async with world(DispatchLimits(max_buffered=0)) as here:
        activity = watched(here)
        here.submit("too much")
        here.submit("elsewhere", deployment="unknown")
        codes = [
            record.ending.code for record in activity.finished if isinstance(record.ending, Failure)
        ]
        assert codes == [503, 404]


async def test_positions_in_the_queue_are_noted_once_a_second(autojump_clock: MockClock) -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                activity.run, here.dispatcher.pools.position, here.dispatcher.pools.obstacle
            )
            requests = [here.submit(f"r{number}") for number in range(3)]
            await trio.sleep(1.5)
            requests[0].stop()
            await trio.sleep(1)
            stay = activity.in_flight[requests[2].key].stays[0]
            assert [ahead for _, ahead in stay.positions.all()] == [2, 1]
            assert stay.obstacle == "it had no agent"
            here.dispatcher.hold("default", Hold("a model is loaded", math.inf))
            await trio.sleep(1)
            record = activity.in_flight[requests[2].key]
            text = explanation(record, trio.current_time())[1]
            assert text == (
                "It has waited 3.50 s for a slot, behind up to 2 others: a model is loaded."
            )
            nursery.cancel_scope.cancel()
        for request in requests:
            request.stop()


async def test_a_request_that_waits_for_drained_agents_is_told_so(
    autojump_clock: MockClock,
) -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        agents = [here.agent().connection, here.agent().connection]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                activity.run, here.dispatcher.pools.position, here.dispatcher.pools.obstacle
            )
            for agent in agents:
                here.dispatcher.drain_agent(agent, drained=True)
            request = here.submit()
            await trio.sleep(1.5)
            record = activity.in_flight[request.key]
            assert explanation(record, trio.current_time())[1] == (
                "It has waited 1.50 s for a slot: all of its agents were drained."
            )
            here.agent(slots=0)
            await trio.sleep(1)
            assert explanation(record, trio.current_time())[1] == (
                "It has waited 2.50 s for a slot: none of its agents was ready, "
                "and 2 of 3 were drained."
            )
            nursery.cancel_scope.cancel()
        request.stop()


async def test_texts_are_kept_only_if_the_operator_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captures_module, "MAX_TOTAL_BYTES", 4 * captures_module.MAX_BYTES)
    for captures, kept in ((None, 0), (Captures(), 2)):
        async with world(LIMITS) as here:
            activity = watched(here, captures)
            peer = here.agent(slots=4)
            for number in range(4):
                here.submit(f"r{number}")
                peer.says(peer.sent()[0].split()[1], "x" * 3000, "y" * 3000, done=True)
            views = [record.view(0.0)["capture"] for record in activity.finished]
            assert sum(view is not None for view in views) == kept
            if kept:
                assert views[:2] == [None, None], "the oldest are forgotten first"
                newest = views[-1]
                assert isinstance(newest, dict)
                assert newest["answer"] == "x" * 3000 + "y" * 1096
                assert newest["request"] == WORK.body.decode()


def test_marks_are_few_in_order_and_spread_over_the_whole() -> None:
    marks = Marks()
    for number in range(10_000):
        marks.add(number / 10, number)
        assert len(marks.all()) <= MAX_MARKS
    moments = [moment for moment, _ in marks.all()]
    assert moments[0] == 0.0
    assert moments[-1] > 900
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert max(gaps) <= 2.1 * min(gaps)


def test_a_record_shows_itself() -> None:
    record = RequestRecord(7, "r", "", "default", "generation", None, 0.0)
    assert repr(record) == "<RequestRecord 7 buffered, 0 tokens>"


async def test_a_request_that_was_handed_back_is_not_shown_as_lost() -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        first, second = here.agent(), here.agent()
        request = here.submit("story")
        assert request.lease is not None
        here.dispatcher.hand_back(request.lease, "its engine ended", suspects=0)
        record = activity.in_flight[request.key]
        assert record.placements[0].ending == "handed back: its engine ended"
        assert record.placements[1].ending is None
        text = " ".join(explanation(record, trio.current_time()))
        assert re.search(r"The agent handed it back after \d+ ms: its engine ended\.", text)
        request.stop()
        for peer in (first, second):
            here.dispatcher.leave(peer.connection)


async def test_counts_of_an_agent_are_held_within_limits() -> None:
    async with world(LIMITS) as here:
        activity = watched(here)
        peer = here.agent()
        request = here.submit("story")
        assert request.lease is not None
        usage = {"prompt_tokens": 10**400, "cached_prompt_tokens": -5}
        request.lease.deliver("GeneratedToken", [{"Done": {"usage": usage}}], ends=True)
        (record,) = activity.finished
        assert record.placements[0].prompt_tokens == 2**31 - 1
        assert record.placements[0].cached_tokens == 0
        here.dispatcher.leave(peer.connection)


async def test_a_list_is_in_the_order_of_arrival_whatever_ended_first() -> None:
    activity = RequestActivity()
    keys = list(range(1, 2501))
    random.Random(1).shuffle(keys)
    for key in keys[:2400]:
        activity.finished.add(a_record(key))
    flying = sorted(keys[2400:])
    for key in flying:
        activity.in_flight[RequestKey(key)] = a_record(key)
    router = Router()
    RequestRoutes(activity).add_to(router)
    seen: list[int] = []
    query = "limit=1000"
    while True:
        page = json.loads(await get(router, f"/api/v2/requests?{query}"))
        seen += [each["key"] for each in page["requests"]]
        if page["next"] is None:
            break
        query = f"limit=1000&before={page['next']}"
    assert seen == sorted(keys, reverse=True)
    page = json.loads(await get(router, "/api/v2/requests?state=in_flight&limit=1000"))
    assert [each["key"] for each in page["requests"]] == flying[::-1]
    shown = json.loads(await get(router, "/api/v2/requests/request%207"))
    assert shown["request"]["key"] == 7


async def test_a_spreadsheet_computes_nothing() -> None:
    activity = RequestActivity()
    record = a_record(1)
    record.id, record.client, record.deployment, record.route = "=1+1", "+1", "@SUM(1)", "-1"
    activity.finished.add(record)
    router = Router()
    RequestRoutes(activity).add_to(router)
    text = (await get(router, "/api/v2/requests?format=csv")).decode()
    (row,) = csv.DictReader(io.StringIO(text))
    for name in ("id", "client", "deployment", "route"):
        assert row[name].startswith("'"), name


def a_record(key: int) -> RequestRecord:
    return RequestRecord(key, f"request {key}", "", "default", "generation", None, 0.0)


async def get(router: Router, target: str) -> bytes:
    """The body of an answer 200."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "query_string": query.encode(),
        "headers": [],
    }
    await router(exchange_for(scope, receive, send))
    assert messages[0]["status"] == 200
    return b"".join(each.get("body", b"") for each in messages[1:])

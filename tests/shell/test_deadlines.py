"""A client that says how long it waits is answered in time, or refused as soon as that is sure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.activity.deadlines import LOOK_S, Deadlines, expected_start_s
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.client_identity import (
    PATIENCE,
    Patience,
    client_of,
    note_timeout,
)
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.pool import Hold
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement

LIMITS = DispatchLimits(max_buffered=50, buffered_timeout_s=1000, item_timeout_s=1000)


@asynccontextmanager
async def watched() -> AsyncIterator[World]:
    placement = WarmPlacement(trio.current_time)
    deadlines = Deadlines(placement)
    observers = PlacementObserver(placement), deadlines
    async with world(LIMITS, observers, placement) as here, trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run, here.dispatcher.pools)
        await wait_all_tasks_blocked()
        yield here
        await wait_all_tasks_blocked()
        assert not deadlines._watched
        nursery.cancel_scope.cancel()


@contextmanager
def waits(seconds: float | None) -> Iterator[None]:
    """A client that waits for so long."""
    token = PATIENCE.set(None if seconds is None else Patience(seconds))
    try:
        yield
    finally:
        PATIENCE.reset(token)


def finish(peer: Peer, request: Request) -> None:
    assert request.lease is not None
    peer.says(request.lease.wire_id, "x", done=True)


async def paced(here: World, interval_s: float) -> tuple[Peer, list[Request]]:
    """An agent with one slot, four requests that wait, and a queue that moves at this pace."""
    peer = here.agent()
    requests = [here.submit(f"r{number}") for number in range(8)]
    for number in range(4):
        await trio.sleep(interval_s)
        finish(peer, requests[number])
    return peer, requests[4:]


async def end(peer: Peer, requests: list[Request]) -> None:
    for request in requests:
        finish(peer, request)
        await wait_all_tasks_blocked()


async def test_what_will_not_do_is_refused_at_once_and_what_will_is_answered(
    autojump_clock: MockClock,
) -> None:
    async with watched() as here:
        peer, others = await paced(here, 3.0)
        with waits(5.0):
            short = here.submit("short")
        with waits(60.0):
            long = here.submit("long")
        began_s = trio.current_time()
        expected_s = expected_start_s(here.dispatcher.pools, long)
        assert expected_s is not None
        assert 9.0 <= expected_s <= 18.0
        await short.wait_ended()
        assert trio.current_time() == began_s
        assert short.failure is not None
        assert short.failure.code == 503
        assert "5 s will not do" in short.failure.description
        await end(peer, [*others, long])
        assert long.failure is None


async def test_a_request_that_waits_is_refused_as_soon_as_it_is_sure(
    autojump_clock: MockClock,
) -> None:
    async with watched() as here:
        peer, others = await paced(here, 1.0)
        with waits(20.0):
            request = here.submit("hopeful")
        began_s = trio.current_time()
        await request.wait_ended()  # the queue stands still
        assert LOOK_S < trio.current_time() - began_s < 19.0
        assert request.failure is not None
        assert request.failure.code == 503
        await end(peer, others)


async def test_without_any_measure_it_waits_for_as_long_as_its_client(
    autojump_clock: MockClock,
) -> None:
    async with watched() as here:
        with waits(7.0):
            request = here.submit()
        began_s = trio.current_time()
        await request.wait_ended()
        assert trio.current_time() - began_s == pytest.approx(7.0, abs=0.01)
        assert request.failure is not None
        assert (request.failure.code, request.agents) == (503, [])


async def test_the_answer_counts_too(autojump_clock: MockClock) -> None:
    async with watched() as here:
        peer = here.agent()
        with waits(7.0):
            request = here.submit()
        assert request.lease is not None
        wire_id = request.lease.wire_id
        peer.says(wire_id, "a")
        began_s = trio.current_time()
        await trio.sleep(7.01)
        assert request.is_over
        assert peer.sent() == [f"start {wire_id}", f"stop {wire_id}"]
        peer.says(wire_id, done=True)
        await request.wait_ended()
        assert trio.current_time() - began_s < 8.0
        assert request.failure is not None
        assert request.failure.code == 504


async def test_who_says_nothing_waits_for_ever(autojump_clock: MockClock) -> None:
    async with watched() as here:
        request = here.submit()
        await trio.sleep(900.0)
        assert not request.is_over
        request.stop()


async def test_time_counts_from_when_the_client_asked(autojump_clock: MockClock) -> None:
    """Also for what is submitted later: images come first, and choices one after the other."""
    async with watched() as here:
        asked_s = trio.current_time()
        await trio.sleep(4.0)
        token = PATIENCE.set(Patience(7.0, "timeout", asked_s))
        request = here.submit()
        PATIENCE.reset(token)
        await request.wait_ended()
        assert trio.current_time() - asked_s == pytest.approx(7.0, abs=0.01)
        assert request.failure is not None
        assert request.failure.description == "timeout: no slot was free within 7 s"


async def test_a_load_counts_in_what_is_expected(autojump_clock: MockClock) -> None:
    async with watched() as here:
        request = here.submit()
        assert expected_start_s(here.dispatcher.pools, request) is None
        here.dispatcher.hold("default", Hold("m is loading", trio.current_time() + 30.0))
        assert expected_start_s(here.dispatcher.pools, request) == pytest.approx(30.0)
        request.stop()


def patience_of(*headers: tuple[bytes, bytes]) -> Patience | None:
    client_of(exchange_for({"type": "http", "headers": list(headers)}))
    return PATIENCE.get()


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        (b"x-request-timeout", b"2", 2.0),
        (b"x-request-timeout", b" 0.5 ", 0.5),
        (b"x-request-timeout", b"30s", 30.0),
        (b"x-request-timeout", b"86400", 86_400.0),
        (b"x-litellm-timeout", b"12.5", 12.5),
        (b"x-envoy-expected-rq-timeout-ms", b"15000", 15.0),
    ],
)
async def test_headers_bound_the_answer(name: bytes, text: bytes, seconds: float) -> None:
    found = patience_of((name, text))
    assert found is not None
    assert (found.seconds, found.field.lower()) == (seconds, name.decode())
    assert found.since_s == pytest.approx(trio.current_time(), abs=1.0)


async def test_the_shortest_time_counts() -> None:
    found = patience_of((b"x-request-timeout", b"9"), (b"x-envoy-expected-rq-timeout-ms", b"8000"))
    assert found is not None
    assert (found.seconds, found.field) == (8.0, "x-envoy-expected-rq-timeout-ms")


@pytest.mark.parametrize(
    "text", [b"", b"0", b"-1", b"soon", b"nan", b"1e3", b"86401", b"9" * 100, b"\xff"]
)
def test_what_is_no_number_of_seconds_is_refused_with_the_limit(text: bytes) -> None:
    with pytest.raises(HttpProblem, match=r"X-Request-Timeout is .* seconds, .* at most 86400"):
        patience_of((b"x-request-timeout", text))
    with pytest.raises(HttpProblem, match=r"timeout-ms is '10s', .* milliseconds, .* 86400000"):
        patience_of((b"x-envoy-expected-rq-timeout-ms", b"10s"))


def noted(
    asked: object = None, *headers: tuple[bytes, bytes], is_stream: bool = False
) -> Patience | None:
    """What counts of a request that came at the second 3."""
    exchange = exchange_for({"type": "http", "headers": list(headers)})
    client_of(exchange)
    note_timeout(exchange, asked, 3.0, is_stream=is_stream)
    return PATIENCE.get()


@pytest.mark.parametrize("asked", [20, 20.0, "20", "20 s"])
async def test_a_body_bounds_its_answer(asked: object) -> None:
    assert noted(asked) == Patience(20.0, "timeout", 3.0)
    assert noted(asked, (b"x-request-timeout", b"9")) != Patience(20.0, "timeout", 3.0)


@pytest.mark.parametrize("asked", [None, True, 0, -1, "soon", {}, [1], 1e9, float("nan")])
def test_what_is_no_time_bounds_nothing(asked: object) -> None:
    assert noted(asked) is None


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        (b"x-stainless-read-timeout", b"20.0", 21.0),
        (b"x-stainless-timeout", b"20", 21.0),
        (b"x-stainless-read-timeout", b"600", None),
        (b"x-stainless-timeout", b"0", None),
        (b"x-stainless-timeout", b"NOT_GIVEN", None),
    ],
)
async def test_a_library_waits_so_long_for_an_answer_and_no_stream(
    name: bytes, text: bytes, seconds: float | None
) -> None:
    """Its default is nobody's wish, and of a stream it means each read."""
    expected = None if seconds is None else Patience(seconds, f"{name.decode()} and 1 s", 3.0)
    assert noted(None, (name, text)) == expected
    assert noted(None, (name, text), is_stream=True) is None

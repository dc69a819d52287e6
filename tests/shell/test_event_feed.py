"""The feed: its pace, its watchers, and what those get who are slow, come back, or are too many."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from exchanges import exchange_for
from paddler_trio.balancer.activity.event_feed import (
    LINGER_S,
    LONGEST_PAUSE_S,
    LOOKING_SHARE,
    SHORTEST_PAUSE_S,
    EventFeed,
)
from paddler_trio.balancer.activity.event_routes import EventRoutes
from paddler_trio.balancer.activity.feed_document import Change
from paddler_trio.balancer.front.event_stream import KEEP_ALIVE_S
from paddler_trio.net.server.asgi import HttpProblem, Message, Scope
from paddler_trio.net.server.router import Router


@attrs.define(eq=False)
class Counted:
    """A topic of numbers, and how it was used."""

    name: str = "a"
    values: dict[str, int] = attrs.field(factory=lambda: {"x": 0})
    size: int = 0
    work_s: float = 0.0
    """Of each key, for which the loop stands still."""
    burn_s: float = 0.0
    """Processor time of each look."""
    looks: int = 0
    is_open: bool = False
    _shown: set[str] = attrs.field(factory=set, init=False)

    def open(self) -> None:
        assert not self.is_open
        self.is_open = True
        self._shown = set()

    def look(self, now_s: float) -> Iterator[Change | None]:
        assert self.is_open
        self.looks += 1
        began_s = time.thread_time()
        while time.thread_time() - began_s < self.burn_s:
            pass
        for key, value in list(self.values.items()):
            time.sleep(self.work_s)
            yield key, b'[%d,"%b"]' % (value, b"." * self.size)
        for key in self._shown - self.values.keys():
            yield key, None
        self._shown = set(self.values)

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


@attrs.define(eq=False)
class Stream:
    """One connection to the route, as its client reads it: as fast as the client takes."""

    seen: trio.MemoryReceiveChannel[Message]
    gone: trio.Event
    shown: dict[str, Any] = attrs.field(factory=dict, init=False)
    last_id: str = attrs.field(default="", init=False)
    comments: int = attrs.field(default=0, init=False)

    async def event(self) -> dict[str, Any]:
        """The next event, applied; comments are counted."""
        text = b""
        while True:
            message = await self.seen.receive()
            body = bytes(message.get("body", b""))
            text += body
            if text.startswith(b":"):
                self.comments += 1
                text = b""
            elif text.endswith(b"\n\n"):
                return self._applied(text)
            elif not body and message["type"] == "http.response.body":
                raise EOFError

    def _applied(self, body: bytes) -> dict[str, Any]:
        id_line, data_line, *rest = body.split(b"\n")
        assert rest == [b"", b""]
        event: dict[str, Any] = json.loads(data_line.removeprefix(b"data: "))
        self.last_id = id_line.removeprefix(b"id: ").decode()
        assert self.last_id == f"{event['epoch']}.{event['seq']}"
        if event["full"]:
            self.shown = event["set"]
        else:
            for topic, keys in event["gone"].items():
                for key in keys:
                    self.shown[topic].pop(key, None)
            for topic, values in event["set"].items():
                self.shown[topic] |= values
        return event


@attrs.define(eq=False)
class World:
    """A feed that runs, and its route."""

    feed: EventFeed
    nursery: trio.Nursery
    goodbye: trio.Event = attrs.field(factory=trio.Event)

    @asynccontextmanager
    async def stream(self, query: str = "", last: str | None = None) -> AsyncIterator[Stream]:
        router = Router()
        EventRoutes(self.feed, self.goodbye).add_to(router)
        told, seen = trio.open_memory_channel[Message](0)
        stream = Stream(seen, trio.Event())

        async def receive() -> Message:
            await stream.gone.wait()
            return {"type": "http.disconnect"}

        async def serve() -> None:
            async with told:
                await router(exchange_for(_scope(query, last), receive, told.send))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            start = await seen.receive()
            if start["status"] != 200:
                body = bytes((await seen.receive())["body"])
                raise HttpProblem(start["status"], body.decode(), start["headers"])
            yield stream
            stream.gone.set()
            nursery.cancel_scope.cancel()


def _scope(query: str, last: str | None) -> Scope:
    headers = [] if last is None else [(b"last-event-id", last.encode())]
    return {
        "type": "http",
        "method": "GET",
        "path": "/api/v2/events",
        "query_string": query.encode(),
        "headers": headers,
    }


@asynccontextmanager
async def world(*topics: Counted, **options: int) -> AsyncIterator[World]:
    feed = EventFeed(topics, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        yield World(feed, nursery)
        nursery.cancel_scope.cancel()


async def test_nobody_watches_and_nothing_is_looked_at(autojump_clock: MockClock) -> None:
    topic, other = Counted(), Counted("b")
    async with world(topic, other) as here:
        await trio.sleep(100)
        assert topic.looks == 0
        async with here.stream("topics=a") as stream:
            assert (await stream.event())["set"] == {"a": {"x": [0, ""]}}
        assert topic.is_open, "for those that come back"
        await trio.sleep(LINGER_S + LONGEST_PAUSE_S)
        assert not topic.is_open
        looks = topic.looks
        await trio.sleep(100)
        assert topic.looks == looks
        assert other.looks == 0
        assert repr(here.feed.document).endswith(": nothing>")


async def test_changes_come_at_most_four_times_a_second_and_the_last_one_always(
    autojump_clock: MockClock,
) -> None:
    topic = Counted(values={"x": 0, "y": 0})
    events: list[tuple[float, dict[str, Any]]] = []

    async with world(topic) as here, here.stream() as stream, trio.open_nursery() as readers:

        async def read() -> None:
            while True:
                event = await stream.event()
                events.append((trio.current_time(), event))

        readers.start_soon(read)
        began_s = trio.current_time()
        for number in range(1000):
            topic.values["x"] = number
            await trio.sleep(0.01)
        await trio.sleep(LONGEST_PAUSE_S)
        assert stream.shown == {"a": {"x": [999, ""], "y": [0, ""]}}
        took_s = events[-1][0] - began_s
        assert 10 <= len(events) <= took_s / SHORTEST_PAUSE_S + 2
        first, *others = [event for _, event in events]
        assert first["full"]
        assert all(not event["full"] and event["set"].keys() == {"a"} for event in others)
        assert all(event["set"]["a"].keys() == {"x"} for event in others), "only what differs"
        seqs = [event["seq"] for event in (first, *others)]
        assert seqs == sorted(set(seqs))
        del topic.values["y"]
        await trio.sleep(LONGEST_PAUSE_S)
        assert events[-1][1]["gone"] == {"a": ["y"]}
        readers.cancel_scope.cancel()


@pytest.mark.thorough
async def test_many_bytes_for_many_watchers_come_less_often(autojump_clock: MockClock) -> None:
    topic = Counted(size=1_000_000)
    counts = [0] * 20

    async def watch(here: World, number: int) -> None:
        async with here.stream() as stream:
            while True:
                await stream.event()
                counts[number] += 1

    async with world(topic) as here:
        for number in range(20):
            here.nursery.start_soon(watch, here, number)
        await trio.sleep(1)
        counts[:] = [0] * 20
        for number in range(1000):
            topic.values["x"] = number
            await trio.sleep(0.02)
        assert all(4 <= count <= 25 for count in counts), counts


@pytest.mark.thorough
async def test_looks_that_cost_much_are_made_less_often(autojump_clock: MockClock) -> None:
    topic = Counted(burn_s=0.02)
    async with world(topic) as here, here.stream() as stream:
        await stream.event()
        looks = topic.looks
        await trio.sleep(20)
        assert 2 <= topic.looks - looks <= 20 * LOOKING_SHARE / 0.02 + 2


async def test_whoever_reads_slowly_gets_newer_events_and_not_more(
    autojump_clock: MockClock,
) -> None:
    topic = Counted(values={"x": 0, "y": 0})
    async with (
        world(topic) as here,
        here.stream() as slow,
        here.stream() as quick,
        trio.open_nursery() as readers,
    ):
        await slow.event()
        quick_events = []

        async def read() -> None:
            while True:
                quick_events.append(await quick.event())

        readers.start_soon(read)
        for number in range(1, 41):
            topic.values["x"] = number
            if number == 20:
                topic.values["z"] = 1
                del topic.values["y"]
            await trio.sleep(1)
        assert len(quick_events) > 30
        await slow.event()  # was made before: it waited for its reader
        caught_up = await slow.event()
        assert not caught_up["full"]
        assert caught_up["set"] == {"a": {"x": [40, ""], "z": [1, ""]}}
        assert caught_up["gone"] == {"a": ["y"]}
        assert slow.shown == quick.shown
        readers.cancel_scope.cancel()


async def test_one_that_comes_back_in_time_gets_what_it_missed(autojump_clock: MockClock) -> None:
    topic = Counted(values={"x": 0, "y": 0})
    async with world(topic) as here:
        async with here.stream() as stream:
            await stream.event()
        last, shown = stream.last_id, stream.shown
        topic.values["x"] = 1
        await trio.sleep(LINGER_S / 2)
        async with here.stream(last=last) as again:
            again.shown = shown
            event = await again.event()
            assert not event["full"]
            assert event["set"] == {"a": {"x": [1, ""]}}
            assert again.shown == {"a": {"x": [1, ""], "y": [0, ""]}}
        async with here.stream(last=again.last_id) as third:
            event = await third.event()
            assert (event["full"], event["set"], event["gone"]) == (False, {}, {})
            assert third.last_id == again.last_id
        await trio.sleep(LINGER_S + LONGEST_PAUSE_S)
        for gone in (last, "other.3", "3", "x", f"{last}9", f"{last.split('.')[0]}.{'9' * 400}"):
            async with here.stream(last=gone) as late:
                assert (await late.event())["full"], gone


async def test_a_topic_that_others_watch_begins_for_one_more(autojump_clock: MockClock) -> None:
    first, second = Counted(), Counted("b")
    async with world(first, second) as here, here.stream("topics=a") as one:
        await one.event()
        async with here.stream("topics=b,a") as both:
            assert (await both.event())["set"].keys() == {"a", "b"}
            second.values["x"] = 5
            assert (await both.event())["set"] == {"b": {"x": [5, ""]}}
            first.values["x"] = 6
            event = await one.event()
            assert event["set"] == {"a": {"x": [6, ""]}}, "and nothing of the other topic"


async def test_silence_is_commented_and_goodbye_ends_the_stream(autojump_clock: MockClock) -> None:
    async with world(Counted()) as here, here.stream() as stream:
        event = await stream.event()
        assert event["time"].endswith("Z")
        assert event["now_ms"] == pytest.approx(trio.current_time() * 1000, abs=1000)
        before = stream.comments
        with trio.move_on_after(10 * KEEP_ALIVE_S + 0.1):
            await stream.event()
        assert stream.comments - before == 10
        here.goodbye.set()
        with pytest.raises(EOFError):
            await stream.event()
        assert here.feed.watchers == 0


async def test_a_look_is_made_in_pieces(autojump_clock: MockClock) -> None:
    topic = Counted(values={str(number): 0 for number in range(20)}, work_s=0.003)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with world(topic) as here, here.stream() as stream:
        turns = 0
        here.nursery.start_soon(others)
        await stream.event()
        assert turns >= 19  # between 20 pieces


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("topics=", ["topics: ''", "none of a, b"]),
        ("topics=a,c", ["topics: 'c'"]),
        ("topics=" + "a," * 1000, ["topics"]),
        ("topics=a&topics=b", ["twice"]),
        ("topic=a", ["'topic'", "topics is taken"]),
    ],
)
async def test_topics_that_there_are_not_are_refused(query: str, words: list[str]) -> None:
    async with world(Counted(), Counted("b")) as here:
        with pytest.RaisesGroup(pytest.RaisesExc(HttpProblem)) as refused:
            async with here.stream(query):
                raise AssertionError
        (problem,) = refused.value.exceptions
        assert isinstance(problem, HttpProblem)
        assert problem.status == 400
        assert all(word in problem.text for word in words), problem.text
        assert len(problem.text) < 300
        assert here.feed.watchers == 0


async def test_too_many_watchers_are_refused(autojump_clock: MockClock) -> None:
    async with world(Counted(), max_watchers=2) as here, here.stream() as one, here.stream():
        await one.event()
        with pytest.RaisesGroup(pytest.RaisesExc(HttpProblem)) as refused:
            async with here.stream():
                raise AssertionError
        (problem,) = refused.value.exceptions
        assert isinstance(problem, HttpProblem)
        assert (problem.status, b"retry-after") == (503, problem.headers[-1][0])
        assert "the limit is 2" in problem.text

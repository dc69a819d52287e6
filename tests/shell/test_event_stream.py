"""Snapshots go out when they differ; a change that they do not show is silence with comments."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from paddler_trio.balancer.event_stream import KEEP_ALIVE_S, event_stream
from paddler_trio.http.asgi import Message
from paddler_trio.nursery_tree.synchronization import Changes


async def test_only_what_differs_is_told_and_silence_is_commented_in_time(
    autojump_clock: MockClock,
) -> None:
    shown = {"n": 0}
    changes, goodbye = Changes(), trio.Event()
    told, seen = trio.open_memory_channel[Message](0)
    handler = event_stream(lambda: dict(shown), changes, goodbye=goodbye)

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    async def next_body() -> bytes:
        return bytes((await seen.receive())["body"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handler, {}, receive, told.send, {})
        assert (await seen.receive())["type"] == "http.response.start"
        assert await next_body() == b'data: {"n":0}\n\n: keep-alive\n\n'
        began_s = trio.current_time()
        for _ in range(5):  # something changed that this snapshot does not show
            changes.notify()
            await trio.sleep(KEEP_ALIVE_S / 10)
        assert await next_body() == b": keep-alive\n\n"
        assert trio.current_time() - began_s == KEEP_ALIVE_S
        shown["n"] = 1
        changes.notify()
        assert await next_body() == b'data: {"n":1}\n\n'
        assert trio.current_time() - began_s == KEEP_ALIVE_S
        goodbye.set()
        assert (await seen.receive())["more_body"] is False

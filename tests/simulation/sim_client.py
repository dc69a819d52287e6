"""Simulated clients: of streamed HTTP, one request each, and of the inference socket, several.

A client reads at its own pace, leaves when its plan says so, and writes down every line in the
story of its request.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from typing import Any

import attrs
import trio
from client_lines import PATHS, body_of, read_embedding_line, read_line
from scenario import Ask, ClientPlan, Shape
from sim_wire import Heard, Wire
from world import Story, World

AFTERMATH_S = 0.5
"""How long a socket stays open after its last ending, to see that nothing follows."""

HTTP_SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "query_string": b"",
    "extensions": {},
}


@attrs.define(eq=False)
class SimClient:
    """One client. ``run`` ends when all its requests have, or it left."""

    plan: ClientPlan
    world: World
    rng: random.Random
    _by_id: dict[str, deque[Story]] = attrs.field(factory=dict, init=False)
    _generates: bool = attrs.field(default=True, init=False)
    _num_read: int = attrs.field(default=0, init=False)
    _progress: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        await trio.sleep_until(self.plan.at_s)
        if self.plan.is_socket:
            await self._use_socket()
        else:
            await self._use_http()

    # --------------------------------------------------------------------------- HTTP

    async def _use_http(self) -> None:
        (ask,) = self.plan.asks
        story = self._story(ask, request_id="")
        body = json.dumps(body_of(ask)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *self.plan.headers,
        ]
        scope = HTTP_SCOPE | {"path": PATHS[ask.shape], "headers": headers}
        wire = self.world.dial_client(self.plan, scope)
        if wire is None:
            story.was_refused = True
            return
        with trio.move_on_after(self.plan.leaves_after_s) as patience:
            await self._send_body(wire, body)
            while (heard := await self._next(wire)) is not None:
                self._on_http(story, heard)
        if patience.cancelled_caught and not story.is_over:
            self._leave(wire)
        elif not story.endings:
            story.was_cut = True
            self._note(f"{ask.prompt} is cut")

    async def _send_body(self, wire: Wire, body: bytes) -> None:
        cut = self.rng.randrange(len(body))
        for part, more in ((body[:cut], True), (body[cut:], False)):
            if self.rng.random() < 0.2:
                await trio.sleep(self.rng.uniform(0, 0.2))
            await wire.tell({"type": "http.request", "body": part, "more_body": more})

    def _on_http(self, story: Story, heard: Heard) -> None:
        message = heard.message
        if message["type"] == "http.response.start":
            story.status = message["status"]
            return
        if story.status != 200:
            story.endings.append(f"error {story.status} {message.get('body', b'').decode()}")
            return
        for line in message.get("body", b"").splitlines():
            self._on_http_line(story, json.loads(line))
        if not message.get("more_body", False) and not story.endings:
            self.world.fail(f"{story.ask.prompt}: the response ends without an ending")

    def _on_http_line(self, story: Story, frame: Any) -> None:
        if story.ask.shape is Shape.EMBEDDING:
            read_embedding_line(self.world, story, frame)
            return
        (envelope,) = frame.values()
        story.request_id = story.request_id or envelope["request_id"]
        if envelope["request_id"] != story.request_id:
            self.world.fail(f"{story.ask.prompt} changes its id to {envelope['request_id']}")
        read_line(self.world, story, frame)

    # ------------------------------------------------------------------------- socket

    async def _use_socket(self) -> None:
        wire = self.world.dial_client(
            self.plan,
            {
                "type": "websocket",
                "path": "/api/v1/inference_socket",
                "headers": list(self.plan.headers),
            },
        )
        stories = [
            self._story(ask, request_id=f"r{number - (ask.shape is Shape.DUPLICATE)}")
            for number, ask in enumerate(self.plan.asks)
        ]
        if wire is None:
            for story in stories:
                story.was_refused = True
            return
        with trio.move_on_after(self.plan.leaves_after_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_socket, wire, stories)
                async with trio.open_nursery() as asking:
                    for story in stories:
                        asking.start_soon(self._ask, wire, story)
                while not all(s.is_over or s.stopped_at_s is not None for s in stories):
                    await self._progress.wait()
                await trio.sleep(AFTERMATH_S)
                nursery.cancel_scope.cancel()
        self._leave(wire)

    async def _ask(self, wire: Wire, story: Story) -> None:
        ask = story.ask
        await trio.sleep(ask.at_s)
        if story.was_cut:
            return
        if ask.shape is Shape.MALFORMED and self.rng.random() < 0.5:
            await wire.say(self.rng.choice(["", "{", '{"Request": 1}', '{"Wat": {}}']))
        tag = "ContinueFromRawPrompt"
        if ask.shape is Shape.CONVERSATION:
            tag = "ContinueFromConversationHistory"
        request = {"id": story.request_id, "request": {tag: body_of(ask)}}
        self._by_id.setdefault(story.request_id, deque()).append(story)
        await wire.say(json.dumps({"Request": request}))
        if ask.stop_after_s < math.inf:
            await trio.sleep(ask.stop_after_s)
            if not story.is_over:
                self._note(f"stops {ask.prompt}")
                story.stopped_at_s = trio.current_time()
                stop = {"Notification": {"StopRespondingTo": story.request_id}}
                await wire.say(json.dumps(stop))
                self._notify()

    async def _read_socket(self, wire: Wire, stories: list[Story]) -> None:
        while (heard := await self._next(wire)) is not None:
            if heard.message["type"] == "websocket.close":
                break
            if heard.message["type"] == "websocket.send":
                self._on_frame(json.loads(heard.message["text"]))
        for story in stories:
            story.was_cut |= not story.is_over
        self._notify()

    def _on_frame(self, frame: Any) -> None:
        if "Notification" in frame:
            generates = frame["Notification"] == "TokenGenerationEnabled"
            if generates is self._generates:
                self.world.fail(f"{self.plan.name} is told {frame} twice")
            self._generates = generates
            return
        (envelope,) = frame.values()
        open_stories = self._by_id.get(envelope["request_id"])
        if not open_stories:
            self.world.fail(f"{self.plan.name} hears of {envelope['request_id']}, which is over")
            return
        story = open_stories[0]
        if "Error" in frame and "already in flight" in envelope["error"]["description"]:
            story = open_stories[-1]
        read_line(self.world, story, frame)
        if story.is_over:
            open_stories.remove(story)
            self._notify()

    # ------------------------------------------------------------------------- shared

    async def _next(self, wire: Wire) -> Heard | None:
        """The next message, at this client's pace; None at the end of the connection."""
        reading = self.plan.reading
        if reading.pause_s:
            await trio.sleep(reading.pause_s)
        if self._num_read >= reading.stops_after:
            self._note("reads no more")
            await self.world.over.wait()
            return None
        self._num_read += 1
        return await wire.hear()

    def _leave(self, wire: Wire) -> None:
        wire.hang_up()
        for story in self.world.stories.values():
            if story.client is self.plan and not story.is_over:
                story.left_at_s = trio.current_time()
                self._note(f"leaves {story.ask.prompt}")

    def _story(self, ask: Ask, request_id: str) -> Story:
        story = Story(ask, self.plan, request_id)
        self.world.stories[ask.prompt] = story
        return story

    def _notify(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    def _note(self, what: str) -> None:
        self.world.note(self.plan.name, what)

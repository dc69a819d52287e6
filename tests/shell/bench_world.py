"""A server under test that lives in memory and in virtual time: h11 on memory streams."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import attrs
import h11
import trio
from trio.testing import memory_stream_pair

from paddler_trio.cli.bench.target import Target
from paddler_trio.cli.bench.target_address import BaseUrl

STREAM = ("Content-Type", "text/event-stream")
Answering = Callable[["Conversation", dict[str, object]], Awaitable[None]]


@attrs.define(eq=False)
class Conversation:
    """One connection, from the server's side."""

    stream: trio.abc.Stream
    protocol: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.SERVER))

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self.protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.protocol.receive_data(bytes(await self.stream.receive_some()))

    async def head(self, status: int, *headers: tuple[str, str]) -> None:
        await self.send(h11.Response(status_code=status, headers=list(headers)))

    async def event(self, **chunk: object) -> None:
        await self.send(h11.Data(data=f"data: {json.dumps(chunk)}\n\n".encode()))

    async def text(self, words: str) -> None:
        await self.event(choices=[{"index": 0, "delta": {"content": words}}])

    async def done(self) -> None:
        await self.send(h11.Data(data=b"data: [DONE]\n\n"))
        await self.send(h11.EndOfMessage())

    async def refuse(self, status: int, words: str) -> None:
        body = json.dumps({"error": {"message": words}}).encode()
        await self.head(status, ("Content-Length", str(len(body))))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def send(self, event: h11.Event) -> None:
        await self.stream.send_all(self.protocol.send(event))


async def answer(conversation: Conversation, body: dict[str, object]) -> None:
    """The first token after 200 ms, of which the prompt took 150, then three each 50 ms."""
    await conversation.head(200, STREAM)
    await trio.sleep(0.2)
    for number in range(4):
        if number:
            await trio.sleep(0.05)
        await conversation.text(f"word {number}")
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    await conversation.event(choices=[], usage=usage, timings={"prompt_ms": 150.0})
    await conversation.done()


@attrs.define(eq=False)
class NotedStream(trio.abc.Stream):
    """A client's end, of which it is noted that the client closed it."""

    _stream: trio.abc.Stream
    is_closed: bool = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        self.is_closed = True
        await self._stream.aclose()


@attrs.define(eq=False)
class BenchServer:
    """Answers chat completions on connections that :meth:`target` makes."""

    nursery: trio.Nursery
    answering: Answering = answer
    wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream
    """Over its end of each connection, for TLS."""
    bodies: list[dict[str, object]] = attrs.field(factory=list, init=False)
    headers: list[dict[bytes, bytes]] = attrs.field(factory=list, init=False)
    dialled: list[NotedStream] = attrs.field(factory=list, init=False)
    num_in_flight: int = attrs.field(default=0, init=False)
    most_in_flight: int = attrs.field(default=0, init=False)

    def target(self, label: str = "server", **more: object) -> Target:
        url = BaseUrl("127.0.0.1", 8061, path="/base")
        return Target(label=label, url=url, dial=self.dial, model="demo", **more)  # type: ignore[arg-type]

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.dialled.append(NotedStream(theirs))
        self.nursery.start_soon(self._serve, Conversation(self.wrap(ours)))
        return self.dialled[-1]

    async def _serve(self, conversation: Conversation) -> None:
        try:
            while await self._serve_one(conversation):
                if conversation.protocol.our_state is not h11.DONE:
                    break
                conversation.protocol.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass  # the client left
        finally:
            await trio.aclose_forcefully(conversation.stream)

    async def _serve_one(self, conversation: Conversation) -> bool:
        head = await conversation.next_event()
        if not isinstance(head, h11.Request):
            return False
        body = b""
        while isinstance(event := await conversation.next_event(), h11.Data):
            body += bytes(event.data)
        self.headers.append({**dict(head.headers), b":path": head.target})
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            value = json.loads(body) if body else {}
            self.bodies.append(value)
            await self.answering(conversation, value)
        finally:
            self.num_in_flight -= 1
        return True

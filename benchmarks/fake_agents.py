"""Agents without a model: real links to a balancer, tokens as fast or as regular as it is told.

    python benchmarks/fake_agents.py --address HOST:PORT --agents 4 --slots 16 [--ours] [--rate 30]
        [--direct]

With ``--direct`` there is no balancer: they listen at the address themselves, and send the same
tokens at the same pace to clients. Run by balancer.py in a process of its own. Sockets are plain
and frames are built once, so that this process costs less than what it measures. Masks are zero,
which the protocol allows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import attrs
import trio

from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, state_digest

USAGE = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "input_image_tokens",
    "input_audio_tokens",
    "content_tokens",
    "reasoning_tokens",
    "tool_call_tokens",
    "undeterminable_tokens",
)
DONE = json.dumps({"Done": {"usage": dict.fromkeys(USAGE, 1)}}).encode()
DONE_EXTENDED = json.dumps(
    {
        "Done": {
            "usage": dict.fromkeys(USAGE, 1),
            "finish": {"reason": "length", "stop_text": None},
            "timings": {
                "prompt_n": 1,
                "prompt_ms": 1.5,
                "cached_n": 0,
                "predicted_n": 1,
                "predicted_ms": 1.5,
            },
        }
    }
).encode()
PIECE_CHARS = 256
MAX_PIECES = 200_000
"""Of prompts that one agent remembers; then it forgets them all."""
HEARTBEAT_S = 1.0
TEXT = b" token"
STAGES = b',"prompt":{"tokens":%d,"cached":%d,"template_ms":1,"wait_ms":0,"prefill_ms":%d}'
"""A millisecond for each token that is not there."""
PROGRESS = (
    b'{"id":"%b","tokens":[],"results":[{"Progress":{"total":%d,"cached":%d,"computed":%d}}]}'
)


def masked(payload: bytes) -> bytes:
    """One text frame from a client."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x81, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


@attrs.define(eq=False)
class Answering:
    """One request that is being answered."""

    wire_id: bytes
    left: int
    prompt: tuple[int, int] | None = None
    """Its tokens and those that were there already, until they are reported; an agent of ours."""
    is_extended: bool = False


@attrs.define(eq=False)
class FakeAgent:
    """One link. ``rate`` is in passes a second, 0 for as many as the balancer takes."""

    name: str
    slots: int
    is_ours: bool
    rate: float
    num_tokens: int
    answering: dict[bytes, Answering] = attrs.field(factory=dict, init=False)
    work: trio.Event = attrs.field(factory=trio.Event, init=False)
    version: int = attrs.field(default=0, init=False)
    digest: str | None = attrs.field(default=None, init=False)
    received: bytearray = attrs.field(factory=bytearray, init=False)
    turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    pieces: set[int] = attrs.field(factory=set, init=False)
    """Hashes of the beginnings of prompts that it has had."""

    @property
    def is_serving(self) -> bool:
        """It was told what to serve, and said that it does."""
        return self.digest is not None

    async def run(self, host: str, port: int) -> None:
        """One link, until the balancer closes it; ConnectionError if it is refused."""
        async with await trio.open_tcp_stream(host, port) as stream:
            await self.serve(stream, host, port)

    async def serve(self, stream: trio.SocketStream, host: str, port: int) -> None:
        protocol = b"Sec-WebSocket-Protocol: paddler-trio.1\r\n" if self.is_ours else b""
        await stream.send_all(
            b"GET /api/v1/agent_socket/%b HTTP/1.1\r\nHost: %b:%d\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n%b"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            % (self.name.encode(), host.encode(), port, protocol)
        )
        while b"\r\n\r\n" not in self.received:
            data = await stream.receive_some()
            if not data:
                raise ConnectionError(f"the balancer closed the link: {bytes(self.received)!r}")
            self.received += data
        head, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(f"the balancer refused the link: {head!r}")
        self.received = bytearray(rest)
        await self.send(stream, self.status("RegisterAgent", 0, "Fresh"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.beat, stream)
            nursery.start_soon(self.produce, stream)
            while True:
                for message in self.frames():
                    await self.take(stream, json.loads(message))
                data = await stream.receive_some()
                if not data:
                    nursery.cancel_scope.cancel()
                    return
                self.received += data

    async def send(self, stream: trio.SocketStream, data: bytes) -> None:
        async with self.turn:
            await stream.send_all(data)

    def frames(self) -> Iterator[bytes]:
        """Whole text messages. Pings are not answered: tokens are signs of life enough."""
        data, at = self.received, 0
        while len(data) - at >= 2:
            size, start = data[at + 1] & 127, at + 2
            if size == 126:
                if len(data) - at < 4:
                    break
                (size,), start = struct.unpack_from("!H", data, at + 2), at + 4
            elif size == 127:
                if len(data) - at < 10:
                    break
                (size,), start = struct.unpack_from("!Q", data, at + 2), at + 10
            if len(data) - start < size:
                break
            if data[at] & 15 == 1:
                yield bytes(data[start : start + size])
            at = start + size
        del data[:at]

    async def take(self, stream: trio.SocketStream, message: dict[str, Any]) -> None:
        match message:
            case {"Request": {"id": wire_id}}:
                key = wire_id.encode()
                self.answering[key] = Answering(key, self.length())
                self.work.set()
            case {"Trio": {"Start": {"id": wire_id, "request": work}}}:
                key = wire_id.encode()
                await self.send(stream, self.prepared(key))
                is_extended = "Generate" in work
                self.answering[key] = Answering(key, self.length(), self.begun(work), is_extended)
                self.work.set()
            case {"Notification": {"StopRespondingTo": wire_id}}:
                if self.answering.pop(wire_id.encode(), None) is not None:
                    await self.send(stream, self.ending(wire_id.encode()))
            case {"Notification": {"SetState": {"desired_state": state}}}:
                self.digest = state_digest(structure(state, AgentDesiredState))
                await self.send(stream, self.status("UpdateAgentStatus", 0, "Fresh"))
                await self.send(stream, self.status("UpdateAgentStatus", self.slots, "Applied"))
                await self.send(stream, self.report())

    def prepared(self, wire_id: bytes) -> bytes:
        """What is sent once a request is tokens: no result, and the model that answers."""
        return masked(
            b'{"Trio":{"Step":[{"id":"%b","tokens":[],"results":[],"model":"m"}]}}' % wire_id
        )

    def begun(self, work: object) -> tuple[int, int]:
        """The tokens of this prompt, and how many of them are there; it is there from now on."""
        text, before, cached = json.dumps(work), 0, 0
        if len(self.pieces) > MAX_PIECES:
            self.pieces.clear()
        for end in range(PIECE_CHARS, len(text), PIECE_CHARS):
            before = hash((before, text[end - PIECE_CHARS : end]))
            cached += before in self.pieces
            self.pieces.add(before)
        return len(text) // 4 + 1, cached * PIECE_CHARS // 4

    def length(self) -> int:
        """Tokens of the next answer."""
        return self.num_tokens

    async def beat(self, stream: trio.SocketStream) -> None:
        await trio.sleep(random.random())
        while True:
            await trio.sleep(HEARTBEAT_S)
            if self.digest is not None:
                await self.send(stream, self.status("UpdateAgentStatus", self.slots, "Applied"))

    async def produce(self, stream: trio.SocketStream) -> None:
        """One token for each request in each pass."""
        await trio.sleep(random.random() / self.rate if self.rate else 0)
        due_s = trio.current_time()
        while True:
            if not self.answering:
                self.work = trio.Event()
                await self.work.wait()
                due_s = trio.current_time()
            if self.rate:
                due_s += 1 / self.rate
                await trio.sleep_until(due_s)
            await self.send(stream, self.one_pass())

    def one_pass(self) -> bytes:
        text = TEXT if not self.rate else b"%d" % time.monotonic_ns()
        entries, frames = [], []
        for each in list(self.answering.values()):
            each.left -= 1
            if each.left < 0:
                del self.answering[each.wire_id]
                frames.append(self.ending(each.wire_id, is_extended=each.is_extended))
            elif self.is_ours:
                stages = b""
                if each.prompt is not None:
                    tokens, cached = each.prompt
                    each.prompt = None
                    stages = STAGES % (tokens, cached, max(1, tokens - cached))
                    if each.is_extended:
                        entries.append(PROGRESS % (each.wire_id, tokens, cached, tokens))
                entries.append(
                    b'{"id":"%b","tokens":[%d],"results":[{"ContentToken":"%b"}]%b}'
                    % (each.wire_id, each.left, text, stages)
                )
            else:
                frames.append(
                    masked(
                        b'{"Response":{"generated_by":null,"request_id":"%b","response":'
                        b'{"GeneratedToken":{"ContentToken":"%b"}}}}' % (each.wire_id, text)
                    )
                )
        if entries:
            frames.insert(0, masked(b'{"Trio":{"Step":[%b]}}' % b",".join(entries)))
        return b"".join(frames)

    def ending(self, wire_id: bytes, *, is_extended: bool = False) -> bytes:
        if self.is_ours:
            done = DONE_EXTENDED if is_extended else DONE
            return masked(
                b'{"Trio":{"Step":[{"id":"%b","tokens":[],"results":[%b]}]}}' % (wire_id, done)
            )
        return masked(
            b'{"Response":{"generated_by":null,"request_id":"%b","response":'
            b'{"GeneratedToken":%b}}}' % (wire_id, DONE)
        )

    def status(self, kind: str, slots: int, state: str) -> bytes:
        self.version += 1
        snapshot = {
            "desired_slots_total": self.slots,
            "download_current": 0,
            "download_filename": None,
            "download_indeterminate": True,
            "download_total": 0,
            "issues": [],
            "model_path": None if not slots else "/m",
            "slots_processing": len(self.answering),
            "slots_total": slots,
            "state_application_status": state,
            "uses_chat_template_override": False,
            "version": self.version,
        }
        body: dict[str, Any] = {"slot_aggregated_status_snapshot": snapshot}
        if kind == "RegisterAgent":
            body["name"] = self.name
        return masked(json.dumps({"Notification": {kind: body}}).encode())

    def report(self, figures: dict[str, float] | None = None) -> bytes:
        """What ours adds to a status; ``figures`` of an engine."""
        if not self.is_ours:
            return b""
        report = {
            "phase": "serving",
            "wanted_state": self.digest,
            "served_state": self.digest,
            "model": "m",
            "progress": None,
            "detail": None,
            "engine": figures,
        }
        return masked(json.dumps({"Trio": {"Report": report}}).encode())


@attrs.define(eq=False)
class DirectAgent:
    """As many clients of its own as an agent has slots, and nothing between them."""

    rate: float
    num_tokens: int
    left: dict[trio.SocketStream, int] = attrs.field(factory=dict, init=False)
    ended: dict[trio.SocketStream, trio.Event] = attrs.field(factory=dict, init=False)

    async def answer(self, stream: trio.SocketStream) -> None:
        """One request after the other, until the client leaves."""
        while True:
            request = b""
            while not request.endswith(b"}"):
                data = await stream.receive_some()
                if not data:
                    return
                request += data
            await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.ended[stream] = trio.Event()
            self.left[stream] = self.num_tokens
            await self.ended[stream].wait()

    async def produce(self) -> None:
        """One token for each client in each pass, written at once."""
        await trio.sleep(random.random() / self.rate if self.rate else 0)
        due_s = trio.current_time()
        while True:
            due_s += 1 / self.rate if self.rate else 0
            await trio.sleep_until(due_s)
            text = TEXT if not self.rate else b"%d" % time.monotonic_ns()
            line = b'{"Response":{"response":{"GeneratedToken":{"ContentToken":"%b"}}}}\n' % text
            chunk = b"%x\r\n%b\r\n" % (len(line), line)
            for stream, left in list(self.left.items()):
                if left > 0:
                    self.left[stream] = left - 1
                    await self.write(stream, chunk)
                else:
                    del self.left[stream]
                    await self.write(stream, b"0\r\n\r\n")
                    self.ended[stream].set()

    async def write(self, stream: trio.SocketStream, data: bytes) -> None:
        try:
            size = os.write(stream.socket.fileno(), data)
        except BlockingIOError:
            size = 0
        if size < len(data):
            await stream.send_all(data[size:])


async def run_direct(arguments: argparse.Namespace) -> None:
    host, _, port = arguments.address.rpartition(":")
    agents = [DirectAgent(arguments.rate, arguments.tokens) for _ in range(arguments.agents)]
    turns = itertools.cycle(agents)
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(agent.produce)
        await trio.serve_tcp(lambda stream: next(turns).answer(stream), int(port), host=host)


async def run(arguments: argparse.Namespace) -> None:
    host, _, port = arguments.address.rpartition(":")
    async with trio.open_nursery() as nursery:
        for number in range(arguments.agents):
            agent = FakeAgent(
                f"f{number}", arguments.slots, arguments.ours, arguments.rate, arguments.tokens
            )
            nursery.start_soon(agent.run, host, int(port))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=500)
    arguments = parser.parse_args()
    trio.run(run_direct if arguments.direct else run, arguments)


if __name__ == "__main__":
    main()

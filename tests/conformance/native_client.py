"""Applications and operators as they look on the wire: no client library's leniency in between.

Everything here is raw: lines as they came, headers as they came, WebSocket frames as JSON. The
balancer runs in the test's own nursery on real loopback sockets, so each test can have the limits
it needs and sees the end of every task.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import attrs
import h11
import httpx
import trio
import trio_websocket
from paddler_agent import PaddlerAgent, serving_agent

from no_tls import NO_TLS
from paddler_trio.balancer.assembly.balancer_daemon import serve_balancer
from paddler_trio.balancer.assembly.bound_balancer import BoundBalancer
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier

Json: TypeAlias = Any  # answers are looked into freely; their shape is what is being tested

PATIENCE_S = 60.0
RAW = "/api/v1/continue_from_raw_prompt"
CHAT = "/api/v1/continue_from_conversation_history"
EMBED = "/api/v1/generate_embedding_batch"
RAW_PROMPT = {"raw_prompt": "Two plus two is", "max_tokens": 5}
CONVERSATION = {
    "add_generation_prompt": True,
    "conversation_history": [{"role": "user", "content": "Hello!"}],
    "enable_thinking": False,
    "max_tokens": 5,
}


@attrs.define(eq=False)
class RunningBalancer:
    """A balancer in this process; addresses are ``host:port``."""

    inference: str
    management: str
    http: httpx.AsyncClient
    stop: trio.Event
    ended: trio.Event
    reverse_proxy: str = ""
    """Empty if there is no such port."""

    def inference_url(self, path: str) -> str:
        return f"http://{self.inference}{path}"

    def management_url(self, path: str) -> str:
        return f"http://{self.management}{path}"

    async def desired_state(self) -> Json:
        answer = await self.http.get(self.management_url("/api/v1/balancer_desired_state"))
        return answer.json()

    async def put_state(self, state: Json) -> httpx.Response:
        return await self.http.put(
            self.management_url("/api/v1/balancer_desired_state"), json=state
        )

    async def put_parameters(self, **parameters: Json) -> None:
        state = await self.desired_state()
        state["inference_parameters"] |= parameters
        answer = await self.put_state(state)
        assert answer.status_code == 204, answer.text

    async def agents(self) -> list[Json]:
        answer = await self.http.get(self.management_url("/api/v1/agents"))
        return list(answer.json()["agents"])

    async def buffered(self) -> int:
        answer = await self.http.get(self.management_url("/api/v1/buffered_requests"))
        return int(answer.json()["buffered_requests_current"])

    async def metric(self, name: str) -> int:
        text = (await self.http.get(self.management_url("/metrics"))).text
        found = [line for line in text.splitlines() if line.startswith(f"paddler_{name} ")]
        return int(found[0].split()[1])

    async def wait_agents(self, is_so: Callable[[list[Json]], bool]) -> list[Json]:
        """Follow the agents' stream until a snapshot is as wanted."""
        seen = await self._wait("/api/v1/agents/stream", lambda s: is_so(s["agents"]))
        return list(seen["agents"])

    async def wait_none_accepting(self) -> None:
        """Until no agent that is here takes a request any more."""
        await self._wait(
            "/api/v2/agents/stream",
            lambda seen: not any(agent["is_accepting"] for agent in seen["agents"]),
        )

    async def wait_all_accepting(self) -> None:
        """Until every agent that is here takes requests."""
        await self._wait(
            "/api/v2/agents/stream",
            lambda seen: all(agent["is_accepting"] for agent in seen["agents"]),
        )

    async def wait_buffered(self, number: int) -> None:
        await self._wait(
            "/api/v1/buffered_requests/stream",
            lambda snapshot: snapshot["buffered_requests_current"] == number,
        )

    async def wait_slots(self, *processing: int) -> None:
        """Until the agents' ``slots_processing`` are these, in any order."""
        await self.wait_agents(
            lambda agents: sorted(a["slots_processing"] for a in agents) == sorted(processing)
        )

    async def _wait(self, path: str, is_so: Callable[[Json], bool]) -> Json:
        last = None
        with trio.move_on_after(PATIENCE_S):
            async with open_answer(self.management, "GET", path) as answer:
                while True:
                    line = await answer.next_text_line()
                    if line.startswith("data: "):
                        last = json.loads(line.removeprefix("data: "))
                        if is_so(last):
                            return last
        raise AssertionError(f"{path} never showed what was waited for; last: {last}")

    def post(self, path: str, body: Json) -> AbstractAsyncContextManager[Answer]:
        """An inference request; leaving the block early drops the connection."""
        return open_answer(self.inference, "POST", path, body)

    def generate(self, **changes: Json) -> AbstractAsyncContextManager[Answer]:
        """:meth:`post` of a raw prompt."""
        return self.post("/api/v1/continue_from_raw_prompt", RAW_PROMPT | changes)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[InferenceSocket]:
        """A connected inference socket."""
        host, _, port = self.inference.rpartition(":")
        async with (
            await trio.open_tcp_stream(host, int(port)) as stream,
            trio.open_nursery() as nursery,
        ):
            connection = await trio_websocket.wrap_client_stream(
                nursery,
                stream,
                self.inference,
                "/api/v1/inference_socket",
                message_queue_size=64,
            )
            yield InferenceSocket(connection)
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Answer:
    """An answer that is still arriving; its status and headers have."""

    status_code: int
    headers: dict[str, str]
    _stream: trio.SocketStream
    _parser: h11.Connection
    _buffer: bytes = attrs.field(default=b"", init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    async def next_text_line(self) -> str:
        """The next line without its newline."""
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._buffer:
                assert not self._is_over, f"the body ended without a line: {self._buffer!r}"
                await self._read_more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    async def next_line(self) -> Json:
        """The next line, which is JSON."""
        return json.loads(await self.next_text_line())

    async def body(self) -> bytes:
        """Everything not yet read, up to the end."""
        with trio.fail_after(PATIENCE_S):
            while not self._is_over:
                await self._read_more()
        body, self._buffer = self._buffer, b""
        return body

    async def rest(self) -> list[Json]:
        """All lines not yet read, each of which is JSON and ends in a newline."""
        body = await self.body()
        assert body == b"" or body.endswith(b"\n"), f"an unfinished line: {body!r}"
        return [json.loads(line) for line in body.decode().split("\n")[:-1]]

    async def _read_more(self) -> None:
        event = await next_event(self._stream, self._parser)
        if isinstance(event, h11.Data):
            self._buffer += bytes(event.data)
        else:
            assert isinstance(event, h11.EndOfMessage), f"the body was cut: {event}"
            self._is_over = True


async def next_event(stream: trio.SocketStream, parser: h11.Connection) -> Json:
    """The next thing the server said, as h11 reads it."""
    while (event := parser.next_event()) is h11.NEED_DATA:
        parser.receive_data(await stream.receive_some(65536))
    return event


@asynccontextmanager
async def open_answer(
    address: str,
    method: str,
    path: str,
    body: Json = None,
    *,
    more_headers: Sequence[tuple[str, str]] = (),
) -> AsyncIterator[Answer]:
    """Send one request on a connection of its own and read as far as the headers of the answer."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        parser = h11.Connection(h11.CLIENT)
        content = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", address), ("Content-Length", str(len(content))), *more_headers]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        request = h11.Request(method=method, target=path, headers=headers)
        for event in (request, h11.Data(data=content), h11.EndOfMessage()):
            await stream.send_all(parser.send(event) or b"")
        with trio.fail_after(PATIENCE_S):
            head = await next_event(stream, parser)
        assert isinstance(head, h11.Response), f"no answer: {head}"
        fields = {name.decode(): value.decode() for name, value in head.headers}
        yield Answer(head.status_code, fields, stream, parser)


@attrs.define(eq=False)
class InferenceSocket:
    """A client's WebSocket."""

    connection: trio_websocket.WebSocketConnection

    async def say(self, frame: Json) -> None:
        await self.connection.send_message(
            frame if isinstance(frame, str | bytes) else json.dumps(frame)
        )

    async def ask(self, request_id: str, **changes: Json) -> None:
        request = {"ContinueFromRawPrompt": RAW_PROMPT | changes}
        await self.say({"Request": {"id": request_id, "request": request}})

    async def stop(self, request_id: str) -> None:
        await self.say({"Notification": {"StopRespondingTo": request_id}})

    async def next(self) -> Json:
        with trio.fail_after(PATIENCE_S):
            return json.loads(await self.connection.get_message())

    async def until_over(self, request_id: str) -> list[Json]:
        """All frames up to the ending of this request; frames of others are skipped."""
        frames: list[Json] = []
        while not (frames and is_ending(frames[-1])):
            frame = await self.next()
            if request_id_of(frame) == request_id:
                frames.append(frame)
        return frames


def request_id_of(frame: Json) -> str | None:
    """Which request a frame or line belongs to; None for notifications."""
    envelope = frame.get("Response") or frame.get("Error")
    return None if envelope is None else str(envelope["request_id"])


def result_of(frame: Json) -> Json:
    """What a ``Response`` carries: the generated token or embedding result."""
    ((_, result),) = frame["Response"]["response"].items()
    return result


def is_ending(frame: Json) -> bool:
    """Whether this generation frame is the last of its request."""
    if "Error" in frame:
        return True
    (tag,) = result_of(frame)
    return not (tag.endswith("Token") or tag.startswith(("ToolCall", "Unrecognized")))


def text_of(frames: list[Json]) -> str:
    """The visible text of a generation."""
    return "".join(
        text
        for frame in frames
        if "Response" in frame
        for tag, text in result_of(frame).items()
        if tag.endswith("Token")
    )


def error_of(frame: Json) -> tuple[int, str]:
    """Code and description of an ``Error`` frame."""
    error = frame["Error"]["error"]
    return error["code"], error["description"]


@asynccontextmanager
async def running_balancer(**config: Json) -> AsyncIterator[RunningBalancer]:
    """A balancer with this configuration, on ports of its own; ended with the block. What it lets
    pass by default is less than a busy machine may need."""
    stop, ended = trio.Event(), trio.Event()
    ports = {"inference_addr": "127.0.0.1:0", "management_addr": "127.0.0.1:0"}
    patient = {"buffered_request_timeout_s": 100.0, "inference_item_timeout_s": 100.0}
    settings = BalancerConfig(**{**ports, **patient, "drain_timeout_s": 0.5, **config})

    async def run(*, task_status: trio.TaskStatus[Any]) -> None:
        bound = BoundBalancer.bind(settings)
        await serve_balancer(bound, stop, notifier=SystemdNotifier(), task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(run)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            trust_env=False, verify=NO_TLS, timeout=PATIENCE_S, limits=limits
        ) as http:
            yield RunningBalancer(
                addresses.inference[0],
                addresses.management[0],
                http,
                stop,
                ended,
                "".join(addresses.reverse_proxy),
            )
            stop.set()
            with trio.fail_after(PATIENCE_S):
                await ended.wait()


@asynccontextmanager
async def agents_of(balancer: RunningBalancer, *slots: int) -> AsyncIterator[list[PaddlerAgent]]:
    """Agents ``a0``, ``a1`` ... that may get work, with so many slots each."""
    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(
                serving_agent(balancer.management, f"a{number}", slots=count)
            )
            for number, count in enumerate(slots)
        ]
        await balancer.wait_agents(
            lambda seen: sorted(a["slots_total"] for a in seen) == sorted(slots)
        )
        yield agents


async def only_line(balancer: RunningBalancer, path: str, body: Json) -> Json:
    """The one line of an answer that has only one."""
    async with balancer.post(path, body) as answer:
        assert answer.status_code == 200
        (line,) = await answer.rest()
    return line

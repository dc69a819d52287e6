"""A server that answers as llama-server does, on any stream: for tests of what asks it, and what
every double of a server reads requests with.

Written from the server of llama.cpp as llama-cpp-python 0.3.36 carries it: its paths, statuses,
bodies and header fields; ``/slots`` wakes a server that sleeps, and of a router it loads the model
unless ``autoload`` is off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import attrs
import h11
import trio

ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


async def read_request(
    stream: trio.abc.Stream, connection: h11.Connection | None = None, *, reads_body: bool = True
) -> tuple[h11.Request, bytes] | None:
    """One whole request as h11's server reads it; None if the client has gone before it."""
    server = h11.Connection(h11.SERVER) if connection is None else connection
    request, body = None, b""
    while True:
        event = server.next_event()
        if event is h11.NEED_DATA:
            server.receive_data(bytes(await stream.receive_some(65_536)))
        elif isinstance(event, h11.Request):
            request = event
            if not reads_body:
                return request, b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            return request, body
        else:
            return None


@attrs.define(eq=False)
class LlamaServerDouble:
    """What its operator can set, and what it was asked.

    Args:
      num_slots: beyond these, requests wait.
      token_s: between two chunks.
      afterlife_s: how long a slot goes on when its client has gone.
      models: of a router, names and states; None for a server with one model.
      sleep_idle_s: it falls asleep after so long without use.
      overrides: answers to paths, instead of what is right.
    """

    num_slots: int = 4
    name: str = "qwen"
    key: str | None = None
    is_loading: bool = False
    is_sleeping: bool = False
    sleep_idle_s: float = math.inf
    has_slots: bool = True
    has_metrics: bool = False
    tells_endpoints: bool = True
    is_other: bool = False
    """No llama-server: it has ``/health`` and ``/v1/models`` only, as vLLM."""
    afterlife_s: float = 0.0
    token_s: float = 1.0
    slots_take_s: float = 0.0
    models: dict[str, str] | None = None
    foreign: int = 0
    """Slots that others keep busy."""
    overrides: dict[str, Callable[[], tuple[int, bytes]]] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list, init=False)
    """Paths, in order."""
    woken: int = attrs.field(default=0, init=False)
    loads: list[str] = attrs.field(factory=list, init=False)
    ours: int = attrs.field(default=0, init=False)
    """Slots that generate."""
    _used_s: float = attrs.field(default=0.0, init=False)
    finish: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set, all generations come to their end."""

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until its client has gone."""
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                asked = await read_request(stream, connection)
                if asked is None:
                    return
                request, body = asked
                await self._answer(stream, connection, request, body)
                if connection.our_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return

    async def _answer(
        self, stream: trio.abc.Stream, connection: h11.Connection, request: h11.Request, body: bytes
    ) -> None:
        target = urlsplit(request.target.decode())
        self.asked.append(target.path)
        self.is_sleeping |= trio.current_time() - self._used_s > self.sleep_idle_s
        if request.method == b"POST" or target.path == "/slots":
            self._used_s = trio.current_time()
        if target.path in self.overrides:
            await self._send(stream, connection, *self.overrides[target.path]())
            return
        headers = dict(request.headers)
        is_public = target.path in {"/health", "/v1/health"}
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").decode()
        if self.is_loading:
            await self._send(stream, connection, 503, error(503, "Loading model"))
        elif self.key is not None and not is_public and given != self.key:
            await self._send(stream, connection, 401, error(401, "Invalid API Key"))
        elif request.method == b"POST" and target.path.endswith("/completions"):
            await self._generate(stream, connection)
        else:
            if target.path == "/slots":
                await trio.sleep(self.slots_take_s)
            status, data = self._told(target.path, parse_qs(target.query))
            await self._send(stream, connection, status, data)

    def _told(self, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
        match path:
            case "/health":
                return 200, b'{"status":"ok"}' if not self.is_other else b""
            case "/v1/models" if self.is_other:
                models = [{"id": self.name, "object": "model", "max_model_len": 8192}]
                return 200, json.dumps({"object": "list", "data": models}).encode()
            case _ if self.is_other:
                return 404, b'{"detail":"Not Found"}'
            case "/props":
                return 200, json.dumps(self._props()).encode()
            case "/models" | "/v1/models":
                return 200, json.dumps(self._models()).encode()
            case "/slots":
                return self._slots(query)
            case "/metrics" if self.has_metrics:
                busy = float(min(self.busy, self.num_slots))
                return 200, (
                    "# HELP llamacpp:requests_processing Number of requests processing\n"
                    "# TYPE llamacpp:requests_processing gauge\n"
                    f"llamacpp:requests_processing {busy:g}\n"
                ).encode()
            case "/metrics":
                text = "This server does not support metrics endpoint. Start it with `--metrics`"
                return 501, error(501, text)
        return 404, error(404, "File Not Found")

    @property
    def busy(self) -> int:
        """Slots that are processing."""
        return self.ours + self.foreign

    def _props(self) -> dict[str, object]:
        common: dict[str, object] = {"build_info": "b9999-abc", "ui_settings": {}}
        if self.models is not None:
            return common | {
                "role": "router",
                "max_instances": 4,
                "models_autoload": True,
                "model_alias": "llama-server",
                "model_path": "none",
                "default_generation_settings": {"params": None, "n_ctx": 0},
            }
        endpoints = {"endpoint_slots": self.has_slots, "endpoint_metrics": self.has_metrics}
        return common | {
            "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": 4096},
            "total_slots": self.num_slots,
            "model_alias": self.name,
            "model_path": f"/models/{self.name}.gguf",
            "modalities": {"vision": True, "video": False, "audio": False},
            "chat_template": "{{ messages }}",
            "is_sleeping": self.is_sleeping,
            **(endpoints if self.tells_endpoints else {}),
        }

    def _models(self) -> dict[str, object]:
        if self.models is None:
            data = [{"id": self.name, "object": "model", "meta": {"n_ctx": 4096}}]
        else:
            data = [
                {"id": name, "object": "model", "status": {"value": status, "args": []}}
                for name, status in self.models.items()
            ]
        return {"object": "list", "data": data}

    def _slots(self, query: dict[str, list[str]]) -> tuple[int, bytes]:
        if self.models is not None:
            name = query.get("model", [""])[0]
            if not name:
                return 400, error(400, "model name is missing from the request")
            if self.models.get(name) not in {"loaded", "sleeping"}:
                if query.get("autoload", ["true"])[0] not in {"true", "1"}:
                    return 400, error(400, "model is not loaded")
                self.loads.append(name)
                self.models[name] = "loaded"
            if self.models[name] == "sleeping":
                self.woken += 1
        if self.is_sleeping:
            self.is_sleeping = False
            self.woken += 1
        if not self.has_slots:
            text = "This server does not support slots endpoint. Start it with `--slots`"
            return 501, error(501, text)
        busy = min(self.busy, self.num_slots)
        slots = [
            {"id": each, "n_ctx": 4096, "speculative": False, "is_processing": each < busy}
            for each in range(self.num_slots)
        ]
        return 200, json.dumps(slots).encode()

    async def _generate(self, stream: trio.abc.Stream, connection: h11.Connection) -> None:
        """Chunks until `finish`; when the client goes, the slot goes on for its afterlife."""
        self.ours += 1
        try:
            fields = [("Server", "llama.cpp"), ("Content-Type", "text/event-stream")]
            head = h11.Response(
                status_code=200, headers=[*fields, ("Transfer-Encoding", "chunked")]
            )
            await stream.send_all(connection.send(head))
            while not self.finish.is_set():
                data = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
                await stream.send_all(connection.send(h11.Data(data=data)))
                with trio.move_on_after(self.token_s):
                    await self.finish.wait()
            await stream.send_all(connection.send(h11.EndOfMessage()))
        except trio.BrokenResourceError:
            await trio.sleep(self.afterlife_s)
            raise
        finally:
            self.ours -= 1

    async def _send(
        self, stream: trio.abc.Stream, connection: h11.Connection, status: int, body: bytes
    ) -> None:
        fields = [("Server", "llama.cpp"), ("Content-Length", str(len(body)))]
        if 300 <= status < 400:
            fields.append(("Location", "http://elsewhere/"))
        head = h11.Response(status_code=status, headers=fields)
        await stream.send_all(connection.send(head))
        for start in range(0, len(body), 65_536):
            piece = body[start : start + 65_536]
            await stream.send_all(connection.send(h11.Data(data=piece)))
        await stream.send_all(connection.send(h11.EndOfMessage()))


def error(status: int, message: str) -> bytes:
    """The body of an error of llama-server."""
    return json.dumps(
        {"error": {"message": message, "type": ERRORS[status], "code": status}}
    ).encode()

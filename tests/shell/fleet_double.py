"""A management service that speaks of fleets and rollouts as a balancer does, and does nothing.

What it shows of rollouts is a script: a list of connections to the event stream, each a list of
what it sends. The last connection stays open, with a sign of life every few milliseconds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from paddler_trio.balancer.fleet.fleet_diff import changes_between
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.trio.fleet_state import FleetState

Json = dict[str, Any]

CUT: Final = "cut"
"""The connection breaks in the middle of an event."""
REFUSED: Final = "refused"
"""Instead of a whole connection: a balancer that is not there."""
ALIVE_S: Final = 0.02
AGENT: Final[Json] = {
    "id": "1",
    "name": "a1",
    "protocol": "paddler-trio.1",
    "deployment": "default",
    "host": "1",
    "labels": {"gpu": "yes"},
    "is_accepting": True,
    "slots_processing": 0,
    "slots_total": 4,
    "desired_slots_total": 4,
    "model_path": "/models/old.gguf",
    "state_application_status": "Applied",
    "issues": [],
    "phase": "serving",
    "wanted_state": "old",
    "served_state": "old",
    "load_s": 8.0,
    "memory": {
        "chosen": [],
        "devices": [{"device": "CUDA0", "predicted": 4 << 30, "actual": 4 << 30}],
    },
}
FIT: Final[Json] = {
    "fits": True,
    "problem": None,
    "architecture": "llama",
    "file_bytes": 4_700_000_000,
    "context_size": 8192,
    "n_ctx_train": 32768,
    "slots": 4,
    "n_gpu_layers": 33,
    "n_layers": 33,
    "k_cache_dtype": "Q8_0",
    "v_cache_dtype": "Q8_0",
    "chosen": [],
    "devices": [
        {
            "device": "CUDA0",
            "weights": 7 << 30,
            "kv": 1 << 30,
            "compute": 0,
            "projection": 0,
            "draft": 0,
            "other": 0,
            "needed": 8 << 30,
            "total": 24 << 30,
            "free_now": 19 << 30,
            "free_after": 23 << 30,
            "reserve": 1 << 30,
            "limit": None,
            "available": 22 << 30,
        }
    ],
    "options": [],
}


def rollout(
    phase: str,
    *agents: str,
    deployment: str = "default",
    to: int = 2,
    reason: str | None = None,
    detail: str | None = None,
) -> Json:
    """One rollout; agents are ``name:phase``, and ``detail`` is of those that failed."""
    named = [each.split(":") for each in agents]
    return {
        "deployment": deployment,
        "phase": phase,
        "reason": reason,
        "from": to - 1,
        "to": to,
        "started": "2026-01-01T00:00:00Z",
        "agents": [
            {
                "agent": name,
                "host": name,
                "deployment": deployment,
                "phase": its_phase,
                "detail": detail if its_phase == "failed" else None,
                "progress": 0.5 if its_phase == "loading" else None,
            }
            for name, its_phase in named
        ],
    }


def shown(*rollouts: Json) -> Json:
    """What ``GET /api/v2/rollout`` answers, and an event of its stream."""
    return {"rollouts": list(rollouts)}


@attrs.define(eq=False)
class FleetDouble:
    """See the module docstring. ``connections`` is the script; ``requests`` what was asked.

    ``refusals``: by method and path, a status and a text instead of an answer.
    """

    connections: list[Sequence[Json | str] | str] = attrs.field(factory=list)
    agents: list[Json] = attrs.field(factory=lambda: [dict(AGENT)])
    cached: list[Json] = attrs.field(factory=list)
    fit: Json = attrs.field(factory=lambda: dict(FIT))
    served: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    """Replicas that serve, and that are wanted, by deployment."""
    has_fleet: bool = True
    refusals: dict[tuple[str, str], tuple[int, str]] = attrs.field(factory=dict)
    requests: list[tuple[str, str, Json | None]] = attrs.field(factory=list)
    revisions: list[Json] = attrs.field(factory=list)
    streams: int = 0
    address: str = ""
    stopping: threading.Event = attrs.field(factory=threading.Event)

    def __attrs_post_init__(self) -> None:
        self.store({"deployments": []}, note="")

    def store(self, state: Json, *, note: str, author: str = "alice") -> Json:
        """The next revision; its state as a balancer writes it, with every field."""
        number = len(self.revisions) + 1
        self.revisions.append(
            {
                "revision": number,
                "author": author,
                "time": "2026-01-01T00:00:00Z",
                "note": note,
                "state": unstructure(structure(state, FleetState)),
            }
        )
        return self.revisions[-1]

    def asked(self, method: str, path: str) -> list[Json | None]:
        """The bodies of all such requests; a path with its query."""
        return [body for verb, at, body in self.requests if (verb, at) == (method, path)]

    # ------------------------------------------------------------ answers

    def answer(self, method: str, path: str, query: str, body: Json | None) -> tuple[int, object]:
        if (method, path) in self.refusals:
            return self.refusals[method, path]
        if not self.has_fleet and path.startswith(("/api/v2/fleet", "/api/v2/rollout")):
            return 404, ""
        match method, path.strip("/").split("/")[2:]:
            case "GET", ["fleet"]:
                return 200, self._fleet()
            case "PUT", ["fleet"]:
                assert body is not None
                return self._put(body, is_dry="dry_run=true" in query)
            case "GET", ["fleet", "history"]:
                return 200, {"revisions": self.revisions[::-1]}
            case "POST", ["fleet", "undo"]:
                assert body is not None
                assert body["expected_revision"] == self.revisions[-1]["revision"]
                before = self.revisions[-2 if body["to"] is None else body["to"] - 1]
                return 200, self.store(before["state"], note=f"undo: {before['revision']} again")
            case "GET", ["rollout"]:
                return 200, self._rollouts()
            case "POST", ["rollout", _, "pause" | "resume" | "abort" | "undo"]:
                return 200, self._rollouts()
            case "GET", ["agents"]:
                return 200, {"desired_state_digest": "new", "agents": self.agents}
            case "POST", ["agents", _, "fit"]:
                return 200, self.fit
            case "GET", ["balancer_desired_state"]:
                return 200, self.paddlers() if "/v1/" in path else self.extended()
            case "PUT", ["balancer_desired_state"]:
                return 204, ""
            case _:
                return 404, ""

    def paddlers(self) -> Json:
        from paddler_trio.wire.paddler.desired_state import BalancerDesiredState

        plain = unstructure(BalancerDesiredState.default())
        assert isinstance(plain, dict)
        return plain

    def extended(self) -> Json:
        return {"state": self.paddlers(), "extras": {}}

    def _rollouts(self) -> Json:
        """As at the end of the script."""
        frames = [f for c in self.connections if c != REFUSED for f in c if isinstance(f, dict)]
        return frames[-1] if frames else shown()

    def _fleet(self) -> Json:
        revision = self.revisions[-1]
        names = [each["name"] for each in revision["state"]["deployments"]]
        return {
            "revision": revision,
            "deployments": [
                {
                    "name": name,
                    "target": "new",
                    "phase": "serving",
                    "replicas": dict(
                        zip(("serving", "wanted"), self.served.get(name, (0, 1)), strict=True)
                    ),
                    "rollout": None,
                }
                for name in names
            ],
        }

    def _put(self, body: Json, *, is_dry: bool) -> tuple[int, object]:
        try:
            state = structure(body["state"], FleetState)
        except WireError as error:
            return 400, str(error)
        current = self.revisions[-1]
        before = structure(current["state"], FleetState)
        if is_dry:
            changes = changes_between(before, state)
            return 200, {"changes": [unstructure_change(each) for each in changes]}
        expected = body["expected_revision"]
        if expected not in {None, current["revision"]}:
            return 409, f"expected_revision is {expected}, in force is {current['revision']}"
        return 200, self.store(body["state"], note=body["note"])

    # -------------------------------------------------------------- running

    @contextmanager
    def running(self) -> Iterator[FleetDouble]:
        """Serve on a loopback port until the block is left."""
        double = self

        class Handler(_Handler):
            of = double

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False
        self.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            server.shutdown()
            thread.join()
            server.server_close()


def unstructure_change(change: object) -> Json:
    plain = attrs.asdict(change)  # type: ignore[arg-type]
    return {**plain, "fields": list(plain["fields"])}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: FleetDouble

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/api/v2/rollout/stream" and self.of.has_fleet:
            self._stream()
        elif path == "/api/v2/models":
            for_all = [{"agent": a["id"], "name": a["name"]} for a in self.of.agents]
            lines = [{**a, "answer": {"models": self.of.cached}} for a in for_all]
            self._send(200, "".join(json.dumps(line) + "\n" for line in lines).encode())
        elif path == "/api/v2/agents/stream":
            self._send_stream([json.dumps(self.of.answer("GET", "/api/v2/agents", "", None)[1])])
        else:
            self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.of.requests.append((self.command, self.path, body))
        status, answer = self.of.answer(self.command, parts.path, parts.query, body)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self._send(status, text.encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 204:
            self.send_header("X-Paddler-State-Digest", "new")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        place = min(self.of.streams, len(self.of.connections) - 1)
        self.of.streams += 1
        script = self.of.connections[place] if self.of.connections else []
        if script == REFUSED:
            self.close_connection = True
            self.connection.close()
            return
        is_last = place >= len(self.of.connections) - 1
        self._send_stream(
            [each if isinstance(each, str) else json.dumps(each) for each in script],
            stays=is_last,
        )

    def _send_stream(self, texts: Sequence[str], *, stays: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for text in texts:
                if text == CUT:
                    self._chunk(b'data: {"rollouts":[')
                    return
                self._chunk(f"data: {text}\n\n: keep-alive\n\n".encode())
            while stays and not self.of.stopping.wait(ALIVE_S):
                self._chunk(b": keep-alive\n\n")
            if not stays:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            return  # the command has left

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

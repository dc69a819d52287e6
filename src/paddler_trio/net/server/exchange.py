"""One request or WebSocket, from the moment its head was accepted to its end.

Everything between the server and the handlers of routes takes an :class:`Exchange`: guards,
routers, APIs. It has the head, what guards learn of the client (its identity, its trace, who
records what it changes), and the ways to read the body and to write the response. ASGI is what
hypercorn and Quart speak.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs

from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.net.server.app_inbox import PassableConnection
from paddler_trio.net.server.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    Header,
    HttpProblem,
    RawResponse,
    Receive,
    Scope,
    Send,
    Upgrade,
    send_text,
)
from paddler_trio.net.server.input_budget import InputBudget, Reservation
from paddler_trio.net.websocket.arrivals import Arrivals
from paddler_trio.net.websocket.bounded_websocket import BoundedWebSocket
from paddler_trio.wire.trace_parent import TraceContext

REQUEST_ID_HEADER: Final = b"x-request-id"
_ACCEPTED_ID: Final = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


class AuditTrail(Protocol):
    """Takes records of changes; never waits and never fails."""

    def record(
        self,
        exchange: Exchange,
        action: str,
        target: str = "",
        *,
        outcome: str = "done",
        who: str | None = None,
        **fields: object,
    ) -> None:
        """Record that the request of ``exchange`` did this.

        Args:
          action: a few words that do not vary, such as ``key revoked``.
          target: what was changed.
          outcome: ``done``, or ``refused`` or ``failed`` and why.
          who: the name of the key; by default that of the request.
          fields: ``before`` and ``after`` (digests), ``revision``, and others; never a secret.
        """
        ...


class NoAuditTrail:
    """Keeps nothing."""

    def record(
        self,
        exchange: Exchange,
        action: str,
        target: str = "",
        *,
        outcome: str = "done",
        who: str | None = None,
        **fields: object,
    ) -> None: ...


class Messages(Protocol):
    """Sees the requests on one WebSocket."""

    def began(self, exchange: Exchange, trace: TraceContext) -> None:
        """Note that one with this trace is submitted next."""
        ...

    def refused(self, exchange: Exchange, trace: TraceContext, request: str, status: int) -> None:
        """Note that the one with the id ``request`` was not submitted; ``status`` is as in HTTP."""
        ...


@attrs.frozen(eq=False)
class TraceEntry:
    """The trace with which a request came in.

    Args:
      trace: of the request.
      caller: the trace of its caller, if it has one.
      continues: makes the trace of a request of a caller, or without one.
      messages: what sees the requests on a WebSocket, if anything does.
    """

    trace: TraceContext
    caller: TraceContext | None
    continues: Callable[[TraceContext | None], TraceContext]
    messages: Messages | None = None

    def of_message(self) -> TraceContext:
        """Return the trace of the next request on the WebSocket."""
        return self.continues(self.caller)


class ClientWatch(Protocol):
    """The pieces that a client sends, and their end: it has left, or its response has ended."""

    on_end: Callable[[], None] | None
    """Called once, in the step in which the end comes."""

    @property
    def has_ended(self) -> bool:
        """Return whether the end has come already."""
        ...

    def whole_body(self) -> bytes | None:
        """Return the request's body if all of it is there in one piece, and was not received.

        None otherwise; it is to be received then.
        """
        ...


class DirectBody(Protocol):
    """Puts HTTP/1.1 chunks on the wire, past hypercorn and h11.

    Two to three times as many small pieces a second pass as by ordinary messages (measured).
    """

    async def write(self, piece: bytes) -> None:
        """Write one chunk within the write deadline; ClientGoneError when the client has left or
        does not read before the deadline."""
        ...

    def write_now(self, piece: bytes) -> bool:
        """Write one chunk without waiting; return whether the kernel took all of it.

        The rest goes out before what is written next: await a `write` soon, of nothing if need be.
        ClientGoneError.
        """
        ...


@attrs.frozen
class WrittenHead:
    """The parts of a request's head that ASGI does not show.

    Args:
      method: its case tells one from another.
      target: a path with its query, or ``*``; without scheme and host if those came.
      names: of the fields as they were spelled, one for each of the headers.
    """

    method: bytes
    target: bytes
    names: Sequence[bytes]


@attrs.define
class Identity:
    """The identity of the client as the guards found it.

    Args:
      key_name: the name of the API key, or of the session's key; empty without one.
      account: the name of the key to which tokens are charged; empty without one.
      deployments: the only ones that the key may use; None for all.
      may_manage: it is a key for the management port, too.
      agent: the agent whose connection this is; None if it came without a credential.
    """

    key_name: str = ""
    account: str = ""
    deployments: frozenset[str] | None = None
    may_manage: bool = False
    agent: AgentIdentity | None = None


@attrs.define(eq=False, repr=False)
class Exchange:
    """See the module docstring.

    Args:
      scope: ASGI's description of the request.
      receive, send: ASGI's messages. A guard that has something to add to them replaces these for
        those behind it.
      room: what the request holds of the budget of all inputs.
      watch: what the client sends, and its end.
    """

    scope: Scope
    receive: Receive
    send: Send
    room: Reservation = attrs.field(factory=lambda: InputBudget().reservation())
    watch: ClientWatch | None = None
    peer: str = ""
    """The address of the connection, where a trusted proxy says that the client has another."""
    identity: Identity = attrs.field(factory=Identity)
    audit: AuditTrail = attrs.field(factory=NoAuditTrail)
    recorded: list[str] | None = None
    """The actions of which a record was kept; None where nobody asks."""
    trace_entry: TraceEntry | None = None
    admit: Callable[[], Any] | None = None
    """Begins a request for each message of a WebSocket, within the limits of its key."""
    admit_more: Callable[[int], HttpProblem | None] | None = None
    """Counts so many more answers to this request within the limits of its key, or says why not."""
    open_body: Callable[[], DirectBody | None] = lambda: None
    """Opens the body of the response that has begun, if pieces can go past hypercorn."""
    raw_response: RawResponse | None = None
    """The response, for bytes that are others'; it has not begun."""
    written_head: WrittenHead | None = None
    upgrade: Upgrade | None = None
    """Of a request that asks for a WebSocket on a port that passes those on."""
    passable: PassableConnection | None = None
    """The connection, where another process may answer."""
    websocket: BoundedWebSocket | None = None
    """The WebSocket, for frames that are written at once and texts that are taken as they come."""
    arrivals: Arrivals | None = None
    """When the other end of a WebSocket last sent something."""
    _request_id: str = attrs.field(default="", init=False)

    def __repr__(self) -> str:
        return f"<Exchange {self.scope.get('method', 'WebSocket')} {self.path}>"

    # ------------------------------------------------------------------------------ the head

    @property
    def is_http(self) -> bool:
        return bool(self.scope["type"] == "http")

    @property
    def is_websocket(self) -> bool:
        return bool(self.scope["type"] == "websocket")

    @property
    def method(self) -> str:
        """The method; ``WebSocket`` of one."""
        return str(self.scope.get("method", "WebSocket"))

    @property
    def path(self) -> str:
        """The path, percent-decoded."""
        return str(self.scope["path"])

    @property
    def query(self) -> bytes:
        """Return the part of the target behind the question mark."""
        return bytes(self.scope.get("query_string", b""))

    @property
    def subprotocols(self) -> Sequence[str]:
        """The subprotocols that a WebSocket's client offers."""
        offered: Sequence[str] = self.scope["subprotocols"]
        return offered

    @property
    def headers(self) -> list[Header]:
        """All header fields, names in lower case, in their order."""
        headers: list[Header] = self.scope["headers"]
        return headers

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header ``name`` (lower case), or None."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    @property
    def client_watch(self) -> ClientWatch:
        """Return the watch of what the client sends; there is one for every request that our own
        server serves.
        """
        assert self.watch is not None, "a server of ours watches its clients"
        return self.watch

    def check_announced(self, limit_bytes: int) -> None:
        """Raise BodyTooLargeError, before any of the body is read, if its ``Content-Length`` is
        over the limit."""
        announced = self.header(b"content-length")
        if announced is not None and int(announced) > limit_bytes:  # h11 let only digits through
            raise BodyTooLargeError(limit_bytes, announced_bytes=int(announced))

    @property
    def has_body(self) -> bool:
        """Return whether the request announces a body of at least one byte."""
        if self.header(b"transfer-encoding") is not None:
            return True
        return int(self.header(b"content-length") or 0) > 0  # h11 let only digits through

    @property
    def client(self) -> tuple[str, int]:
        """The address and the port of the other end of the connection."""
        host, port = (self.scope.get("client") or ("unknown", 0))[:2]
        return str(host), int(port)

    @property
    def request_id(self) -> str:
        """The client's name of the request if it has an acceptable one, else a name of ours."""
        if not self._request_id:
            given = self.header(REQUEST_ID_HEADER)
            is_good = given is not None and _ACCEPTED_ID.fullmatch(given) is not None
            self._request_id = (
                given.decode() if given and is_good else "req_" + secrets.token_hex(16)
            )
        return self._request_id

    @property
    def written(self) -> WrittenHead:
        """The head as it was spelled; what ASGI has of it where nobody noted that."""
        if self.written_head is not None:
            return self.written_head
        target = self.scope["raw_path"] + (b"?" + self.query if self.query else b"")
        names = [name for name, _ in self.headers]
        return WrittenHead(self.method.encode("ascii"), target, names)

    async def send_encoded(self, text: bytes) -> None:
        """Send a text that is encoded already over the WebSocket."""
        if self.websocket is not None:
            await self.websocket.send_text(text)
        else:
            await self.send({"type": "websocket.send", "text": text.decode()})

    def seen_as(self, **members: object) -> Exchange:
        """Return the same exchange with other members of its scope, such as ``path``.

        What guards note on one of the two afterwards is not on the other, but for the identity.
        """
        other = copy.copy(self)
        other.scope = {**self.scope, **members}
        return other

    def part(self) -> None:
        """Let go of the connection at the end, so that no collector has to find a cycle."""
        self.room.close()
        self.receive = self.send = _ended
        self.open_body = lambda: None
        self.watch = self.arrivals = None
        self.raw_response = self.upgrade = self.passable = self.websocket = None


Params: TypeAlias = Mapping[str, str]
"""Parameters of a route's path."""
App: TypeAlias = Callable[[Exchange], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[Any]]
Refuse: TypeAlias = Callable[[Exchange, HttpProblem], Awaitable[None]]
"""Answers an HTTP request with a refusal."""


async def _ended(*_: object) -> Any:
    raise ClientGoneError("the exchange has ended")


async def refuse_in_plain_text(exchange: Exchange, problem: HttpProblem) -> None:
    """Refuse as Paddler's routes do."""
    await send_text(exchange.send, problem.status, problem.text, headers=problem.headers)

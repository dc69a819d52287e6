"""The part of ASGI that the balancer's own routes need: types, request bodies, responses.

A handler is an ordinary coroutine over ``scope``, ``receive`` and ``send``. `read_body` turns every
misuse of a request body into the refusal that Paddler gives; the ``send_*`` functions set the
``Content-Length``.

A handler may raise two exceptions: ``HttpProblem``, a refusal with its status and text, and
``ClientGoneError``, when the client has left. The router answers the first and drops the second, so
a handler catches neither.

The aliases keep ASGI's ``Any``: a message is an open mapping whose values depend on its ``type``,
and Quart's and hypercorn's applications are typed no better.

A response whose bytes are somebody else's: status line, headers and framing go out as given.

Hypercorn and h11 would write a response in their own way: names in lower case, a ``Date`` of ours,
chunks of ours. What a server answers that stands behind us is not for us to rephrase. They are told
that there is a response, so that they know what may follow on the connection, and nothing that they
would write of it is written.

The bytes of another protocol that a client sends once its request was answered with 101.

Nothing here reads them. The connection's reader puts them in, whoever answered takes them out; a
side that does not take them makes the reader wait, and so the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.net.server.input_budget import UploadDeadline
from paddler_trio.wire import codec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

BODY_DEADLINE_S = 60.0
"""How long a client may take to send a whole body."""

TEXT_PLAIN = b"text/plain; charset=utf-8"


class HttpProblem(PaddlerError):  # noqa: N818  # a response to send, not a fault of ours
    """A refusal; ``status`` and ``text`` (UTF-8, may be empty) are the whole response."""

    def __init__(self, status: int, text: str, headers: Iterable[Header] = ()) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text
        self.headers = tuple(headers)


class BodyTooLargeError(HttpProblem):
    """413: a body is longer than ``limit_bytes``; its ``Content-Length`` is ``announced_bytes``."""

    def __init__(self, limit_bytes: int, *, announced_bytes: int | None = None) -> None:
        super().__init__(413, f"Request body is over the limit of {limit_bytes} bytes")
        self.announced_bytes = announced_bytes


class ClientGoneError(PaddlerError):
    """The client closed its connection, or did not read before the write deadline."""


# ---------------------------------------------------------------------------- request bodies


async def read_body(receive: Receive, *, limit_bytes: int, deadline_s: float) -> bytearray:
    """Read one whole request body as it came over the wire.

    Errors:
      HttpProblem: 413 as soon as more than ``limit_bytes`` arrived; 408 when the body is not
        complete ``deadline_s`` after the call, or reserves room and arrives too slowly; 503 when
        the input budget has no room for it.
      ClientGoneError: the client left in the middle of its body.
    """
    body = bytearray()  # not a list of pieces: a client could send one byte in each
    began_s = trio.current_time()
    upload = UploadDeadline(began_s, deadline_s)
    with trio.CancelScope(deadline=upload.deadline_s) as reading:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError(f"client left after {len(body)} bytes of its request body")
            piece = message.get("body", b"")
            if len(body) + len(piece) > limit_bytes:
                raise BodyTooLargeError(limit_bytes)
            body += piece
            if not message.get("more_body", False):
                return body
            upload.received(len(piece), trio.current_time())
            reading.deadline = upload.deadline_s
    waited_s = trio.current_time() - began_s
    raise HttpProblem(408, f"Request body incomplete after {waited_s:.3g} s ({len(body)} bytes)")


def is_json_media_type(value: bytes | None) -> bool:
    """Return whether a ``Content-Type`` has the subtype ``json`` or one that ends in ``+json``."""
    if value is None:
        return False
    kind, slash, subtype = value.split(b";", 1)[0].strip().lower().partition(b"/")
    return bool(kind and slash) and (subtype == b"json" or subtype.endswith(b"+json"))


# --------------------------------------------------------------------------------- responses


async def send_bytes(
    send: Send, status: int, body: bytes, *, content_type: bytes, headers: Iterable[Header] = ()
) -> None:
    """Answer with ``body`` in one piece."""
    framing = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await _send(send, status, [*framing, *headers], body)


def without_body(send: Send) -> Send:
    """``send`` for a ``HEAD``: what a ``GET`` is answered with, but for the bytes of its body."""

    async def send_head(message: Message) -> None:
        is_body = message["type"] == "http.response.body"
        await send({**message, "body": b""} if is_body else message)

    return send_head


async def send_text(send: Send, status: int, text: str, *, headers: Iterable[Header] = ()) -> None:
    """Answer with plain UTF-8 text."""
    await send_bytes(send, status, text.encode(), content_type=TEXT_PLAIN, headers=headers)


async def send_json(
    send: Send, status: int, value: object, *, headers: Iterable[Header] = ()
) -> None:
    """Answer with compact JSON; ``value`` is plain data, or ``bytes`` that are JSON already.

    Errors:
      WireError: ``value`` holds something that JSON has no notation for, such as NaN.
    """
    body = value if isinstance(value, bytes) else codec.dumps(value)
    await send_bytes(send, status, body, content_type=b"application/json", headers=headers)


async def send_empty(send: Send, status: int, *, headers: Iterable[Header] = ()) -> None:
    """Answer without a body (a 204 carries no ``Content-Length``, as HTTP asks)."""
    framing = [] if status == 204 else [(b"content-length", b"0")]
    await _send(send, status, [*framing, *headers], b"")


async def _send(send: Send, status: int, headers: list[Header], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Of a head, names in lower case."""


class RawResponse(Protocol):
    """One response, written whole, or cut by a handler that returns without ``end``."""

    @property
    def must_close(self) -> bool:
        """No other request may follow: the head has to say so."""
        ...

    async def begin(self, send: Send, status: int, *, closes: bool) -> Fields:
        """Nothing that is sent by ASGI is written from now on. ``closes``: the end of the body is
        the end of the connection.

        Returns:
          What those between the application and the server (``send``) have added to the head: it is
          for the caller to write.
        """
        ...

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; whether the kernel took all of it. The rest goes out before what
        is written next: await a ``write`` soon, of nothing if need be. ClientGoneError."""
        ...

    async def write(self, data: bytes) -> None:
        """Within the write deadline; ClientGoneError when the client left or does not read."""
        ...

    async def end(self, send: Send) -> None:
        """All of it was written."""
        ...

    def abort(self) -> None:
        """Reset the connection: of a body that ends with it, the client has only a part."""
        ...


AHEAD_BYTES: Final = 65_536
"""Beyond these, the client is not read; one read more may be held."""


@attrs.define(eq=False)
class Upgrade:
    """See the module docstring."""

    is_switched: bool = attrs.field(default=False, init=False)
    """The request was answered with 101."""
    is_closed: bool = attrs.field(default=False, init=False)
    """By the client, on its side."""
    on_close: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Called in the step in which that is seen, perhaps more than once."""
    _pieces: deque[bytes] = attrs.field(factory=deque, init=False)
    _held_bytes: int = attrs.field(default=0, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "switched" if self.is_switched else "asked for"
        return f"<Upgrade {state}, {self._held_bytes} bytes held>"

    def put(self, data: bytes) -> None:
        """Add what was read; after the end it is dropped."""
        if not self._has_ended:
            self._pieces.append(data)
            self._held_bytes += len(data)
            self._arrived.unpark_all()

    @property
    def is_full(self) -> bool:
        """`wait_room` has to come before more is read."""
        return self._held_bytes > AHEAD_BYTES and not self._has_ended

    async def wait_room(self) -> None:
        """Until what is held was taken, or nobody takes it any more."""
        while self.is_full:
            await self._taken.park()

    async def take(self) -> bytes:
        """Wait for all that is there; empty at the end, when everything before it was taken."""
        while not self._pieces:
            if self._has_ended:
                return b""
            await self._arrived.park()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        self._taken.unpark_all()
        return data

    def close(self) -> None:
        """The client has closed its side; what it sent before may not have been read yet."""
        self.is_closed = True
        if self.on_close is not None:
            self.on_close()

    def end(self) -> None:
        """Nothing comes any more, or nobody takes it. Safe to repeat."""
        self.close()
        self._has_ended = True
        self._arrived.unpark_all()
        self._taken.unpark_all()

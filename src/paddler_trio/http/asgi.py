"""The little of ASGI that the balancer's own routes need: types, request bodies, responses.

A route is an ordinary coroutine over ``scope``, ``receive`` and ``send``. It reads its body here,
where every way a client can misuse one is already turned into the answer Paddler gives, and it
answers here, where no response leaves without a ``Content-Length``.

Two things a route may meet are exceptions: ``HttpProblem``, a refusal with its status and text,
and ``ClientGoneError``, after which there is nobody to answer. `Routes` turns the first into a
response and the second into silence, so a route never catches either.

The aliases keep ASGI's ``Any``: a message is an open mapping whose values depend on its ``type``,
and Quart's and hypercorn's applications are typed no better.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias, TypeVar

import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.http.input_budget import PrefillController
from paddler_trio.wire import codec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
T = TypeVar("T")

BODY_DEADLINE_S = 60.0
"""How long a client may take to send a whole body."""

TEXT_PLAIN = b"text/plain; charset=utf-8"


class HttpProblem(PaddlerError):  # noqa: N818  # an answer to give, not a fault of ours
    """A request is refused: ``status`` and ``text`` (UTF-8, may be empty) are the whole answer."""

    def __init__(self, status: int, text: str, headers: Iterable[Header] = ()) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text
        self.headers = tuple(headers)


class ClientGoneError(PaddlerError):
    """The client closed its connection, or did not read before the write deadline."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of the header ``name`` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


# ---------------------------------------------------------------------------- request bodies


async def read_body(receive: Receive, *, limit_bytes: int, deadline_s: float) -> bytearray:
    """Read one whole request body as it came over the wire.

    Errors:
      HttpProblem: 413 as soon as more than ``limit_bytes`` arrived; 408 when the body is not
        complete ``deadline_s`` after the call, or holds room and comes too slowly; 503 when there
        is no room for it.
      ClientGoneError: the client left in the middle of its body.
    """
    body = bytearray()  # not a list of pieces: a client could send one byte in each
    began_s = trio.current_time()
    pace = PrefillController(began_s, deadline_s)
    with trio.CancelScope(deadline=pace.deadline_s) as patience:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError(f"client left after {len(body)} bytes of its request body")
            piece = message.get("body", b"")
            if len(body) + len(piece) > limit_bytes:
                raise too_large(limit_bytes)
            body += piece
            if not message.get("more_body", False):
                return body
            pace.came(len(piece), trio.current_time())
            patience.deadline = pace.deadline_s
    waited_s = trio.current_time() - began_s
    raise HttpProblem(408, f"Request body incomplete after {waited_s:.3g} s ({len(body)} bytes)")


def too_large(limit_bytes: int) -> HttpProblem:
    """A body that is longer than it may be."""
    return HttpProblem(413, f"Request body is over the limit of {limit_bytes} bytes")


def is_json_media_type(value: bytes | None) -> bool:
    """Tell whether a ``Content-Type`` has the subtype ``json`` or one that ends in ``+json``."""
    if value is None:
        return False
    kind, slash, subtype = value.split(b";", 1)[0].strip().lower().partition(b"/")
    return bool(kind and slash) and (subtype == b"json" or subtype.endswith(b"+json"))


async def watch_disconnect(receive: Receive, on_gone: Callable[[], None]) -> None:
    """Call ``on_gone`` once when the client leaves; run it beside a response, body already read.

    Cancel it *before* the last piece of the response: the server reports the end of a request
    as a disconnect too, and a watcher still listening would cancel the send that ends it.
    """
    while True:
        message = await receive()
        if message["type"] in {"http.disconnect", "websocket.disconnect"}:
            on_gone()
            return


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work``, which is cancelled when the client leaves; body already read.

    Errors:
      ClientGoneError: the client left first.
      Exception: whatever ``work`` raises, as it raised it.
    """
    results: list[T] = []
    failures: list[Exception] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_disconnect, receive, nursery.cancel_scope.cancel)
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001  # raised below, without the nursery's group
            failures.append(error)
        nursery.cancel_scope.cancel(reason="the work is done")
    if failures:
        raise failures[0]
    if not results:
        raise ClientGoneError("client left before its answer was computed")
    return results[0]


# --------------------------------------------------------------------------------- responses


async def send_bytes(
    send: Send, status: int, body: bytes, *, content_type: bytes, headers: Iterable[Header] = ()
) -> None:
    """Answer with ``body`` in one piece."""
    framing = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await _send(send, status, [*framing, *headers], body)


async def send_text(send: Send, status: int, text: str, *, headers: Iterable[Header] = ()) -> None:
    """Answer with plain UTF-8 text."""
    await send_bytes(send, status, text.encode(), content_type=TEXT_PLAIN, headers=headers)


async def send_json(
    send: Send, status: int, value: object, *, headers: Iterable[Header] = ()
) -> None:
    """Answer with compact JSON; ``value`` is plain data, or ``bytes`` that are JSON already.

    Errors:
      WireError: ``value`` holds something JSON cannot say, such as NaN.
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

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

import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias, TypeVar

import trio

from paddler_trio.errors import PaddlerError, WireError
from paddler_trio.wire import codec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
T = TypeVar("T")

MAX_JSON_BODY_BYTES = 2_097_152
"""What Paddler accepts as a JSON body, counted after decompression."""

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


async def read_body(receive: Receive, *, limit_bytes: int, deadline_s: float) -> bytes:
    """Read one whole request body as it came over the wire.

    Errors:
      HttpProblem: 413 as soon as more than ``limit_bytes`` arrived, 408 when the body is not
        complete ``deadline_s`` after the call.
      ClientGoneError: the client left in the middle of its body.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    with trio.move_on_after(deadline_s):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError(f"client left after {size_bytes} bytes of its request body")
            piece = message.get("body", b"")
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise _too_large(limit_bytes)
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)
    raise HttpProblem(408, f"Request body incomplete after {deadline_s:g} s ({size_bytes} bytes)")


async def json_body(
    scope: Scope,
    receive: Receive,
    *,
    limit_bytes: int = MAX_JSON_BODY_BYTES,
    deadline_s: float = BODY_DEADLINE_S,
) -> object:
    """Read a JSON body under the rules every Paddler service shares.

    The media type must be JSON, the body at most ``limit_bytes`` both compressed and after
    decompression, and its text one JSON document.

    Errors:
      HttpProblem: 400 ``Content type error``, 400 ``Json deserialize error: ...``, 408, 413, or
        415 for a content encoding other than gzip and deflate.
      ClientGoneError: the client left in the middle of its body.
    """
    if not is_json_media_type(header(scope, b"content-type")):
        raise HttpProblem(400, "Content type error")
    announced = header(scope, b"content-length")
    if announced is not None and int(announced) > limit_bytes:  # h11 let only digits through
        raise _too_large(limit_bytes)
    body = await read_body(receive, limit_bytes=limit_bytes, deadline_s=deadline_s)
    plain = decompress(body, header(scope, b"content-encoding"), limit_bytes=limit_bytes)
    try:
        return codec.loads(plain)
    except WireError as error:
        raise HttpProblem(400, f"Json deserialize error: {error}") from error


def is_json_media_type(value: bytes | None) -> bool:
    """Tell whether a ``Content-Type`` has the subtype ``json`` or one that ends in ``+json``."""
    if value is None:
        return False
    kind, slash, subtype = value.split(b";", 1)[0].strip().lower().partition(b"/")
    return bool(kind and slash) and (subtype == b"json" or subtype.endswith(b"+json"))


def decompress(body: bytes, encoding: bytes | None, *, limit_bytes: int) -> bytes:
    """Undo one ``Content-Encoding``; never hold more than ``limit_bytes`` + 1 of the result.

    Errors:
      HttpProblem: 413 when the result is longer than ``limit_bytes``, 400 when the data is
        damaged or cut short, 415 for an encoding other than identity, gzip and deflate.
    """
    name = (encoding or b"identity").strip().lower()
    if name == b"identity":
        return body
    if name not in {b"gzip", b"x-gzip", b"deflate"}:
        supported = "identity, gzip and deflate are supported"
        raise HttpProblem(415, f"Content encoding {name.decode('latin-1')!r}: {supported}")
    # "deflate" means zlib's framing; some clients send the bare stream, told by its first byte.
    bare = name == b"deflate" and (not body or body[0] & 0x0F != zlib.DEFLATED)
    inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise HttpProblem(400, f"Content encoding error: {error}") from error
    if len(plain) > limit_bytes:
        raise _too_large(limit_bytes)
    if not inflater.eof or inflater.unused_data:
        raise HttpProblem(400, "Content encoding error: not exactly one complete stream")
    return plain


def _too_large(limit_bytes: int) -> HttpProblem:
    return HttpProblem(413, f"Request body is over the limit of {limit_bytes} bytes")


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

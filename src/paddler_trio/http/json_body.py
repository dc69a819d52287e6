"""Request bodies that are JSON: read, inflated, counted, decoded and checked, each within limits.

What is short is done where it arrived. The rest is done in the thread that the budget of all inputs
has for it, up to the value that the route wants: neither decoding nor checking a large body makes
the event loop wait.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar

from paddler_trio.errors import PaddlerError, WireError
from paddler_trio.http.asgi import (
    BODY_DEADLINE_S,
    App,
    ClientGoneError,
    HttpProblem,
    Message,
    Receive,
    Scope,
    Send,
    header,
    is_json_media_type,
    read_body,
    send_text,
    too_large,
)
from paddler_trio.http.client_identity import named_client
from paddler_trio.http.input_budget import (
    INLINE_BYTES,
    INPUT,
    RETRY_AFTER_S,
    BudgetSpentError,
    InputBudget,
    Reservation,
)
from paddler_trio.wire import codec
from paddler_trio.wire.json_limits import DEFAULT_LIMITS, JsonLimitError, JsonLimits, decoded_bytes

MAX_JSON_BODY_BYTES = 2_097_152
"""What Paddler accepts as a JSON body, counted after decompression."""

MAX_INFLATION = 100
"""Bytes out of one byte, beyond the first ``FREE_INFLATED_BYTES``: prose shrinks to a third, a
conversation that repeats itself to a fiftieth; zeros to a thousandth."""
FREE_INFLATED_BYTES = 1_048_576

T = TypeVar("T")


class UnreadableJsonError(PaddlerError):
    """A body is no JSON (400), or more of it than is decoded (413); ``status`` says which."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def json_body(
    scope: Scope,
    receive: Receive,
    read: Callable[[object], T],
    *,
    limit_bytes: int = MAX_JSON_BODY_BYTES,
    deadline_s: float = BODY_DEADLINE_S,
) -> T:
    """Read a JSON body under the rules every Paddler service shares.

    The media type must be JSON, the body at most ``limit_bytes`` both compressed and after
    decompression, and its text one JSON document within ``DEFAULT_LIMITS``.

    Args:
      read: makes of the value what the route wants; it may run in a thread.

    Errors:
      HttpProblem: 400 ``Content type error``, 400 ``Json deserialize error: ...``, 408, 413, 503,
        or 415 for a content encoding other than gzip and deflate; or what ``read`` raises.
      ClientGoneError: the client left in the middle of its body.
    """
    if not is_json_media_type(header(scope, b"content-type")):
        raise HttpProblem(400, "Content type error")
    announced = header(scope, b"content-length")
    if announced is not None and int(announced) > limit_bytes:  # h11 let only digits through
        raise too_large(limit_bytes)
    body = await read_body(receive, limit_bytes=limit_bytes, deadline_s=deadline_s)
    try:
        return await understood(scope, body, read, limit_bytes=limit_bytes)
    except UnreadableJsonError as error:
        raise HttpProblem(error.status, f"Json deserialize error: {error}") from error


def input_of(scope: Scope) -> Reservation:
    """What this request holds of the budget; a budget of its own where no server gave it one.

    From here on its client is the one among whom the queue is fair, if it has a name.
    """
    extensions = scope.get("extensions", {})
    room: Reservation | None = extensions.get(INPUT)
    if room is None:
        room = InputBudget().reservation()
        scope["extensions"] = {**extensions, INPUT: room}
    room.client = named_client(scope) or room.client
    return room


async def understood(
    scope: Scope,
    body: bytearray,
    read: Callable[[object], T],
    *,
    limit_bytes: int,
    limits: JsonLimits = DEFAULT_LIMITS,
) -> T:
    """What ``read`` makes of the JSON in ``body``, which is as it came over the wire.

    Errors:
      UnreadableJsonError: it is no JSON, or over ``limits``.
      HttpProblem: 400, 413 or 415 for its content encoding; 503 without room for what is in it.
    """
    room = input_of(scope)
    encoding = header(scope, b"content-encoding")
    inflating = Inflating.of(body, encoding, limit_bytes=limit_bytes)
    try:
        if inflating is not None:
            text = inflating.start()
            if not inflating.is_complete:
                text = await room.off_loop(inflating.finish)
            room.grow(len(text) - len(body))
        else:
            text = body

        def decode() -> tuple[T, int]:
            return _decoded(text, read, limits)

        if len(text) <= INLINE_BYTES:
            value, size_bytes = decode()
        else:
            value, size_bytes = await room.off_loop(decode)
        room.grow(max(0, size_bytes - len(text)))
    except BudgetSpentError as spent:
        raise no_room(spent) from spent
    return value


def no_room(spent: BudgetSpentError) -> HttpProblem:
    """The refusal of a request for which the budget has no room."""
    return HttpProblem(503, str(spent), [(b"retry-after", b"%d" % RETRY_AFTER_S)])


def _decoded(text: bytearray, read: Callable[[object], T], limits: JsonLimits) -> tuple[T, int]:
    try:
        size_bytes = decoded_bytes(text, limits)
        value = codec.loads(text, limits)
    except JsonLimitError as error:
        raise UnreadableJsonError(413, str(error)) from error
    except WireError as error:
        raise UnreadableJsonError(400, str(error)) from error
    return read(value), size_bytes


def decompress(body: bytes | bytearray, encoding: bytes | None, *, limit_bytes: int) -> bytearray:
    """Undo one ``Content-Encoding`` here and now; see :class:`Inflating` for the errors."""
    inflating = Inflating.of(body, encoding, limit_bytes=limit_bytes)
    if inflating is None:
        return bytearray(body)
    text = inflating.start()
    return text if inflating.is_complete else inflating.finish()


class Inflating:
    """One compressed body, inflated within a limit and a ratio: its beginning, then the rest."""

    def __init__(self, body: bytes | bytearray, wbits: int, *, limit_bytes: int) -> None:
        self._inflater = zlib.decompressobj(wbits=wbits)
        self._body = body
        self._limit_bytes = limit_bytes
        self._ratio_bytes = FREE_INFLATED_BYTES + MAX_INFLATION * len(body)
        self._plain = bytearray()
        self.is_complete = False

    @classmethod
    def of(
        cls, body: bytes | bytearray, encoding: bytes | None, *, limit_bytes: int
    ) -> Inflating | None:
        """None for a body that is not compressed; HttpProblem 415 for an unknown encoding."""
        name = (encoding or b"identity").strip().lower()
        if name == b"identity":
            return None
        if name not in {b"gzip", b"x-gzip", b"deflate"}:
            supported = "identity, gzip and deflate are supported"
            raise HttpProblem(415, f"Content encoding {name.decode('latin-1')!r}: {supported}")
        # "deflate" means zlib's framing; some clients send the bare stream, told by its first byte.
        bare = name == b"deflate" and (not body or body[0] & 0x0F != zlib.DEFLATED)
        return cls(body, -zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32, limit_bytes=limit_bytes)

    def start(self) -> bytearray:
        """As much as is inflated in no time; all of it if ``is_complete`` then.

        Errors:
          HttpProblem: 413 when the result is over the limit or the ratio, 400 when the data is
            damaged or cut short.
        """
        self._inflate(self._body, INLINE_BYTES)
        self.is_complete = not self._inflater.unconsumed_tail and self._is_whole()
        return self._plain

    def finish(self) -> bytearray:
        """The whole; the errors of ``start``."""
        most_bytes = min(self._limit_bytes, self._ratio_bytes)
        self._inflate(self._inflater.unconsumed_tail, most_bytes + 1 - len(self._plain))
        if not self._is_whole():
            raise HttpProblem(400, "Content encoding error: not exactly one complete stream")
        return self._plain

    def _inflate(self, data: bytes | bytearray, most_bytes: int) -> None:
        try:
            self._plain += self._inflater.decompress(data, max(1, most_bytes))
        except zlib.error as error:
            raise HttpProblem(400, f"Content encoding error: {error}") from error
        if len(self._plain) > self._limit_bytes:
            raise too_large(self._limit_bytes)
        if len(self._plain) > self._ratio_bytes:
            raise HttpProblem(
                413,
                f"Request body of {len(self._body)} bytes inflates to more than "
                f"{self._ratio_bytes}: at most {MAX_INFLATION} bytes out of one are taken; send "
                "it without compression",
            )

    def _is_whole(self) -> bool:
        return self._inflater.eof and not self._inflater.unused_data


def whole_body_first(app: App) -> App:
    """Read the body before ``app`` sees the request, for applications that read bodies their own
    way: the same limits hold, and the same refusals are given."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            body = await read_body(
                receive, limit_bytes=MAX_JSON_BODY_BYTES, deadline_s=BODY_DEADLINE_S
            )
        except HttpProblem as problem:
            await send_text(send, problem.status, problem.text, headers=problem.headers)
            return
        except ClientGoneError:
            return
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def receive_whole() -> Message:
            nonlocal first
            if first is None:
                return await receive()
            message, first = first, None
            return message

        await app(scope, receive_whole, send)

    return answer

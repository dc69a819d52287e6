"""Request bodies that are JSON: read, inflated, counted, decoded and checked, each within limits.

All routes read their bodies here, whichever API they belong to. A short body is decoded at once. A
large one is decoded and checked in the thread that the input budget has for it, so that the event
loop does not wait.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import (
    BODY_DEADLINE_S,
    BodyTooLargeError,
    HttpProblem,
    is_json_media_type,
)
from paddler_trio.net.server.client_identity import named_client
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import (
    INLINE_BYTES,
    BudgetSpentError,
    Reservation,
)
from paddler_trio.net.server.streaming import while_connected, whole_body
from paddler_trio.wire import codec
from paddler_trio.wire.json_limits import DEFAULT_LIMITS, JsonLimitError, JsonLimits, decoded_bytes

MAX_JSON_BODY_BYTES = 2_097_152
"""What Paddler accepts as a JSON body, counted after decompression."""

MAX_INFLATION = 100
"""Bytes out of one byte, beyond the first ``FREE_INFLATED_BYTES``: prose shrinks to a third, a
conversation that repeats itself to a fiftieth, zeros to a thousandth."""
FREE_INFLATED_BYTES = 1_048_576

T = TypeVar("T")


class MediaTypeError(HttpProblem):
    """400: a body does not come as JSON; ``media_type`` is its ``Content-Type``, if it has one."""

    def __init__(self, media_type: bytes | None) -> None:
        super().__init__(400, "Content type error")
        self.media_type = media_type


class UnreadableJsonError(HttpProblem):
    """A body is no JSON (400), or has more of it than is decoded (413); ``reason`` says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, f"Json deserialize error: {reason}")
        self.reason = reason


async def json_body(
    exchange: Exchange,
    read: Callable[[object], T],
    *,
    limit_bytes: int = MAX_JSON_BODY_BYTES,
    limits: JsonLimits = DEFAULT_LIMITS,
    deadline_s: float = BODY_DEADLINE_S,
    any_media_type: bool = False,
) -> T:
    """Read a JSON body under the rules that all services share.

    The media type must be JSON, the body at most ``limit_bytes`` both compressed and after
    decompression, and its text one JSON document within ``limits``.

    Args:
      read: turns the document into the value that the route needs; it may run in a thread.
      any_media_type: a body of another type, as ``curl -d`` sends it, is taken if it is JSON; see
        :func:`is_of_program`.

    Errors:
      HttpProblem: `MediaTypeError`, `UnreadableJsonError`, `BodyTooLargeError`, 408, 503, or 415
        for a content encoding other than gzip and deflate; or what ``read`` raises.
      ClientGoneError: the client left before its body was decoded.
    """
    if not any_media_type:
        check_media_type(exchange)
    exchange.check_announced(limit_bytes)
    body = await whole_body(exchange, limit_bytes=limit_bytes, deadline_s=deadline_s)
    decode = partial(decoded, exchange, body, read, limit_bytes=limit_bytes, limits=limits)
    try:
        if len(body) <= INLINE_BYTES and exchange.header(b"content-encoding") is None:
            return await decode()
        return await while_connected(exchange, decode)  # its turn in the thread may be far away
    except UnreadableJsonError:
        check_media_type(exchange)  # that it does not come as JSON explains it better
        raise


async def program_body(
    exchange: Exchange, read: Callable[[object], T], *, limit_bytes: int = MAX_JSON_BODY_BYTES
) -> T:
    """Read the body of a request for inference: a program may leave its type out; the errors of
    ``json_body``."""
    return await json_body(
        exchange, read, limit_bytes=limit_bytes, any_media_type=is_of_program(exchange)
    )


def is_of_program(exchange: Exchange) -> bool:
    """Return whether no browser sent it, for which the type of a body is no formality: a page may
    send JSON as such only where it was allowed to."""
    return exchange.header(b"origin") is None and exchange.header(b"sec-fetch-site") is None


def check_media_type(exchange: Exchange) -> None:
    """MediaTypeError if the body does not come as JSON."""
    media_type = exchange.header(b"content-type")
    if not is_json_media_type(media_type):
        raise MediaTypeError(media_type)


def structured(value: object, shape: type[T], *, tag: str | None = None) -> T:
    """A body as a class of the wire; HttpProblem 400 with the path of what is wrong.

    ``tag``: on a link, the fields of the class stand under this name; in a body they do not.
    """
    try:
        return codec.structure(value if tag is None else {tag: value}, shape)
    except WireError as error:
        problem = str(error) if tag is None else str(error).replace(f"@ $.{tag}", "@ $")
        raise HttpProblem(400, f"Json deserialize error: {problem}") from error


def input_of(exchange: Exchange) -> Reservation:
    """Return the reservation of this request in the input budget.

    From here on it counts for the named client of the request, if it has one.
    """
    room = exchange.room
    room.client = named_client(exchange) or room.client
    return room


async def decoded(
    exchange: Exchange,
    body: bytes | bytearray,
    read: Callable[[object], T],
    *,
    limit_bytes: int,
    limits: JsonLimits = DEFAULT_LIMITS,
) -> T:
    """Return what ``read`` makes of the JSON in ``body``, whose bytes are those of the wire.

    Errors:
      UnreadableJsonError: it is no JSON, or over ``limits``.
      HttpProblem: 400, 413 or 415 for its content encoding; 503 without room for its content; or
        what ``read`` raises.
    """
    room = input_of(exchange)
    encoding = exchange.header(b"content-encoding")
    inflating = Inflating.of(body, encoding, limit_bytes=limit_bytes)
    text: bytes | bytearray = body
    try:
        if inflating is not None:
            text = inflating.start()
            if not inflating.is_complete:
                text = await room.off_loop(inflating.finish)
            room.grow(len(text) - len(body))

        def decode() -> tuple[T, int]:
            return _decode(text, read, limits)

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
    return HttpProblem(503, str(spent), [(b"retry-after", b"%d" % spent.retry_after_s)])


def _decode(
    text: bytes | bytearray, read: Callable[[object], T], limits: JsonLimits
) -> tuple[T, int]:
    try:
        size_bytes = decoded_bytes(text, limits)
        value = codec.loads(text, limits)
    except JsonLimitError as error:
        raise UnreadableJsonError(413, str(error)) from error
    except WireError as error:
        raise UnreadableJsonError(400, str(error)) from error
    return read(value), size_bytes


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
        # "deflate" means zlib's framing; the first byte shows whether a client left it out
        bare = name == b"deflate" and (not body or body[0] & 0x0F != zlib.DEFLATED)
        return cls(body, -zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32, limit_bytes=limit_bytes)

    def start(self) -> bytearray:
        """Inflate at most ``INLINE_BYTES`` and return the result, which is the whole if
        ``is_complete`` then.

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
            raise BodyTooLargeError(self._limit_bytes)
        if len(self._plain) > self._ratio_bytes:
            raise HttpProblem(
                413,
                f"Request body of {len(self._body)} bytes inflates to more than "
                f"{self._ratio_bytes}: at most {MAX_INFLATION} bytes out of one are taken; send "
                "it without compression",
            )

    def _is_whole(self) -> bool:
        return self._inflater.eof and not self._inflater.unused_data

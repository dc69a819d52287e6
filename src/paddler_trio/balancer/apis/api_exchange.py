"""One HTTP request to an API and its response: the body, and the headers of every response.

An exchange is independent of the API. It reads the body within the limits, makes or takes the
request id, and sends either one JSON document or the beginning of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

import attrs
import trio

from paddler_trio.balancer.activity.placement_words import reason_of, why
from paddler_trio.balancer.apis.api_errors import ApiError, from_problem, invalid
from paddler_trio.balancer.apis.fields import Record
from paddler_trio.balancer.apis.ignored_fields import HEADER, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.under_presets import OfPreset, filtered
from paddler_trio.balancer.fleet.deployment import ChosenPreset
from paddler_trio.balancer.front.end_user import user_in, user_of
from paddler_trio.net.server.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    Header,
    Message,
    send_json,
)
from paddler_trio.net.server.client_identity import client_of, note_timeout
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import INLINE_BYTES, BudgetSpentError, Reservation
from paddler_trio.net.server.json_body import (
    MediaTypeError,
    UnreadableJsonError,
    input_of,
    is_of_program,
    json_body,
    no_room,
)
from paddler_trio.net.server.streaming import body_writer, while_client_stays
from paddler_trio.scheduler.dispatch.slot_decisions import Choice
from paddler_trio.scheduler.dispatch.slot_ledger import Priority
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.json_limits import JsonLimits
from paddler_trio.wire.json_text import is_deeper, is_long, runs_of
from paddler_trio.wire.visible_text import visible

PORTION_BYTES: Final = 262_144
"""The bytes of an answer that are written before the client has read those before them."""

EXPLAIN_HEADER: Final = b"x-paddler-explain"
"""A request with it is told why the agent was chosen that answers it, if that is known when the
headers of its response are sent."""
PLACEMENT_HEADER: Final = b"x-paddler-placement"

T = TypeVar("T")
ReadBody: TypeAlias = Callable[[dict[str, object], ApiLimits, IgnoredFields], T]
FindPreset: TypeAlias = Callable[[object, "frozenset[str] | None"], "ChosenPreset | None"]
"""Returns the preset that a body's ``model`` names, if a key for these deployments may use it."""


@attrs.define(eq=False)
class ApiExchange:
    """See the module docstring.

    Args:
      http: the exchange.
      id: the client's name of this request, or ours; the response has it in ``id_headers``.
      tail: the part of the path that the route leaves open; empty on others.
      client, priority, user: as the queue counts it; a body that was read may name the user.
      allowed_deployments: the only ones that its key may use, deployments and presets; None for
        all.
      find_preset: of a model's name.
      is_exact: the response has what OpenAI's own schema has, and nothing else.
      ignored: collects the fields that change nothing; the response names them.
    """

    http: Exchange
    id: str
    tail: str
    client: str
    priority: Priority
    user: str = ""
    is_exact: bool = False
    id_headers: Sequence[bytes] = (b"x-request-id",)
    ignored: IgnoredFields = attrs.field(factory=IgnoredFields)
    allowed_deployments: frozenset[str] | None = None
    find_preset: FindPreset = lambda model, allowed: None
    preset: ChosenPreset | None = attrs.field(default=None, init=False)
    """The one that the body names, which has been set under it."""
    began_s: float = attrs.field(factory=trio.current_time, init=False)
    has_started: bool = attrs.field(default=False, init=False)
    held_bytes: int = attrs.field(default=0, init=False)
    """The bytes that are held of its answer."""
    revision: str | None = attrs.field(default=None, init=False)
    """The digest of what answers it, once an agent does; of several, the first."""
    placement: Choice | None = attrs.field(default=None, init=False)
    """Why that agent answers it; of several, the first."""
    on_revision: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """Called when that is known, before anything of the answer is read."""
    _timeout: object = attrs.field(default=None, init=False)
    """What the body has under this name."""
    _is_stream: bool = attrs.field(default=False, init=False)
    has_stored_items: bool = attrs.field(default=False, init=False)
    """The prompt is more than the body: stored items come before it."""

    @classmethod
    def open(
        cls,
        http: Exchange,
        *,
        tail: str = "",
        is_exact: bool = False,
        is_strict: bool = False,
        id_headers: Sequence[bytes] = (b"x-request-id",),
        find_preset: FindPreset = lambda model, allowed: None,
    ) -> ApiExchange:
        """``is_strict``: fields that would be ignored are refused.

        HttpProblem 400 for bad values of the client's or the priority's header."""
        client, priority = client_of(http)
        return cls(
            http=http,
            id=http.request_id,
            tail=tail,
            client=client,
            priority=priority,
            user=user_of(http),
            is_exact=is_exact,
            id_headers=id_headers,
            ignored=IgnoredFields(is_strict),
            allowed_deployments=http.identity.deployments,
            find_preset=find_preset,
        )

    @property
    def room(self) -> Reservation:
        """Return what this request holds of the budget of all inputs."""
        return input_of(self.http)

    @property
    def is_large(self) -> bool:
        """Return whether work on it belongs into a thread, so that the event loop does not wait."""
        return self.has_stored_items or self.room.used_bytes > INLINE_BYTES

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, computed off the event loop if the request is large."""
        return await self.run_long(work, is_long=False)

    async def run_long(self, work: Callable[[], T], *, is_long: bool) -> T:
        """Run as :meth:`run` does; ``is_long``: it takes long even if the request is small."""
        return await self.room.off_loop(work) if is_long or self.is_large else work()

    async def read(self, limits: ApiLimits, read: ReadBody[T]) -> T:
        """Return the value that ``read`` returns for the body, which must be one JSON object; under
        the preset that it names, if it names one.

        ``read`` may run in a thread.

        Errors:
          ApiError: 400 not JSON or not an object, 413 too large, 415 neither JSON nor announced as
            it; or what ``read`` raises.
          HttpProblem: 408, 503, or a content encoding that is damaged.
          ClientGoneError: the client left in the middle of its body.
        """
        value = await self._read(limits, read)
        # not where it was read, which may be another thread
        note_timeout(self.http, self._timeout, self.began_s, is_stream=self._is_stream)
        return value

    async def _read(self, limits: ApiLimits, read: ReadBody[T]) -> T:
        def read_object(body: object) -> T:
            if not isinstance(body, dict):
                raise ApiError(400, "the body must be a JSON object", code="invalid_json")
            check_nesting(body, limits.max_nesting)
            chosen = self.preset = self.find_preset(body.get("model"), self.allowed_deployments)
            if chosen is not None:
                body = filtered(chosen.preset, body, self.ignored)
            value = read(body, limits, self.ignored)
            if chosen is not None and isinstance(value, OfPreset):
                value = value.under(chosen.preset, self.ignored)
            self.user = self.user or user_in(body)
            self._timeout, self._is_stream = body.get("timeout"), body.get("stream") is True
            return value

        try:
            return await json_body(
                self.http,
                read_object,
                limit_bytes=limits.max_body_bytes,
                limits=JsonLimits(
                    max_values=limits.max_json_values, max_containers=limits.max_json_containers
                ),
                any_media_type=not self.ignored.is_strict or is_of_program(self.http),
            )
        except MediaTypeError as error:
            media_type = (error.media_type or b"nothing").decode("latin-1")[:80]
            raise ApiError(
                415,
                f"the content type is {media_type}; send the body as application/json",
                param=None,
            ) from error
        except BodyTooLargeError as error:
            if error.announced_bytes is None:
                raise
            raise ApiError(
                413,
                f"the request body has {error.announced_bytes} bytes, the limit max_body_bytes is "
                f"{limits.max_body_bytes}",
            ) from error
        except UnreadableJsonError as error:
            raise ApiError(
                error.status, f"the body is {error.reason}", code="invalid_json"
            ) from error

    async def read_record(
        self, limits: ApiLimits, record: Callable[[ApiLimits], Record]
    ) -> dict[str, object]:
        """Return the values of a body that ``record`` describes; the errors of ``read``."""
        return await self.read(
            limits, lambda body, limits, ignored: record(limits).read(body, "", ignored)
        )

    # ---------------------------------------------------------------- the response

    def hold(self, size_bytes: int, limits: ApiLimits) -> None:
        """Count ``size_bytes`` more of its answer in the budget of all.

        Errors:
          ApiError: 400 the answer is longer than one may be, 503 there is no room for it now.
        """
        if self.held_bytes + size_bytes > limits.max_answer_bytes:
            raise ApiError(
                400,
                f"the answer takes more than max_answer_bytes ({limits.max_answer_bytes}): ask for "
                "fewer tokens, choices or log probabilities at once",
                code="answer_too_long",
            )
        try:
            self.room.grow(size_bytes)
        except BudgetSpentError as spent:
            raise from_problem(no_room(spent)) from spent
        self.held_bytes += size_bytes

    def let_go(self, *, down_to: int) -> None:
        """No more than ``down_to`` bytes of its answer are held any more."""
        self.room.shrink(self.held_bytes - down_to)
        self.held_bytes = down_to

    async def send(self, message: Message) -> None:
        self.has_started = True
        await self.http.send(message)

    async def send_json(
        self, status: int, value: object, *, headers: Iterable[Header] = ()
    ) -> None:
        """Send the whole response as one JSON document; a large one as :meth:`send_pieces` does."""
        if self.is_large or is_long(value):
            await self.send_pieces(status, runs_of(value), headers=headers)
        else:
            await self.send_written(status, dumps(value), headers=headers)

    async def send_pieces(
        self,
        status: int,
        pieces: Iterator[bytes],
        *,
        headers: Iterable[Header] = (),
        is_long: bool = True,
    ) -> None:
        """Send a document in pieces: a short one at once, else portion by portion as the client
        reads, for the text is held by no budget. ``is_long``: it is made off the event loop, as
        that of a large request is. ClientGoneError."""

        def portion() -> bytes:
            written = bytearray()
            for piece in pieces:
                written += piece
                if len(written) >= PORTION_BYTES:
                    break
            return bytes(written)

        is_complete = False
        async with while_client_stays(self.http):
            first = written = await self.run_long(portion, is_long=is_long)
            if len(first) >= PORTION_BYTES:
                await self.begin(status, [(b"content-type", b"application/json"), *headers])
                write = body_writer(self.http)
                while written:
                    await write(written)
                    written = await self.run_long(portion, is_long=is_long)
            is_complete = True
        if not is_complete:
            raise ClientGoneError(f"client of {self.id} left")
        if len(first) < PORTION_BYTES:
            await self.send_written(status, first, headers=headers)
        else:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_written(
        self, status: int, body: bytes, *, headers: Iterable[Header] = ()
    ) -> None:
        """Send a document that is written already."""
        await send_json(self.send, status, body, headers=[*headers, *self._own_headers()])

    async def begin(self, status: int, headers: Iterable[Header]) -> None:
        """Send the status and the headers, ours included; the body is the caller's."""
        headers = [*headers, *self._own_headers()]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    def _own_headers(self) -> list[Header]:
        took_ms = round((trio.current_time() - self.began_s) * 1000)
        own = [
            *((name, self.id.encode()) for name in self.id_headers),
            (b"openai-processing-ms", b"%d" % took_ms),
            (b"openai-version", b"2020-10-01"),
        ]
        if (ignored := self.ignored.header()) is not None:
            own.append((HEADER, ignored))
        if self.placement is not None and self.http.header(EXPLAIN_HEADER) is not None:
            words = visible(why(reason_of(self.placement)))
            own.append((PLACEMENT_HEADER, words.encode("ascii", "replace")))
        return own


def check_nesting(body: dict[str, object], limit: int) -> None:
    """Raise ApiError 400 that names the field if containers in ``body`` nest more than ``limit``
    deep."""
    for name, value in body.items():
        if is_deeper(value, limit):
            raise invalid(f"{name} is nested deeper than max_nesting ({limit})", name)

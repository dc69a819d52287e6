"""Asks an upstream server how it is, and never anything that makes it load a model.

``/health`` comes first: it needs no key and wakes nobody. ``/slots`` is not for a llama-server that
sleeps, since it would wake up, and counts as use of it. So where nothing happens it is read less
and less often, and not at all once the server was seen asleep; what the server tells then is as old
as that, until a request of ours makes it young. Of a router only loaded models are asked, with
``autoload`` off.

Tell whose requests keep the slots of an upstream server busy: ours, or somebody else's.

What we sent and what has not ended is counted here; the server says how many of its slots are busy.
Both are true at different moments: while the server's answer is on its way, requests of ours start
and end. So the largest number that we had in flight meanwhile is taken off, and what is left counts
as somebody else's only when two answers in a row say so. Less is believed at once.

A request that we cancelled may keep its slot: some builds notice a closed connection late, or not
at all. Such a slot is ``still_generating`` until an answer has no room for it beside the fewest
that we had in flight, or for a bounded time. A request that waits in the server's own queue can
hide one: then it counts as somebody else's, once that request has its slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import attrs
import trio

from paddler_trio.agent.servers.upstream_state import (
    Reachability,
    ServerFacts,
    UnusableAnswerError,
    UpstreamModel,
    parse_busy_metric,
    parse_busy_slots,
    parse_error,
    parse_models,
    parse_props,
)
from paddler_trio.net.client.response_body import FailureKind, UpstreamError
from paddler_trio.net.client.upstream_client import UpstreamClient

LONGEST_AFTERLIFE_S: Final = 30.0
"""The afterlife of a cancelled request; a slot that is busy after that is somebody else's to us."""


@attrs.define(eq=False)
class SlotAccount:
    """Times are seconds of any clock that does not go back."""

    in_flight: int = attrs.field(default=0, init=False)
    """Requests that we sent and that have neither ended nor been cancelled."""
    busy_elsewhere: int = attrs.field(default=0, init=False)
    """Slots that others keep busy."""
    still_generating: int = attrs.field(default=0, init=False)
    """Slots that our cancelled requests may still keep busy."""
    _largest: int = attrs.field(default=0, init=False)
    _least: int = attrs.field(default=0, init=False)
    """The most and the fewest in flight since the read began."""
    _excess_before: int = attrs.field(default=0, init=False)
    _is_reading: bool = attrs.field(default=False, init=False)
    _cancelled: deque[float] = attrs.field(factory=deque, init=False)
    """The times at which those in ``still_generating`` were cancelled, the oldest first."""
    _num_readable: int = attrs.field(default=0, init=False)
    """The number of these that were cancelled before the read began."""

    @property
    def is_calm(self) -> bool:
        """Return whether nothing of ours is there, and the last answer had nothing of others."""
        return not (self.in_flight or self.still_generating or self._excess_before)

    def started(self) -> None:
        """Note that a request is about to be sent."""
        self.in_flight += 1
        self._largest = max(self._largest, self.in_flight)

    def ended(self, now_s: float, *, was_cancelled: bool) -> None:
        """Note that a request came to its end, or its connection was closed before."""
        assert self.in_flight, "more requests ended than were started"
        self.in_flight -= 1
        self._least = min(self._least, self.in_flight)
        if was_cancelled:
            self._cancelled.append(now_s)
            self.still_generating += 1

    def read_begins(self) -> None:
        """Note that the server is about to be asked."""
        self._is_reading = True
        self._largest = self._least = self.in_flight
        self._num_readable = len(self._cancelled)

    def read_ended(self, num_busy: int) -> None:
        """Note that the server answered that so many of its slots are busy."""
        assert self._is_reading, "an answer without a question"
        self._is_reading = False
        num_free = self._num_readable - max(0, num_busy - self._least)
        for _ in range(num_free):
            self._cancelled.popleft()
        self.still_generating = len(self._cancelled)
        excess = max(0, num_busy - self._largest - self.still_generating)
        self.busy_elsewhere = min(excess, self._excess_before)
        self._excess_before = excess

    def read_failed(self) -> None:
        """Note that there was no answer: what was known stays, and proves nothing with the next."""
        self._is_reading = False
        self._excess_before = self.busy_elsewhere

    def forget(self) -> None:
        """Note that the server tells nothing any more, or is a new process: only our count is
        left."""
        self._is_reading = False
        self.busy_elsewhere = self.still_generating = self._excess_before = 0
        self._cancelled.clear()
        self._num_readable = 0

    def expire(self, now_s: float) -> None:
        """Give up those that were cancelled too long ago."""
        while self._cancelled and self._cancelled[0] <= now_s - LONGEST_AFTERLIFE_S:
            self._cancelled.popleft()
            self._num_readable = max(0, self._num_readable - 1)
        self.still_generating = len(self._cancelled)


READ_S: Final = 3.0
MAX_BODY_BYTES: Final = 1024 * 1024
FACTS_S: Final = 30.0
"""The time between looks at what changes with the model only, while requests of ours are under
way."""
CALM_READS: Final = 6
"""Reads of ``/slots`` without anything in them; from then on each pause is twice the one before."""
FIRST_CALM_S: Final = 20.0
LONGEST_CALM_S: Final = 7200.0
MAX_ROUTED: Final = 8
"""Models of a router whose slots are counted."""
_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_NO_KEY: Final = frozenset({401, 403})


class ProbeFailedError(Exception):
    """The server did not answer, or nothing useful; ``is_final`` if nobody listens there."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


@attrs.frozen
class Found:
    """The findings of a probe; ``reason`` is for what is neither ready nor sleeping."""

    reachability: Reachability
    reason: str = ""


@attrs.define(eq=False)
class UpstreamProber:
    """Remembers what seldom changes.

    Args:
      has_key: a key is sent; for errors only.
      lets_sleep: the server may go to sleep while nothing happens, see above.
    """

    _client: UpstreamClient
    _account: SlotAccount
    has_key: bool = False
    lets_sleep: bool = False
    facts: ServerFacts | None = attrs.field(default=None, init=False)
    """None of a server that is no llama-server."""
    models: tuple[UpstreamModel, ...] = attrs.field(default=(), init=False)
    _facts_s: float | None = attrs.field(default=None, init=False)
    _lacks_slots: bool = attrs.field(default=False, init=False)
    _num_calm: int = attrs.field(default=0, init=False)
    _calm_until_s: float = attrs.field(default=0.0, init=False)

    @property
    def sees_slots(self) -> bool:
        """Return whether the server says how many of its slots are busy."""
        facts = self.facts
        return facts is not None and (not self._lacks_slots or facts.has_metrics is True)

    @property
    def has_slots_endpoint(self) -> bool:
        """Return whether ``/slots`` is on."""
        return self.facts is not None and not self._lacks_slots

    async def probe(self) -> Found:
        """Ask for everything that is due. ProbeFailedError."""
        has_health = True
        status, body = await self._get("/health")
        if status in _NO_SUCH_PATH:
            has_health = False
        elif (refusal := self._refusal("/health", status, body)) is not None:
            self._facts_s = None
            return refusal
        found = await self._read_facts(has_health=has_health)
        if found.reachability is Reachability.READY:
            await self.count_busy()
        return found

    async def count_busy(self) -> None:
        """Ask only how many slots are busy. ProbeFailedError."""
        account, facts = self._account, self.facts
        if facts is None:
            account.forget()
            return
        may_sleep = account.is_calm and (
            self.lets_sleep or trio.current_time() < self._calm_until_s
        )
        if may_sleep and not facts.has_metrics:
            return
        account.read_begins()
        busy: int | None = None
        try:
            if facts.is_router:
                busy = await self._busy_of_models()
            elif not (self._lacks_slots or may_sleep):
                busy = await self._busy_slots("/slots")
                self._lacks_slots = busy is None
            if busy is None and facts.has_metrics:
                busy = await self._busy("/metrics", parse_busy_metric)
        except _NoAnswerInTimeError:
            account.read_failed()
            return
        except BaseException:
            account.read_failed()
            raise
        if busy is None:
            account.forget()
        else:
            account.read_ended(busy)
            self._note_calm()

    def forget(self) -> None:
        """Note that the server is away: when it comes back, it may be another one."""
        self._facts_s = None
        self._account.forget()

    def _note_calm(self) -> None:
        if not self._account.is_calm:
            self._num_calm, self._calm_until_s = 0, 0.0
        elif trio.current_time() >= self._calm_until_s:
            num_over = self._num_calm - CALM_READS
            self._num_calm += 1
            if num_over >= 0:
                pause_s = min(FIRST_CALM_S * 2.0 ** min(num_over, 16), LONGEST_CALM_S)
                self._calm_until_s = trio.current_time() + pause_s

    async def _read_facts(self, *, has_health: bool) -> Found:
        now_s = trio.current_time()
        is_old = self._facts_s is None or self._facts_s <= now_s - FACTS_S
        if not is_old and self.facts is not None and self.facts.is_router:
            refusal = await self._read_models(self.facts, has_health=has_health)
            return refusal or Found(Reachability.READY)
        if not is_old and (self._account.in_flight or self.facts is None):
            return Found(Reachability.READY)
        status, body = await self._get("/props")
        facts = None
        if status in _NO_KEY or status == HTTPStatus.SERVICE_UNAVAILABLE:
            refusal = self._refusal("/props", status, body)
            assert refusal is not None
            return refusal
        if status == HTTPStatus.OK:
            try:
                facts = parse_props(body)
            except UnusableAnswerError:
                facts = None  # some answer everything with a page
            if facts == ServerFacts():
                facts = None
        if is_old or facts is None or attrs.evolve(facts, is_sleeping=False) != self.facts:
            refusal = await self._read_models(facts, has_health=has_health)
            if refusal is not None:
                return refusal
            self._lacks_slots = facts is not None and facts.has_slots is False
            self._facts_s = now_s
        self.facts = None if facts is None else attrs.evolve(facts, is_sleeping=False)
        if facts is not None and facts.is_sleeping:
            self.lets_sleep = True
            self._account.forget()
            return Found(Reachability.SLEEPING)
        return Found(Reachability.READY)

    async def _read_models(self, facts: ServerFacts | None, *, has_health: bool) -> Found | None:
        path = "/models" if facts is not None and facts.is_router else "/v1/models"
        status, body = await self._get(path)
        if status == HTTPStatus.OK:
            try:
                self.models = parse_models(body)
            except UnusableAnswerError as error:
                raise ProbeFailedError(f"its {path} is no list of models: {error}") from error
            return None
        if status in _NO_SUCH_PATH and has_health:
            self.models = ()
            return None
        if status in _NO_SUCH_PATH:
            raise ProbeFailedError(
                f"it has neither /health nor {path}: is this the address of an inference server?"
            )
        return self._refusal(path, status, body)

    def _refusal(self, path: str, status: int, body: bytes) -> Found | None:
        """Return what a status means that is no success; None for success."""
        if 200 <= status < 300:
            return None
        if status in _NO_KEY:
            key = (
                "it does not accept the key of --upstream-key-file"
                if self.has_key
                else "it wants a key: give --upstream-key-file FILE"
            )
            return Found(Reachability.UNAUTHORISED, f"{key} ({path} answers {status})")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return Found(Reachability.LOADING, parse_error(body) or f"{path} answers 503")
        if 300 <= status < 400:
            raise ProbeFailedError(
                f"it redirects {path} ({status}): give --upstream the address that it leads to"
            )
        message = parse_error(body)
        raise ProbeFailedError(f"it answers {path} with {status}{message and f' ({message})'}")

    async def _busy_of_models(self) -> int | None:
        """Return the sum over loaded models; None if one of them does not say."""
        total = 0
        for model in [model for model in self.models if model.is_loaded][:MAX_ROUTED]:
            name = quote(model.name, safe="")
            busy = await self._busy_slots(f"/slots?model={name}&autoload=false")
            if busy is None:
                return None
            total += busy
        return total

    async def _busy_slots(self, target: str) -> int | None:
        return await self._busy(target, parse_busy_slots)

    async def _busy(self, target: str, parse: Callable[[bytes], int]) -> int | None:
        """Return how many are busy; None if that endpoint is off or means something else."""
        status, body = await self._get(target, is_queued=True)
        if status != HTTPStatus.OK:
            return None
        try:
            return parse(body)
        except UnusableAnswerError:
            return None

    async def _get(self, target: str, *, is_queued: bool = False) -> tuple[int, bytes]:
        """Return status and body, within three seconds.

        Args:
          is_queued: llama-server answers between two steps of its model, which may take long.
        """
        path = target.partition("?")[0]
        body = bytearray()
        with trio.move_on_after(READ_S):
            try:
                async with self._client.request(
                    b"GET", target.encode(), [(b"Accept", b"*/*"), (b"User-Agent", b"paddler-trio")]
                ) as response:
                    async for part in response.body():
                        body += part.data
                        if len(body) > MAX_BODY_BYTES:
                            raise ProbeFailedError(
                                f"its {path} is over the limit of {MAX_BODY_BYTES} bytes"
                            )
                    return response.status, bytes(body)
            except UpstreamError as error:
                is_final = error.kind is FailureKind.CONNECT
                raise ProbeFailedError(str(error), is_final=is_final) from error
        if is_queued:
            raise _NoAnswerInTimeError
        raise ProbeFailedError(f"it did not answer {path} within {READ_S:g} s")


class _NoAnswerInTimeError(Exception):
    pass

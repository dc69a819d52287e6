"""Requests to one upstream server over connections that are kept.

    async with client.request(b"POST", b"/v1/completions", headers, body) as response:
        async for part in response.body():
            ...

Leaving the block before the body's end closes the connection: that is how llama-server learns that
it can stop. What came whole leaves its connection for the next request.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.request_head import (
    Headers,
    RequestHead,
    UnsendableRequestError,
    request_head,
)
from paddler_trio.net.client.response_body import (
    SWITCHING,
    FailureKind,
    ResponseHead,
    UpstreamError,
    body_of,
)
from paddler_trio.net.client.upstream_address import (
    DIAL_ERRORS,
    UpstreamAddress,
    UpstreamTimeouts,
    dial_cause,
    dial_upstream,
    upstream_context,
)
from paddler_trio.net.client.upstream_connection import RequestBody, UpstreamConnection
from paddler_trio.net.client.upstream_response import UpstreamResponse

MAX_KEPT: Final = 8
"""Connections without a request; each takes a thread of llama-server while it is open."""
WATCH_S: Final = 1.0

Dial = Callable[[], Awaitable[trio.abc.Stream]]


@attrs.define(eq=False, kw_only=True)
class UpstreamClient:
    """Made by :func:`make_upstream_client`. :meth:`run` is to run while requests are sent.

    Args:
      bearer: the server's key, sent with each request instead of what that has.
      dial: opens a connection, TLS included; `DIAL_ERRORS`.
    """

    address: UpstreamAddress
    timeouts: UpstreamTimeouts
    _dial: Dial
    _bearer: bytes | None = attrs.field(repr=False)
    _kept: list[UpstreamConnection] = attrs.field(factory=list, init=False)
    """The one used last is at the end, and is used first."""
    _kept_one: trio.Event = attrs.field(factory=trio.Event, init=False)
    _watched: set[UpstreamConnection] = attrs.field(factory=set, init=False)
    """Those whose answers are being read."""
    _watched_one: trio.Event = attrs.field(factory=trio.Event, init=False)
    _is_running: bool = attrs.field(default=False, init=False)
    num_open: int = attrs.field(default=0, init=False)
    """Connections, those without a request included."""

    @property
    def num_kept(self) -> int:
        """Connections that wait for a request."""
        return len(self._kept)

    @asynccontextmanager
    async def request(
        self,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: RequestBody = None,
        *,
        timeouts: UpstreamTimeouts | None = None,
        upgrades: bool = False,
        may_repeat: bool = True,
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a request; in the block there is the head of its answer, of whatever status.

        Args:
          target: path and query; the address's prefix comes before it.
          headers: sent as they are, so without what belongs to another connection. Their
            ``Content-Length`` or ``Transfer-Encoding`` frames the body; without them bytes get a
            length and pieces become chunks.
          body: an iterator is asked for pieces until the answer comes, and not closed.
          upgrades: the headers ask for another protocol. If the status is 101, what the server
            sends in it is the body, without a limit of time, and ``send`` is open.
          may_repeat: it may be sent a second time if the server closed a kept connection without
            an answer. Otherwise it gets a new connection, where nobody doubts that it was sent.

        Errors:
          UpstreamError: from the start of the block and from reading the body.
          Whatever iterating ``body`` raises.
        """
        timeouts = timeouts or self.timeouts
        head = self._head(method, target, headers, body, upgrades=upgrades)
        kept = await self._taken() if may_repeat else None
        connection, answer = await self._exchange(kept, head, body, timeouts, upgrades=upgrades)
        is_switched = answer.status == SWITCHING
        idle_s = math.inf if is_switched else timeouts.idle_s
        response = UpstreamResponse(answer, body_of(answer, method), connection, idle_s)
        if self._is_running and connection.watch():
            self._watched.add(connection)
            self._watched_one.set()
        try:
            yield response
        finally:
            self._watched.discard(connection)
            may_stay = answer.allows_another and not head.asks_to_close and connection.is_sent
            if may_stay and not is_switched and response.is_complete and not response.has_excess:
                await self._keep(connection)
            else:
                await self._close(connection)

    async def run(self) -> None:
        """Close connections that have waited for ``kept_s``, and cut those whose server has been
        silent for too long, up to a second late. When cancelled, close all that wait; it is to
        outlive the requests."""
        self._is_running = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await self._close_idle()
        finally:
            self._is_running = False
            while self._kept:
                await self._close(self._kept.pop())

    async def renew(self, bearer: bytes | None, tls: ssl.SSLContext | None) -> None:
        """Use another key, and other authorities if ``tls`` is given, from the next request on.
        What was verified by the old ones is closed: what waits for a request at once, the others
        with the end of theirs."""
        self._bearer = bearer
        if tls is not None:
            self._dial = partial(dial_upstream, self.address, tls)
            kept, self._kept = self._kept, []
            for connection in kept:
                await self._close(connection)

    async def _close_idle(self) -> None:
        while True:
            await self._kept_one.wait()
            due_s = self._kept[0].idle_since_s + self.timeouts.kept_s if self._kept else 0.0
            if not self._kept:
                self._kept_one = trio.Event()
            elif due_s > trio.current_time():
                await trio.sleep_until(due_s)
            else:
                await self._close(self._kept.pop(0))

    async def _watch(self) -> None:
        while True:
            await self._watched_one.wait()
            await trio.sleep(WATCH_S)
            now_s = trio.current_time()
            for connection in self._watched:
                if connection.due_s <= now_s:
                    connection.cut()
            if not self._watched:
                self._watched_one = trio.Event()

    async def _exchange(
        self,
        kept: UpstreamConnection | None,
        head: RequestHead,
        body: RequestBody,
        timeouts: UpstreamTimeouts,
        *,
        upgrades: bool,
    ) -> tuple[UpstreamConnection, ResponseHead]:
        connection = kept or await self._connected(timeouts)
        while True:
            try:
                return connection, await connection.exchange(
                    head, body, timeouts, upgrades=upgrades
                )
            except UpstreamError as error:
                await self._close(connection)
                was_closed_while_kept = (
                    connection.num_answers > 0
                    and error.kind is FailureKind.CLOSED
                    and error.before_first_byte
                )
                if not was_closed_while_kept or connection.body_was_touched:
                    raise
            except BaseException:
                await self._close(connection)
                raise
            connection = await self._connected(timeouts)  # has no answers yet: the last attempt

    def _head(
        self, method: bytes, target: bytes, headers: Headers, body: RequestBody, *, upgrades: bool
    ) -> RequestHead:
        try:
            if not self.address.holds(target):
                raise UnsendableRequestError(
                    "its path has more '..' than parts, or means the whole server: it would leave "
                    f"{self.address.prefix}"
                )
            return request_head(
                method,
                self.address.prefix.encode() + target,
                headers,
                authority=self.address.authority.encode(),
                bearer=self._bearer,
                body_bytes=len(body or b"") if isinstance(body, bytes | None) else None,
                upgrades=upgrades,
            )
        except UnsendableRequestError as error:
            raise UpstreamError(
                FailureKind.REQUEST,
                f"the upstream server {self.address.authority} was not sent the request: {error}",
                before_first_byte=True,
            ) from error

    async def _taken(self) -> UpstreamConnection | None:
        """One that was kept and that the server has not closed, if there is any."""
        while self._kept:
            connection = self._kept.pop()
            if not connection.is_stale():
                return connection
            await self._close(connection)
        return None

    async def _connected(self, timeouts: UpstreamTimeouts) -> UpstreamConnection:
        dial = self._dial
        try:
            with trio.fail_after(timeouts.connect_s):
                stream = await dial()
        except trio.TooSlowError as error:
            raise self._no_connection(f"no answer within {timeouts.connect_s:g} s") from error
        except DIAL_ERRORS as error:
            raise self._no_connection(dial_cause(error, self.address)) from error
        self.num_open += 1
        return UpstreamConnection(stream, self.address, dial)

    def _no_connection(self, cause: str) -> UpstreamError:
        return UpstreamError(
            FailureKind.CONNECT,
            f"no connection to the upstream server {self.address.authority}: {cause}",
            before_first_byte=True,
        )

    async def _keep(self, connection: UpstreamConnection) -> None:
        if connection.dialled_by is not self._dial:  # renewed while it was in use
            await self._close(connection)
            return
        connection.is_watched = False
        connection.num_answers += 1
        connection.idle_since_s = trio.current_time()
        self._kept.append(connection)
        self._kept_one.set()
        if len(self._kept) > MAX_KEPT:
            await self._close(self._kept.pop(0))

    async def _close(self, connection: UpstreamConnection) -> None:
        self.num_open -= 1
        await connection.aclose()


def make_upstream_client(
    address: UpstreamAddress,
    *,
    timeouts: UpstreamTimeouts | None = None,
    bearer: bytes | None = None,
    ca_file: Path | None = None,
) -> UpstreamClient:
    """A client; nothing is opened yet. With TLS it blocks for 16 ms to read authorities.

    Errors:
      ConfigurationError: ``ca_file`` cannot be used, or is given without https.
    """
    if ca_file is not None and not address.is_tls:
        raise ConfigurationError(
            f"--upstream-ca {ca_file} needs --upstream https://{address.authority}"
        )
    tls = upstream_context(ca_file) if address.is_tls else None
    return UpstreamClient(
        address=address,
        timeouts=timeouts or UpstreamTimeouts(),
        bearer=bearer,
        dial=partial(dial_upstream, address, tls),
    )

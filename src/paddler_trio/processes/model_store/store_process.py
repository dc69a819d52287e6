"""The store's process: its control socket, and one task for each connection that was passed to it.

    control            takes messages of the balancer until it closes the socket
    ├─ arrival KEY     one task for each file that is fetched, for all that wait
    ├─ reports         sends what the balancer is to learn
    ├─ counts          the same of what was counted, once a second
    └─ request 17      one task each, from the passed descriptor to its closing

The balancer's end, however it comes, closes the socket, and that ends this process at once.
"""

from __future__ import annotations

import array
import fcntl
import os
import resource
import socket
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError, WireError, one_line
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    DownloadError,
    ServerFailedError,
    kind_of,
    status_of,
    store_header,
)
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.router import RouteTable
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.source_routes import HubMetadata, SourceRoutes
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import (
    FileCutError,
    ReaderGoneError,
    StoreConnection,
)
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.store_messages import (
    MAX_MESSAGE_BYTES,
    Configure,
    Desire,
    FromStore,
    PassedRequest,
    RequestEnded,
    StoreCounts,
    StoreFailed,
    StoreUp,
    decode_message,
    encode_message,
)
from paddler_trio.processes.model_store.store_routes import StoreHandler, store_routes
from paddler_trio.system.behind_tokens import go_behind_tokens
from paddler_trio.system.heap import freeze_heap, give_back_large_blocks
from paddler_trio.system.kernel.socket_options import descriptors_in
from paddler_trio.system.logs.logs import configure_logs
from paddler_trio.wire.codec import loads, structure
from paddler_trio.wire.paddler.desired_state import DesiredModel

log = structlog.get_logger("store")

SILENCE_S: Final = 20.0
"""The silence of a source; shorter than an agent waits for the head of an answer."""
MAX_REPORTS: Final = 4096
"""More than the balancer ever lets be under way."""
COUNTS_S: Final = 1.0
NOT_FETCHED: Final = "the balancer could not fetch it; its log has the cause"
_DESCRIPTOR_BYTES = array.array("i").itemsize


async def run_store(control: socket.socket) -> None:
    """Serve until the balancer closes ``control``."""
    control.setblocking(False)
    link = StoreLink(trio.socket.from_stdlib_socket(control))
    message = await link.receive()
    if message is None:
        return
    configure, _ = message
    assert isinstance(configure, Configure)
    configure_logs(level=configure.log_level)
    go_behind_tokens()
    allow_descriptors()
    layout = StoreLayout(Path(configure.folder))
    try:
        settings = attrs.evolve(
            HubSettings.from_environment(),
            cache=layout.hub,
            url_cache=layout.urls,
            timeouts=Timeouts(silence_s=SILENCE_S),
        )
        lock = await trio.to_thread.run_sync(prepared, layout)
        store = await ModelStore.open(layout, configure.size_bytes)
    except ConfigurationError as error:
        await link.send(StoreFailed(str(error)))
        return
    except OSError as error:
        where = error.filename or layout.root
        await link.send(StoreFailed(f"{where}: {error.strerror or error}"))
        return
    give_back_large_blocks()
    freeze_heap()
    try:
        await link.send(StoreUp(store.num_files, store.retention.used_bytes))
        async with trio.open_nursery() as nursery:
            arrivals = Arrivals(store, settings, nursery)
            sources = SourceRoutes(store, HubMetadata(settings, nursery), arrivals)
            nursery.start_soon(report_counts, link, store, arrivals, name="counts")
            await StoreServing(link, store, store_routes(store, arrivals, sources)).run()
            nursery.cancel_scope.cancel(reason="the balancer is gone")
    finally:
        os.close(lock)


@attrs.define(eq=False)
class StoreLink:
    """The control socket; one task receives, and one at a time sends."""

    _control: trio.socket.SocketType
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def receive(self) -> tuple[object, int | None] | None:
        """Return the next message, and the descriptor that came with it; None at the end."""
        space = socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
        try:
            data, ancillary, flags, _ = await self._control.recvmsg(MAX_MESSAGE_BYTES + 1, space)
        except ConnectionResetError:
            return None
        if not data:
            return None
        descriptors = descriptors_in(ancillary)
        if flags & socket.MSG_TRUNC:
            raise WireError(f"a message over {MAX_MESSAGE_BYTES} bytes")
        return decode_message(data), descriptors[0] if descriptors else None

    async def send(self, message: FromStore) -> None:
        async with self._turn:
            await self._control.send(encode_message(message))


async def report_counts(link: StoreLink, store: ModelStore, arrivals: Arrivals) -> None:
    """Send what the store has counted, once a second if it is something new, until cancelled."""
    told: StoreCounts | None = None
    while True:
        counts = store.counters.counts(
            files=store.num_files,
            used_bytes=store.retention.used_bytes,
            downloads_running=arrivals.num_running,
            arriving_bytes=arrivals.received_bytes,
        )
        if counts != told:
            await link.send(counts)
            told = counts
        await trio.sleep(COUNTS_S)


@attrs.define(eq=False)
class StoreServing:
    """Answers what is passed, each in a task of its own."""

    link: StoreLink
    store: ModelStore
    routes: RouteTable[StoreHandler]
    _requests: trio.Nursery | None = attrs.field(default=None, init=False)
    _reports: trio.MemorySendChannel[FromStore] = attrs.field(init=False)
    outgoing: trio.MemoryReceiveChannel[FromStore] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reports, self.outgoing = trio.open_memory_channel[FromStore](MAX_REPORTS)

    async def run(self) -> None:
        """Serve until the balancer is gone; what is under way then ends at once."""
        async with trio.open_nursery() as nursery:
            self._requests = nursery
            nursery.start_soon(self._report, name="reports")
            while (received := await self.link.receive()) is not None:
                await self.handle(*received)
            nursery.cancel_scope.cancel(reason="the balancer is gone")

    async def handle(self, message: object, descriptor: int | None) -> None:
        """Handle one message of the balancer, and what came with it; WireError."""
        match message:
            case PassedRequest() if descriptor is None:
                log.error("no descriptor is left for a connection", request=message.id)
                self._reports.send_nowait(RequestEnded(message.id))
            case PassedRequest():
                assert descriptor is not None
                assert self._requests is not None, "it runs"
                name = f"request {message.id}"
                self._requests.start_soon(self.answer, message, descriptor, name=name)
            case Desire(models):
                await self.store.desire(tuple(map(_model_of, models)))
            case _:
                raise WireError(f"a {type(message).__name__} is not a balancer's to send")

    async def _report(self) -> None:
        async for message in self.outgoing:
            await self.link.send(message)

    async def answer(self, request: PassedRequest, descriptor: int) -> None:
        """Answer one connection, to its closing; nothing that goes wrong with it leaves this
        task."""
        connection = StoreConnection.open(request, descriptor, self.store.counters.sent)
        try:
            await self._handle(connection)
        except ReaderGoneError as gone:
            log.debug("reader gone", path=request.path[:200], client=request.client, why=str(gone))
        finally:
            try:
                await connection.close()
            finally:
                # a file that was copied here may have a name that is no Unicode
                changed = connection.changed.encode(errors="replace").decode()
                ended = RequestEnded(request.id, connection.status, changed)
                self._reports.send_nowait(ended)

    async def _handle(self, connection: StoreConnection) -> None:
        """Answer, or refuse; ReaderGoneError."""
        request = connection.request
        match = self.routes.find(request.path)
        handler = match.handlers.get(request.method)
        try:
            if handler is None:
                raise HttpProblem(404, "")
            await handler(connection, match.params)
            return
        except ReaderGoneError:
            raise
        except HttpProblem as refusal:
            problem = refusal
        except DownloadError as error:
            problem = problem_of(error, is_agents=request.is_agents)
        except FileCutError as cut:
            log.warning("answer cut", path=request.path[:200], reason=str(cut))
            return
        except Exception as error:  # the boundary of a request
            log.error("request failed", path=request.path[:200], exc_info=error)
            problem = HttpProblem(500, f"the store failed: {one_line(error)}")
        if not connection.has_begun:
            await connection.send_problem(problem)


def problem_of(error: DownloadError, *, is_agents: bool = False) -> HttpProblem:
    """Return what is answered for what does not come.

    An agent's credential must not tell which addresses answer here: whatever the server of a URL
    or of where it redirects did, the agent learns that the store has nothing from there, and asks
    it itself.
    """
    kind, cause = kind_of(error), error.cause
    if is_agents and not error.subject.is_hub and kind != "full":
        kind, cause = "unreachable", NOT_FETCHED
    name, value = store_header(kind, cause)
    headers = [(name.encode(), value.encode())]
    retry_after_s = error.retry_after_s if isinstance(error, ServerFailedError) else None
    if retry_after_s is not None and kind != "unreachable":
        headers.append((b"Retry-After", b"%d" % retry_after_s))
    return HttpProblem(status_of(kind), cause, headers)


def _model_of(text: bytes) -> DesiredModel:
    return structure(loads(text), DesiredModel)


def allow_descriptors() -> None:
    """Allow as many descriptors as the system lets this process have: a connection takes two."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:  # a sandbox
        log.debug("the limit of descriptors stays", limit=now, reason=str(error))


def prepared(layout: StoreLayout) -> int:
    """Make the folders; returns the descriptor that holds the store's lock. OSError."""
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise OSError(error.errno, "another store uses this folder", str(layout.root)) from error
    except BaseException:
        os.close(lock)
        raise
    return lock

"""A model store in this process: everything but the process itself and its control socket."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from urllib.parse import quote, unquote

import attrs
import trio
from http_world import serving

from hub_server import HubServer
from paddler_trio.balancer.fleet.model_store_child import (
    ModelStoreChild,
    NotPassedError,
    OnEnd,
    nobody,
)
from paddler_trio.balancer.front.model_store_routes import ModelStoreRoutes
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.router import Router, by_path
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.source_routes import HubMetadata, SourceRoutes
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.store_messages import (
    PREFIX,
    PassedRequest,
    RequestEnded,
    is_store_path,
)
from paddler_trio.processes.model_store.store_process import StoreLink, StoreServing, prepared
from paddler_trio.processes.model_store.store_routes import store_routes
from paddler_trio.wire.paddler.desired_state import DesiredModel

PATIENCE_S = 60


@attrs.frozen
class Answered:
    """An answer as its client got it; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_whole(self) -> bool:
        return len(self.body) == int(self.headers["content-length"])


@attrs.define
class StoreWorld:
    """A running store and its clients."""

    store: ModelStore
    arrivals: Arrivals
    serving: StoreServing
    nursery: trio.Nursery
    _requests: int = 0

    @property
    def reports(self) -> trio.MemoryReceiveChannel[RequestEnded]:
        """What the balancer would be told."""
        return cast("trio.MemoryReceiveChannel[RequestEnded]", self.serving.outgoing)

    async def open(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> trio.SocketStream:
        """Ask for ``path`` below the store's prefix, which may have a query; the client's end of
        the connection."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._requests += 1
        raw, _, query = f"{PREFIX}{path}".partition("?")
        if body:
            headers["content_length"] = str(len(body))
        pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        request = PassedRequest(
            self._requests, method, unquote(raw), raw, query, pairs, "127.0.0.1", body
        )
        self.nursery.start_soon(self.serving.answer, request, theirs.detach())
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> Answered:
        """Ask and read the whole answer."""
        with trio.fail_after(PATIENCE_S):
            client = await self.open(path, method, body, **headers)
            received = bytearray()
            async with client:
                async for data in client:
                    received += data
        return answered(bytes(received))

    async def settled(self) -> None:
        """Wait until nothing is on its way any more."""
        for listed in self.arrivals.listed():
            arrival = self.arrivals.find(str(listed["key"]))
            while arrival is not None and arrival.outcome is None:
                await arrival.changes.wait_beyond(arrival.changes.ordinal)


def answered(received: bytes) -> Answered:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answered(int(first.split()[1]), headers, body)


def hub_path(name: str, repo: str = "org/repo", revision: str = "main") -> str:
    return f"/hf/{repo}/resolve/{quote(revision, safe='')}/{quote(name)}"


def url_path(url: str) -> str:
    return f"/url/{base64.urlsafe_b64encode(url.encode()).decode().rstrip('=')}"


@asynccontextmanager
async def store_world(
    folder: Path, hub: HubServer, *, budget_bytes: int = 10**9, **more: object
) -> AsyncIterator[StoreWorld]:
    layout = StoreLayout(folder)
    lock = await trio.to_thread.run_sync(prepared, layout)
    settings = HubSettings(
        **{  # type: ignore[arg-type]
            "endpoint": hub.hub_url,
            "cache": layout.hub,
            "url_cache": layout.urls,
            "timeouts": Timeouts(connect_s=5, silence_s=5, lock_s=5, lock_poll_s=0.01),
            **more,
        }
    )
    try:
        store = await ModelStore.open(layout, budget_bytes)
        with trio.fail_after(4 * PATIENCE_S):
            async with trio.open_nursery() as nursery:
                arrivals = Arrivals(store, settings, nursery)
                sources = SourceRoutes(store, HubMetadata(settings, nursery), arrivals)
                routes = store_routes(store, arrivals, sources)
                serving = StoreServing(cast("StoreLink", None), store, routes)
                yield StoreWorld(store, arrivals, serving, nursery)
                nursery.cancel_scope.cancel()
    finally:
        os.close(lock)


@attrs.define(eq=False)
class ChildInThisProcess:
    """What a balancer passes connections to, in place of the store's process."""

    world: StoreWorld
    refuses: int = 0
    """So many requests are not taken."""
    seen: list[PassedRequest] = attrs.field(factory=list)

    @property
    def layout(self) -> StoreLayout:
        return self.world.store.layout

    async def pass_on(
        self, request: PassedRequest, descriptor: int, on_end: OnEnd = nobody
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            self.refuses -= 1
            raise NotPassedError("the model store is starting")
        self.seen.append(request)
        self.world.nursery.start_soon(self.world.serving.answer, request, os.dup(descriptor))


@asynccontextmanager
async def served_over_http(
    world: StoreWorld, agent: AgentIdentity | None = None, readable: Sequence[DesiredModel] = ()
) -> AsyncIterator[tuple[str, ChildInThisProcess]]:
    """The address of the store on a port, as a balancer serves it; to ``agent`` only the files of
    the models that are ``readable``."""
    child = ChildInThisProcess(world)
    routes = ModelStoreRoutes(cast("ModelStoreChild", child), lambda agent: readable)

    async def known(exchange: Exchange) -> None:
        exchange.identity.agent = agent
        await routes(exchange)

    app = by_path(is_store_path, known, otherwise=Router())
    async with serving(app, passes=is_store_path) as served:
        yield f"http://{served.address}{PREFIX}", child

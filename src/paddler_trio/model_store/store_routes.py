"""Every route of the store. The balancer has parsed and authorised what comes here.

    GET       /api/v2/store                             what lies here
    GET HEAD  /api/v2/store/blobs/sha256/{sha256}       a pushed file
    GET HEAD  /api/v2/store/manifests/sha256/{sha256}   the manifest of a pushed model

Uploads (PUT of blobs and manifests) get a module of their own beside this one, which adds its
handlers in :func:`store_routes`. A handler gets its connection and the parameter of its path. It
answers once, or raises HttpProblem.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from paddler_trio.http.asgi import HttpProblem
from paddler_trio.http.router import Params, RouteTable
from paddler_trio.model_store.layout import is_sha256
from paddler_trio.model_store.send_stored import send_stored
from paddler_trio.model_store.store import ModelStore
from paddler_trio.model_store.store_connection import StoreConnection
from paddler_trio.model_store.store_messages import PREFIX

StoreHandler: TypeAlias = Callable[[StoreConnection, Params], Awaitable[None]]


def store_routes(store: ModelStore) -> RouteTable[StoreHandler]:
    """The table, complete."""
    table: RouteTable[StoreHandler] = RouteTable()
    stored = StoredRoutes(store)
    table.add("GET", PREFIX, stored.list)
    for method in ("GET", "HEAD"):
        table.add(method, f"{PREFIX}/blobs/sha256/{{sha256}}", stored.blob)
        table.add(method, f"{PREFIX}/manifests/sha256/{{sha256}}", stored.manifest)
    return table


@attrs.frozen(eq=False)
class StoredRoutes:
    """What lies in the store: listed, and served as it is."""

    store: ModelStore

    async def list(self, connection: StoreConnection, params: Params) -> None:
        files = await self.store.files()
        value = {
            "size_bytes": self.store.size_bytes,
            "used_bytes": sum(file.size_bytes for file in files),
            "files": [attrs.asdict(file) for file in files],
        }
        await connection.send_json(200, value)

    async def blob(self, connection: StoreConnection, params: Params) -> None:
        sha256 = checked_sha256(params["sha256"])
        path = self.store.layout.pushed_blob(sha256)
        await send_stored(connection, path, etag=f'"{sha256}"')

    async def manifest(self, connection: StoreConnection, params: Params) -> None:
        sha256 = checked_sha256(params["sha256"])
        path = self.store.layout.manifest(sha256)
        content_type = ("Content-Type", "application/json")
        await send_stored(connection, path, etag=f'"{sha256}"', headers=[content_type])


def checked_sha256(text: str) -> str:
    """The parameter of a path; HttpProblem 400 if it is no SHA-256."""
    if not is_sha256(text):
        raise HttpProblem(400, f"{text[:80]!r} is no SHA-256: 64 hex digits in lower case")
    return text

"""Every route of the store. The balancer has parsed and authorised what comes here.

    GET           /api/v2/store                             what lies here, and what arrives
    PUT DELETE    /api/v2/store/pins?source=SOURCE          keep models whatever happens; no longer
    PUT DELETE    /api/v2/store/pins/{key}                  the same for one file
    DELETE        /api/v2/store/files/{key}                 remove a file that nobody wants
    POST          /api/v2/store/prune                       remove models that nothing keeps
    GET HEAD      /api/v2/store/hf/...                      as the hub: see ``source_routes``
    GET           /api/v2/store/url/{base64url of the URL}  the same for files of URLs
    GET HEAD PUT  /api/v2/store/blobs/sha256/{sha256}       a pushed file; see ``upload_routes``
    GET HEAD PUT  /api/v2/store/manifests/sha256/{sha256}   the manifest of a pushed model

A handler gets its connection and the parameter of its path. It
answers once, or raises HttpProblem or DownloadError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import attrs

from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.net.server.router import RouteTable
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.keep_routes import KeepRoutes
from paddler_trio.processes.model_store.send_stored import send_stored
from paddler_trio.processes.model_store.source_routes import SourceRoutes
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import StoreConnection, StoreHeader
from paddler_trio.processes.model_store.store_layout import checked_sha256
from paddler_trio.processes.model_store.store_messages import PREFIX
from paddler_trio.processes.model_store.upload_routes import UploadRoutes

StoreHandler: TypeAlias = Callable[[StoreConnection, Params], Awaitable[None]]


def store_routes(
    store: ModelStore, arrivals: Arrivals, sources: SourceRoutes
) -> RouteTable[StoreHandler]:
    """Return the table, complete."""
    table: RouteTable[StoreHandler] = RouteTable()
    stored, uploads = StoredRoutes(store, arrivals), UploadRoutes(store)
    kept = KeepRoutes(store)
    table.add("GET", PREFIX, stored.list_all)
    table.add("PUT", f"{PREFIX}/pins", kept.pin_sources)
    table.add("DELETE", f"{PREFIX}/pins", kept.unpin_sources)
    table.add("PUT", f"{PREFIX}/pins/{{key...}}", kept.pin_file)
    table.add("DELETE", f"{PREFIX}/pins/{{key...}}", kept.unpin_file)
    table.add("DELETE", f"{PREFIX}/files/{{key...}}", kept.remove_file)
    table.add("POST", f"{PREFIX}/prune", kept.prune)
    table.add("GET", f"{PREFIX}/url/{{name}}", sources.url_file)
    table.add("GET", f"{PREFIX}/hf/api/models/{{rest...}}", sources.hub_listing)
    table.add("GET", f"{PREFIX}/blobs/sha256/{{sha256}}", stored.blob)
    table.add("HEAD", f"{PREFIX}/blobs/sha256/{{sha256}}", uploads.head_blob)
    table.add("PUT", f"{PREFIX}/blobs/sha256/{{sha256}}", uploads.put_blob)
    table.add("PUT", f"{PREFIX}/manifests/sha256/{{sha256}}", uploads.put_manifest)
    for method in ("GET", "HEAD"):
        table.add(method, f"{PREFIX}/manifests/sha256/{{sha256}}", stored.manifest)
        table.add(method, f"{PREFIX}/hf/{{rest...}}", sources.hub_file)
    return table


@attrs.frozen(eq=False)
class StoredRoutes:
    """Routes to what lies in the store: listed, and served as it is."""

    store: ModelStore
    arrivals: Arrivals

    async def list_all(self, connection: StoreConnection, params: Params) -> None:
        retention = self.store.retention
        files = [
            {
                **attrs.asdict(file),
                "is_pinned": file.key in retention.pinned,
                "is_desired": file.key in retention.desired,
                "is_in_use": retention.is_in_use(file.key),
            }
            for file in await self.store.files()
        ]
        value = {
            "size_bytes": retention.budget_bytes,
            "used_bytes": retention.used_bytes,
            "files": files,
            "arriving": self.arrivals.listed(),
        }
        await connection.send_json(200, value)

    async def blob(self, connection: StoreConnection, params: Params) -> None:
        sha256 = checked_sha256(params["sha256"])
        await self._serve(connection, self.store.layout.pushed_blob(sha256), sha256)

    async def manifest(self, connection: StoreConnection, params: Params) -> None:
        sha256 = checked_sha256(params["sha256"])
        path = self.store.layout.manifest(sha256)
        await self._serve(connection, path, sha256, [("Content-Type", "application/json")])

    async def _serve(
        self,
        connection: StoreConnection,
        path: Path,
        sha256: str,
        headers: list[StoreHeader] | None = None,
    ) -> None:
        async with self.store.used(self.store.layout.key(path)):
            validator = f'"{sha256}"'
            if await send_stored(connection, path, validator=validator, headers=headers or ()):
                self.store.counters.found["whole"] += 1
            else:
                raise HttpProblem(404, f"the store has nothing with the SHA-256 {sha256}")

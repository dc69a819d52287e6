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

Serve what operators keep in the store and what they remove: pins, single files, prune.

Nothing that is desired, in use or arriving goes, whoever asks. Each of these leaves a record in the
balancer's audit log: ``connection.changed`` is what it says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qs

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.net.server.json_body import structured
from paddler_trio.net.server.router import RouteTable
from paddler_trio.processes.model_store.arrival import Arrivals
from paddler_trio.processes.model_store.inventory import StoredModel
from paddler_trio.processes.model_store.send_arriving import send_stored
from paddler_trio.processes.model_store.source_routes import SourceRoutes
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import StoreConnection, StoreHeader
from paddler_trio.processes.model_store.store_layout import checked_sha256
from paddler_trio.processes.model_store.store_messages import PREFIX
from paddler_trio.processes.model_store.upload_routes import UploadRoutes
from paddler_trio.wire.codec import loads
from paddler_trio.wire.trio.cache_commands import MAX_SOURCES, Prune

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MAX_NAMED: Final = 8
"""Models in a record of the audit log."""


@attrs.frozen(eq=False)
class KeepRoutes:
    """The handlers of these routes."""

    store: ModelStore

    async def pin_file(self, connection: StoreConnection, params: Params) -> None:
        """Keep one file whatever happens, or no longer."""
        connection.changed = params["key"]
        await self.store.pin([params["key"]], pinned=connection.request.method == "PUT")
        await connection.send_empty(204)

    async def remove_file(self, connection: StoreConnection, params: Params) -> None:
        connection.changed = params["key"]
        await self.store.remove(params["key"])
        await connection.send_empty(204)

    async def prune(self, connection: StoreConnection, params: Params) -> None:
        """Prune: the body is the fields of ``Prune``, the answer as that of an agent."""
        rules = await _rules(connection)
        try:
            pruned = await self.store.prune(rules)
        except UnknownSourceError as error:
            raise HttpProblem(400, f"{error} @ $.sources") from error
        if not rules.dry_run:
            connection.changed = _names(pruned.plan.going) or "nothing"
        gone = [file for file in pruned.plan.files if file.key not in pruned.problems]
        removed = [
            {
                "source": model.source,
                "size_bytes": model.size_bytes,
                "files": [file.key for file in model.files],
                "problem": next(
                    (pruned.problems[f.key] for f in model.files if f.key in pruned.problems), None
                ),
            }
            for model in pruned.plan.going
        ]
        value = {
            "removed": removed,
            "kept": pruned.plan.num_kept,
            "freed_bytes": sum(file.size_bytes for file in gone),
        }
        await connection.send_json(200, value)

    async def pin_sources(self, connection: StoreConnection, params: Params) -> None:
        """Pin or unpin ``?source=SOURCE``, repeatable: answered by the models with their files."""
        sources = _sources(connection.request.query)
        connection.changed = ", ".join(sources[:MAX_NAMED])
        models = await self.store.selected(sources)
        connection.changed = _names(models)
        keys = [file.key for model in models for file in model.files]
        await self.store.pin(keys, pinned=connection.request.method == "PUT")
        value = [
            {
                "source": model.source,
                "size_bytes": model.size_bytes,
                "files": [file.key for file in model.files],
            }
            for model in models
        ]
        await connection.send_json(200, {"models": value})


def _sources(query: str) -> list[str]:
    """Return the sources; HttpProblem 400 without one, or with too many."""
    sources = parse_qs(query).get("source", [])
    if not 0 < len(sources) <= MAX_SOURCES:
        raise HttpProblem(
            400, f"{len(sources)} sources, must be 1 to {MAX_SOURCES}: pins?source=SOURCE"
        )
    return sources


def _names(models: Iterable[StoredModel]) -> str:
    names = [model.source for model in models]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


async def _rules(connection: StoreConnection) -> Prune:
    body = await connection.receive_whole(MAX_BODY_BYTES)
    try:
        value = loads(body)
    except WireError as error:
        raise HttpProblem(400, f"Json deserialize error: {error}") from error
    return structured(value, Prune, tag=Prune.__name__)


StoreHandler: TypeAlias = Callable[[StoreConnection, Params], Awaitable[None]]


def store_routes(
    store: ModelStore, arrivals: Arrivals, sources: SourceRoutes
) -> RouteTable[StoreHandler]:
    """Return the table, complete."""
    table: RouteTable[StoreHandler] = RouteTable()
    stored, uploads = StoredRoutes(store, arrivals), UploadRoutes(store)
    kept = KeepRoutes(store)
    table.add("GET", PREFIX, stored.list_all)
    for method in ("PUT", "DELETE"):
        table.add(method, f"{PREFIX}/pins", kept.pin_sources)
        table.add(method, f"{PREFIX}/pins/{{key...}}", kept.pin_file)
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

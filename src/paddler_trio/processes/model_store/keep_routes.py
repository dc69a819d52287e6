"""Serve what operators keep in the store and what they remove: pins, single files, prune.

Nothing that is desired, in use or arriving goes, whoever asks. Each of these leaves a record in the
balancer's audit log: ``connection.changed`` is what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qs

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Params
from paddler_trio.net.server.json_body import structured
from paddler_trio.processes.model_store.store import ModelStore
from paddler_trio.processes.model_store.store_connection import StoreConnection
from paddler_trio.processes.model_store.stored_models import StoredModel
from paddler_trio.wire.codec import loads
from paddler_trio.wire.trio.cache_commands import MAX_SOURCES, Prune

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MAX_NAMED: Final = 8
"""Models in a record of the audit log."""


@attrs.frozen(eq=False)
class KeepRoutes:
    """The handlers of these routes."""

    store: ModelStore

    async def pin_sources(self, connection: StoreConnection, params: Params) -> None:
        """Pin ``?source=SOURCE``, repeatable: answered by the models with their files."""
        await self._pin_sources(connection, pinned=True)

    async def unpin_sources(self, connection: StoreConnection, params: Params) -> None:
        await self._pin_sources(connection, pinned=False)

    async def pin_file(self, connection: StoreConnection, params: Params) -> None:
        connection.changed = params["key"]
        await self.store.pin([params["key"]], pinned=True)
        await connection.send_empty(204)

    async def unpin_file(self, connection: StoreConnection, params: Params) -> None:
        connection.changed = params["key"]
        await self.store.pin([params["key"]], pinned=False)
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

    async def _pin_sources(self, connection: StoreConnection, *, pinned: bool) -> None:
        sources = _sources(connection.request.query)
        connection.changed = ", ".join(sources[:MAX_NAMED])
        models = await self.store.selected(sources)
        connection.changed = _names(models)
        await self.store.pin([f.key for model in models for f in model.files], pinned=pinned)
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

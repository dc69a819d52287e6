"""The hub's models as the balancer's routes answer them: JSON, or a status and a reason."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from paddler_trio.models.hub.hub_lookup import LOOKUP_S, HubLookup
from paddler_trio.models.hub.hub_quantizations import ListedFile, RepositoryModels
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    SourceMalformedError,
    SourceNotFoundError,
)
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.wire.codec import dumps


@attrs.frozen(eq=False)
class AnsweredHubModels:
    """``models`` of a lookup, for :class:`~paddler_trio.balancer.front.hub_routes.HubRoutes`."""

    lookup: HubLookup = attrs.field(factory=HubLookup)

    async def models(self, repo_id: str, revision: str) -> bytes:
        try:
            found = await self.lookup.models(repo_id, revision)
        except trio.TooSlowError as error:
            raise HttpProblem(
                504, f"the hub did not answer about {repo_id} within {LOOKUP_S:g} s"
            ) from error
        except DownloadError as error:
            raise HttpProblem(_status_of(error), f"{repo_id}: {error.cause}") from error
        return await trio.to_thread.run_sync(document, repo_id, revision, found)


def document(repo_id: str, revision: str, found: RepositoryModels) -> bytes:
    """Return the answer as JSON."""
    return dumps(
        {
            "repo": repo_id,
            "revision": revision,
            "commit": found.commit,
            "quantizations": [
                {
                    "name": each.name,
                    "files": _files(each.files),
                    "size_bytes": each.size_bytes,
                    "is_default": each.is_default,
                }
                for each in found.quantizations
            ],
            "projections": _files(found.projections),
        }
    )


def _files(files: Sequence[ListedFile]) -> list[dict[str, object]]:
    return [{"path": file.path, "size_bytes": file.size_bytes} for file in files]


def _status_of(error: DownloadError) -> int:
    match error:
        case SourceMalformedError():
            return 400
        case SourceNotFoundError():
            return 404
        case AccessDeniedError():
            return 403  # a 401 would sign operators out of the panel
        case _:
            return 502

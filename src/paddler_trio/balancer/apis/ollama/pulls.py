"""Make a deployment of what ``/api/pull`` names, for a model that is not served yet.

``hf.co/ORG/REPO:QUANT`` is a name as Ollama has it. The deployment is on demand no more than others
are: one agent fetches and loads it, with less priority than what there was, and keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.fleet.fleet_routes import RolloutControl
from paddler_trio.errors import ConfigurationError
from paddler_trio.models.hub.hub_lookup import LOOKUP_S, HubLookup
from paddler_trio.models.model_reference import HubRepository, UnknownSourceError, reference_of
from paddler_trio.net.client.download_errors import DownloadError, SourceNotFoundError
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel
from paddler_trio.wire.trio.fleet_state import DeploymentSpec
from paddler_trio.wire.trio.presets import NAME, Preset
from paddler_trio.wire.trio.replica_range import ReplicaRange

PRIORITY: Final = -1
"""What an operator chose is not unloaded for what a program asked for."""
_HUBS: Final = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/|hf:", re.IGNORECASE)


@attrs.define(eq=False)
class Pulls:
    """Hold what fetching a model takes: listings of the hub, and the rollouts of the fleet."""

    rollouts: RolloutControl
    hub: HubLookup = attrs.field(factory=HubLookup)

    async def deployment(self, name: str) -> DeploymentSpec | None:
        """Return the deployment that a name of Ollama's asks for; None if it names no repository.

        Errors:
          ApiError: 404 there is none, or no such file in it; 502, 504 the hub does not answer.
        """
        repository = _repository(name)
        if repository is None:
            return None
        try:
            found = await self.hub.models(repository.repo_id, repository.revision)
        except trio.TooSlowError as error:
            raise ApiError(504, f"the hub did not answer within {LOOKUP_S:g} s") from error
        except DownloadError as error:
            status = 404 if isinstance(error, SourceNotFoundError) else 502
            raise ApiError(status, f"{repository.repo_id}: {error.cause}") from error
        except ConfigurationError as error:
            raise ApiError(502, f"{repository.repo_id}: {error}") from error
        wanted = repository.quantisation
        known = {each.name.lower(): each for each in found.quantizations}
        default = next((each for each in found.quantizations if each.is_default), None)
        chosen = default if wanted is None else known.get(wanted.lower())
        if chosen is None:
            names = ", ".join(each.name for each in found.quantizations[:40]) or "no GGUF model"
            raise ApiError(404, f"{repository.repo_id} has no {wanted or 'model'}; it has {names}")
        file = HuggingFaceModel(chosen.files[0].path, repository.repo_id, found.commit)
        return DeploymentSpec(
            name=_slug(f"{repository.repo_id.partition('/')[2]}-{chosen.name}"),
            model=file,
            presets=(Preset(name=name),),
            replicas=ReplicaRange(1, 1),
            priority=PRIORITY,
        )

    def rollout(self, deployment: str) -> Mapping[str, Any] | None:
        """Return how far it is, as ``GET /api/v2/rollout`` has it."""
        rollouts: Any = self.rollouts.view()["rollouts"]
        return next((each for each in rollouts if each["deployment"] == deployment), None)


def _repository(name: str) -> HubRepository | None:
    hub = _HUBS.match(name)
    if hub is None or NAME.fullmatch(name) is None:
        return None
    try:
        reference = reference_of(f"hf:{name[hub.end() :]}")
    except UnknownSourceError as error:
        raise ApiError(400, str(error), param="model") from error
    return reference if isinstance(reference, HubRepository) else None


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "pulled"

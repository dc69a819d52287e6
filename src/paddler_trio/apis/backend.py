"""What the endpoints of all APIs share: the dispatcher, the desired state, the settings, and the
served model by the names that requests may use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import assert_never
from urllib.parse import urlsplit

import attrs

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.ignored_fields import IgnoredFieldsLog
from paddler_trio.apis.limits import ApiLimits
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)


@attrs.frozen(kw_only=True)
class ApiSettings:
    """What the operator decided.

    Attributes:
      image_hosts: ``host`` or ``host:port`` from which images may be fetched; none by default.
      strict_model_names: refuse requests for a model that is not served.
      strict_fields: refuse fields that would be ignored.
    """

    image_hosts: frozenset[str] = frozenset()
    strict_model_names: bool = False
    strict_fields: bool = False
    limits: ApiLimits = attrs.field(factory=ApiLimits)


@attrs.frozen(eq=False)
class Backend:
    """See the module docstring. ``created_s`` is the ``created`` of the models that are served."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    settings: ApiSettings
    created_s: int = attrs.field(factory=lambda: int(time.time()), init=False)
    ignored_fields: IgnoredFieldsLog = attrs.field(factory=IgnoredFieldsLog, init=False)

    @property
    def limits(self) -> ApiLimits:
        return self.settings.limits


@attrs.frozen
class ServedModel:
    """``id`` is the file's name without its ending; ``aliases`` name the same.

    Neither shows where agents keep it, nor the address it came from, which may hold a secret.
    """

    id: str
    aliases: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        return name == self.id or name in self.aliases


def names_of(model: DesiredModel) -> ServedModel | None:
    """The names of the desired model; None if none is desired."""
    match model:
        case NoModel():
            return None
        case LocalToAgent(path):
            return _names(path)
        case UrlModel(url):
            return _names(urlsplit(url).path)
        case HuggingFaceModel(filename, repo_id, _):
            return _names(filename, f"{repo_id}/{filename}", repo_id)
        case _:
            assert_never(model)


def _names(file: str, *others: str) -> ServedModel:
    name = PurePosixPath(file).name
    own = name.removesuffix(".gguf") or name
    return ServedModel(own, tuple(dict.fromkeys(n for n in (name, *others) if n and n != own)))


def served_model(backend: Backend) -> ServedModel | None:
    """What the fleet serves or is about to."""
    applicable = backend.states.applicable
    return None if applicable is None else names_of(applicable.model)


def cluster_parameters(backend: Backend) -> Mapping[str, object]:
    """What requests leave to the cluster, as wire JSON; empty while nothing is desired."""
    applicable = backend.states.applicable
    if applicable is None:
        return {}
    parameters = unstructure(applicable.inference_parameters)
    assert isinstance(parameters, dict)
    return parameters


def model_name(backend: Backend, asked: str | None) -> str:
    """The name to answer under: the one that was asked for, else the served model's.

    Errors:
      ApiError: 404 if names are taken strictly and this one is not served.
    """
    served = served_model(backend)
    if asked is None:
        return "none" if served is None else served.id
    if backend.settings.strict_model_names and (served is None or not served.is_called(asked)):
        raise no_such_model(asked, served)
    return asked


def no_such_model(name: str, served: ServedModel | None) -> ApiError:
    known = "none" if served is None else ", ".join((served.id, *served.aliases))
    return ApiError(
        404,
        f"the model {name[:200]!r} is not served; served is: {known}",
        param="model",
        code="model_not_found",
        type="invalid_request_error",
    )


def fingerprint(backend: Backend) -> str:
    """Names the model and all its settings: answers under equal ones may be compared."""
    return "b" + backend.states.digest[:12]


def must_generate(backend: Backend) -> None:
    """ApiError 501 if the cluster makes embeddings and only agents of ours could do both."""
    agents = backend.dispatcher.agents.values()
    if not backend.states.generates_tokens and not any(agent.speaks_trio for agent in agents):
        raise ApiError(
            501,
            "token generation is disabled while the cluster is configured for embeddings",
            code="generation_disabled",
        )


def cells_at_most(backend: Backend) -> int | None:
    """No slot of any agent holds more tokens than this; None while no agent reports it."""
    applicable = backend.states.applicable
    if applicable is None:
        return None
    return applicable.inference_parameters.context_size or None  # 0: as the model was trained

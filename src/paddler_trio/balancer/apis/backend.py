"""A backend has what the endpoints of all APIs share: the dispatcher, the desired state, the
settings, and the deployment that answers a request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, TypeVar

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.ignored_fields import IgnoredFieldsLog
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.ollama.pulls import Pulls
from paddler_trio.balancer.fleet.deployment import Deployment
from paddler_trio.balancer.fleet.deployments import Deployments, NoSuchModelError
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.codec import unstructure


@attrs.frozen(kw_only=True)
class ApiSettings:
    """Hold what the operator decided.

    Attributes:
      image_hosts: ``host`` or ``host:port`` from which images may be fetched; none by default.
      strict_model_names: refuse requests for a model that is not served.
      strict_fields: refuse fields that would be ignored.
      normalises_prompts: stamps that change with each request are taken out of conversations.
    """

    image_hosts: frozenset[str] = frozenset()
    strict_model_names: bool = False
    strict_fields: bool = False
    normalises_prompts: bool = True
    limits: ApiLimits = attrs.field(factory=ApiLimits)


@attrs.frozen(eq=False)
class Backend:
    """See the module docstring.

    Args:
      deployments: which there are, by the names that requests may use.
      routed_to: the deployment that answers this request; None before it is routed.
      pulls: fetches models by request; None where nothing does.
      created_s: the ``created`` of the models that are served.
    """

    dispatcher: Dispatcher
    states: FleetKeeper
    settings: ApiSettings
    deployments: Deployments = attrs.field(
        default=attrs.Factory(
            lambda self: Deployments(
                self.dispatcher, self.states, self.settings.strict_model_names
            ),
            takes_self=True,
        )
    )
    routed_to: Deployment | None = None
    pulls: Pulls | None = None
    created_s: int = attrs.field(factory=lambda: int(time.time()))
    ignored_fields: IgnoredFieldsLog = attrs.field(factory=IgnoredFieldsLog)

    @property
    def limits(self) -> ApiLimits:
        return self.settings.limits

    @property
    def deployment(self) -> Deployment:
        """Return the one that answers; ``default`` for a request that is not routed."""
        return self.deployments.default if self.routed_to is None else self.routed_to

    @property
    def agents(self) -> list[AgentConnection]:
        """Return those of the deployment."""
        pool = self.dispatcher.pools.find(self.deployment.name)
        return [] if pool is None else list(pool.agents.values())

    def routed(self, exchange: ApiExchange, asked: str | None) -> Backend:
        """Choose the deployment for a request that names ``asked`` as its model.

        Errors:
          ApiError: 404 if its key has no access to the model, or if names are taken strictly and
            this one is not served.
        """
        deployments, chosen = self.deployments, exchange.preset
        try:
            if chosen is not None:  # it has been set under the body, whatever is desired by now
                return attrs.evolve(self, routed_to=deployments.of_preset(chosen))
            return attrs.evolve(
                self, routed_to=deployments.route(asked, exchange.allowed_deployments)
            )
        except NoSuchModelError as error:
            raise no_such_model(error) from error


def no_such_model(error: NoSuchModelError) -> ApiError:
    return ApiError(
        404,
        str(error),
        param="model",
        code="model_not_found",
        type="invalid_request_error",
    )


def answering(backend: Backend, exchange: ApiExchange) -> Deployment:
    """Return the deployment under the names of the revision that answers this request, as far as
    that is known: of a rollout that is under way there are two."""
    return backend.deployments.answering(backend.deployment, exchange.revision)


def model_name(backend: Backend, exchange: ApiExchange, asked: str | None) -> str:
    """Return the name to answer under: the one that was asked for, unless another model answers."""
    return answering(backend, exchange).name_for(asked)


class Headed(Protocol):
    """A beginning of an answer has the name of the model in it."""

    model: str


H = TypeVar("H", bound=Headed)


def named(heading: H, backend: Backend, exchange: ApiExchange, asked: str | None) -> H:
    """Return ``heading``, in which the name is from now on that of what answers."""

    def name() -> None:
        heading.model = model_name(backend, exchange, asked)

    exchange.on_revision = name
    return heading


def cluster_parameters(backend: Backend) -> Mapping[str, object]:
    """Return what requests leave to the deployment, as wire JSON; empty while nothing is
    desired."""
    state = backend.deployment.state
    if state is None:
        return {}
    parameters = unstructure(state.inference_parameters)
    assert isinstance(parameters, dict)
    preset = backend.deployment.preset
    return parameters if preset is None else parameters | preset.sampling_values


def fingerprint(backend: Backend, exchange: ApiExchange) -> str:
    """Names the model and all its settings: answers under equal ones may be compared."""
    return "b" + answering(backend, exchange).shown_digest[:12]


def must_generate(backend: Backend) -> None:
    """Raise ApiError 501 if the cluster makes embeddings and only agents of ours could do both."""
    if not backend.deployment.generates_tokens and not any(
        agent.kind.generates_beside_embeddings for agent in backend.agents
    ):
        raise ApiError(
            501,
            "token generation is disabled while the cluster is configured for embeddings",
            code="generation_disabled",
        )


def cells_at_most(backend: Backend) -> int | None:
    """Return what no slot of any agent holds more tokens than; None while no agent reports it."""
    state = backend.deployment.state
    if state is None:
        return None
    return state.inference_parameters.context_size or None  # 0: as the model was trained

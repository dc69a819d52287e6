"""Every route of a balancer, read from the routers that answer, none of which is asked anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import attrs
import trio

from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.assembly.joining_assembly import Joining
from paddler_trio.balancer.assembly.port_apps import KeyQuotas, management_routes
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.balancer.front.management_routes import ManagementRoutes
from paddler_trio.balancer.joining.announcement import AdvertisedAddress
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.processes.model_store.source_routes import SourceRoutes
from paddler_trio.processes.model_store.store_routes import store_routes
from paddler_trio.system.settings.balancer_config import BalancerConfig

Route: TypeAlias = tuple[str, str]
"""Method and pattern, as `paddler_trio.net.server.router` writes them."""


@attrs.frozen
class BalancerRoutes:
    """By port and API.

    ``same`` leads from each route of the APIs to the first one that has its handler.
    """

    native: tuple[Route, ...]
    apis: tuple[Route, ...]
    management: tuple[Route, ...]
    store: tuple[Route, ...]
    same: dict[Route, Route]
    refused: frozenset[Route]
    """Answered 501, always."""


def balancer_routes() -> BalancerRoutes:
    """Those of a balancer with the default settings and a model store; no port is opened."""
    return trio.run(_read)


def management_of(config: BalancerConfig, core: BalancerCore, keys: KeyRing) -> ManagementRoutes:
    """The management port of a balancer that asks for no key."""
    joining = Joining.of(config, keys, None, AdvertisedAddress([], False, []))
    accounts = KeyQuotas.of(config, keys, core.activity.finished).accounts
    return management_routes(config, core, keys, accounts, joining)


async def _read() -> BalancerRoutes:
    config = BalancerConfig()
    keys = KeyRing.read(None)
    core = BalancerCore.of(config, {}, keys, RequestActivity())
    deployments = Deployments(core.dispatcher, core.states)
    inference = InferenceRoutes(core.dispatcher, core.states, core.goodbye, deployments)
    api, *_ = api_routers(config, core.dispatcher, core.states, deployments)
    management = management_of(config, core, keys)
    first: dict[object, Route] = {}
    same: dict[Route, Route] = {}
    refused: set[Route] = set()
    for method, pattern, handler in api.routes:
        same[method, pattern] = first.setdefault(handler, (method, pattern))
        if getattr(handler, "__name__", "") == "refuse":
            refused.add((method, pattern))
    return BalancerRoutes(
        native=tuple(inference.routes().routes()),
        apis=tuple(same),
        management=tuple(management.app().routes()),
        store=tuple(_of_the_store()),
        same=same,
        refused=frozenset(refused),
    )


def _of_the_store() -> Iterator[Route]:
    nothing = cast("Any", None)  # no handler is called
    table = store_routes(nothing, nothing, SourceRoutes(nothing, nothing, nothing))
    return ((method, pattern) for method, pattern, _ in table)

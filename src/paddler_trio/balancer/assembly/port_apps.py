"""Put together what each port of a balancer answers: routes behind guards, limits and accounts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import trio

from paddler_trio.balancer.activity.accounts.entrance import Entrance
from paddler_trio.balancer.activity.event_routes import EventRoutes
from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.activity.log_routes import LogRoutes
from paddler_trio.balancer.activity.metrics_routes import MetricsRoutes
from paddler_trio.balancer.activity.request_routes import RequestRoutes
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.agents.held_changes import HeldChanges
from paddler_trio.balancer.agents.paddler_v1_agents import PaddlerV1Agents
from paddler_trio.balancer.apis.api_router import CORS_RULES, ApiRouter
from paddler_trio.balancer.apis.api_routes import ApiRouters, api_routers
from paddler_trio.balancer.apis.limit_headers import api_limit_headers
from paddler_trio.balancer.apis.ollama.ollama_library import changes_models
from paddler_trio.balancer.assembly.balancer_core import BalancerCore, readable_models
from paddler_trio.balancer.assembly.bound_balancer import (
    PANEL,
    REVERSE_PROXY,
    BoundBalancer,
    PortGuards,
    Upstreams,
    panel_info,
    panel_site,
)
from paddler_trio.balancer.assembly.joining_assembly import Joining
from paddler_trio.balancer.capacity.capacity_routes import CapacityRoutes
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.front.cors import Cors
from paddler_trio.balancer.front.hub_routes import HubRoutes
from paddler_trio.balancer.front.inference_routes import PROBES, InferenceRoutes
from paddler_trio.balancer.front.management_routes import ManagementRoutes, may_change
from paddler_trio.balancer.front.model_store_routes import ModelStoreRoutes
from paddler_trio.balancer.front.no_model_store import no_model_store
from paddler_trio.balancer.front.paddler_v1_routes import PaddlerV1Routes
from paddler_trio.balancer.history.history_routes import HistoryRoutes
from paddler_trio.balancer.joining.agent_guard import AgentGuard
from paddler_trio.balancer.keys.audit_log import AuditRoutes
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.balancer.keys.key_accounts import SUFFIX, KeyAccounts, KeyUsageFile
from paddler_trio.balancer.keys.key_limiter import KeyLimiter, KeyTokens
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_routes import KeyRoutes
from paddler_trio.balancer.panel.panel_site import PanelSite, below
from paddler_trio.balancer.reverse_proxy.slot_paths import SLOT_PATHS
from paddler_trio.balancer.reverse_proxy.tunnel_exchange import TunnelRoute, is_tunnel_path
from paddler_trio.balancer.status.status_routes import StatusRoutes
from paddler_trio.models.hub.hub_lookup import LOOKUP_S, HubLookup, ListedFile, RepositoryModels
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    SourceMalformedError,
    SourceNotFoundError,
)
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.router import Router, by_path, http_only
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.processes.model_store.store_messages import PREFIX, is_store_path
from paddler_trio.system.logs.log_ring import RECENT
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.telemetry.exposition import Exposition
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


@attrs.frozen(eq=False)
class KeyQuotas:
    """``observers`` charge what requests used; ``services`` are its tasks, by their names; ``file``
    keeps what was used, if it is kept."""

    accounts: KeyAccounts
    limiter: KeyLimiter
    observers: Sequence[DispatchObserver]
    services: Mapping[str, Run]
    file: KeyUsageFile | None = None

    @classmethod
    def of(cls, config: BalancerConfig, keys: KeyRing, finished: FinishedRequests) -> KeyQuotas:
        """Read what was used today from the file beside the state.

        Args:
          finished: the records of requests that ended.
        """
        accounts = KeyAccounts(keys)
        services: dict[str, Run] = {}
        observers = () if keys.path is None else (KeyTokens(accounts, finished),)
        file, state = None, state_file(config.state_database)
        if state is not None and keys.path is not None:
            file = KeyUsageFile(state.with_name(state.name + SUFFIX), accounts)
            file.load()
            services["key usage"] = file.run
        return cls(accounts, KeyLimiter(accounts), observers, services, file)

    @property
    def problem(self) -> str:
        """Why what keys have used is not kept; empty if it is."""
        return "" if self.file is None else self.file.problem or ""

    def limited(self, api: ApiRouter) -> App:
        """Return the application of the APIs, within limits, with the headers of each API."""
        return self.limiter(api, refuse=api.refuse, fields=api_limit_headers)


Sockets: TypeAlias = Sequence[socket.socket]


@attrs.define(eq=False)
class PortApps:
    """The application of each port, guarded, over the parts of one balancer."""

    bound: BoundBalancer
    core: BalancerCore
    guards: PortGuards
    quotas: KeyQuotas
    joining: Joining
    entrance: Entrance
    changes: HeldChanges
    _deployments: Deployments = attrs.field(init=False)
    _agents: AgentGuard = attrs.field(init=False)
    _native: InferenceRoutes = attrs.field(init=False)
    _apis: ApiRouters = attrs.field(init=False)
    _upstreams: Upstreams = attrs.field(init=False)
    _native_cors: Cors = attrs.field(init=False)
    _api_cors: Cors = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config, core = self.bound.config, self.core
        states = core.states
        self._deployments = Deployments(
            core.dispatcher,
            states,
            config.strict_model_names,
            states.find,
            lambda: states.current.state.deployments,
            config.model_aliases,
            lambda: states.current.state.presets,
            states.spec,
        )
        self._agents = self.joining.guard(config, self.guards.manage, core.problems.refused)
        registry = self.joining.registry
        core.problems.suspicious = lambda: [
            each.name for each in registry.credentials() if each.suspicious is not None
        ]
        self._native = InferenceRoutes(
            core.dispatcher, states, core.goodbye, self._deployments, moved=core.moved
        )
        self._apis = api_routers(config, core.dispatcher, states, self._deployments, core.rollouts)
        self._upstreams = Upstreams.of(config, core, self.guards, self._deployments)
        self._native_cors = Cors(config.inference_cors_allowed_hosts)
        self._api_cors = Cors(config.inference_cors_allowed_hosts, CORS_RULES)

    def by_service(self) -> dict[str, App]:
        """Return the applications by the names of their services, of those that are bound."""
        native, operators = self._native.routes(), self._operators()
        limited = self.quotas.limiter(http_only(self._apis.all.routes_http, native))
        site = self._panel(operators, limited)
        services: dict[str, Callable[[Sockets], App]] = {
            "inference": partial(self._inference, native, limited),
            "management": partial(self._management, operators, site),
            "compat openai": partial(self._alone, self._apis.openai),
            "compat ollama": partial(self._alone, self._apis.ollama),
            REVERSE_PROXY: self._reverse_proxy,
            PANEL: lambda listener: self.guards.hosts(listener, self.guards.operate)(site.at("/")),
        }
        listeners = self.bound.listeners
        return {name: app(listeners[name]) for name, app in services.items() if name in listeners}

    def _inference(self, native: Router, limited: App, listener: Sockets) -> App:
        api, guards, limiter = self._apis.all, self.guards, self.quotas.limiter
        front = self._upstreams.front(self._limited(api), api.refuse, limiter)
        return self.entrance(
            by_path(
                api.serves,
                guards.inference(front, listener, self._api_cors, api.refuse),
                otherwise=guards.inference(limited, listener, self._native_cors),
            ),
            lambda path: api.routes.find(path).pattern or native.pattern_of(path),
        )

    def _alone(self, api: ApiRouter, listener: Sockets) -> App:
        """One API, and the probes."""
        guards = self.guards
        probes, limited = self._native.probes(), self._limited(api)
        return self.entrance(
            by_path(
                PROBES.__contains__,
                guards.inference(probes, listener, self._native_cors, api.refuse),
                otherwise=guards.inference(limited, listener, self._api_cors, api.refuse),
            ),
            lambda path: api.routes.find(path).pattern,
        )

    def _limited(self, api: ApiRouter) -> App:
        """An API within the limits of keys; what changes models is held while another process takes
        over, and recorded."""
        held = self.changes.before(self.quotas.limited(api), changes_models)
        return audited(held, self.core.audit, changes=changes_models)

    def _reverse_proxy(self, listener: Sockets) -> App:
        proxy = self.quotas.limiter(self._upstreams.proxy())
        return self.entrance(
            self.guards.forwarded(proxy, listener), lambda path: path if path in SLOT_PATHS else ""
        )

    def _operators(self) -> App:
        config, core = self.bound.config, self.core
        routes = management_routes(
            config, core, self.bound.keys, self.quotas.accounts, self.joining
        )
        held = self.changes.before(routes.app(), may_change)
        return audited(held, core.audit, changes=may_change)

    def _management(self, operators: App, site: PanelSite, listener: Sockets) -> App:
        config, core, guards = self.bound.config, self.core, self.guards
        store = audited(
            no_model_store
            if core.store is None
            else ModelStoreRoutes(
                core.store, partial(readable_models, core.states, core.dispatcher)
            ),
            core.audit,
            changes=lambda exchange: False,
        )
        app = by_path(is_store_path, store, otherwise=operators)
        app = by_path(is_tunnel_path, TunnelRoute(core.dispatcher), otherwise=app)
        cors = Cors(config.management_cors_allowed_hosts)
        return below(
            "/panel/",
            guards.hosts(listener, guards.operate)(site.at("/panel/")),
            otherwise=guards.management(app, listener, cors, self._agents),
        )

    def _panel(self, operators: App, limited: App) -> PanelSite:
        bound, guards = self.bound, self.guards
        info = panel_info(
            bound.listeners,
            agents_need_key=lambda: self._agents.agents_need_key,
            captures=bound.config.capture_prompts,
            is_encrypted=bound.tls is not None,
        )
        return panel_site(
            info,
            bound.keys,
            management=operators,
            inference=limited,
            apis=self._apis.all,
            limited_apis=self.quotas.limited(self._apis.all),
            use=guards.use,
            operators=guards.operate,
            pages=guards.management_pages,
            audit=self.core.audit,
        )


def management_routes(
    config: BalancerConfig,
    core: BalancerCore,
    keys: KeyRing,
    accounts: KeyAccounts,
    joining: Joining,
) -> ManagementRoutes:
    """Return what operators and agents may ask of this balancer."""
    agents = AgentSocket(
        core.dispatcher,
        core.goodbye,
        silence_s=config.agent_silence_s,
        store_path=None if core.store is None else PREFIX,
    )
    return ManagementRoutes(
        core.dispatcher,
        core.states,
        agents,
        core.goodbye,
        keys,
        core.rollouts,
        attrs.evolve(core.problems.progress, rollouts=core.rollouts.of),
        more=(
            EventRoutes(core.feed, core.moving),
            RequestRoutes(core.activity),
            HubRoutes(AnsweredHubModels()),
            MetricsRoutes(core.metrics),
            HistoryRoutes(core.history),
            CapacityRoutes(
                core.arrivals,
                core.dispatcher,
                config.max_buffered_requests,
                config.buffered_request_timeout_s,
            ),
            Exposition(config.metrics_prefix, core.measures.collect),
            LogRoutes(RECENT),
            joining.exchange,
            joining.tokens,
            joining.pins,
            AuditRoutes(core.audit),
            StatusRoutes(core.problems, core.problems.known),
            KeyRoutes(keys, accounts.used),
            PaddlerV1Routes(PaddlerV1Agents(core.dispatcher), core.goodbye),
        ),
        moving=core.moving,
    )

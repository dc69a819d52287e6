"""A balancer: its ports bound, its parts made and wired together, its tree run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import attrs
import trio

from paddler_trio.apis.surface_routes import openai_surface
from paddler_trio.balancer.agent_socket import AgentSocket
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.balancer.inference_routes import InferenceRoutes
from paddler_trio.balancer.management_routes import ManagementRoutes
from paddler_trio.balancer.state_database import open_state_database, state_file
from paddler_trio.balancer.state_lock import locked
from paddler_trio.config import BalancerConfig
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.http.allowed_hosts import AllowedHosts, allowed_names, own_names
from paddler_trio.http.api_keys import KeyScope
from paddler_trio.http.asgi import App, HttpProblem, Receive, Scope, Send
from paddler_trio.http.authentication import Authentication, Refuse, refuse_in_plain_text
from paddler_trio.http.cors import Cors
from paddler_trio.http.exposure import beyond_loopback, check_exposure
from paddler_trio.http.input_budget import PUBLIC_SHARE, InputBudget
from paddler_trio.http.key_ring import KeyRing
from paddler_trio.http.origins import Origins
from paddler_trio.http.server import HttpLimits, HttpServer, listen
from paddler_trio.nursery_tree.balancer_tree import Addresses, BalancerParts, run_balancer
from paddler_trio.nursery_tree.dispatcher import Dispatcher, DispatchLimits
from paddler_trio.nursery_tree.loop_lag import LoopLag
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits


class Surface(Protocol):
    """Further routes over the same requests; the balancer itself does not know them."""

    def alone(self, probes: App) -> App:
        """On a port of its own, where ``probes`` answers the questions of supervisors."""
        ...

    def beside(self, native: App) -> App:
        """On the inference port, where ``native`` answers what these routes do not."""
        ...

    def across_origins(self, app: App, allowed_origins: Iterable[str], *, otherwise: App) -> App:
        """``app`` with answers to browsers on these routes; ``otherwise`` answers on others."""
        ...

    def serves(self, path: str) -> bool:
        """Whether ``path`` is answered in the format of these routes."""
        ...

    async def refuse(
        self, scope: Scope, receive: Receive, send: Send, problem: HttpProblem
    ) -> None:
        """Answer a request with ``problem``, in that format."""
        ...


MakeSurface: TypeAlias = Callable[[BalancerConfig, Dispatcher, DesiredStateKeeper], Surface]


@attrs.frozen(eq=False)
class BoundBalancer:
    """Ports are bound before anything runs: one in use is an error and nothing has started."""

    config: BalancerConfig
    listeners: list[list[socket.socket]]
    """Of inference, management and, if it is wanted, the surface's own."""
    keys: KeyRing = attrs.field(factory=KeyRing)

    @classmethod
    def bind(cls, config: BalancerConfig) -> BoundBalancer:
        """Raises ConfigurationError, with nothing left open; also for a port that would be open to
        a network without saying so."""
        keys = KeyRing.read(config.api_key_file)
        listeners: list[list[socket.socket]] = []
        addresses = (config.inference_addr, config.management_addr, config.compat_openai_addr)
        try:
            # one by one: what was bound before an error is there to be closed
            listeners.extend(listen(address) for address in addresses if address is not None)
            inference, management, *surface = listeners
            check_exposure(
                keys,
                inference=[*inference, *(each for listener in surface for each in listener)],
                management=management,
                insecure_management=config.insecure_management,
            )
        except BaseException:
            for bound in listeners:
                for each in bound:
                    each.close()
            raise
        return cls(config, listeners, keys)


async def serve_balancer(
    bound: BoundBalancer,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Assemble a balancer and run its tree; see :func:`run_balancer`.

    Raises:
      ConfigurationError, StateDatabaseError: before anything is served.
    """

    sockets = [each for listener in bound.listeners for each in listener]
    names = await own_names() if beyond_loopback(sockets) else frozenset[str]()

    def assemble() -> BalancerParts:
        return balancer_parts(
            bound, openai_surface, host_names=names, reloads=notifier.is_listening
        )

    with locked(state_file(bound.config.state_database)):
        await run_balancer(assemble, stop, notifier=notifier, task_status=task_status)


def balancer_parts(
    bound: BoundBalancer,
    make_surface: MakeSurface,
    *,
    host_names: frozenset[str] = frozenset(),
    reloads: bool = False,
) -> BalancerParts:
    """Call it inside the trio run; ConfigurationError for a bad state database URL, limit or name.

    Args:
      host_names: of this machine, under which ports answer that ask for no key.
      reloads: SIGHUP reloads the keys, also where there are none.
    """
    config, keys = bound.config, bound.keys
    goodbye = trio.Event()
    dispatcher = Dispatcher(
        DispatchLimits(
            max_buffered=config.max_buffered_requests,
            buffered_timeout_s=config.buffered_request_timeout_s,
            item_timeout_s=config.inference_item_timeout_s,
            continuation=ContinuationLimits(max_continuations=config.max_continuations),
            continuation_wait_s=config.continuation_wait_s,
        )
    )
    states = DesiredStateKeeper(open_state_database(config.state_database), dispatcher)
    agents = AgentSocket(dispatcher, states, goodbye, silence_s=config.agent_silence_s)
    inference = InferenceRoutes(dispatcher, states, goodbye)
    budget, lag = InputBudget(config.input_memory_bytes), LoopLag()
    management = ManagementRoutes(
        dispatcher, states, agents, goodbye, budget, lag, keys, config.metrics_prefix
    )
    surface = make_surface(config, dispatcher, states)
    use = Authentication(keys, KeyScope.INFERENCE)
    manage = Authentication(keys, KeyScope.MANAGEMENT, is_waived=config.insecure_management)
    origins = config.inference_cors_allowed_hosts
    changes = Origins(origins, flag="--inference-cors-allowed-host")
    names = allowed_names(config.allowed_hosts) | host_names

    def guarded(
        app: App,
        listener: Sequence[socket.socket],
        changes: Origins,
        keys: Authentication,
        refuse: Refuse = refuse_in_plain_text,
    ) -> App:
        """``app`` as its port serves it: under which names, to which pages, for which keys."""
        hosts = AllowedHosts(
            names, is_loopback=not beyond_loopback(listener), asks_for_key=lambda: keys.asks_for_key
        )
        return hosts(changes(keys(app, refuse=refuse), refuse=refuse), refuse=refuse)

    inference_sockets, management_sockets, *surface_sockets = bound.listeners
    pages = Cors(origins)
    clients = guarded(
        surface.beside(inference.routes()), inference_sockets, changes, use, _refusing_for(surface)
    )
    operators = guarded(
        management.app(),
        management_sockets,
        Origins(config.management_cors_allowed_hosts, flag="--management-cors-allowed-host"),
        manage,
    )
    apps = {
        "inference": surface.across_origins(clients, origins, otherwise=pages(clients)),
        "management": Cors(config.management_cors_allowed_hosts)(operators),
    }
    for listener in surface_sockets:
        alone = guarded(surface.alone(inference.probes()), listener, changes, use, surface.refuse)
        apps["compat openai"] = surface.across_origins(alone, origins, otherwise=pages(alone))
    limits = HttpLimits(max_connections=config.max_connections)
    servers = [
        HttpServer(
            app,
            name=name,
            limits=limits,
            budget=budget,
            share=1.0 if name == "management" else PUBLIC_SHARE,
        )
        for name, app in apps.items()
    ]
    return BalancerParts(
        dispatcher,
        load_state=states.load,
        ports=list(zip(servers, bound.listeners, strict=True)),
        goodbye=goodbye,
        drain_timeout_s=config.drain_timeout_s,
        measure_lag=lag.run,
        reload=keys.reload if keys.path is not None or reloads else None,
    )


def _refusing_for(surface: Surface) -> Refuse:
    """Refusals on the port where the surface and the native routes both answer."""

    async def refuse(scope: Scope, receive: Receive, send: Send, problem: HttpProblem) -> None:
        answer = surface.refuse if surface.serves(scope["path"]) else refuse_in_plain_text
        await answer(scope, receive, send, problem)

    return refuse

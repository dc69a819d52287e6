"""The panel's site put together: its own routes, and the applications that it stands for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.origins import Origins
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.panel.info_routes import InfoRoutes
from paddler_trio.balancer.panel.panel_access import PanelAccess
from paddler_trio.balancer.panel.panel_assets import PanelAssets
from paddler_trio.balancer.panel.panel_site import PanelSite
from paddler_trio.balancer.panel.session_routes import SessionRoutes
from paddler_trio.net.server.exchange import App, AuditTrail
from paddler_trio.net.server.listening import bound_address
from paddler_trio.net.server.router import Router, by_path

PANEL: Final = "web admin panel"
"""The service of ``--web-admin-panel-addr``; the same site is below ``/panel/`` of management."""


def panel_info(
    listeners: Mapping[str, Sequence[socket.socket]],
    *,
    agents_need_key: Callable[[], bool],
    captures: bool,
    is_encrypted: bool,
) -> InfoRoutes:
    """Return what pages have to know; `listeners` of all services are by their names."""
    named = {
        "inference": "inference",
        "management": "management",
        "openai": "compat openai",
        "ollama": "compat ollama",
        "panel": PANEL,
    }
    return InfoRoutes(
        addresses={
            called: [bound_address(each) for each in listeners.get(name, ())]
            for called, name in named.items()
        },
        agents_need_key=agents_need_key,
        captures=captures,
        is_encrypted=is_encrypted,
    )


def panel_site(
    info_routes: InfoRoutes,
    keys: KeyRing,
    *,
    management: App,
    inference: App,
    apis: ApiRouter,
    limited_apis: App,
    use: Authentication,
    operators: Authentication,
    pages: Origins,
    audit: AuditTrail,
) -> PanelSite:
    """Return the panel, over the applications of the ports that it stands for.

    Args:
      keys: what people sign in with.
      limited_apis: ``apis`` within the limits of keys, as ``inference`` is.
      use, operators: keys that requests may bring instead of a session.
      pages: of which origins may change anything.
      audit: who signed in and out.
    """
    access = PanelAccess(keys)
    own = Router()
    SessionRoutes(access, operators).add_to(own)
    info = Router()
    info_routes.add_to(info)
    return PanelSite(
        PanelAssets.read(),
        own=by_path(
            "/info".__eq__,
            access(info, otherwise=operators),
            otherwise=pages(audited(own, audit, changes=lambda exchange: False)),
        ),
        management=pages(access(management, otherwise=operators)),
        inference=by_path(
            apis.serves,
            pages(access(limited_apis, otherwise=use, refuse=apis.refuse), refuse=apis.refuse),
            otherwise=pages(access(inference, otherwise=use)),
        ),
    )

"""The panel's site put together: its own routes, and the applications that it stands for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.origins import Origins
from paddler_trio.balancer.keys.audit_trail import AuditTrail, audited
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.panel.info_routes import InfoRoutes
from paddler_trio.balancer.panel.panel_access import PanelAccess
from paddler_trio.balancer.panel.panel_assets import PanelAssets
from paddler_trio.balancer.panel.panel_site import PanelSite
from paddler_trio.balancer.panel.session_routes import SessionRoutes
from paddler_trio.net.server.asgi import App
from paddler_trio.net.server.listening import bound_address
from paddler_trio.net.server.router import Router, by_path

PANEL: Final = "web admin panel"
"""The service of ``--web-admin-panel-addr``; the same site is below ``/panel/`` of management."""


def panel_site(
    listeners: Mapping[str, Sequence[socket.socket]],
    keys: KeyRing,
    *,
    management: App,
    inference: App,
    apis: ApiRouter,
    limited_apis: App,
    use: Authentication,
    operators: Authentication,
    agents_need_key: Callable[[], bool],
    pages: Origins,
    captures: bool = False,
    is_encrypted: bool = False,
    audit: AuditTrail,
) -> PanelSite:
    """The panel, over the applications of the ports that it stands for.

    Args:
      listeners: of all services, by their names.
      keys: what people sign in with.
      limited_apis: ``apis`` within the limits of keys, as ``inference`` is.
      use, operators: keys that requests may bring instead of a session.
      agents_need_key: whether the management port asks those that dial in for anything.
      pages: of which origins may change anything.
      captures: the beginnings of prompts and answers are kept.
      is_encrypted: the ports have TLS.
      audit: who signed in and out.
    """
    access = PanelAccess(keys)
    own = Router()
    SessionRoutes(access, operators).add_to(own)
    info = Router()
    InfoRoutes(
        addresses={
            called: [bound_address(each) for each in listeners.get(name, ())]
            for called, name in (
                ("inference", "inference"),
                ("management", "management"),
                ("openai", "compat openai"),
                ("panel", PANEL),
            )
        },
        agents_need_key=agents_need_key,
        captures=captures,
        is_encrypted=is_encrypted,
    ).add_to(info)
    return PanelSite(
        PanelAssets.read(),
        own=by_path(
            "/info".__eq__,
            access(info, otherwise=operators),
            otherwise=pages(audited(own, audit, changes=lambda scope: False)),
        ),
        management=pages(access(management, otherwise=operators)),
        inference=by_path(
            apis.serves,
            pages(access(limited_apis, otherwise=use, refuse=apis.refuse), refuse=apis.refuse),
            otherwise=pages(access(inference, otherwise=use)),
        ),
    )

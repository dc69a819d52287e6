"""Warn of ports that are open without a key: checked once, when they are bound and the keys are
read."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import structlog

from paddler_trio.balancer.keys.api_keys import KeyScope
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.listening import beyond_loopback

log = structlog.get_logger("balancer")


def check_exposure(
    keys: KeyRing,
    *,
    inference: Sequence[socket.socket],
    management: Sequence[socket.socket],
    panel: Sequence[socket.socket] = (),
    insecure_management: bool,
) -> None:
    """Warn about open inference; ConfigurationError for open management without its flag, on the
    management port or through the panel's.

    Open means: reachable beyond the loopback, and no key is required. A client of open management
    can make agents load any model from anywhere, and can read every conversation by posing as an
    agent.
    """
    exposed = beyond_loopback(management)
    if exposed and insecure_management:
        log.warning(
            "MANAGEMENT IS OPEN: every client that reaches it may change the model and pose as "
            "an agent",
            addresses=exposed,
        )
    elif exposed and KeyScope.MANAGEMENT not in keys.guarded:
        raise ConfigurationError(
            f"management on {', '.join(exposed)} would be open to everybody who reaches it: give "
            "--api-key-file with a key of the scope management (`paddler-trio key new`), bind it "
            "to 127.0.0.1, or say --insecure-management if it is meant; agents of Paddler 4.1 are "
            "let in by --legacy-agents"
        )
    _check_panel(keys, beyond_loopback(panel), insecure_management=insecure_management)
    exposed = beyond_loopback(inference)
    if exposed and KeyScope.INFERENCE not in keys.guarded:
        log.warning(
            "INFERENCE IS OPEN: every client that reaches it may use the models; give "
            "--api-key-file with a key of the scope inference (`paddler-trio key new`)",
            addresses=exposed,
        )


def _check_panel(keys: KeyRing, exposed: Sequence[str], *, insecure_management: bool) -> None:
    """The panel asks for a login as soon as there is a management key, whatever the flag says."""
    if not exposed or KeyScope.MANAGEMENT in keys.guarded:
        return
    if insecure_management:
        log.warning(
            "THE PANEL IS OPEN: every browser that reaches it may change the model and read what "
            "the panel shows",
            addresses=exposed,
        )
        return
    raise ConfigurationError(
        f"the panel on {', '.join(exposed)} would be open to everybody who reaches it: give "
        "--api-key-file with a key of the scope management (`paddler-trio key new`), which people "
        "then sign in with, bind it to 127.0.0.1, or say --insecure-management if it is meant"
    )

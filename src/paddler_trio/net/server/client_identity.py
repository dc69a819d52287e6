"""The client and the priority of a request, from headers: no body has fields for them."""

from __future__ import annotations

from paddler_trio.net.server.asgi import HttpProblem, Scope, header
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
from paddler_trio.wire.visible_text import visible

CLIENT_HEADER = b"x-paddler-client"
PRIORITY_HEADER = b"x-paddler-priority"
MAX_CLIENT_CHARS = 128
KEY_NAME = "paddler_trio.key_name"
"""The member of a scope that has the name of the request's API key, if it came with one."""

LIMITED_KEY = "paddler_trio.limited_key"
"""The member that has the name of the key whose limits the request falls under: that of a session
too, whose requests have another client's name."""

KEY_DEPLOYMENTS = "paddler_trio.key_deployments"
"""The member that has the deployments which this key is limited to, if it is."""


def client_of(scope: Scope) -> tuple[str, Priority]:
    """The client to which the queue is fair, and the priority; HttpProblem 400 for a bad header.

    With an API key the client is the key's name, so several names do not get several turns. Without
    one it is the text of ``X-Paddler-Client``; requests without both share one anonymous client.
    ``X-Paddler-Priority`` is high, normal (the default) or low.
    """
    size_bytes = len(header(scope, CLIENT_HEADER) or b"")
    if size_bytes > MAX_CLIENT_CHARS:
        raise HttpProblem(
            400, f"X-Paddler-Client has {size_bytes} characters, the limit is {MAX_CLIENT_CHARS}"
        )
    client = named_client(scope)
    name = (header(scope, PRIORITY_HEADER) or b"normal").decode("latin-1").strip().upper()
    if name not in Priority.__members__:
        raise HttpProblem(
            400, f"X-Paddler-Priority is {name.lower()!r}, must be high, normal or low"
        )
    return client, Priority[name]


def named_client(scope: Scope) -> str:
    """Return the name of the API key, else the text of ``X-Paddler-Client``, in which what cannot
    be seen is escaped; empty without both."""
    name = (header(scope, CLIENT_HEADER) or b"")[:MAX_CLIENT_CHARS].decode("latin-1")
    return str(scope.get(KEY_NAME, "")) or visible(name)


def account_of(scope: Scope) -> str:
    """The name of the key that the tokens of the request are charged to; empty without one."""
    return str(scope.get(LIMITED_KEY, ""))


def allowed_deployments(scope: Scope) -> frozenset[str] | None:
    """The only deployments that the key of the request may use; None for all."""
    allowed = scope.get(KEY_DEPLOYMENTS)
    return allowed if isinstance(allowed, frozenset) else None


def default_problem(scope: Scope) -> str | None:
    """Why the key of the request may not use Paddler's routes, which lead to the deployment
    ``default``; None if it may."""
    allowed = allowed_deployments(scope)
    if allowed is None or DEFAULT_DEPLOYMENT in allowed:
        return None
    names = " and ".join(sorted(allowed))
    return (
        f"the API key {scope.get(KEY_NAME)!r} is for the deployments {names}, and this is answered "
        f"by {DEFAULT_DEPLOYMENT}"
    )

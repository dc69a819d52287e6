"""Connections that another process answers: the listener parses and authorises, then lets go.

On the paths of ``HttpServer(passes=...)`` the reader stops behind the head of a request: nothing of
a body is parsed or waited for until the application has answered, or has passed the connection on
with what was read and not parsed. Either way the connection ends here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from paddler_trio.net.server.asgi import Scope

PASSING: Final = "paddler_trio.passing"
"""The ASGI extension in which :func:`passable` finds its connection."""


@attrs.frozen(eq=False)
class PassableConnection:
    """The connection of one request whose response has not begun.

    Args:
      fileno: of its socket, -1 once it is closed.
      unread: the bytes that arrived behind the head of the request.
      release: forget the socket without ending the connection; call it when another process holds
        a copy of the descriptor.
    """

    fileno: Callable[[], int]
    unread: Callable[[], bytes]
    release: Callable[[], None]


def passable(scope: Scope) -> PassableConnection | None:
    """The connection of this request; None where it cannot be passed on."""
    connection: PassableConnection | None = scope.get("extensions", {}).get(PASSING)
    return connection

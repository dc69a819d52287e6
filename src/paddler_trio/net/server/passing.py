"""Connections that another process answers: the listener parses and authorises, then lets go.

On the paths of ``HttpServer(passes=...)`` the reader stops behind the head of a request: nothing of
a body is parsed or waited for until the application has answered, or has passed the connection on
with what was read and not parsed. Either way the connection ends here.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


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

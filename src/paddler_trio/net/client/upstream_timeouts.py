"""The time for which this client waits for an upstream server."""

from __future__ import annotations

from typing import Final

import attrs

CONNECT_S: Final = 3.0


@attrs.frozen(kw_only=True)
class UpstreamTimeouts:
    """Seconds, each over zero; ``math.inf`` waits for ever.

    Args:
      connect_s: until there is a connection, name resolution and TLS included.
      first_byte_s: from the end of the request to the end of the answer's head.
      idle_s: between two reads of the body, and until a piece of the request's body is taken.
      kept_s: how long a connection stays open without a request. llama-server closes after five.
    """

    connect_s: float = CONNECT_S
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    kept_s: float = 3.0
